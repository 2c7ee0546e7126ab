"""How far a training is, how fast it goes, and whether it has stopped moving."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from allranks.cluster.slurm.job_states import JobState
from allranks.schedulers.run_state import RunStatus
from view_rig import look, make_run


def test_progress_is_the_newer_of_its_two_sources(tmp_path: Path) -> None:
    run = make_run(tmp_path, finished=False, windows=10)
    path = run.path / "attempts" / "1" / "progress.json"
    written = json.loads(path.read_text())
    path.write_text(json.dumps(written | {"step": 107, "updated": time.time() + 1}))
    assert look(run).progress.step == 107
    path.write_text(json.dumps(written | {"step": 30, "updated": written["updated"] - 99}))
    assert look(run).progress.step == 100


def test_the_time_limit_where_no_rank_was_told(tmp_path: Path) -> None:
    run = make_run(tmp_path, finished=False, windows=10, job_id="7")
    (run.path / "attempts" / "1" / "environment.txt").write_text("RANK=0\n")
    found = look(run, RunStatus(run, JobState.RUNNING))
    start = run.attempts[0].start
    assert start is not None
    assert found.progress.deadline == pytest.approx(start.timestamp() + 12 * 3600)


def test_a_run_that_has_stopped_moving(tmp_path: Path) -> None:
    alive = make_run(tmp_path / "a", windows=40, finished=False)
    found = look(alive).progress
    assert found.stalled_seconds is None
    assert found.eta_seconds is not None
    assert found.last_step_time == pytest.approx(time.time(), abs=30)
    hung = make_run(tmp_path / "b", windows=40, finished=False, end=time.time() - 7200)
    found = look(hung).progress
    assert found.stalled_seconds == pytest.approx(7200, abs=30)
    assert found.last_step_time == pytest.approx(time.time() - 7200, abs=30)
    assert found.eta_seconds is None
    waits = look(hung, RunStatus(hung, JobState.PENDING)).progress
    assert waits.stalled_seconds is None
    ended = make_run(tmp_path / "c", windows=40, end=time.time() - 7200)
    assert look(ended).progress.stalled_seconds is None


@pytest.mark.parametrize("change", [{"outcome": "finished"}, {"total_steps": 400}])
def test_a_training_that_is_over_does_not_stand_still(
    tmp_path: Path, change: dict[str, object]
) -> None:
    """Its script goes on for hours after fit, or its ranks have written no word of the end yet."""
    run = make_run(tmp_path, windows=40, finished=False, end=time.time() - 7200)
    assert look(run).progress.stalled_seconds is not None
    path = run.path / "attempts" / "1" / "progress.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    found = look(run).progress
    assert (found.step, found.stalled_seconds, found.eta_seconds) == (400, None, None)


def test_a_test_after_the_training_is_a_sign_of_life(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=40, finished=False, end=time.time() - 7200)
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"time": time.time(), "step": 400, "kind": "test"}) + "\n")
    assert look(run).progress.stalled_seconds is None


def test_a_job_that_slurm_has_forgotten(tmp_path: Path) -> None:
    """After its time limit nobody expects a step; before it the silence is told."""
    run = make_run(tmp_path, windows=40, finished=False, job_id="7", end=time.time() - 9 * 86400)
    found = look(run, RunStatus(run, JobState.UNKNOWN, "7")).progress
    assert found.deadline is not None
    assert found.deadline < time.time()
    assert (found.stalled_seconds, found.eta_seconds) == (None, None)
    (tmp_path / "b").mkdir()
    run = make_run(tmp_path / "b", windows=40, finished=False, job_id="7", end=time.time() - 7200)
    found = look(run, RunStatus(run, JobState.UNKNOWN, "7")).progress
    assert found.stalled_seconds == pytest.approx(7200, abs=30)


def test_an_attempt_that_has_just_begun_does_not_stand_still(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=40, finished=False, end=time.time() - 7200)
    path = run.path / "attempts" / "1" / "progress.json"
    written = json.loads(path.read_text())
    path.write_text(json.dumps(written | {"began": time.time() - 5}))
    assert look(run).progress.stalled_seconds is None
