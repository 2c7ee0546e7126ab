"""A Trainer with strategy="horovod": each step's loss, from rank 0.

--nprocs N       ask for ranks in the script itself
--fail RANK      that rank raises an error at the third step
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from allranks import TrainConfig, Trainer, world
from allranks.train.callbacks import When

torch.set_num_threads(1)
parser = argparse.ArgumentParser()
parser.add_argument("--nprocs", type=int)
parser.add_argument("--strategy", default="horovod")
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
x = torch.rand(45, 4)  # the last batch has 5 samples, not even for 2 or 4 ranks
y = 2 * x.sum(1, keepdim=True)
config = TrainConfig(
    epochs=2, seed=3, nprocs=options.nprocs, strategy=options.strategy, batch_size_is="global",
    log_every=1, print_every=0, summary=False, progress=False, clip_norm=1.0, checkpoint=False,
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
callbacks = [When("log", log), When("step_end", fail)]
trainer = Trainer(model, optimizer, config, loss_fn="mse", callbacks=callbacks)
trainer.fit(DataLoader(TensorDataset(x, y), 8, shuffle=True))
