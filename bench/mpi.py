"""All-reduce over MPI and over gloo, in the same processes, turn by turn.

    mpirun -n 2 python bench/mpi.py

Prints a table: the median of the turns, and how many times faster MPI is.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

import allranks

SIZES = {"1 KiB": 1 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}
CALLS = {"1 KiB": 200, "1 MiB": 20, "64 MiB": 2}
TURNS = 7
Reduce = Callable[[torch.Tensor], None]


def gloo(rank: int, size: int) -> Reduce:
    """A gloo group beside the MPI group: MPI carries the address."""
    hub = (
        dist.TCPStore("127.0.0.1", 0, size, rank == 0, wait_for_workers=False)
        if rank == 0
        else None
    )
    port = [hub.port if hub else None]
    dist.broadcast_object_list(port)
    store = hub or dist.TCPStore("127.0.0.1", port[0], size, False, wait_for_workers=False)
    group = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=120))
    options = dist.AllreduceOptions()
    return lambda tensor: group.allreduce([tensor], options).wait() and None


def seconds(reduce: Reduce, tensor: torch.Tensor, calls: int) -> float:
    """One turn: the time of a call, all ranks starting together."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        reduce(tensor)
    return (time.perf_counter() - start) / calls


def main() -> None:
    torch.set_num_threads(1)
    world = allranks.init("mpi")
    ways: dict[str, Reduce] = {"mpi": dist.all_reduce, "gloo": gloo(world.rank, world.size)}
    if world.is_main:
        from mpi4py import MPI

        print(f"{MPI.Get_library_version().splitlines()[0].strip()[:40]}, {world.size} processes, "
              f"{os.cpu_count()} CPUs, median of {TURNS} turns\n")  # fmt: skip
        print(f"| {'size':>7} | {'mpi':>10} | {'gloo':>10} | gloo / mpi |\n|---|---|---|---|")
    for name, size in SIZES.items():
        tensor = torch.zeros(size // 4)
        turns: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(TURNS + 1):
            for way, reduce in ways.items():
                spent = seconds(reduce, tensor, CALLS[name])
                if turn:  # the first one warms up
                    turns[way].append(spent)
        mpi, other = (statistics.median(turns[way]) for way in ways)
        if world.is_main:
            print(
                f"| {name:>7} | {mpi * 1e6:>7.0f} µs | {other * 1e6:>7.0f} µs | {other / mpi:.2f} |"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
