"""The list over many runs and a Slurm that is slow, silent or gone."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

import allranks.observe.web.run_rows
from allranks.observe.web.request_cache import QueuedJobs, StatusCache
from allranks.observe.web.run_rows import RunRows
from allranks.runs.attempt import Attempt
from allranks.runs.attempt_history import AttemptSummary
from allranks.runs.run_folder import Run
from command_rig import until
from view_rig import grow, make_array, make_run
from web_rig import client_of


def test_curves_of_many_growing_runs_are_read_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With time for one at each request, and one line in all of them more at each."""
    runs = [make_run(tmp_path, f"run{n}", windows=3, finished=False) for n in range(4)]
    rows, known = RunRows(StatusCache()), [(run.id, run) for run in runs]
    monkeypatch.setattr("allranks.observe.web.run_rows.time", _Clock())
    for _ in range(5):
        for run in runs:
            grow(run)
        found = rows.rows(known)
    assert all(len(row["curve"]) > 3 for row in found)


def test_one_folder_that_cannot_be_read_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path, "good", windows=2)
    bad = make_run(tmp_path, "bad", windows=2)
    progress = bad.path / "attempts" / "1" / "progress.json"
    progress.write_text('{"step": "ten", "began": [], "updated": 1e400, "total_steps": {}}')
    (bad.path / "attempts" / "1" / "end.json").write_text("[" * 100_000)
    client = client_of(tmp_path)
    rows = {row["name"]: row for row in client.get("/api/runs").json()["runs"]}
    assert (rows["good"]["step"], rows["good"]["state"]) == (20, "completed")
    assert "bad" in rows
    told = allranks.observe.web.run_rows.attempt_history

    def refuse(attempts: list[Attempt], running: bool) -> list[AttemptSummary]:
        if attempts[0].path.is_relative_to(bad.path):
            raise ValueError("year 99999 is out of range")
        return told(attempts, running)

    monkeypatch.setattr("allranks.observe.web.run_rows.attempt_history", refuse)
    rows = {row["name"]: row for row in client_of(tmp_path).get("/api/runs").json()["runs"]}
    assert rows["good"]["step"] == 20
    assert rows["bad"]["why"] == "the folder cannot be read: year 99999 is out of range"
    assert (rows["bad"]["state"], rows["bad"]["step"]) == ("unknown", None)


def test_an_array_that_has_ended_needs_no_answer_of_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sweep-1").mkdir()
    run = make_array(tmp_path / "sweep-1", {"3": "failed", "4": "finished"})
    squeue(tmp_path, "echo squeue: no slurm.conf >&2; exit 1", monkeypatch)
    [status] = StatusCache().of([run], wait=30)
    assert (status.state.value, status.why) == ("failed", "")


class _Clock:
    """Time passes between any two looks at it: enough for one curve."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.12
        return self.now


def squeue(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One of our own that notes each call; the file of the notes. There is no sacct."""
    path = folder / "bin" / "squeue"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\necho asked >>"$0.log"\n{script}\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return path.with_name("squeue.log")


def test_slurm_that_does_not_answer_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A squeue that hangs: the page shows what the folder tells, and asks but once at a time."""
    make_run(tmp_path / "runs", "asked", windows=2, finished=False, job_id="12")
    make_run(tmp_path / "runs", "over", windows=2, failed=True, job_id="13")
    notes = squeue(tmp_path, "exec sleep 60", monkeypatch)
    monkeypatch.setattr("allranks.observe.web.request_cache.FIRST_WAIT_SECONDS", 0.1)
    client = client_of(tmp_path / "runs")
    for _ in range(3):  # the test's time limit would tell of one that waits
        rows = client.get("/api/runs").json()["runs"]
        assert {row["name"]: row["state"] for row in rows} == {"asked": "unknown", "over": "failed"}
    until(notes.exists)
    assert notes.read_text().count("asked") <= 2  # of the states and of the queue


def test_what_is_over_is_not_asked_about_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = make_run(tmp_path, "over", windows=2, failed=True, job_id="13")
    gone = make_run(tmp_path, "forgotten", windows=2, finished=False, job_id="14")
    notes = squeue(tmp_path, "echo slurm_load_jobs error: Invalid job id >&2; exit 1", monkeypatch)
    states = StatusCache()

    def later(runs: list[Run]) -> list[str]:
        states._known = {path: replace(one, until=0.0) for path, one in states._known.items()}
        return [one.state.value for one in states.of(runs, wait=30)]

    assert later([over, gone]) == ["failed", "unknown"]
    calls = len(notes.read_text())
    assert later([over]) == ["failed"]
    assert len(notes.read_text()) == calls
    later([gone])
    later([gone])
    assert len(notes.read_text()) > calls
    assert states._known[gone.path].valid_for == 240  # seconds: twice as long each time
    resumed = over.add_job_id("15")
    states.of([resumed], wait=30)
    assert len(notes.read_text()) > calls + 12


def test_a_run_inside_a_job_of_long_ago_is_not_asked_about_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, "inside", windows=2, finished=False)
    about = json.loads((run.path / "run.json").read_text())
    home = {"host": "node1", "pid": 7, "started": "9", "inside_job": "14"}
    (run.path / "run.json").write_text(json.dumps(about | home))
    for path in run.path.rglob("*"):
        os.utime(path, (0, 0))
    notes = squeue(tmp_path, "echo slurm_load_jobs error: Invalid job id >&2; exit 1", monkeypatch)
    monkeypatch.setattr("allranks.observe.web.request_cache.STATE_SECONDS", -1.0)
    states = StatusCache()
    for _ in range(3):
        [status] = states.of([run], wait=30)
        assert status.state.value == "failed"
    assert notes.read_text() == "asked\n"


def test_without_slurm_there_is_no_queue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    queue = QueuedJobs()
    assert queue.jobs(set()) is None
    queue._query()
    assert queue.jobs(set()) is None
