"""What keeps the picture fresh: it goes on when files are away for a while, and ends with what is wrong."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from allranks.monitor.source import Source
from allranks.top import watcher
from allranks.top.watcher import Watcher, look
from monitor_rig import make_array, make_run


def test_a_file_system_that_is_away_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, windows=3, finished=False)
    refresh, failures = Source.refresh, [OSError(116, "Stale file handle")] * 2
    drawn = threading.Event()

    def stale(source: Source) -> bool:
        if failures:
            raise failures.pop()
        return refresh(source)

    monkeypatch.setattr(Source, "refresh", stale)
    made = Watcher(run, 0.01, drawn.set)
    made.start()
    try:
        assert drawn.wait(30)
        assert made.error is None
        assert made.snapshot is not None
        assert failures == []
    finally:
        made.stop()


def test_what_is_wrong_is_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: Source) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(Source, "refresh", broken)
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
        assert made.snapshot is not None
        assert made.snapshot.task == "0"
    finally:
        made.stop()


def test_one_look_waits_ten_seconds_for_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []
    asked = watcher.run_statuses

    def noted(runs: list[object], timeout: float) -> object:
        waited.append(timeout)
        return asked(runs, timeout)  # type: ignore[arg-type]

    monkeypatch.setattr(watcher, "run_statuses", noted)
    assert look(make_run(tmp_path, windows=3)).progress.step == 30
    assert waited == [10.0]
