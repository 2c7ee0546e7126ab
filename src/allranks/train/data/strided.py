"""Loaders without batching: items in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from allranks.train.data.order import Order, drawn


class Strided:
    """For loaders without batching, whose every item is a batch: rank takes items i % W == rank."""

    def __init__(self, sampler: Any, order: Order | None, seed: int, rank: int, size: int) -> None:
        self._sampler, self._order, self._seed = sampler, order, seed
        self._rank, self._size = rank, size
        self._epoch = self._done = 0

    def start(self, epoch: int, done: int) -> None:
        """Which epoch the next iteration is for, and how many of all ranks' items to leave out."""
        self._epoch, self._done = epoch, done

    def __len__(self) -> int:
        if self._order is None:
            raise TypeError("the sampler has no length")
        return len(range(self._rank, self._order.samples, self._size))

    def __iter__(self) -> Iterator[Any]:
        if self._order is not None:
            left = self._order.indices(self._epoch)[self._done :]
            yield from np.asarray(left[self._rank :: self._size]).tolist()
            return
        for hand in drawn(self._sampler, self._seed, self._epoch, self._size, self._done):
            if self._rank < len(hand):
                yield hand[self._rank]
