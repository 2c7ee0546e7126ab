"""What the tests with a real Horovod share."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from framework_rig import environment

HERE = Path(__file__).parent
SIZE = ["--nodes", "2", "--nprocs", "4", "--cpus-per-task", "2", "--time", "5m"]
LONG = 200
"""Seconds for one command, on a machine that has other things to do."""
MPIRUN = Path("/usr/bin/mpirun")


def horovod() -> Path:
    """The venv; as root Open MPI wants to be told that this is meant."""
    return environment("horovod")


def script(name: str, folder: Path) -> Path:
    """One of the scripts beside this file, in a project of its own."""
    return Path(shutil.copy(HERE / f"horovod_{name}_script.py", folder / f"{name}.py"))


def by(launcher: str, folder: Path, path: str) -> tuple[list[str], dict[str, str]]:
    """The words for a launcher, and the environment that it wants: Horovod was built with Open MPI."""
    if launcher != "mpirun":
        return ["--launcher", launcher], {}
    if not MPIRUN.exists():
        pytest.skip("Open MPI is not installed")
    only = folder / "openmpi"
    only.mkdir(exist_ok=True)
    if not (only / "mpirun").exists():
        (only / "mpirun").symlink_to(MPIRUN)
    root = [word for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
            for word in ("--env", f"{name}=1")]  # fmt: skip
    return ["--launcher", launcher, *root], {"PATH": f"{only}{os.pathsep}{path}"}
