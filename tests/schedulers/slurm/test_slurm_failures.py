"""When one rank dies the others end, the exit code survives, and the first error is what is seen last."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from command_rig import Allranks, until

pytestmark = pytest.mark.slurm

# No torch: what is tested is who ends whom. The others would sleep longer than the test may take.
DIES = """
import os, sys, time
if os.environ["RANK"] == "2":
    def train():
        raise ValueError("rank two has a bad day")
    try:
        train()
    except ValueError:
        import traceback
        traceback.print_exc()
        sys.exit(37)
time.sleep(600)
"""


@pytest.mark.parametrize("launcher", ["srun", "fork", "torchrun", "mpirun"])
def test_one_rank_dies(launcher: str, slurm: Allranks, tmp_path: Path) -> None:
    if launcher == "torchrun":
        pytest.importorskip("torch")
    (tmp_path / "dies.py").write_text(DIES)
    done = slurm(
        *("submit", "-N", "2", "--nprocs", "4", "-t", "5m", "-l", launcher, "--follow", "dies.py"),
        timeout=100,
    )
    assert done.returncode == 37, done.stdout + done.stderr
    assert "rank 2 failed first" in done.stderr
    log = next(tmp_path.glob("runs/dies-*/slurm-*.out")).read_text()
    last = log[log.rindex("first error:") :]
    assert re.search(r"rank 2 \(local rank 0\) on node2, exit code 37", last)
    assert 'raise ValueError("rank two has a bad day")' in last
    assert last.rstrip().endswith("rank-00002.log")


def test_a_killed_rank_ends_the_job(slurm: Allranks, tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(
        "import os, signal, time\n"
        "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(600)\n"
    )
    done = slurm(
        "submit", "-N", "1", "--nprocs", "2", "-t", "5m", "--follow", "killed.py", timeout=100
    )
    assert done.returncode == 137
    assert "rank 1" in done.stderr


def test_the_set_up_fails_and_nothing_starts(slurm: Allranks, tmp_path: Path) -> None:
    (tmp_path / "never.py").write_text("print('started')\n")
    done = slurm("submit", "-t", "5m", "--venv", "no-such-venv", "--follow", "never.py", timeout=60)
    assert done.returncode == 1
    assert "started" not in done.stdout
    assert "no-such-venv/bin/activate" in done.stdout


def test_cancel_ends_every_process(slurm: Allranks, tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("import time; print('up', flush=True); time.sleep(600)\n")
    submitted = slurm("submit", "-N", "2", "--nprocs", "2", "-t", "5m", "-J", "long", "long.py")
    assert submitted.returncode == 0, submitted.stderr
    until(lambda: slurm("logs", "long").stdout.count("up") == 2)
    assert slurm("cancel", "long").returncode == 0
    until(lambda: "CANCELLED" in slurm("ps", "--json", "long").stdout)
    again = slurm("cancel", "long")
    assert "has ended already" in again.stdout
