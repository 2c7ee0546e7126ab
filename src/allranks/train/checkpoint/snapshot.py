"""What a rank gives to be saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from allranks.train.checkpoint.plan import Stretch, is_shard, tied
from allranks.train.checkpoint.reader import packed


@dataclass
class Snapshot:
    """One rank's part of a training, live: nothing is copied yet."""

    tensors: Mapping[str, Any]
    """Key → a tensor, a DTensor or a Stretch."""
    everywhere: bool = True
    """Whole tensors are the same on every rank: they are dealt out. Otherwise they are this rank's own."""
    state: Any = None
    """On rank 0: all that is no tensor, in plain containers."""
    own: Any = None
    """What this rank alone knows: its generators."""

    def blobs(self, rank: int) -> dict[str, torch.Tensor]:
        """``state`` and ``own`` as rows of bytes."""
        parts = {"state": self.state if rank == 0 else None, f"rank.{rank}": self.own}
        return {key: packed(value) for key, value in parts.items() if value is not None}


def bytes_of(snapshot: Snapshot, size: int) -> int:
    """How many bytes the tensors take over all ranks, seen from one of them; the rest is small."""
    ties = tied(snapshot.tensors)
    total: int = 0
    for key, value in snapshot.tensors.items():
        if key in ties:
            continue
        if isinstance(value, Stretch):
            total += torch.Size(value.shape).numel() * value.tensor.element_size()
        elif snapshot.everywhere or is_shard(value):
            total += value.numel() * value.element_size()
        else:
            total += value.nbytes * size
    return total
