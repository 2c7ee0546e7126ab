"""What the tests with a real MPI share: the venv, and the two families' mpirun."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from framework_rig import environment, with_environment

HERE = Path(__file__).parent
OPEN_MPI = Path("/usr/bin/mpirun")
AS_ROOT = [
    word for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    for word in ("--env", f"{name}=1")
]  # fmt: skip
# The nodes of the test cluster share one kernel, which UCX takes for one machine.
NODES = {"openmpi": AS_ROOT, "mpich": ["--env", "UCX_TLS=tcp,self"]}


def venv() -> Path:
    """torch, mpi4py and MPICH; Open MPI is the machine's."""
    return environment("mpi")


def script(name: str, folder: Path) -> str:
    """One of the scripts beside this file, in a project of its own."""
    return Path(shutil.copy(HERE / f"mpi_{name}.py", folder)).name


def with_family(family: str, env: dict[str, str], folder: Path) -> dict[str, str]:
    """``env`` with the venv's programs and that family's mpirun first."""
    changed = with_environment(env, venv())
    if family == "mpich":
        return changed
    if not OPEN_MPI.exists():
        pytest.skip("Open MPI is not installed")
    only = folder / "openmpi"
    only.mkdir(exist_ok=True)
    if not (only / "mpirun").exists():
        (only / "mpirun").symlink_to(OPEN_MPI)
    return {**changed, "PATH": f"{only}:{changed['PATH']}", "OMP_NUM_THREADS": "1"}


def mpirun(
    env: dict[str, str], ranks: int, name: str, *words: str, **changes: str
) -> subprocess.CompletedProcess[str]:
    """A script under the mpirun of ``env`` alone, without allranks around it."""
    found = shutil.which("mpirun", path=env["PATH"])
    more = [] if str(venv()) in str(found) else ["--oversubscribe"]
    python = str(venv() / "bin" / "python")
    return subprocess.run(
        [str(found), *more, "-n", str(ranks), python, str(HERE / f"mpi_{name}.py"), *words],
        env={**env, **changes}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
