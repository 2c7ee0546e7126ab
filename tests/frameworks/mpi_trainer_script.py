"""A Trainer over backend="mpi": each step's loss, from rank 0.

--strategy ddp|fsdp|single   --fail RANK: that rank raises an error at the third step
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from allranks import TrainConfig, Trainer, world
from allranks.train.callbacks import When

torch.set_num_threads(1)
parser = argparse.ArgumentParser()
parser.add_argument("--strategy", default="ddp")
parser.add_argument("--fail", type=int)
options = parser.parse_args()


def log(trainer: Trainer, values: dict[str, float]) -> None:
    if world().is_main and "lr" in values:
        print(f"loss {trainer.step} {values['train_loss']:.6f}", flush=True)


def fail(trainer: Trainer) -> None:
    if trainer.step == 3 and world().rank == options.fail:
        raise ValueError("no such dataset: imagenet")


torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
x = torch.randn(45, 4)
y = 0.5 * x.sum(1, keepdim=True)
config = TrainConfig(
    epochs=3, seed=3, strategy=options.strategy, batch_size_is="global", clip_norm=1.0,
    backend=None if options.strategy == "single" else "mpi",
    log_every=1, print_every=0, summary=False, progress=False,
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
callbacks = [When("log", log), When("step_end", fail)]
trainer = Trainer(model, optimizer, config, loss_fn="mse", callbacks=callbacks)
loader = DataLoader(TensorDataset(x, y), 8, shuffle=True)
trainer.fit(loader, DataLoader(TensorDataset(x, y), 8))
