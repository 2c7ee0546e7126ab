"""Fits a sine with plain PyTorch DDP. No allranks inside: any launcher starts it.

allranks run --nprocs 2 examples/sine_ddp.py
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
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--samples", type=int, default=4096)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank % torch.cuda.device_count()) if cuda else "cpu"

    torch.manual_seed(0)  # every rank draws the same data; the sampler shares it out
    x = torch.rand(args.samples, 1)
    dataset = TensorDataset(x, torch.sin(2 * torch.pi * x))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=128, sampler=sampler)

    model = nn.Sequential(
        nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )
    model = DistributedDataParallel(model.to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    started = time.perf_counter()
    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        total = torch.zeros(2, device=device)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item() * len(inputs), len(inputs)], device=device)
        dist.all_reduce(total)
        if dist.get_rank() == 0 and epoch % max(1, args.epochs // 10) == 0:
            rate = args.samples * epoch / (time.perf_counter() - started)
            bar = "#" * (20 * epoch // args.epochs)
            loss_now = (total[0] / total[1]).item()
            print(f"epoch {epoch:4} [{bar:<20}] loss {loss_now:.6f}  {rate:,.0f} samples/s")
    # DDP holds the process group, and gloo's threads must end before Python does.
    del model, optimizer, loss
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
