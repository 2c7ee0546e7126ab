"""What keeps the picture fresh: it goes on when files are away for a while, and ends with what is wrong."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from allranks.cluster.slurm.job_states import JobState
from allranks.observe.top import live_view
from allranks.observe.top.live_view import Watcher, view_once
from allranks.observe.view.run_source import RunSource
from view_rig import make_array, make_run


def test_a_file_system_that_is_away_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, windows=3, finished=False)
    refresh, failures = RunSource.refresh, [OSError(116, "Stale file handle")] * 2
    drawn = threading.Event()

    def stale(source: RunSource) -> bool:
        if failures:
            raise failures.pop()
        return refresh(source)

    monkeypatch.setattr(RunSource, "refresh", stale)
    made = Watcher(run, 0.01, drawn.set)
    made.start()
    try:
        assert drawn.wait(30)
        assert made.error is None
        assert made.run_view is not None
        assert failures == []
    finally:
        made.stop()


def test_what_is_wrong_is_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: RunSource) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(RunSource, "refresh", broken)
    drawn = threading.Event()
    made = Watcher(make_run(tmp_path, windows=3), 0.01, drawn.set)
    made.start()
    assert drawn.wait(30)
    assert isinstance(made.error, ZeroDivisionError)


def test_the_task_that_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run = make_array(tmp_path, {"0": "", "1": ""})
    drawn = threading.Event()
    made = Watcher(run, 0.01, drawn.set, "0")
    made.start()
    try:
        assert drawn.wait(30)
        assert made.run_view is not None
        assert made.run_view.task == "0"
    finally:
        made.stop()


SQUEUE = """#!/bin/sh
echo asked >>"$0.log"
echo "4711_1|4713|RUNNING|None|0|N/A|N/A|1:00:00|0|node1|main|me|sweep|"
echo "4711_2|4714|OUT_OF_MEMORY|None|9|N/A|N/A|1:00:00|0|node2|main|me|sweep|"
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A line for each question to a Slurm that knows two tasks of an array."""
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text(SQUEUE)
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:/usr/bin:/bin")
    return squeue.with_name("squeue.log")


def test_the_first_picture_is_of_a_task_that_runs(tmp_path: Path, asked: Path) -> None:
    run = make_array(tmp_path, {"1": "", "2": ""})
    found = view_once(run)
    assert (found.task, found.status.state) == ("1", JobState.RUNNING)
    assert found.failed_tasks == ["2"]
    assert asked.read_text() == "asked\n"


def test_slurm_is_not_asked_for_every_picture(
    tmp_path: Path, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run on another machine, in a job that it shares with others."""
    monkeypatch.setattr(live_view, "ASKED_EVERY", 600.0)
    run = make_run(tmp_path, windows=3, finished=False)
    about = json.loads((run.path / "run.json").read_text())
    home = {"host": "node1", "pid": 7, "started": "9", "inside_job": "4711"}
    (run.path / "run.json").write_text(json.dumps(about | home))
    pictures, many = [1] * 40, threading.Event()
    made = Watcher(run, 0.05, lambda: (pictures and pictures.pop()) or many.set())
    made.start()
    try:
        assert many.wait(60)
        assert asked.read_text() == "asked\n"
    finally:
        made.stop()


def test_one_look_waits_ten_seconds_for_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []
    ask = live_view.run_statuses

    def noted(runs: list[object], timeout: float) -> object:
        waited.append(timeout)
        return ask(runs, timeout)  # type: ignore[arg-type]

    monkeypatch.setattr(live_view, "run_statuses", noted)
    assert view_once(make_run(tmp_path, windows=3)).progress.step == 30
    assert waited == [10.0]
