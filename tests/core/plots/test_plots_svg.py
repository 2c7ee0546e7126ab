"""The pictures: valid XML whatever they are given, and the same to the last letter."""

from __future__ import annotations

import base64
import math
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from allranks.core.plots import LineSeries, bar_plot, heat_plot, line_plot
from allranks.core.plots.png import png

GOLDEN = Path(__file__).parent / "golden"
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert('x')</script> & \"quoted\" \x00\x1b[31m\ud800"


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text.encode())


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]


def small() -> str:
    lines = [
        LineSeries("train loss", [10, 20, 30, 40], [2.0, None, 1.0, 0.5]),
        LineSeries("val loss", [20, 40], [1.5, 0.75], dashed=True, points=True),
    ]
    return line_plot(lines, x="step", y="mean over samples", title="Loss", width=400, height=240)


def test_a_small_plot_is_as_it_was() -> None:
    assert small() == (GOLDEN / "small.svg").read_text(encoding="utf-8")


def test_gaps_cut_a_line_and_a_lone_value_is_a_point() -> None:
    root = parsed(small())
    assert len(root.findall(f".//{SVG}polyline")) == 2
    assert len(root.findall(f".//{SVG}circle")) == 3  # the two of "val loss", and 2.0


@pytest.mark.parametrize(
    "draw",
    [
        lambda: line_plot(
            [LineSeries(HOSTILE, [1, 2], [1, 2], colour='"red')] * 2, x=HOSTILE, y=HOSTILE, title=HOSTILE
        ),
        lambda: bar_plot([HOSTILE], {HOSTILE: [1], "b": [2]}, x=HOSTILE, y=HOSTILE, title=HOSTILE),
        lambda: heat_plot([HOSTILE], [0.0], [[1.0]], low=0, high=1, unit=HOSTILE, title=HOSTILE),
    ],
)  # fmt: skip
def test_no_text_breaks_out(draw: Callable[[], str]) -> None:
    text = draw()
    root = parsed(text)
    assert not root.findall(f".//{SVG}script")
    assert "\x1b" not in text
    assert "<script>" in "".join(root.itertext())


@pytest.mark.parametrize(
    "draw",
    [
        lambda: line_plot([], x="step"),
        lambda: line_plot([LineSeries("a", [], [])], x="step", log_x=True, log_y=True),
        lambda: line_plot([LineSeries("a", [1, 2], [math.nan, None])], x="step", time_x=True),
        lambda: line_plot([LineSeries("a", [1, 2], [0, -1])], x="step", log_y=True),
        lambda: bar_plot([], {}, title="none"),
        lambda: bar_plot(["a"], {"x": [math.nan], "y": [-1]}),
        lambda: heat_plot([], [], [], low=0, high=1),
    ],
)
def test_nothing_to_draw_says_so(draw: Callable[[], str]) -> None:
    assert "no data yet" in texts(parsed(draw()))


@pytest.mark.parametrize("options", [{}, {"log_x": True, "log_y": True}, {"time_x": True}])
def test_one_point(options: dict[str, bool]) -> None:
    root = parsed(line_plot([LineSeries("a", [5], [3])], x="step", **options))  # type: ignore[arg-type]
    (circle,) = root.findall(f".//{SVG}circle")
    assert 0 < float(circle.get("cx", "0")) < 720
    assert 0 < float(circle.get("cy", "0")) < 320


def test_all_lines_stay_inside() -> None:
    lines = [LineSeries(f"a rather long name {n}", [0, 1e6], [-1e9 * n, 1e-9]) for n in range(12)]
    root = parsed(line_plot(lines, x="step", title="T"))
    for each in root.iter(f"{SVG}polyline"):
        for pair in each.get("points", "").split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= 720
            assert 0 <= y <= 320


def test_equal_values_are_a_line_in_the_plot() -> None:
    root = parsed(line_plot([LineSeries("lr", [1, 2, 3], [0.0, 0.0, 0.0])], x="step"))
    assert len(root.findall(f".//{SVG}polyline")) == 1


