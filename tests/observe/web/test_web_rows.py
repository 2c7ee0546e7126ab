"""The list of runs tells the same as their pages."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from allranks.observe.view.run_source import RunSource
from allranks.observe.view.step_phases import mean_phases
from allranks.observe.web import plot_data
from allranks.observe.web.request_cache import StatusCache
from allranks.observe.web.run_rows import RunRows
from allranks.runs.run_folder import Run
from view_rig import look, make_run
from web_rig import client_of


def _row(run: Run) -> dict[str, Any]:
    return RunRows(StatusCache()).rows([("x", run)], curves=False)[0]


def test_the_time_to_go_is_that_of_the_page(tmp_path: Path) -> None:
    """Also after a start that was much slower than what came after it."""
    run = make_run(tmp_path, windows=60, finished=False)
    path = run.path / "attempts" / "1" / "progress.json"
    written = json.loads(path.read_text())
    path.write_text(json.dumps(written | {"began": written["began"] - 36_000}))
    page, row = look(run).progress, _row(run)
    assert page.eta_seconds is not None
    assert row["eta"] == pytest.approx(page.eta_seconds)
    assert (row["step"], row["total_steps"]) == (page.step, page.total_steps)


def test_a_run_that_has_stopped_moving_promises_no_end(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=60, finished=False, end=time.time() - 3600)
    assert look(run).progress.stalled_seconds is not None
    assert _row(run)["eta"] is None


def test_a_run_without_metrics_goes_at_the_pace_of_its_attempt(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=60, finished=False)
    (run.path / "metrics.jsonl").unlink()
    row = _row(run)
    assert row["step"] == 600
    assert row["eta"] == pytest.approx(look(run).progress.eta_seconds)


def test_a_file_written_anew_has_not_diverged(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=2)
    path = run.path / "metrics.jsonl"
    lost = {"kind": "train", "step": 1, "train_loss": None, "nonfinite": ["train_loss"]}
    path.write_text(json.dumps(lost) + "\n")
    rows = RunRows(StatusCache())
    assert rows.rows([("x", run)])[0]["diverged"] is True
    path.unlink()
    assert rows.rows([("x", run)])[0]["diverged"] is False


def test_phases_of_all_steps_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, windows=20)
    counted: list[RunSource] = []

    def counting(source: RunSource) -> dict[str, float]:
        counted.append(source)
        return mean_phases(source)

    monkeypatch.setattr(plot_data, "mean_phases", counting)
    client = client_of(tmp_path)
    first, second = (client.get(f"/api/runs/{run.id}").json()["phases"] for _ in range(2))
    assert first == second == mean_phases(counted[0])
    assert len(counted) == 1


def test_phases_are_counted_again_when_lines_are_added(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=20)
    source, known = RunSource(run), plot_data.PhaseCache()
    source.refresh()
    before = known.of(source)
    line = {"kind": "train", "time": 3e9, "step": 5000, "forward_seconds": 9.0, "data_seconds": 9.0}
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    source.refresh()
    assert known.of(source) == mean_phases(source) != before
