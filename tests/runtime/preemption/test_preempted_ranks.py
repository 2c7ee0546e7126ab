"""Real signals to real ranks: all save the same step and leave together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.cluster.slurm.job_states import JobState
from allranks.runs.progress_file import AttemptProgress
from allranks.runs.run_folder import Run
from allranks.schedulers import folder_status
from command_rig import until

pytestmark = pytest.mark.torch
HERE = Path(__file__).parent


def start(folder: Path, env: dict[str, str], *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words], cwd=folder, env={**env, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def told(process: subprocess.Popen[str], folder: Path, *numbers: int) -> tuple[int, str]:
    """Signal it when both ranks train; its exit code and output."""
    try:
        until(lambda: len(list(folder.glob("ready*"))) == 2 or process.poll() is not None)
        for number in numbers:
            process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out


def test_a_loop_of_ones_own_leaves_at_one_step(tmp_path: Path, clean_env: dict[str, str]) -> None:
    words = ["-m", "allranks", "run", "--nprocs", "2", "--launcher", "fork"]
    process = start(tmp_path, clean_env, *words, str(HERE / "preempted_own_loop.py"), str(tmp_path))
    code, out = told(process, tmp_path, signal.SIGUSR1)
    assert code == 75, out
    steps = {path.read_text() for path in tmp_path.glob("saved*")}
    assert len(steps) == 1, steps
    (attempt,) = tmp_path.glob("runs/*/attempts/1")
    assert f"saved step {steps.pop()} on SIGUSR1" in (attempt / "interrupted").read_text()
    assert not list(attempt.glob("failures/*"))


def test_ranks_that_python_started_get_the_signal_too(
    tmp_path: Path, clean_env: dict[str, str]
) -> None:
    process = start(tmp_path, clean_env, str(HERE / "preempted_trainer.py"), str(tmp_path), "2")
    code, out = told(process, tmp_path, signal.SIGUSR1)
    assert code == 75, out
    assert "on SIGUSR1; the next attempt resumes from there" in out
    assert "ended with" not in out
    assert len(list(tmp_path.glob("runs/*/checkpoints/step-*"))) == 1
    (run,) = tmp_path.glob("runs/preempted_trainer-*")
    status, progress = folder_status(Run(run)), AttemptProgress.read(run / "attempts/1")
    assert (status.state, status.exit_code) == (JobState.INTERRUPTED, 75)
    assert progress is not None
    assert 3 <= progress.step == progress.saved_step
    assert (progress.outcome, progress.total_steps) == ("interrupted", 200 * 50)
    for path in tmp_path.glob("ready*"):
        assert not Path(f"/proc/{int(path.read_text())}").exists()


def test_a_signal_before_the_training_ends_all(tmp_path: Path, clean_env: dict[str, str]) -> None:
    """Nobody watches yet: TERM to the first process ends the ranks that it has started, too."""
    path = tmp_path / "early.py"
    path.write_text(
        "import os, time\nfrom pathlib import Path\n"
        "from allranks.runtime.agent.self_launch import ensure_ranks\n"
        "here = ensure_ranks(2)\n"
        "Path(f'ready{here.rank}').write_text(str(os.getpid()))\ntime.sleep(60)\n"
    )
    process = start(tmp_path, clean_env, str(path))
    assert told(process, tmp_path, signal.SIGTERM)[0] == -signal.SIGTERM
    pids = [int(path.read_text()) for path in tmp_path.glob("ready*")]
    until(lambda: not any(os.path.exists(f"/proc/{pid}/exe") for pid in pids))  # noqa: PTH110
