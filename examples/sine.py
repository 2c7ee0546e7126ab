"""Fits sin(2 pi x) from 100 points: the smallest whole training.

python examples/sine.py                        one process
python examples/sine.py --nprocs 2             two, started by the Trainer
allranks run --nprocs 2 examples/sine.py       two, started by allranks
torchrun --nproc-per-node 2 examples/sine.py   two, started by torchrun
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from allranks import TrainConfig, Trainer, world


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit a sine.")
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--nprocs", type=int, help="processes; a launcher's own number wins")
    parser.add_argument("--backend", help="gloo or nccl; chosen by itself without this")
    parser.add_argument("--compute-setup", default="auto", choices=["auto", "cpu", "gpu"])
    parser.add_argument("--strategy", default="auto")
    args = parser.parse_args()

    torch.manual_seed(0)
    x = torch.rand(100, 1)
    data = TensorDataset(x, torch.sin(2 * torch.pi * x))
    model = nn.Sequential(
        nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    config = TrainConfig(
        max_iter=args.epochs,
        nprocs=args.nprocs,
        backend=args.backend,
        compute_setup=args.compute_setup,
        strategy=args.strategy,
        batch_size_is="global",  # the same steps, whatever the number of processes
        print_every=max(1, args.epochs // 10),
    )
    trainer = Trainer(model, optimizer, config, loss_fn="mse")
    model, optimizer = trainer.fit(DataLoader(data, batch_size=16, shuffle=True))

    with torch.no_grad():  # on all processes, since each may hold a part of the model only
        middle = model(torch.tensor([[0.25]], device=next(model.parameters()).device))
    if world().is_main:
        print(f"loss {trainer.metrics['train_loss']:.6f}, written to {trainer.folder}")
        print(f"sin(pi / 2) = 1, the model says {middle.item():.3f}")


if __name__ == "__main__":
    main()
