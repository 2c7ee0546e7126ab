"""A training loop with DeepSpeed's engine and ZeRO stage 1.

allranks run --launcher torchrun --nprocs 2 examples/jobs/deepspeed_main.py \\
    --deepspeed --deepspeed_config examples/jobs/ds_config.json
"""

import argparse

import deepspeed
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1, help="passed by some launchers")
parser.add_argument("--steps", type=int, default=5)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()

deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
engine, _, _, _ = deepspeed.initialize(args=args, model=model, optimizer=optimizer)

torch.manual_seed(1 + torch.distributed.get_rank())
for _ in range(args.steps):
    x = torch.rand(engine.train_micro_batch_size_per_gpu(), 8, device=engine.device)
    loss = nn.functional.mse_loss(engine(x), x.sum(dim=1, keepdim=True))
    engine.backward(loss)
    engine.step()
rank = torch.distributed.get_rank()  # not args.local_rank: torchrun does not pass it
if rank == 0:
    print(f"{torch.distributed.get_world_size()} ranks, loss {loss.item():.4f}")
torch.distributed.destroy_process_group()
