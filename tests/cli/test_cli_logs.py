"""allranks logs --attempt: one attempt, and nothing of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.runs.atomic_files import write_json
from command_rig import Allranks


@pytest.fixture
def run(tmp_path: Path) -> str:
    """Two attempts, of which the second never came to its ranks, and Slurm's own log of both."""
    folder = tmp_path / "train-1"
    first, second = folder / "attempts/1", folder / "attempts/2"
    (first / "ranks").mkdir(parents=True)
    (first / "ranks/rank-00000.log").write_text("2026-01-01T00:00:00.000000Z o step 1\n")
    second.mkdir()
    write_json(
        second / "end.json", {"exit_code": 1, "reason": "It failed before its ranks were started."}
    )
    write_json(folder / "run.json", {"name": "train", "scheduler": "slurm", "job_ids": ["7"]})
    (folder / "slurm-7.out").write_text("step 1\nthe batch log\n")
    return str(folder)


def test_an_attempt_that_is_not_there(allranks: Allranks, run: str) -> None:
    done = allranks("logs", "--attempt", "99", run)
    assert (done.returncode, done.stdout) == (2, "")
    assert "train-1 has 2 attempts." in done.stderr


def test_an_attempt_without_logs_shows_no_others(allranks: Allranks, run: str) -> None:
    done = allranks("logs", "--attempt", "2", run)
    assert (done.returncode, done.stdout) == (0, "")
    assert "has no rank logs. It failed before its ranks were started." in done.stderr
    assert "step 1" in allranks("logs", "--attempt", "1", run).stdout
