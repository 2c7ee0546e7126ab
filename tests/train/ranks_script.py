"""Runs groups of small trainings on this many ranks and writes what every rank saw.

python ranks_script.py NPROCS OUT FOLDER GROUP…   (rank r writes OUT.r.json)
The same script on one rank gives what the others must equal. One process group does them all.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from allranks import TrainConfig, Trainer, world

torch.set_num_threads(1)
RANKS = int(sys.argv[1])
OUT, FOLDER = Path(sys.argv[2]), Path(sys.argv[3])
"""FOLDER is shared by several starts: checkpoints of one are resumed by the next."""
WAYS = ("single",) if RANKS == 1 else ("ddp", "fsdp")


def config(**fields: Any) -> TrainConfig:
    """Silent, exact, without checkpoints, and with a batch that is the same for any ranks."""
    base: dict[str, Any] = {
        "seed": 3, "dtype": torch.float64, "summary": False, "verbose": False, "print_every": 0,
        "progress": False, "checkpoint": False, "log_every": 1, "timeout": "30s", "nprocs": RANKS,
        "batch_size_is": "global", "strategy": WAYS[0],
    }  # fmt: skip
    return TrainConfig(**{**base, **fields})


def line(seed: int = 5) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))


def sgd(model: nn.Module, rate: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def points(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(count, 2, generator=generator)
    return TensorDataset(x, (x.sum(1, keepdim=True)).sin() + x[:, :1])


def mean_target(output: Any, target: Any) -> Any:
    return target.mean()


def flat(state: dict[str, Any]) -> dict[str, list[float]]:
    return {name: value.double().flatten().tolist() for name, value in state.items()}


def weights(trainer: Trainer) -> dict[str, list[float]]:
    """The whole model; {} on other ranks than 0."""
    return flat(trainer.model_state())


class Curve(Trainer):
    """Remembers the losses of every step and every validation."""

    def on_fit_start(self, trainer: Any) -> None:
        self.losses: list[float] = []
        self.validated: list[float] = []

    def on_log(self, trainer: Any, values: Any) -> None:
        if "lr" in values:
            self.losses.append(values["train_loss"])
        if "val_loss" in values:
            self.validated.append(values["val_loss"])


def _seen(call: Callable[[], Any]) -> dict[str, Any]:
    """This rank's result, or the error that it ended with."""
    try:
        return {"result": call()}
    except Exception as error:  # noqa: BLE001  told to the test
        return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def main() -> None:
    found: dict[str, Any] = {}
    for group in sys.argv[4:]:
        module = importlib.import_module(f"ranks_script_{group}")
        for name, call in module.scenarios():
            found[name] = _seen(call)
            # Written after each, since a rank that fails alone leaves the others waiting.
            OUT.with_suffix(f".{world().rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    sys.modules["ranks_script"] = sys.modules["__main__"]
    main()
