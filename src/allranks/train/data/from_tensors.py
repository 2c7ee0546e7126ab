"""A loader in one line from tensors."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, TensorDataset

from allranks.train.data.infinite import InfiniteTensorDataset


def to_dataloader(*tensors: Any, batch_size: int = 1, infinite: bool = False) -> DataLoader:
    """A DataLoader over tensors of equal length: in order, or ``infinite``: random and without end."""
    if infinite:
        return DataLoader(InfiniteTensorDataset(*tensors), batch_size=batch_size)
    return DataLoader(TensorDataset(*tensors), batch_size=batch_size)
