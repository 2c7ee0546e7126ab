"""A training script with DeepSpeed's engine, as its own documentation writes it. Any launcher starts it:

allranks run --nprocs 2 examples/jobs/deepspeed_main.py \\
    --deepspeed --deepspeed_config examples/jobs/ds_config.json
"""

import argparse

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", type=int, default=-1, help="passed by some launchers")
parser.add_argument("--steps", type=int, default=8)
parser = deepspeed.add_config_arguments(parser)  # --deepspeed and --deepspeed_config
args = parser.parse_args()

deepspeed.init_distributed()
rank, world = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)  # the same model and the same data on every rank
model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
images = torch.randn(512, 64)
labels = (images @ torch.randn(64, 10)).argmax(dim=1)

optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
engine, optimizer, _, _ = deepspeed.initialize(
    args=args, model=model, model_parameters=model.parameters(), optimizer=optimizer
)
batch = engine.train_batch_size()  # over all ranks: DeepSpeed shares it out
for step in range(args.steps):
    # Each rank takes its part of one batch. (With a DataLoader a DistributedSampler does this.)
    numbers = torch.arange(step * batch, (step + 1) * batch) % len(images)
    mine = numbers[rank::world]
    loss = nn.functional.cross_entropy(
        engine(images[mine].to(engine.device)), labels[mine].to(engine.device)
    )
    engine.backward(loss)
    engine.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if rank == 0:  # not args.local_rank: only some launchers pass it
        print(f"loss {step} {mean.item() / world:.6f}", flush=True)
dist.destroy_process_group()
