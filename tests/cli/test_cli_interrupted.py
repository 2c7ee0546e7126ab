"""Ranks that saved and left with exit code 75 have not failed, wherever a user looks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allranks.cli.follow_run import print_outcome
from allranks.cluster.slurm.job_states import JobState
from allranks.cluster.slurm.job_status import JobStatus
from allranks.runs.run_folder import Run
from allranks.runtime.agent.failures import summary
from allranks.schedulers import run_state as module
from allranks.schedulers import run_statuses
from command_rig import Allranks

LEAVES = """
import os, pathlib, sys, time
if os.environ["RANK"] == "1":
    time.sleep(0.5)
    pathlib.Path("part-1").write_text("saved")
sys.exit(75)
"""


def test_a_run_that_left_is_told_as_interrupted(allranks: Allranks, tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(LEAVES)
    done = allranks("run", "--nprocs", "2", "leaves.py")
    assert done.returncode == 75, done.stderr
    assert (tmp_path / "part-1").exists(), "rank 1 was ended in the middle of its save"
    assert "first error" not in done.stderr
    assert "Resume it with: allranks resume leaves-" in done.stderr
    (listed,) = json.loads(allranks("ps", "--json").stdout)
    assert (listed["state"], listed["exit_code"]) == ("INTERRUPTED", 75)
    shown = allranks("ps").stdout
    assert "interrupted" in shown
    assert "(75)" not in shown
    followed = allranks("logs", "-f", "last")
    assert followed.returncode == 75
    assert " interrupted: It left with exit code 75. It has not finished" in followed.stderr
    assert "first error" not in followed.stderr
    assert "Errors:" not in followed.stderr


@pytest.mark.parametrize(
    ("outcome", "told", "shown"),
    [
        ("interrupted", JobState.FAILED, JobState.INTERRUPTED),
        ("interrupted", JobState.TIMEOUT, JobState.TIMEOUT),
        ("failed", JobState.FAILED, JobState.FAILED),
    ],
)
def test_slurm_calls_it_failed(
    outcome: str, told: JobState, shown: JobState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = Run.create(tmp_path, "train", scheduler="slurm", cwd=tmp_path, command=["train.py"])
    run = run.add_job_id("7")
    attempt = run.new_attempt(job_id="7")
    (attempt.path / "interrupted").write_text("saved step 8\n")
    attempt.finish(75, outcome=outcome, reason="Saved step 8.", next="stop")
    answer = {"7": JobStatus("7", state=told, exit_code=75)}
    monkeypatch.setattr(module, "job_status", lambda ids, timeout: answer)
    (status,) = run_statuses([Run.open(run.path)])
    assert status.state is shown


def test_no_first_error_where_the_ranks_left_on_purpose(tmp_path: Path) -> None:
    """Another rank may break while all leave: a connection that closes under it."""
    (tmp_path / "failures").mkdir()
    facts = {"rank": 1, "local_rank": 1, "host": "node1", "exit_code": 1, "signal": None,
             "time": "2026-01-01T00:00:01.000000Z", "traceback": "T"}  # fmt: skip
    (tmp_path / "failures/rank-00001.json").write_text(json.dumps(facts))
    assert "first error: rank 1" in summary(tmp_path)
    (tmp_path / "interrupted").write_text("saved step 8\n")
    assert summary(tmp_path) == ""


def test_the_last_line_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = Run.create(tmp_path, "train", scheduler="slurm", cwd=tmp_path, command=["train.py"])
    for why in ("it left with exit code 75", f"It left. Go on with: allranks resume {run.id}"):
        print_outcome(module.RunStatus(run, JobState.INTERRUPTED, exit_code=75, why=why))
        said = capsys.readouterr().err
        assert said.count(f"allranks resume {run.id}") == 1
        assert "Errors:" not in said
