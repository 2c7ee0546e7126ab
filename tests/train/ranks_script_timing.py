"""Two ranks of which the second sleeps in its forward pass; then a training with and without marks.

python ranks_script_timing.py OUT   (rank r writes OUT.r.json)
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_rig import samples_told, train_lines

from allranks import TrainConfig, Trainer, world
from allranks.train.monitoring import profiled_steps as sampling

SLEEP = 0.05
torch.set_num_threads(1)
sampling.SECONDS["cpu"] = 0.0


class Sleepy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out, self.dropout = nn.Linear(4, 16), nn.Linear(16, 1), nn.Dropout(0.2)
        self.sleeps = False

    def forward(self, x: Any) -> Any:
        if self.sleeps and world().rank == 1:
            time.sleep(SLEEP)
        return self.out(self.dropout(self.into(x).relu()))


def trained(name: str, *, sleeps: bool = False, **fields: Any) -> Trainer:
    torch.manual_seed(1)
    model = Sleepy()
    model.sleeps = sleeps
    x = torch.randn(95, 4)
    config = TrainConfig(
        nprocs=2, seed=1, name=name, log_every=2, checkpoint=False, verbose=False, summary=False,
        progress=False, print_every=0, **{"strategy": "ddp", **fields},
    )  # fmt: skip
    trainer = Trainer(model, torch.optim.Adam(model.parameters()), config)
    trainer.fit(DataLoader(TensorDataset(x, x[:, :1]), 4))
    return trainer


def weights(trainer: Trainer) -> list[float]:
    return [float(each) for p in trainer.model.parameters() for each in p.detach().flatten()]


def steps(trainer: Trainer) -> list[Any]:
    path = trainer.folder / "attempts" / "1" / "steps.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    slept = trained("sleepy", sleeps=True)
    here = slept.world
    seen: dict[str, Any] = {"metrics": slept.metrics}
    if here.is_main:
        seen["steps"] = steps(slept)
        seen["samples"] = samples_told(train_lines(slept))
    seen["marked"] = weights(trained("marked", accumulate=3, peak_flops=1e12))
    os.environ["ALLRANKS_TIMING"] = "off"
    seen["plain"] = weights(trained("plain", accumulate=3))
    Path(f"{sys.argv[1]}.{here.rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
