"""Distributed loaders of all ranks in one process, run step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

from allranks.train.data import LoaderOptions, distribute_loader


class Plain(Dataset):
    """Not a TensorDataset, so that the DataLoader itself is used."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index)])


def distributed_loaders(loader: Any, size: int, **options: Any) -> list[Any]:
    made = LoaderOptions(**options)
    return [
        distribute_loader(loader, rank=r, size=size, device="cpu", options=made)
        for r in range(size)
    ]


def steps(made: list[Any], epoch: int = 0, skip: int = 0) -> list[list[tuple[list[float], Any]]]:
    """For each step the (samples, weight) of every rank; all ranks have the same number of steps."""
    runs = []
    for distributed in made:
        run = []
        for batch, weight in distributed.epoch(epoch, skip=skip):
            tensor = batch[0] if isinstance(batch, list) else batch
            run.append((tensor.flatten().tolist(), weight))
        runs.append(run)
    return [list(step) for step in zip(*runs, strict=True)]


def counted(step: list[tuple[list[float], Any]]) -> list[float]:
    return [v for values, weight in step if weight is None or weight.count for v in values]
