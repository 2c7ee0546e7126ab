"""The name "mpi" in torch.distributed, where PyTorch was built without it."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from allranks.runtime.world.mpi import mpi_library as library

_DEFAULT_SECONDS = 1800.0


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
    """Stands where torch expects the class of its own MPI build."""

    @staticmethod
    def create(ranks: Sequence[int]) -> Any:
        """The group of all ranks (an empty list), or one of these; its members call together."""
        from allranks.runtime.world.mpi.mpi_process_group import MpiGroup
        from allranks.runtime.world.mpi.mpi_runtime import runtime

        seconds = _seconds(sys._getframe(1).f_locals.get("timeout"))
        started = runtime()
        comm = started.worker.call(lambda: _communicator(started.mpi, ranks))
        if not ranks and started.farewell is None:
            started.farewell = started.worker.call(started.mpi.COMM_WORLD.Dup)
        if not ranks and comm.Get_size() == 1:
            _check_alone(started.mpi)
        return MpiGroup(started, comm, seconds)


def _check_alone(mpi: Any) -> None:
    """One rank of many that MPI takes for a world of its own would train alone, and nobody notice."""
    from allranks.runtime.world.detection import detect
    from allranks.runtime.world.mpi.mpi_world_check import compare

    here = detect(os.environ)
    if here.size > 1:
        compare(here, 0, 1, mpi)


def _communicator(mpi: Any, ranks: Sequence[int]) -> Any:
    """A communicator of our own, so that the user's calls of MPI never meet ours."""
    world = mpi.COMM_WORLD
    if not ranks:
        return world.Dup()
    group = world.Get_group().Incl(list(ranks))
    try:
        return world.Create_group(group, zlib.crc32(repr(list(ranks)).encode()) % 32000)
    finally:
        group.Free()


def _seconds(timeout: Any) -> float:
    """torch knows the time limit but does not hand it to MPI's class: its caller's variable has it."""
    return timeout.total_seconds() if isinstance(timeout, timedelta) else _DEFAULT_SECONDS
