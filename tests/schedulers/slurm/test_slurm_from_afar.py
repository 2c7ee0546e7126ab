"""Runs that are no jobs of allranks, on nodes of a cluster, as they look from where the user is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from command_rig import Allranks, until

pytest.importorskip("torch")
pytestmark = [pytest.mark.slurm, pytest.mark.torch]

OWN = """
import time
from allranks.train.trainer_run import make_folder
make_folder("runs", "own")
time.sleep(600)
"""


def _state(slurm: Allranks) -> dict[str, Any]:
    (row,) = json.loads(slurm("ps", "--json", "own").stdout)
    return row


def test_a_trainer_in_a_job_of_the_users_own(
    slurm: Allranks, slurm_env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    words = ["sbatch", "--parsable", "--time=5", f"--wrap=srun {sys.executable} own.py"]
    told = subprocess.run(
        words, cwd=tmp_path, env=slurm_env, capture_output=True, text=True, check=True
    )
    job = told.stdout.strip()
    until(lambda: any(tmp_path.glob("runs/own-*/attempts/1/attempt.json")))
    row = _state(slurm)
    assert (row["state"], row["why"]) == (
        "RUNNING",
        f"it runs on {row['nodes']}, as its files show",
    )
    assert "here" not in slurm("ps", "own").stdout
    assert f"scancel {job}" in slurm("cancel", "own").stderr
    for path in tmp_path.glob("runs/own-*/**/*"):
        os.utime(path, (time.time() - 600,) * 2)
    assert _state(slurm)["state"] == "UNKNOWN", "the job runs, which does not tell of the run"
    subprocess.run(["scancel", "--full", "--signal=KILL", job], env=slurm_env, check=True)
    until(lambda: _state(slurm)["state"] != "UNKNOWN")
    row = _state(slurm)
    assert (row["state"], row["why"]) == ("CANCELLED", f"it ended with job {job}")
