"""The smallest distributed program: every rank adds its number plus one, and all see the same sum."""

import os

import torch
import torch.distributed as dist

backend = "nccl" if torch.cuda.is_available() else "gloo"
dist.init_process_group(backend)
rank, size = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else "cpu"
number = torch.tensor([rank + 1.0], device=device)
dist.all_reduce(number)
print(f"rank {rank} of {size} on {os.uname().nodename}: sum {number.item():.0f}", flush=True)
dist.destroy_process_group()
