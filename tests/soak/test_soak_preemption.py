"""Graceful exit in the cases that take their time: torchrun, spawned workers, a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from command_rig import ROOT, Allranks, until

pytestmark = [pytest.mark.slow, pytest.mark.torch]
SCRIPTS = ROOT / "tests" / "runtime" / "preemption"


def outcome(folder: Path) -> dict[str, object]:
    (path,) = folder.glob("runs/*/attempts/1/progress.json")
    found: dict[str, object] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_a_trainer_with_workers_leaves_under_a_launcher(
    launcher: str, tmp_path: Path, clean_env: dict[str, str]
) -> None:
    """TERM twice: neither the launcher nor a worker nor the second one spoils the save."""
    words = ["-m", "allranks", "run", "--nprocs", "2", "--launcher", launcher]
    script = [str(SCRIPTS / "preempted_trainer.py"), str(tmp_path), "2"]
    process = subprocess.Popen(
        [sys.executable, *words, *script], cwd=tmp_path, env={**clean_env, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        until(lambda: len(list(tmp_path.glob("ready*"))) == 2 or process.poll() is not None, 120)
        process.terminate()
        process.terminate()
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143, out  # whoever says TERM to `allranks run` has cancelled it
    step = outcome(tmp_path)["step"]
    (attempt,) = tmp_path.glob("runs/*/attempts/1")
    assert outcome(tmp_path)["outcome"] == "interrupted", out
    assert f"saved step {step} on SIGTERM" in (attempt / "interrupted").read_text()
    saved = [path.name for path in tmp_path.glob("runs/*/checkpoints/step-*")]
    assert saved == [f"step-{step:08d}"]
    assert not (tmp_path / "exception").exists()
    assert not list(attempt.glob("failures/*")), out
    assert "Traceback" not in out


SPAWNED = """
import os, signal, subprocess, sys
import torch
from torch.utils.data import DataLoader
import allranks

if __name__ == "__main__":
    stop = allranks.deadline()
    loader = DataLoader(range(40), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    rows = iter(loader)
    seen = next(rows).tolist()
    subprocess.run(["kill", "-USR1", str(rows._workers[0].pid)], check=True)
    subprocess.run(["kill", "-TERM", str(rows._workers[0].pid)], check=True)
    for batch in rows:
        seen += batch.tolist()
    print(sorted(seen) == list(range(40)))
"""


def test_spawned_workers_of_a_users_own_loader(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(SPAWNED)
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "True\n", done.stderr


@pytest.mark.slurm
@pytest.mark.parametrize("launcher", ["srun", "torchrun", "fork"])
@pytest.mark.parametrize("word", ["USR1", "TERM"])
def test_ranks_on_two_nodes_leave_when_slurm_tells_them(
    launcher: str, word: str, slurm: Allranks, slurm_env: dict[str, str], tmp_path: Path
) -> None:
    size = ["--nodes", "2", "--nprocs", "2", "--cpus-per-task", "1", "--time", "5m"]
    script = [str(SCRIPTS / "preempted_own_loop.py"), str(tmp_path)]
    done = slurm("submit", "--json", *size, "--launcher", launcher, "--no-requeue", *script)
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)["job_id"]
    until(lambda: len(list(tmp_path.glob("ready*"))) == 2, 120)
    subprocess.run(["scancel", f"--signal={word}", job], env=slurm_env, check=True)
    until(lambda: outcome(tmp_path)["outcome"] == "interrupted", 60)
    steps = {path.read_text() for path in tmp_path.glob("saved*")}
    assert len(steps) == 1, steps
    slurm("logs", "-f", job)
    (attempt,) = tmp_path.glob("runs/*/attempts/1")
    assert f"on SIG{word}" in (attempt / "interrupted").read_text()
    assert not list(attempt.glob("failures/*"))


@pytest.mark.slurm
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_the_check_proves_that_signals_arrive(
    launcher: str, slurm: Allranks, tmp_path: Path
) -> None:
    size = ["--nodes", "2", "--nprocs", "4", "--cpus-per-task", "1", "--time", "2m"]
    done = slurm("check", "--signal", *size, "--launcher", launcher, "--json", timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["signals"] == ["SIGUSR1", "SIGTERM"]
    for rank in found["ranks"]:
        assert set(rank["arrived"]) >= {"SIGUSR1", "SIGTERM"}
        assert rank["end"] > rank["arrived"]["SIGUSR1"]
        assert rank["workers"] == 2
    (kept,) = tmp_path.glob("runs/*/check.json")
    assert json.loads(kept.read_text())["ranks"] == found["ranks"]
    report = slurm("report", "--format", "markdown", "--output", "-", kept.parent.name)
    assert "Every signal reached all 4 ranks" in report.stdout, report.stdout + report.stderr


@pytest.mark.slurm
def test_the_limit_that_was_extended_is_the_one_that_counts(
    slurm: Allranks, slurm_env: dict[str, str], tmp_path: Path
) -> None:
    """A limit of one minute, made longer: nobody leaves at the old one."""
    script = [str(SCRIPTS / "preempted_own_loop.py"), str(tmp_path)]
    size = ["--nprocs", "2", "--cpus-per-task", "1", "--time", "1m", "--no-requeue"]
    done = slurm("submit", "--json", *size, *script)
    job = json.loads(done.stdout)["job_id"]
    until(lambda: len(list(tmp_path.glob("ready*"))) == 2, 60)
    longer = ["scontrol", "update", f"JobId={job}", "TimeLimit=2"]
    subprocess.run(longer, env=slurm_env, check=True)
    until(lambda: outcome(tmp_path)["outcome"] != "running", 130)
    told = str(outcome(tmp_path)["reason"])
    assert f"before the end of job {job} (time limit)" in told
    began = float(str(outcome(tmp_path)["began"]))
    assert float(str(outcome(tmp_path)["updated"])) - began > 60
