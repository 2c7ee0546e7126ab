"""The backend "mpi" of torch.distributed, where PyTorch was built without it.

The launcher's variables and MPI must describe the same ranks: a mismatch is an error.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from allranks.errors import WorldError
from allranks.runtime.world.detection import detect
from allranks.runtime.world.model import World
from allranks.runtime.world.mpi import mpi_library as library

if TYPE_CHECKING:
    from allranks.runtime.world.mpi.mpi_runtime import Runtime

_DEFAULT_SECONDS = 1800.0
_runtime: Runtime | None = None
_ALONE = {
    "srun": (
        "srun did not connect the tasks to MPI. Add --mpi: allranks submit --mpi pmi2 (MPICH, Intel "
        "MPI) or --mpi pmix (Open MPI); srun --mpi=list shows what this cluster has. Or use "
        "--launcher mpirun."
    ),
    "other": "Start the ranks with MPI: allranks run --launcher mpirun --nprocs N train.py.",
}


def register() -> None:
    """Make ``init_process_group("mpi")`` work here. A PyTorch that has MPI built in keeps its own."""
    from torch.distributed import distributed_c10d as c10d

    if c10d.is_mpi_available():
        return
    library.require_mpi4py()
    # torch asks for this class by its name before it looks at backends that were registered.
    c10d.ProcessGroupMPI = ProcessGroupMPI
    c10d._MPI_AVAILABLE = True


class ProcessGroupMPI:
    """Replaces the class of torch's own MPI build."""

    @staticmethod
    def create(ranks: Sequence[int]) -> Any:
        """Create the group of all ranks (an empty list), or of these ranks. Collective for its members."""
        from allranks.runtime.world.mpi.mpi_process_group import MpiGroup

        seconds = _seconds(sys._getframe(1).f_locals.get("timeout"))
        started = start_mpi()
        comm = started.worker.call(lambda: _communicator(started.mpi, ranks))
        if not ranks and started.exit_communicator is None:
            started.exit_communicator = started.worker.call(started.mpi.COMM_WORLD.Dup)
        if not ranks and comm.Get_size() == 1:
            _check_alone(started.mpi)
        return MpiGroup(started, comm, seconds)


def start_mpi() -> Runtime:
    """Return MPI of this process, which is started by the first call."""
    global _runtime
    if _runtime is None:
        from allranks.runtime.world.mpi import mpi_shutdown
        from allranks.runtime.world.mpi.mpi_runtime import Runtime

        _runtime = Runtime()
        mpi_shutdown.watch_exit(_runtime)
    return _runtime


def _check_alone(mpi: Any) -> None:
    """Refuse a world of one that the launcher does not confirm: the rank would train alone, unnoticed."""
    here = detect(os.environ)
    if here.size > 1:
        compare_world(here, 0, 1, mpi)


def _communicator(mpi: Any, ranks: Sequence[int]) -> Any:
    """Make our own communicator, so that the user's MPI calls never mix with ours."""
    world = mpi.COMM_WORLD
    if not ranks:
        return world.Dup()
    group = world.Get_group().Incl(list(ranks))
    try:
        return world.Create_group(group, zlib.crc32(repr(list(ranks)).encode()) % 32000)
    finally:
        group.Free()


def _seconds(timeout: Any) -> float:
    """Return the time limit; torch does not pass it to MPI's class, so it is read from the caller's frame."""
    return timeout.total_seconds() if isinstance(timeout, timedelta) else _DEFAULT_SECONDS


def check_world(here: World) -> None:
    """Start MPI and compare: a rank that MPI numbers differently would mix up the data."""
    started = start_mpi()
    comm = started.worker.call(lambda: started.mpi.COMM_WORLD)
    compare_world(here, comm.Get_rank(), comm.Get_size(), started.mpi)


def compare_world(here: World, rank: int, size: int, mpi: Any = None) -> None:
    """Raise an error when MPI and the launcher number this rank differently."""
    if (here.rank, here.size) == (rank, size):
        return
    name = f" ({library.describe_library(mpi)})" if mpi is not None else ""
    problem = f"{here.reason} gives rank {here.rank} of {here.size}, but MPI{name} gives {rank} of {size}."
    raise WorldError(f"{problem}\n{_advice(here, size, mpi)}")


def _advice(here: World, size: int, mpi: Any) -> str:
    family = library.launcher_family(os.environ)
    if size == 1 and family is not None and mpi is not None:
        return _other_library(family, mpi)
    if size == 1:
        return _ALONE["srun" if "SLURM_STEP_ID" in os.environ else "other"]
    if size == here.size and "SLURM_JOB_ID" in os.environ:
        return "With backend mpi, MPI numbers the ranks: leave out --head and --distribution."
    return "Start the ranks with the mpirun of the MPI that mpi4py uses, and set no RANK by hand."


def _other_library(family: str, mpi: Any) -> str:
    """Explain that launcher and library belong to different MPIs, so that each rank is alone."""
    return (
        f"The ranks were started as ranks of {family}, and mpi4py uses {library.describe_library(mpi)}. If "
        f"that is another MPI, use its own mpirun, or the other library: MPI4PY_MPIABI={family} (or "
        "MPI4PY_LIBMPI=FILE). On Slurm, try the other --mpi: pmix (Open MPI), pmi2 (MPICH, Intel)."
    )
