"""mpi4py, with the MPI library that belongs to the launcher, and what to type where there is none."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allranks.errors import MissingDependencyError

_FAMILIES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}
"""mpi4py's name of a family, and the library by which programs built for it ask."""

INSTALL = (
    "Install it with: pip install mpi4py (it comes without an MPI library and uses the one that "
    "is there: the cluster's module, Debian's openmpi-bin, or pip install mpich)."
)


def require_mpi4py() -> None:
    """The error that says what to install, before anything is started."""
    if importlib.util.find_spec("mpi4py") is None:
        raise MissingDependencyError(
            "Backend 'mpi' needs a PyTorch built with MPI or the 'mpi4py' package, and neither is "
            f"here. {INSTALL}\nUnder mpirun, gloo and nccl work too: leave out the backend."
        )


def load() -> Any:
    """The module ``mpi4py.MPI``, started with threads, for the library of this process's launcher."""
    require_mpi4py()
    if "mpi4py.MPI" not in sys.modules:
        choose_family(os.environ)
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MissingDependencyError(
            f"mpi4py is installed, but it found no MPI library: {_first_line(error)}\n"
            "Load the cluster's MPI module (module load openmpi), install one (pip install mpich; "
            "apt install openmpi-bin), or name the file: MPI4PY_LIBMPI=/path/to/libmpi.so."
        ) from error
    if MPI.Is_finalized():
        raise MissingDependencyError("MPI was ended in this process already and starts only once.")
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    return MPI


def choose_family(env: Mapping[str, str]) -> None:
    """Where several MPIs are installed mpi4py takes the venv's; the launcher's is the right one."""
    family = launcher_family(env)
    if family is None or "MPI4PY_MPIABI" in env or "MPI4PY_LIBMPI" in env:
        return
    name = _FAMILIES[family]
    if any(_loads(place) for place in (str(Path(sys.exec_prefix, "lib", name)), name)):
        os.environ["MPI4PY_MPIABI"] = family


def launcher_family(env: Mapping[str, str]) -> str | None:
    """Whose ranks these are: PMIx is Open MPI's way, a PMI descriptor or port MPICH's and Intel's."""
    if "OMPI_COMM_WORLD_SIZE" in env or "PMIX_RANK" in env:
        return "openmpi"
    if "PMI_RANK" in env:
        return "mpich"
    return None


def described(mpi: Any) -> str:
    """``Open MPI v4.1.4``: the library's name as it gives it, in a few words."""
    text = str(mpi.Get_library_version()).replace("\x00", "")
    words = text.splitlines()[0].split(",")[0].split()
    return " ".join(words[:3]).replace("Version: ", "")


def _loads(path: str) -> bool:
    try:
        ctypes.CDLL(path)
    except OSError:
        return False
    return True


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
