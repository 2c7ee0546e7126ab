"""A small training to be watched: its last rank is slower than the others. ``watch_train.py EPOCHS``."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import allranks
from allranks import TrainConfig, Trainer

torch.set_num_threads(1)
torch.manual_seed(3)
x = torch.randn(128, 16)
data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
model = nn.Linear(16, 1)


def loss_fn(model, batch):
    here = allranks.world()
    time.sleep(0.05 if here.rank == here.size - 1 else 0.02)
    return nn.functional.mse_loss(model(batch[0]), batch[1]), {}


config = TrainConfig(epochs=int(sys.argv[1]), log_every=4, progress=False, summary=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
Trainer(model, optimizer, config, loss_fn=loss_fn).fit(data)
print("the training is over", flush=True)
