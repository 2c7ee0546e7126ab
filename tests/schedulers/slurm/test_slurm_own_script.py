"""``allranks submit job.sh``: a script of the user's own is linted, then submitted as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_rig import Allranks

pytestmark = pytest.mark.slurm

GOOD = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=5
set -e
srun bash -c 'echo "task $SLURM_PROCID of $SLURM_NTASKS: $0 $*"' "$1"
"""
BAD = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=5
srun torchrun --nnodes 2 --nproc-per-node 1 --node_rank $SLURM_NODEID --master_addr $(hostname) train.py
"""


def test_a_good_script_runs_and_is_a_run(slurm: Allranks, tmp_path: Path) -> None:
    (tmp_path / "mine.sh").write_text(GOOD)
    done = slurm("submit", "--follow", "mine.sh", "word")
    assert done.returncode == 0, done.stderr
    assert "task 0 of 2: word" in done.stdout
    assert "task 1 of 2: word" in done.stdout
    (row,) = json.loads(slurm("ps", "--json").stdout)
    assert (row["name"], row["state"]) == ("mine", "COMPLETED")
    assert (Path(row["folder"]) / "job.sh").read_text() == GOOD


def test_options_go_above_the_script_and_its_own_log_is_found(
    slurm: Allranks, tmp_path: Path
) -> None:
    log = "#SBATCH --output=here-%j.txt\nset -e"
    (tmp_path / "mine.sh").write_text(GOOD.replace("set -e", log))
    done = slurm("submit", "-f", "--nodes", "1", "--name", "other", "mine.sh", "a b")
    assert done.returncode == 0, done.stderr
    (own,) = tmp_path.glob("here-*.txt")
    assert "task 0 of 1: a b" in own.read_text()
    assert "task 0 of 1: a b" in slurm("logs", "other").stdout


def test_a_script_that_must_fail_is_not_submitted(slurm: Allranks, tmp_path: Path) -> None:
    (tmp_path / "bad.sh").write_text(BAD)
    done = slurm("submit", "bad.sh")
    assert done.returncode == 1
    assert "AR101" in done.stderr
    assert "Nothing was submitted" in done.stderr
    assert "--force" in done.stderr
    assert json.loads(slurm("ps", "--json").stdout) == []
    forced = slurm("submit", "--force", "--json", "bad.sh")
    assert forced.returncode == 0, forced.stderr
    assert slurm("cancel", json.loads(forced.stdout)["job_id"]).returncode == 0


def test_what_cannot_be_added_is_told(slurm: Allranks, tmp_path: Path) -> None:
    (tmp_path / "mine.sh").write_text(GOOD)
    done = slurm("submit", "--nprocs", "4", "mine.sh")
    assert done.returncode == 2
    assert "--nprocs cannot be added to a job script of your own" in done.stderr
    assert "allranks convert" in done.stderr
