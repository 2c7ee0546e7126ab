"""Thinned curves show what the whole ones do; phases and stragglers are what the files say."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.monitor.model import PHASES
from allranks.monitor.phases import phases, phases_over_time
from allranks.monitor.series import smooth, thin
from allranks.monitor.source import Source
from allranks.monitor.stragglers import behind, stragglers
from monitor_rig import make_run


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


def _source(run_path: Path, lines: list[dict[str, object]]) -> Source:
    from allranks.runs import Run

    (run_path / "run.json").write_text("{}")
    rows = [{"kind": "train", "time": 1.0, **line} for line in lines]
    (run_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = Source(Run(run_path))
    source.refresh()
    return source


def test_phases_are_means_over_steps(tmp_path: Path) -> None:
    lines = [
        {"step": 30, "data_seconds": 0.1, "other_seconds": 0.2},
        {"step": 40, "data_seconds": 0.5, "other_seconds": 0.2},
        {"step": 50},
    ]
    source = _source(tmp_path, lines)
    found = phases(source)
    assert found == pytest.approx({"data": 0.2, "other": 0.2})  # 30 steps count more than 10
    assert list(found) == [name for name in PHASES if name in found]
    assert phases(source, 2) == pytest.approx({"data": 0.5, "other": 0.2})
    assert phases(source, 1) == {}


def test_phases_over_time(tmp_path: Path) -> None:
    source = Source(make_run(tmp_path, windows=500))
    source.refresh()
    steps, found = phases_over_time(source, 200)
    assert len(steps) == 200
    assert steps[-1] == 5000
    assert {len(values) for values in found.values()} == {200}
    assert list(found) == list(PHASES)
    assert sum(found["data"]) / 200 == pytest.approx(phases(source)["data"], rel=0.05)


def test_phases_of_a_run_that_has_none(tmp_path: Path) -> None:
    source = _source(tmp_path, [{"step": 10, "train_loss": 1.0}])
    assert phases(source) == {}
    assert phases_over_time(source) == ([], {})


def _window(*compute: float | None, data: float = 0.0) -> dict[str, object]:
    return {"compute_seconds": list(compute), "data_seconds": [data] * len(compute)}


def test_how_far_behind() -> None:
    assert behind(_window(1.0, 1.0, 1.5)) == pytest.approx([0.0, 0.0, 0.5])
    assert behind(_window(1.0, 2.0, data=1.0)) == pytest.approx([-0.2, 0.2])
    assert behind(_window(1.0, None, 1.0)) == [0.0, None, 0.0]
    assert behind(_window(1.0)) == [None]
    assert behind({"compute_seconds": [None, None]}) == [None, None]
    assert behind({}) == []


def test_stragglers() -> None:
    slow, even = _window(1.0, 1.0, 1.0, 1.5), _window(1.0, 1.0, 1.0, 1.0)
    assert stragglers([slow] * 5) == [3]
    assert stragglers([even, even, slow, slow, slow]) == [3]
    assert stragglers([slow, slow, slow, even, even, even, slow]) == []
    assert stragglers([slow]) == [3]
    assert stragglers([slow, even]) == []
    assert stragglers([]) == []
    assert stragglers([_window(5.0)] * 5) == []
    assert stragglers([_window(0.001, 0.001, 0.0015)] * 5) == []  # half a millisecond is no news


def test_slow_data_makes_a_straggler() -> None:
    window = {"compute_seconds": [1.0] * 4, "data_seconds": [0.1, 0.1, 0.1, 0.9]}
    assert stragglers([window] * 3) == [3]
