"""The study as people and programs see it: terminal, Markdown, page, plots, JSON."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from allranks.observe.scaling.analysis import analyse
from allranks.observe.scaling.scaling_study import QUEUED, Point, Study
from allranks.observe.scaling.study_display import TextDisplay
from allranks.observe.scaling.study_results import render_markdown, write_results
from allranks.observe.scaling.study_table import (
    format_significant,
    format_wall_time,
    terminal_table,
)
from scaling_rig import add_failure, add_point, make_study

PHASES = {"forward": 0.3, "backward": 0.4, "communication": 0.25, "optimizer": 0.05}
NASTY = "rank 0: <script>alert(1)</script> | \x1b[31mred"


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Three sizes, twice each, and one that failed."""
    made = make_study(tmp_path, "big")
    for repeat in (1, 2):
        add_point(
            made, 1, rate=1000 + repeat, gpus=4, ranks=4, repeat=repeat, phases={"forward": 1}
        )
        for size in (2, 4):
            rate = 800.0 * size + repeat
            add_point(made, size, rate=rate, gpus=4, ranks=4, repeat=repeat, phases=PHASES)
    add_failure(made, 8, NASTY)
    return made


def test_the_terminal_has_80_columns_and_no_control_characters(study: Study) -> None:
    study.points[-1].why *= 5
    text = terminal_table(study, analyse(study))
    assert max(map(len, text.splitlines())) <= 80
    assert "big: strong scaling over nodes, global batch 64, 100 steps, 2 times each" in text
    assert re.search(r"^ +4 .* 0\.80 .*communication 25 %$", text, re.MULTILINE)
    assert re.search(r"^ +8  failed: rank 0", text, re.MULTILINE)
    assert "\x1b" not in text


def test_the_files_of_the_results(study: Study) -> None:
    write_results(study, analyse(study))
    result = json.loads((study.path / "result.json").read_text())
    assert [point["size"] for point in result["points"]] == [1, 2, 4, 8]
    assert result["points"][2]["efficiency"] == pytest.approx(0.8, abs=0.01)
    assert result["points"][3]["state"] == "failed"
    assert result["efficient_up_to"] == 4
    assert not result["complete"]
    assert ET.fromstring((study.path / "speedup.svg").read_text()).tag.endswith("svg")


def test_markdown_is_a_table_whatever_a_reason_holds(study: Study) -> None:
    write_results(study, analyse(study))
    lines = (study.path / "scaling.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("|")]
    bars = {len(re.findall(r"(?<!\\)\|", row)) for row in rows}
    assert len(rows) == 6
    assert len(bars) == 1
    assert "<script>" not in "".join(lines)


def test_names_and_commands_are_no_markdown(tmp_path: Path) -> None:
    made = make_study(tmp_path, "a_b_c", command="allranks scale --metric '`(.)`' a.py [x](y)")
    add_failure(made, 1, "no [link](x) `code` *here*")
    write_results(made, analyse(made))
    text = (made.path / "scaling.md").read_text()
    assert r"## a\_b\_c: scaling" in text
    assert r"no \[link\](x) \`code\` \*here\*" in text
    assert "Measured with ``allranks scale --metric '`(.)`' a.py [x](y)``." in text


def test_the_page_stands_alone_and_holds_no_foreign_tags(study: Study) -> None:
    study.command = "allranks scale '<img src=x>'"
    write_results(study, analyse(study))
    page = (study.path / "scaling.html").read_text()
    tags = _Tags()
    tags.feed(page)
    assert not tags.seen & {"script", "img", "link", "iframe"}
    assert page.count("<svg") == 4
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "\x1b" not in page


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)


def test_error_bars_are_drawn_for_repetitions(study: Study) -> None:
    write_results(study, analyse(study))
    assert 'stroke-width="1.5"' in (study.path / "speedup.svg").read_text()


def test_a_study_without_results_is_shown_too(tmp_path: Path) -> None:
    made = make_study(tmp_path)
    made.points = [Point(1, state=QUEUED, why="it is next"), Point(2)]
    found = analyse(made)
    write_results(made, found)
    text = terminal_table(made, found)
    assert "queued: it is next" in text
    assert "waiting" in text


def test_changes_are_told_once_where_there_is_no_terminal(tmp_path: Path) -> None:
    made = make_study(tmp_path)
    made.points = [Point(1, state=QUEUED, why="it is next")]
    out = io.StringIO()
    view = TextDisplay(out)
    view.refresh(made)
    view.refresh(made)
    made.points[0].state = "running"
    made.points[0].why = ""
    view.refresh(made)
    assert out.getvalue() == "  1 node: queued: it is next\n  1 node: running\n"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("columns", "rows"), [(80, 50), (40, 50), (40, 8), (12, 5)])
def test_on_a_terminal_the_table_is_drawn_over_itself(
    columns: int, rows: int, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(rows))
    out = _Terminal()
    view = TextDisplay(out)
    view.refresh(study)
    first = out.getvalue()
    assert max(map(len, first.splitlines())) <= columns  # none wraps
    assert first.count("\n") < rows  # and none has left the screen
    view.refresh(study)
    view.close()
    height = first.count("\n")
    assert out.getvalue() == first + f"\x1b[{height}A\x1b[J" + first + f"\x1b[{height}A\x1b[J"


def test_a_terminal_that_became_narrower_is_wiped_whole(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES", "90")
    monkeypatch.setenv("COLUMNS", "80")
    out = _Terminal()
    view = TextDisplay(out)
    view.refresh(study)
    lines = out.getvalue().splitlines()
    monkeypatch.setenv("COLUMNS", "40")
    view.close()
    shown = sum(max(1, -(-len(line) // 40)) for line in lines)
    assert out.getvalue().endswith(f"\x1b[{shown}A\x1b[J")


def test_looking_again_reads_nothing_of_points_that_are_done(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = TextDisplay(_Terminal())
    view.refresh(study)
    monkeypatch.setattr("allranks.observe.scaling.analysis.measure_run", None)
    view.refresh(study)


def test_whole_runs_have_times_as_people_say_them() -> None:
    assert [format_wall_time(each) for each in (1.42, 45.25, 750, 7500)] == [
        "1.42 s", "45.2 s", "12 min", "2 h 05 min",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.01234, "0.0123"),
        (0.2, "0.200"),
        (99.96, "100"),
        (12.34, "12.3"),
        (1234.5, "1,234"),
        (1e-6, "1.0e-06"),
        (None, ""),
    ],
)
def test_numbers_have_the_digits_that_matter(value: float | None, text: str) -> None:
    assert format_significant(value) == text


def test_a_command_in_a_sentence_is_code_and_nothing_else_is_markdown(tmp_path: Path) -> None:
    made = make_study(tmp_path, "a~b&lt;")
    add_point(made, 1, rate=1000, batch=100, phases={"forward": 1.0, "communication": 0.0})
    phases = {"forward": 0.6, "communication": 0.4}
    add_point(made, 4, rate=3000, batch=400, phases=phases, waits=0.3)
    found = analyse(made)
    assert any("`allranks top`" in text for text in found.conclusions)
    text = render_markdown(made, found, picture=False)
    assert "`allranks top`" in text
    assert r"\`" not in text
    assert text.startswith(r"## a\~b\&lt;: ")
