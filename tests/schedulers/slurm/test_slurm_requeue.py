"""What follows an attempt, on a real cluster: the queue again, a new job, the same ranks, or the end."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from command_rig import Allranks, until
from requeue_rig import LEAVES, STEPS, attempts

pytestmark = pytest.mark.slurm


@pytest.fixture
def steps(tmp_path: Path) -> str:
    (tmp_path / "steps.py").write_text(STEPS)
    return "steps.py"


def test_it_goes_on_in_the_queue_until_it_has_finished(
    slurm: Allranks, steps: str, tmp_path: Path
) -> None:
    words = ["submit", "-t", "5m", "--requeue", "--follow"]
    done = slurm(*words, steps, "20", "10")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "note: This cluster kills a job 3 s after its time limit" in done.stderr
    assert "[0] steps 0 to 10 in 1" in done.stdout
    between = done.stdout.index("--- attempt 1 interrupted: The time limit came near.")
    assert between < done.stdout.index("[0] steps 10 to 20 in 2")
    story = attempts(slurm)
    assert [one["outcome"] for one in story["attempts"]] == ["interrupted", "finished"]
    assert [one["next"] for one in story["attempts"]] == ["requeue", "done"]
    assert 0 < story["goodput"] < 1
    (log,) = tmp_path.glob("runs/steps-*/slurm-*.out")
    assert log.read_text().count("steps") >= 2  # appended, not written over
    logs = slurm("logs", "last").stdout.splitlines()
    assert logs[0] == "[0] steps 0 to 10 in 1"
    assert logs[1].startswith("--- attempt 1 interrupted")
    assert slurm("logs", "--attempt", "2", "last").stdout == "[0] steps 10 to 20 in 2\n"
    table = slurm("ps", "--attempts", "last").stdout
    assert "0→10" in table
    assert "goodput" in table
    assert all(len(line) <= 80 for line in table.splitlines())


def test_a_mistake_is_not_repeated_and_a_crash_is_restarted_in_place(
    slurm: Allranks, tmp_path: Path
) -> None:
    (tmp_path / "fails.py").write_text(
        "import os, sys\n"
        "number = int(os.environ['ALLRANKS_ATTEMPT_DIR'].rpartition('/')[2])\n"
        "print('port', os.environ['MASTER_PORT'], flush=True)\n"
        "sys.exit((9, 2)[number - 1])\n"
    )
    done = slurm("submit", "-t", "5m", "--restarts", "3", "--requeue", "--follow", "fails.py")
    assert done.returncode == 2, done.stdout + done.stderr
    story = attempts(slurm)["attempts"]
    assert [(one["exit_code"], one["next"]) for one in story] == [(9, "restart"), (2, "stop")]
    assert len({one["job_id"] for one in story}) == 1
    ports = [line for line in done.stdout.splitlines() if "port" in line]
    assert len(set(ports)) == 2


def test_a_cancelled_job_stays_cancelled(slurm: Allranks, tmp_path: Path) -> None:
    """Though its ranks save and leave as they would before the time limit, and Slurm would requeue it."""
    (tmp_path / "leaves.py").write_text(LEAVES)
    slurm("submit", "-t", "5m", "--requeue", "leaves.py", "none")
    until(lambda: "up 1" in slurm("logs", "last").stdout)
    assert slurm("cancel", "last").returncode == 0
    done = slurm("logs", "-f", "last")
    assert done.returncode != 0
    (row,) = json.loads(slurm("ps", "--json", "last").stdout)
    assert row["state"] == "CANCELLED"
    (one,) = attempts(slurm)["attempts"]
    assert one["outcome"] == "cancelled"


SLOW = """#!/bin/bash
if [[ "$*" == {moment}* ]]; then touch {sign}; sleep 1; fi
exec {real} "$@"
"""


@pytest.mark.parametrize(
    ("moment", "verb"), [("show\\ node\\ -o\\ node", "scancel"), ("requeue", "allranks cancel")]
)
def test_a_job_that_is_cancelled_while_it_goes_back_stays_cancelled(
    slurm: Allranks, slurm_env: dict[str, str], steps: str, tmp_path: Path, moment: str, verb: str
) -> None:
    """Slurm would take it back: it lets a job that was just cancelled be requeued."""
    real = shutil.which("scontrol", path=slurm_env["PATH"])
    sign, program = tmp_path / "sign", tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(SLOW.format(moment=moment, sign=sign, real=real))
    program.chmod(0o755)
    path = f"{program.parent}:{slurm_env['PATH']}"
    done = slurm("submit", "-t", "5m", "--requeue", "--json", steps, "20", "10", PATH=path)
    job = json.loads(done.stdout)["job_id"]
    until(sign.exists)
    if verb == "scancel":
        subprocess.run(["scancel", job], env=slurm_env, check=True)
    else:
        assert slurm("cancel", "last").returncode == 0
    until(lambda: json.loads(slurm("ps", "--json", job).stdout)[0]["state"] == "CANCELLED")
    folder = Path(json.loads(done.stdout)["folder"])
    until(lambda: not slurm_says(slurm_env, job, "COMPLETING"))
    assert slurm_says(slurm_env, job, "CANCELLED")
    assert [child.name for child in (folder / "attempts").iterdir()] == ["1"]
    if verb == "allranks cancel":  # until a user wants it to go on
        assert slurm("resume", "--follow", "last").returncode == 0
        assert [one["outcome"] for one in attempts(slurm)["attempts"]][-1] == "finished"


def slurm_says(env: dict[str, str], job: str, state: str) -> bool:
    words = ["scontrol", "show", "job", "-o", job]
    said = subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout
    return f"JobState={state}" in said
