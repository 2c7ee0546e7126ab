"""``from allranks import mpi`` makes ``torch.distributed.init_process_group("mpi")`` work with any PyTorch.

PyTorch from pip and conda has no MPI built in; this gives it one, over mpi4py. ``allranks.init(
backend="mpi")`` does it by itself. A PyTorch that was built with MPI keeps its own.
"""

from __future__ import annotations

from allranks.runtime.world.mpi import register

register()
