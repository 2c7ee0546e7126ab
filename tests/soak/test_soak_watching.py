"""A training of four ranks on two nodes of a real cluster, watched in a terminal from queue to end."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from command_rig import Allranks
from terminal_rig import Terminal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.slurm,
    pytest.mark.torch,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux"),
]
SCRIPT = Path(__file__).parents[1] / "observe" / "top" / "watch_train.py"
SHAPE = ("--nodes", "2", "--nprocs", "4", "--cpus-per-task", "1", "--time", "5m")


def test_watched_from_the_queue_to_the_end(
    tmp_path: Path, slurm: Allranks, slurm_env: dict[str, str]
) -> None:
    env = {**slurm_env, "ALLRANKS_SAMPLE": "1"}
    asked = slurm("submit", "--json", *SHAPE, str(SCRIPT), "40", ALLRANKS_SAMPLE="1")
    assert asked.returncode == 0, asked.stderr
    job = json.loads(asked.stdout)["job_id"]
    with Terminal(tmp_path, env) as terminal:
        before = terminal.ask("stty -a")
        terminal.top(job, "--every 0.5")
        terminal.shows(f"job {job}", "q quit")
        text = terminal.shows("running", "/320", "loss ", "samples/s", "to go", "time limit in 0:0")
        assert ", enough" in text
        terminal.shows("node1", "node2", "CPU", "straggler: rank 3")
        terminal.press("r", "s")
        text = terminal.shows("RANK", "WAIT", "in order", "straggler +")
        rows = text.split("RANK", 1)[1].splitlines()
        assert rows[1].split()[:2] == ["3", "node2"]
        terminal.resize(120, 40)
        terminal.shows("forward ", "communication ", "the others wait for rank 3 on node2")
        terminal.wait(lambda text: "completed at" in text and "100%" in text, seconds=120)
        terminal.press("q")
        terminal.wait(lambda text: "q quit" not in text)
        terminal.resize(80, 24)
        assert terminal.ask("stty -a") == before


def test_a_job_that_waits_says_why_and_then_runs(
    tmp_path: Path, slurm: Allranks, slurm_env: dict[str, str], report_script: Path
) -> None:
    asked = slurm("submit", "--json", "--sbatch", "hold=", *SHAPE, str(report_script))
    assert asked.returncode == 0, asked.stderr
    job = json.loads(asked.stdout)["job_id"]
    with Terminal(tmp_path, slurm_env) as terminal:
        terminal.top(job, "--every 0.5")
        terminal.shows("pending", f"job {job}", "waiting: ", "scontrol release")
        subprocess.run(["scontrol", "release", job], env=slurm_env, check=True)
        terminal.shows("completed at", "attempt 1", "The script reports no training metrics.")
        terminal.press("q")
        terminal.wait(lambda text: "q quit" not in text)
