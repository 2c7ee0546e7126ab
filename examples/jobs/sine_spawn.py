"""Fits a sine. Starts its own processes, or is one of them when a launcher started it.

python3 examples/jobs/sine_spawn.py --nprocs 2
allranks run --launcher torchrun --nprocs 2 examples/jobs/sine_spawn.py
"""

import argparse
import gc
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def train(local_rank: int, epochs: int, compute_setup: str) -> None:
    cuda = compute_setup != "cpu" and torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", local_rank % torch.cuda.device_count()) if cuda else "cpu"

    torch.manual_seed(0)
    x = torch.linspace(0, 1, 512).reshape(-1, 1)
    dataset = TensorDataset(x, torch.sin(2 * torch.pi * x))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    model = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for epoch in range(1, epochs + 1):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0 and epoch % 5 == 0:
            print(
                f"epoch {epoch} of {dist.get_world_size()} ranks: loss {loss.item():.4f}",
                flush=True,
            )
    # DDP holds the process group, and gloo's threads must end before Python does.
    del model, optimizer, loss
    gc.collect()
    dist.destroy_process_group()


def spawned(rank: int, size: int, port: int, epochs: int, compute_setup: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    train(rank, epochs, compute_setup)


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nprocs", type=int, default=1, help="Processes to spawn.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--compute_setup", default="auto", choices=["cpu", "gpu", "auto"])
    args = parser.parse_args()
    if args.compute_setup == "gpu" and not torch.cuda.is_available():
        parser.error("--compute_setup gpu, but no GPU is visible")
    if "RANK" in os.environ:  # torchrun and the others have started one process per rank
        train(int(os.environ["LOCAL_RANK"]), args.epochs, args.compute_setup)
    else:
        words = (args.nprocs, free_port(), args.epochs, args.compute_setup)
        mp.spawn(spawned, words, nprocs=args.nprocs)
