"""Locks of builds: held ones are left alone, dead ones are removed or told."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from allranks.runtime.agent import build_locks
from allranks.runtime.agent.build_locks import check_build_locks

COMMAND = ["python", "train.py", "--deepspeed"]


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(build_locks, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(build_locks, "_sees_all_processes", lambda _: False)
    path = tmp_path / "py311_cpu" / "deepspeed_shm_comm" / "lock"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def check(lock: Path, command: list[str] = COMMAND) -> None:
    check_build_locks(command, {"TORCH_EXTENSIONS_DIR": str(lock.parents[2])})


def test_a_dead_one_is_told_with_the_command_to_type(
    lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(lock)
    told = capsys.readouterr().err
    assert told.startswith(f"allranks: {lock} was left just now by a build that no process here")
    assert told.endswith(f"Then type: rm {lock}\n")
    assert lock.exists()


def test_a_held_one_is_left_alone(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with lock.open():
        check(lock)
    assert capsys.readouterr().err == ""


def test_one_that_is_surely_dead_is_removed(
    lock: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_locks, "_sees_all_processes", lambda _: True)
    check(lock)
    assert not lock.exists()
    assert f"removed {lock}" in capsys.readouterr().err


def test_an_old_one_is_removed_wherever_it_was_made(
    lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    then = time.time() - 3 * 3600
    os.utime(lock, (then, then))
    check(lock)
    assert not lock.exists()
    assert "3 h ago" in capsys.readouterr().err


def test_a_file_that_is_no_lock_of_torch_stays(
    lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock.write_text("my notes")
    os.utime(lock, (0, 0))
    check(lock)
    assert lock.exists()
    assert capsys.readouterr().err == ""


def test_jobs_without_deepspeed_are_not_troubled(
    lock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    check(lock, ["python", str(script)])
    check(lock, ["./program", "missing.py"])
    assert capsys.readouterr().err == ""
    script.write_text("import deepspeed\n")
    check(lock, ["python", str(script)])
    assert "Then type" in capsys.readouterr().err
