"""Started by the tests as plain python: ask for ranks, meet the others, then do what was asked.

    spawn_probe.py NPROCS [what rank 0 does [what rank 1 does]]

Every rank leaves a file in $REPORT: only rank 0's stdout is seen. With $PROBE_TORCH the ranks add up by torch;
without, they wait for each other's files, which saves importing it.
"""

import json
import os
import sys
import time
from pathlib import Path

import allranks
from allranks.runtime.agent.self_launch import ensure_ranks

if os.environ.get("PROBE_TORCH"):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)


def fail():
    raise ValueError("no such dataset")


def wait():
    """Wait in a collective that not all ranks join."""
    if "torch" in sys.modules:
        dist.all_reduce(torch.ones(1))
    else:
        time.sleep(100)


def again():
    """A second training in the same script: the same ranks meet once more."""
    size = dist.get_world_size()
    allranks.shutdown()
    assert ensure_ranks(size).size == ensure_ranks(None).size == size
    allranks.init("gloo", timeout=60)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == size


DEEDS = {
    "nothing": lambda: None,
    "lambda": lambda: print((lambda x: x + 1)(1)),
    "exit 3": lambda: sys.exit(3),
    "quiet 3": lambda: (print("the last words"), os._exit(3)),
    "raise": fail,
    "crash": lambda: os.kill(os.getpid(), 9),
    "wait": wait,
    "sleep": lambda: time.sleep(100),
    "warn": lambda: print("a warning", file=sys.stderr),
    "again": again,
    "other number": lambda: ensure_ranks(ensure_ranks(None).size + 1),
}


def add_up():
    here = allranks.init("gloo", timeout=60)
    total = torch.tensor([here.rank + 1.0])
    dist.all_reduce(total)
    return here, total.item()


def main(nprocs, *deeds):
    there = ensure_ranks(
        nprocs, log_folder=Path(os.environ["LOGS"]) if "LOGS" in os.environ else None
    )
    here, total = (there, None) if "torch" not in sys.modules else add_up()
    told = {
        "rank": here.rank, "size": here.size, "local_rank": here.local_rank, "nodes": here.nodes,
        "local_size": here.local_size, "launcher": there.launcher, "sum": total,
        "pid": os.getpid(), "parent": os.getppid(), "threads": os.environ.get("OMP_NUM_THREADS"),
        "words": sys.argv[1:], "port": here.master_port,
    }  # fmt: skip
    report = Path(os.environ["REPORT"])
    (report / f"{here.rank}.part").write_text(json.dumps(told))
    while len([*report.glob("*.part"), *report.glob("*.json")]) < here.size:
        time.sleep(0.01)
    (report / f"{here.rank}.part").rename(report / f"{here.rank}.json")
    print(f"rank {here.rank} is here")
    DEEDS[deeds[min(here.rank, len(deeds) - 1)] if deeds else "nothing"]()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
