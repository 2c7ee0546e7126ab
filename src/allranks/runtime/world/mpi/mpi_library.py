"""Loads mpi4py with the MPI library that belongs to the launcher."""

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
"""mpi4py's name of a family, and the library that programs built for it load."""

INSTALL = (
    "Install it with: pip install mpi4py (it comes without an MPI library and uses the one that "
    "is installed: the cluster's module, Debian's openmpi-bin, or pip install mpich)."
)


def require_mpi4py() -> None:
    """Raise an error that names what to install, before anything is started."""
    if importlib.util.find_spec("mpi4py") is None:
        raise MissingDependencyError(
            "Backend 'mpi' needs a PyTorch built with MPI or the 'mpi4py' package, and neither is "
            f"installed. {INSTALL}\nUnder mpirun, gloo and nccl work too: leave out the backend."
        )


def load_mpi4py() -> Any:
    """Return the module ``mpi4py.MPI``, initialized with threads, for the library of this launcher."""
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
        raise MissingDependencyError(
            "MPI was finalized in this process already and cannot start again."
        )
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    return MPI


def choose_family(env: Mapping[str, str]) -> None:
    """Make mpi4py load the launcher's MPI; where several are installed it would take the venv's."""
    family = launcher_family(env)
    if family is None or "MPI4PY_MPIABI" in env or "MPI4PY_LIBMPI" in env:
        return
    name = _FAMILIES[family]
    if any(_loads(place) for place in (str(Path(sys.exec_prefix, "lib", name)), name)):
        os.environ["MPI4PY_MPIABI"] = family


def launcher_family(env: Mapping[str, str]) -> str | None:
    """Return the MPI that started this rank: PMIx means Open MPI, PMI means MPICH or Intel MPI."""
    if "OMPI_COMM_WORLD_SIZE" in env or "PMIX_RANK" in env:
        return "openmpi"
    if "PMI_RANK" in env:
        return "mpich"
    return None


def describe_library(mpi: Any) -> str:
    """Return the library's name and version, such as ``Open MPI v4.1.4``."""
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
