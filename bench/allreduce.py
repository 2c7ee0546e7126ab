"""The work of bench/launch.py: join a gloo group, sum one number over all ranks, leave."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
number = torch.ones(1)
dist.all_reduce(number)
assert number.item() == int(os.environ["WORLD_SIZE"])
dist.destroy_process_group()
