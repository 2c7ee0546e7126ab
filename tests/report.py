"""A training script for tests: all-reduce over all ranks, then print what this rank was told."""

import argparse
import json
import os
import socket

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", "--local_rank", type=int)
parser.add_argument("--word", default="")
args = parser.parse_args()

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
names = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
    "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "ALLRANKS_LAUNCHER", "SLURM_CPUS_PER_TASK",
)  # fmt: skip
known = {name: os.environ.get(name) for name in names}
known |= {"sum": total.item(), "host": socket.gethostname(), "word": args.word}
known |= {"group": [dist.get_rank(), dist.get_world_size()], "local_rank_arg": args.local_rank}
# One write: without the agent nothing keeps the lines of several ranks apart.
os.write(1, (json.dumps(known) + "\n").encode())
dist.destroy_process_group()
