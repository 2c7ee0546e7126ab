"""One rank ends badly while the others wait for it in a collective. Run by the tests under mpirun."""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist

import allranks

torch.set_num_threads(1)
how = sys.argv[1]
world = allranks.init("mpi", timeout=5 if how == "late" else 120)
dist.all_reduce(torch.ones(1))
if world.rank == 1:
    if how == "raise":
        raise ValueError("this rank fails")
    if how == "exit":
        sys.exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "late":
        import time

        time.sleep(60)
dist.all_reduce(torch.ones(1))
