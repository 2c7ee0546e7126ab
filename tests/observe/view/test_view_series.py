"""Thinned curves show what the whole ones do; phases and stragglers are what the files say."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.observe.view.metric_columns import Curve, smooth, thin
from allranks.observe.view.model import PHASES
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.step_phases import mean_phases, phases_over_time
from allranks.observe.view.stragglers import (
    behind_shares,
    find_stragglers,
    late_ranks,
    median_behind,
    own_work,
)
from allranks.runs import Run
from view_rig import make_run


def test_a_short_curve_stays_as_it_is() -> None:
    assert thin([1, 2, 3], [5.0, None, 4.0]) == ([1.0, 3.0], [5.0, 4.0])
    assert thin([], []) == ([], [])
    assert thin([1, 2], [math.nan, math.inf]) == ([], [])


def test_peaks_and_dips_stay() -> None:
    ys = [1.0] * 100_000
    ys[31_415], ys[27_182] = 9.0, -9.0
    xs, thinned = thin(range(100_000), ys, 600)
    assert len(xs) <= 600
    assert (xs[0], xs[-1]) == (0, 99_999)
    assert dict(zip(xs, thinned, strict=True))[31_415] == 9.0
    assert dict(zip(xs, thinned, strict=True))[27_182] == -9.0


@settings(max_examples=40)
@given(
    st.lists(st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)), max_size=300),
    st.integers(4, 60),
)
def test_any_curve(ys: list[float | None], most: int) -> None:
    xs, thinned = thin(range(len(ys)), ys, most)
    known = [(x, y) for x, y in enumerate(ys) if y is not None]
    assert len(xs) <= most
    assert sorted(xs) == xs
    assert set(zip(xs, thinned, strict=True)) <= set(known)
    if known:
        assert (xs[0], xs[-1]) == (known[0][0], known[-1][0])
        assert (min(thinned), max(thinned)) == (min(y for _, y in known), max(y for _, y in known))


def test_smoothing() -> None:
    assert smooth([3.0, 5.0], 0.0) == [3.0, 5.0]
    assert smooth([2.0] * 5, 0.9) == pytest.approx([2.0] * 5)
    assert smooth([0.0, 1.0], 0.5) == pytest.approx([0.0, 2 / 3])
    assert math.isnan(smooth([1.0, math.nan, 1.0], 0.5)[1])


def _source(run_path: Path, lines: list[dict[str, object]]) -> RunSource:
    from allranks.runs import Run

    (run_path / "run.json").write_text("{}")
    rows = [{"kind": "train", "time": 1.0, **line} for line in lines]
    (run_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = RunSource(Run(run_path))
    source.refresh()
    return source


def test_phases_are_means_over_steps(tmp_path: Path) -> None:
    lines = [
        {"step": 30, "data_seconds": 0.1, "other_seconds": 0.2},
        {"step": 40, "data_seconds": 0.5, "other_seconds": 0.2},
        {"step": 50},
    ]
    source = _source(tmp_path, lines)
    found = mean_phases(source)
    assert found == pytest.approx({"data": 0.2, "other": 0.2})  # 30 steps count more than 10
    assert list(found) == [name for name in PHASES if name in found]
    assert mean_phases(source, 1) == pytest.approx(
        {"data": 0.5, "other": 0.2}
    )  # the last that tells


def test_phases_over_time(tmp_path: Path) -> None:
    source = RunSource(make_run(tmp_path, windows=500))
    source.refresh()
    steps, found = phases_over_time(source, 200)
    assert len(steps) == 200
    assert steps[-1] == 5000
    assert {len(values) for values in found.values()} == {200}
    assert list(found) == list(PHASES)
    assert sum(found["data"]) / 200 == pytest.approx(mean_phases(source)["data"], rel=0.05)


def test_phases_of_a_run_that_has_none(tmp_path: Path) -> None:
    source = _source(tmp_path, [{"step": 10, "train_loss": 1.0}])
    assert mean_phases(source) == {}
    assert phases_over_time(source) == ([], {})


def _window(*compute: float | None, data: float = 0.0) -> dict[str, object]:
    return {"compute_seconds": list(compute), "data_seconds": [data] * len(compute)}


def test_how_far_behind() -> None:
    assert behind_shares(_window(1.0, 1.0, 1.5)) == pytest.approx([-0.2, -0.2, 0.5])
    assert behind_shares(_window(1.0, 2.0, data=1.0)) == pytest.approx([-1 / 3, 0.5])
    assert behind_shares(_window(1.0, 2.0, 3.0, 4.0)) == pytest.approx([-2 / 3, -1 / 3, 0.5, 1.0])
    assert behind_shares(_window(1.0, None, 1.0)) == [0.0, None, 0.0]
    assert behind_shares(_window(1.0)) == [None]
    assert behind_shares({"compute_seconds": [None, None]}) == [None, None]
    assert behind_shares({}) == []


def test_stragglers() -> None:
    slow, even = _window(1.0, 1.0, 1.0, 1.5), _window(1.0, 1.0, 1.0, 1.0)
    assert find_stragglers([slow] * 5) == [3]
    assert find_stragglers([even, even, slow, slow, slow]) == [3]
    assert find_stragglers([slow, slow, slow, even, even, even, slow]) == []
    assert find_stragglers([slow, slow]) == []  # the first window is a warm-up
    assert find_stragglers([]) == []
    assert find_stragglers([_window(5.0)] * 5) == []
    assert (
        find_stragglers([_window(0.001, 0.001, 0.0015)] * 5) == []
    )  # half a millisecond is no news


def test_how_far_a_straggler_is_behind_does_not_depend_on_the_last_window() -> None:
    windows = [_window(1.0, 1.0, each) for each in (1.5, 1.6, 0.9, 1.7, 0.96)]
    assert find_stragglers(windows) == [2]
    assert median_behind(windows)[2] == pytest.approx(0.5)
    assert median_behind([_window(1.0), {}, _window(1.0, None, 1.0)]) == {0: 0.0, 2: 0.0}


def test_one_of_two_ranks_is_compared_with_the_other() -> None:
    window = _window(0.1, 0.149)
    assert behind_shares(window) == pytest.approx([0.1 / 0.149 - 1, 0.49])
    assert late_ranks(own_work(window)) == [1]
    assert find_stragglers([window] * 3) == [1]
    assert find_stragglers([_window(0.1, 0.119)] * 3) == []


def test_each_rank_is_compared_with_the_median_of_all_others() -> None:
    work = [3.0, 1.0, 2.0, 2.0, 7.0, 2.5]
    usual = [median(work[:rank] + work[rank + 1 :]) for rank in range(len(work))]
    expected = [mine / other - 1 for mine, other in zip(work, usual, strict=True)]
    assert behind_shares(_window(*work)) == pytest.approx(expected)
    assert late_ranks(work) == [0, 4, 5]


def test_slow_data_makes_a_straggler() -> None:
    window = {"compute_seconds": [1.0] * 4, "data_seconds": [0.1, 0.1, 0.1, 0.9]}
    assert find_stragglers([window] * 3) == [3]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e9, 1e9) | st.none(), max_size=900), st.integers(1, 40))
def test_a_growing_curve_keeps_what_the_whole_one_has(ys: list[float | None], at_once: int) -> None:
    curve = Curve(10)
    for begin in range(0, len(ys), at_once):
        some = ys[begin : begin + at_once]
        curve.add(list(range(begin, begin + len(some))), some, [None] * len(some))
    points = [(float(x), y) for x, y in enumerate(ys) if y is not None]
    found = curve.points()
    assert len(found) <= 10
    assert set(found) <= set(points)
    assert found == sorted(found)
    if points:
        assert (found[0], found[-1]) == (points[0], points[-1])
        assert min(y for _, y in found) == min(y for _, y in points)
        assert max(y for _, y in found) == max(y for _, y in points)


def test_a_growing_curve_is_even_over_its_length() -> None:
    curve = Curve(100)
    curve.add(list(range(50_000)), [float(x % 7) for x in range(50_000)], [None] * 50_000)
    xs = [x for x, _ in curve.points()]
    assert max(b - a for a, b in pairwise(xs)) < 3 * 50_000 / 50


def test_phases_of_the_last_windows_weigh_as_among_all(tmp_path: Path) -> None:
    """The first of them counts the steps since the line before it, not since the beginning."""
    (tmp_path / "run.json").write_text("{}")
    lines = [(1000, 9.0), (1010, 1.0), (1040, 2.0)]
    text = [{"kind": "train", "step": step, "data_seconds": data} for step, data in lines]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in text))
    source = RunSource(Run(tmp_path))
    source.refresh()
    assert mean_phases(source, 2) == {"data": (10 * 1.0 + 30 * 2.0) / 40}
    assert mean_phases(source, 50) == mean_phases(source)
