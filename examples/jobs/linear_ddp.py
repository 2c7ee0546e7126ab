"""Fits a line with plain PyTorch DDP. Started as ranks: srun, torchrun, fork, …

allranks run --nprocs 2 examples/jobs/linear_ddp.py
"""

import argparse
import gc
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu")
    if cuda:
        # With --gpus-per-task a rank sees its own GPU only, as number 0.
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    print(f"Hello from rank {rank}/{size} on {os.uname().nodename}", flush=True)

    torch.manual_seed(0)  # every rank draws the same data; the sampler shares it out
    x = torch.rand(1024, 1)
    dataset = TensorDataset(x, 3 * x + 1 + 0.01 * torch.randn(1024, 1))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    model = DistributedDataParallel(nn.Linear(1, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)  # a new order in each epoch
        total = torch.zeros(2, device=device)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item() * len(inputs), len(inputs)], device=device)
        dist.all_reduce(total)  # the loss of all ranks, not of this one
        if rank == 0:
            print(f"{time.strftime('%X')} epoch {epoch} loss {(total[0] / total[1]).item():.6f}")
    # DDP holds the process group, and gloo's threads must end before Python does.
    del model, optimizer, loss
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
