"""Ends of a rank, most of them bad and while the others wait for it. Run by the tests under mpirun."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import allranks

torch.set_num_threads(1)
how = sys.argv[1]
SECONDS = {"late": 5, "unseen": 5, "busy": 900, "tail": 1}
world = allranks.init("mpi", timeout=SECONDS.get(how, 120))
dist.all_reduce(torch.ones(1))
if world.rank == 1:
    if how == "raise":
        raise ValueError("this rank fails")
    if how == "exit":
        sys.exit(7)
    if how == "quit":
        quit(4)
    if how == "unseen":
        raise SystemExit(3)
    if how == "finally":
        try:
            raise SystemExit(6)
        finally:
            dist.destroy_process_group()
    if how == "busy":
        work = dist.all_reduce(torch.ones(1), async_op=True)
        sys.exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "late":
        time.sleep(60)
    if how == "caught":
        try:
            sys.exit(3)
        except SystemExit:
            print("caught", flush=True)
if how == "unseen":  # a call that has no limit of its own
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
if how == "busy":
    time.sleep(900)
if how in ("caught", "tail"):
    allranks.shutdown()
    time.sleep(4 if world.rank == 0 else 0)
else:
    dist.all_reduce(torch.ones(1))
print(f"rank {world.rank} is done", flush=True)
