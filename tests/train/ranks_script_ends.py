"""A training on two ranks that ends in many ways.

python ranks_script_ends.py NPROCS DEED
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from allranks import TrainConfig, Trainer, world

torch.set_num_threads(1)
NPROCS, DEED = int(sys.argv[1]), sys.argv[2]


def loss(model: nn.Module, batch: Any) -> Any:
    if DEED.startswith("raise") and world().rank == int(DEED[-1]) and count["batches"] == 3:
        raise ValueError("this sample is broken")
    if DEED == "forever" and count["batches"] == 3:
        Path(f"training-{world().rank}").touch()
    count["batches"] += 1
    return (model(batch[0]) - batch[1]).square().mean()


count = {"batches": 0}


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    model = nn.Linear(3, 1)
    epochs = 10**7 if DEED == "forever" else 3
    config = TrainConfig(
        epochs=epochs, nprocs=NPROCS, summary=False, verbose=DEED == "told", print_every=0,
        progress=False, log_every=5, seed=1, strategy="fsdp" if DEED == "fsdp" else "auto",
        checkpoint=DEED != "forever",
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = Trainer(model, optimizer, config, loss_fn=loss)
    trainer.fit(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 4, shuffle=True))
    if DEED == "twice":
        Trainer(model, optimizer, config, loss_fn=loss).test(
            DataLoader(TensorDataset(x, x[:, :1]), 4)
        )
    trainer.say(f"trained on {trainer.world.size} in {trainer.folder}")


if __name__ == "__main__":
    main()
