"""A training that may be ended at any moment, with all that a resumption can get wrong.

Dropout, shuffling, random augmentation in loader workers, a schedule, momentum, a moving average, an
uneven last batch, validation. ``soak_train.py STRATEGY EPOCHS PAUSE [WORKERS]``.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from allranks import TrainConfig, Trainer

strategy, epochs, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
workers = int(sys.argv[4]) if len(sys.argv) > 4 else 0
torch.set_num_threads(1)


class Noisy(Dataset):
    """Points of a line, each time seen through other noise."""

    def __len__(self):
        return 76  # not a multiple of any batch

    def __getitem__(self, index):
        x = torch.linspace(-1, 1, 8) + index / 50
        return x + 0.1 * torch.randn(8), x.sum().reshape(1)


def loss_fn(model, batch):
    time.sleep(pause)
    return nn.functional.mse_loss(model(batch[0]), batch[1]), {}


torch.manual_seed(7)
model = nn.Sequential(
    nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
config = TrainConfig(
    epochs=epochs, strategy=strategy, seed=11, log_every=1, checkpoint_every_steps=3,
    batch_size_is="global", ema=None if strategy == "deepspeed" else 0.95, clip_norm=1.0,
    progress=False, summary=False, name="soak",
)  # fmt: skip
trainer = Trainer(
    model, optimizer, config, loss_fn=loss_fn,
    scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10 * epochs),
)  # fmt: skip
data = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=workers)
trainer.fit(data, DataLoader(Noisy(), batch_size=16))
