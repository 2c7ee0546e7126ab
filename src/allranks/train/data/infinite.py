"""Random samples of tensors without end, for training counted in steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from allranks.errors import UsageError

_PIECE = 1 << 16  # indices that become Python numbers at a time


class InfiniteTensorDataset(IterableDataset):
    """Samples of the tensors in random order, again and again; each pass is a new permutation.

    In a plain DataLoader the ranks draw parts of one global batch. Otherwise it is a stream like any
    other: all ranks read the same and take their batches in turn.
    """

    def __init__(self, *tensors: Any) -> None:
        if not tensors or len({len(tensor) for tensor in tensors}) != 1:
            sizes = ", ".join(str(len(tensor)) for tensor in tensors)
            raise UsageError(f"Tensors of equal length are needed; these have: {sizes or 'none'}.")
        if len(tensors[0]) == 0:
            raise UsageError("The tensors hold no samples.")
        self.tensors = tensors

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for index in EndlessSampler(len(self.tensors[0])):
            yield tuple(tensor[index] for tensor in self.tensors)


class EndlessSampler:
    """0 … n-1 in one random order after the other."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self.generator: Any = None

    def __iter__(self) -> Iterator[int]:
        generator = self.generator
        if generator is None:
            seed = int(torch.empty((), dtype=torch.int64).random_().item())
            generator = torch.Generator().manual_seed(seed)
        while True:
            for piece in torch.randperm(self._samples, generator=generator).split(_PIECE):
                yield from piece.tolist()
