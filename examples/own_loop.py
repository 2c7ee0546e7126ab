"""The sine again, with one's own loop: ``prepare`` makes it run on one process or on many.

python examples/own_loop.py
python examples/own_loop.py --nprocs 2
allranks run --nprocs 2 examples/own_loop.py
torchrun --nproc-per-node 2 examples/own_loop.py
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import allranks


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit a sine with a hand-written loop.")
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--nprocs", type=int, help="processes; a launcher's own number wins")
    parser.add_argument("--strategy", default="auto")
    args = parser.parse_args()

    torch.manual_seed(0)  # all processes draw the same points; prepare shares them out
    x = torch.rand(100, 1)
    data = TensorDataset(x, torch.sin(2 * torch.pi * x))
    model = nn.Sequential(
        nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(data, batch_size=16, shuffle=True)

    prepared = allranks.prepare(
        model,
        optimizer,
        loader,
        nprocs=args.nprocs,
        strategy=args.strategy,
        batch_size_is="global",  # the same steps, whatever the number of processes
    )
    model, optimizer, loader = prepared
    for epoch in range(1, args.epochs + 1):
        losses = []
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            prepared.backward(loss)  # instead of loss.backward()
            prepared.step()  # steps and empties the gradients
            losses.append(loss.detach() * loader.weight)
        if epoch % max(1, args.epochs // 10) == 0:
            mean = prepared.mean(torch.stack(losses).mean())  # over all processes
            prepared.print(f"epoch {epoch:4}  loss {mean:.6f}")


if __name__ == "__main__":
    main()
