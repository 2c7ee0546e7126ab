"""torch's "mpi" backend over mpi4py, for the PyTorch builds that have none: all that pip and conda give.

``register()`` makes ``torch.distributed.init_process_group("mpi")`` work; nothing of MPI is started
before that call. Nothing here is imported unless somebody asks for MPI.
"""

from __future__ import annotations

from allranks.runtime.world.mpi.mpi_backend import check_world as check_world
from allranks.runtime.world.mpi.mpi_backend import register as register

__all__ = ["check_world", "register"]
