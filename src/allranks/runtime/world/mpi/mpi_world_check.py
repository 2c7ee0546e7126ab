"""Whether the launcher's variables and MPI speak of the same processes."""

from __future__ import annotations

import os
from typing import Any

from allranks.errors import WorldError
from allranks.runtime.world.model import World
from allranks.runtime.world.mpi import mpi_library as library

_ALONE = {
    "srun": (
        "srun did not connect the tasks to MPI. Add --mpi: allranks submit --mpi pmi2 (MPICH, Intel "
        "MPI) or --mpi pmix (Open MPI); srun --mpi=list shows what this cluster has. Or use "
        "--launcher mpirun."
    ),
    "other": "Start the ranks with MPI: allranks run --launcher mpirun --nprocs N train.py.",
}


def check_world(here: World) -> None:
    """Start MPI and compare: a rank that MPI counts differently would mix up the data."""
    from allranks.runtime.world.mpi.mpi_runtime import runtime

    started = runtime()
    comm = started.worker.call(lambda: started.mpi.COMM_WORLD)
    compare(here, comm.Get_rank(), comm.Get_size(), started.mpi)


def compare(here: World, rank: int, size: int, mpi: Any = None) -> None:
    """The error that says why MPI and the launcher differ, or nothing."""
    if (here.rank, here.size) == (rank, size):
        return
    name = f" ({library.described(mpi)})" if mpi is not None else ""
    told = (
        f"{here.reason} says rank {here.rank} of {here.size}, but MPI{name} says {rank} of {size}."
    )
    raise WorldError(f"{told}\n{_advice(here, size, mpi)}")


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
    """Each rank is alone where the launcher is one MPI's and the library another's."""
    return (
        f"The ranks were started the way of {family}, and mpi4py uses {library.described(mpi)}. If "
        f"that is another MPI, use its own mpirun, or the other library: MPI4PY_MPIABI={family} (or "
        "MPI4PY_LIBMPI=FILE). On Slurm, try the other --mpi: pmix (Open MPI), pmi2 (MPICH, Intel)."
    )
