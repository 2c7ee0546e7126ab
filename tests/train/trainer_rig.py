"""What tests of the Trainer share: a straight line to learn, and a configuration that says nothing."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from allranks import TrainConfig
from allranks.train.data import to_dataloader


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


def train_lines(trainer: Any) -> list[dict[str, Any]]:
    """The metrics of the steps, line by line."""
    text = (trainer.folder / "metrics.jsonl").read_text()
    return [row for row in map(json.loads, text.splitlines()) if row["kind"] == "train"]


def samples_told(rows: list[dict[str, Any]]) -> float:
    """All samples, by the speeds and the times of the lines."""
    before, total = 0, 0.0
    for row in rows:
        total += row["samples_per_second"] * row["step_seconds"] * (row["step"] - before)
        before = row["step"]
    return total
