"""What tests of the Trainer share: a straight line to learn, and a configuration that says nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from allranks import TrainConfig
from allranks.data import to_dataloader


def quiet(**fields: Any) -> TrainConfig:
    fields = {"seed": 1, "verbose": False, "summary": False, "progress": False, **fields}
    return TrainConfig(**fields)


def line(inputs: int = 1) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Linear(inputs, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def points(n: int = 40) -> TensorDataset:
    x = torch.linspace(-1, 1, n).reshape(-1, 1)
    return TensorDataset(x, 3 * x + 0.5)


def endless() -> Any:
    x, y = points().tensors
    return to_dataloader(x, y, batch_size=8, infinite=True)


def untimed(row: dict[str, Any]) -> dict[str, Any]:
    """A line of the metrics without what a clock says."""
    clock = ("_seconds", "_per_second", "mfu")
    return {
        name: value for name, value in row.items() if name != "time" and not name.endswith(clock)
    }
