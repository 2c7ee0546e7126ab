"""A script that trains several times, and windows without a marked step."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from allranks.observe.view.metric_columns import Curve, fit_start, window_steps
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.run_view import view_run
from allranks.observe.view.step_phases import mean_phases, phases_of, phases_over_time
from allranks.runs import Run

PART = {"data_seconds": 0.1, "checkpoint_seconds": 0.0, "other_seconds": 0.9}
WHOLE = {
    **dict.fromkeys(("data_seconds", "forward_seconds", "other_seconds"), 0.1),
    **dict.fromkeys(("backward_seconds", "optimizer_seconds"), 0.3),
    **dict.fromkeys(("communication_seconds", "checkpoint_seconds"), 0.05),
}
"""A step of one second, in a window without a marked step and in one with it."""


def _source(folder: Path, rows: list[dict[str, Any]]) -> RunSource:
    (folder / "run.json").write_text("{}")
    lines = [json.dumps({"kind": "train", "time": float(at), **row}) for at, row in enumerate(rows)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    source = RunSource(Run(folder))
    source.refresh()
    return source


def test_windows_without_a_marked_step_do_not_count(tmp_path: Path) -> None:
    rows = [PART, PART, PART, WHOLE, PART, WHOLE]
    source = _source(tmp_path, [{"step": 10 * at, **row} for at, row in enumerate(rows, 1)])
    for found in (mean_phases(source), mean_phases(source, 1), phases_of(rows, [10] * 6)):
        assert sum(found.values()) == pytest.approx(1.0)
        assert found["other"] == pytest.approx(0.1)
    steps, parts = phases_over_time(source)
    assert steps == [40, 60]
    assert parts["other"] == pytest.approx([0.1, 0.1])


def test_before_the_first_marked_step_its_rest_is_all_there_is(tmp_path: Path) -> None:
    source = _source(tmp_path, [{"step": 10, **PART}])
    assert mean_phases(source, 20) == pytest.approx({"data": 0.1, "checkpoint": 0.0, "other": 0.9})
    assert phases_over_time(source)[0] == [10]


def test_short_windows_of_which_few_have_a_marked_step(tmp_path: Path) -> None:
    rows = [{"step": at, **(WHOLE if at % 25 == 1 else PART)} for at in range(1, 101)]
    assert mean_phases(_source(tmp_path, rows), 4)["other"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("steps", "fits", "counts", "start"),
    [
        ([10, 20, 30], [None] * 3, [10, 10, 10], 0.0),
        ([10, 20, 5, 15], [None] * 4, [10, 10, 5, 10], 2.0),
        ([10, 10, 20], [None, 2, 2], [10, 10, 10], 1.0),
        ([10, 30, 30], [None, 2, 3], [10, 30, 30], 2.0),
        ([10, None, 20], [None] * 3, [10, 1, 10], 0.0),
    ],
)
def test_where_another_fit_begins(
    tmp_path: Path,
    steps: list[int | None],
    fits: list[int | None],
    counts: list[int],
    start: float,
) -> None:
    """By its number; in runs of older versions, which write none, where the steps fall."""
    assert window_steps(steps, fits) == counts
    assert window_steps(steps, fits, 1) == counts[1:]
    rows = [{"step": step, "fit": fit} for step, fit in zip(steps, fits, strict=True)]
    assert fit_start(_source(tmp_path, rows)) == start


def test_a_curve_that_begins_anew() -> None:
    curve = Curve()
    curve.add([10, 20, None, 5, 10], [1.0, 2.0, 9.0, 3.0, 4.0], [None] * 5)
    assert curve.points() == [(5.0, 3.0), (10.0, 4.0)]
    curve.add([10, 20], [5.0, 6.0], [2, 2])
    assert curve.points() == [(10.0, 5.0), (20.0, 6.0)]


def test_a_longer_second_training(tmp_path: Path) -> None:
    """Its first line is further than the last of the one before: only the number tells them apart."""
    rows: list[dict[str, Any]] = [
        {"step": 10, "train_loss": 3.0},
        {"step": 20, "train_loss": 2.0, "fit": 2},
        {"step": 40, "train_loss": 1.0, "fit": 2},
    ]
    found = view_run(_source(tmp_path, [{**row, "time": time.time()} for row in rows]))
    assert found.loss == [(20.0, 2.0), (40.0, 1.0)]
    assert "fit" not in found.values
