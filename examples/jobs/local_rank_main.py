"""A training script of the older style: its launcher tells it --local_rank.

allranks run --launcher launch --nprocs 2 examples/jobs/local_rank_main.py --batch_size 128
"""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, required=True)
parser.add_argument("--batch_size", type=int, default=64)
parser.add_argument("--learning_rate", type=float, default=1e-3)
parser.add_argument("--steps", type=int, default=20)
args = parser.parse_args()

cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")
device = torch.device("cuda", args.local_rank) if cuda else torch.device("cpu")
torch.manual_seed(dist.get_rank())  # each rank draws data of its own, endlessly
model = DistributedDataParallel(nn.Linear(8, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate)
for _ in range(args.steps):
    x = torch.rand(args.batch_size, 8, device=device)
    loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.all_reduce(loss)
where = f"local rank {args.local_rank} on {os.uname().nodename}"
print(f"rank {dist.get_rank()} ({where}): mean loss {loss.item() / dist.get_world_size():.4f}")
# DDP holds the process group, and gloo's threads must end before Python does.
del model, optimizer, loss
gc.collect()
dist.destroy_process_group()
