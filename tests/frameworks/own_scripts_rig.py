"""Users' own scripts, started by every launcher: what their tests share."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from framework_rig import assert_same_curve, curve

from command_rig import ROOT, Allranks

LAUNCHERS = ("fork", "srun", "torchrun", "launch", "accelerate", "deepspeed", "mpirun")
EXAMPLES = ROOT / "examples" / "jobs"
QUIET = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
TWO_NODES = ("--nodes", "2", "--cpus-per-task", "2", "--time", "5m", "--follow")

_ONE: dict[tuple[str, ...], list[float]] = {}


def cells(framework: str, place: str, *without: str) -> list[Any]:
    """Every launcher, each marked as the cell that its test proves."""
    return [
        pytest.param(name, marks=pytest.mark.cell(framework, name, place))
        for name in LAUNCHERS
        if name not in without
    ]


def needs(launcher: str) -> None:
    """Skip where the launcher is not installed."""
    if launcher in ("accelerate", "deepspeed") and importlib.util.find_spec(launcher) is None:
        pytest.skip(f"{launcher} is not installed")
    if launcher == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")


def one_process(allranks: Allranks, *words: str, **env: str) -> list[float]:
    """The curve of one process; the same for every test of a module, so it is drawn once."""
    if words not in _ONE:
        done = allranks("run", "--nprocs", "1", *words, timeout=300, **QUIET, **env)
        assert done.returncode == 0, done.stdout + done.stderr
        _ONE[words] = curve(done.stdout)
    return _ONE[words]


def assert_learns_the_same(
    done: subprocess.CompletedProcess[str], one: list[float], rel: float = 1e-4
) -> None:
    """The run ended well, and its curve is that of one process."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_curve(one, curve(done.stdout), rel)


def copied(name: str, folder: Path) -> str:
    """An example, copied to where the test runs: a user's file, not one of the repository."""
    shutil.copy(EXAMPLES / name, folder / name)
    return name
