"""A loop of a user's own on several ranks: it saves what it is at, and leaves when it is told to."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import allranks

torch.set_num_threads(1)
allranks.init("gloo")
stop = allranks.deadline()
rank, folder = dist.get_rank(), Path(sys.argv[1])
for step in range(6000):
    time.sleep(0.01)
    dist.all_reduce(torch.ones(1))
    if step == 3:
        (folder / f"ready{rank}").write_text(str(os.getpid()))
    if stop.near(step):
        with stop.saving(step):
            (folder / f"saved{rank}").write_text(str(step))
        stop.leave(step)