def test_bars_are_stacked_and_summed() -> None:
    root = parsed(bar_plot(["1", "2"], {"data": [1, 2], "compute": [3, None]}, y="s"))
    bars = [each for each in root.iter(f"{SVG}rect") if each.get("class", "").startswith("f")]
    assert len(bars) == 3
    assert {"4", "2"} <= set(texts(root))


def test_names_of_many_bars_do_not_touch() -> None:
    root = parsed(bar_plot([f"step {n}00" for n in range(60)], {"data": [1] * 60}))
    assert 5 < sum(text.startswith("step") for text in texts(root)) < 20


def test_a_heat_map_of_many_ranks_is_small() -> None:
    values = [[(row * 7 + column) % 10 / 10 for column in range(240)] for row in range(256)]
    text = heat_plot([f"rank {n}" for n in range(256)], range(240), values, low=0, high=1)
    assert len(text) < 60_000
    assert sum(each.startswith("rank") for each in texts(parsed(text))) < 40


def test_the_cells_of_a_heat_map() -> None:
    data = png([[0.0, 1.0, None], [0.5, math.nan]], 0, 1)
    assert struct.unpack(">II", data[16:24]) == (3, 2)
    start = data.index(b"IDAT") + 4
    size = struct.unpack(">I", data[start - 8 : start - 4])[0]
    raw = zlib.decompress(data[start : start + size])
    assert list(raw) == [0, 0, 95, 96, 0, 48, 96, 96]  # a filter byte, then the row


def test_the_picture_of_the_cells_is_inside_of_the_svg() -> None:
    root = parsed(heat_plot(["a"], [0, 60], [[0, 1]], low=0, high=1))
    for image in root.iter(f"{SVG}image"):
        head, _, body = image.get("href", "").partition(",")
        assert head == "data:image/png;base64"
        assert base64.b64decode(body).startswith(b"\x89PNG")


def test_a_stretch_is_coloured_and_reaches_past_the_line() -> None:
    lines = [LineSeries("loss", [10, 100], [2.0, 1.0])]
    root = parsed(line_plot(lines, x="step", title="Loss", stretch=(110, 600, "not finite")))
    assert {"not finite", "600"} <= set(texts(root))
    (ground,) = [each for each in root.iter(f"{SVG}rect") if each.get("class") == "f2"]
    (line,) = root.iter(f"{SVG}polyline")
    last = float(line.get("points", "").split()[-1].split(",")[0])
    left, width = float(ground.get("x", "0")), float(ground.get("width", "0"))
    assert last < left < left + width <= 720 - 18 + 1


def test_a_plot_of_a_report_has_enough_lines_across() -> None:
    root = parsed(line_plot([LineSeries("a", [0, 9], [0, 130])], x="step", width=520, height=270))
    assert {"0", "50", "100", "150"} <= set(texts(root))


def test_a_heat_map_tells_times_as_people_do_and_where_attempts_begin() -> None:
    how = {"low": 0.0, "high": 0.04007, "unit": "s", "breaks": [2]}
    text = heat_plot(["a"], [0, 60, 500, 560], [[0, 1, 1, 0]], **how)
    assert "40.1 ms" in texts(parsed(text))
    # Inside of a page the ground is transparent: a line in its colour would not be seen.
    assert re.search(r'<g class="k" stroke="#1F2937"', text)
    assert ".plot .k{stroke:var(--plot-text," in text


def test_the_wait_between_attempts_is_no_length_of_a_column() -> None:
    """The first attempt is short and has one column; ten hours later the second has six of an hour."""
    times = [1000.0 + each for each in (60, *range(40_000, 58_001, 3600))]
    how = {"low": 0.0, "high": 1.0, "begin": 1000.0, "breaks": [1]}
    shown = texts(parsed(heat_plot(["a"], times, [[1.0] * len(times)], **how)))
    assert "12 h" in shown
    assert "1 d" not in shown
    assert not {"20 h", "22 h", "24 h"} & set(shown)
