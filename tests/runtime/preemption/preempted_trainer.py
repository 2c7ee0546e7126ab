"""A Trainer with loader workers; ``nprocs`` where nobody started the ranks."""

import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from allranks import TrainConfig, Trainer
from allranks.train.callbacks import Callback

torch.set_num_threads(1)
folder, nprocs = Path(sys.argv[1]), int(sys.argv[2])


class Slow(Dataset):
    """Takes its time, so that a signal comes in the middle."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.002)
        return torch.full((2,), index / 400), torch.ones(1)


class Ready(Callback):
    def on_step_end(self, trainer) -> None:
        if trainer.step == 3:
            (folder / f"ready{trainer.world.rank}").write_text(str(os.getpid()))

    def on_exception(self, trainer, error) -> None:
        (folder / "exception").write_text(repr(error))


model = torch.nn.Linear(2, 1)
config = TrainConfig(epochs=200, nprocs=nprocs, summary=False, seed=0)
trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.01), config, callbacks=[Ready()])
trainer.fit(DataLoader(Slow(), batch_size=4, num_workers=2, persistent_workers=True))
