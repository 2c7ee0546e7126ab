"""The order of the samples in an epoch, the same on all ranks and for every number of ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from allranks.train.data.random_state import OwnRandomState
from allranks.train.data.sample_hash import Array, index_array, mix_seed

_INDICES_AT_ONCE = 1 << 16  # converted to Python numbers at a time


class SampleOrder(ABC):
    """All indices of an epoch."""

    samples: int
    own = True
    """Whether allranks made the order: then it is a permutation of 0 … n-1 on every rank."""
    straight = False
    """Whether it is simply 0, 1, 2 …"""
    note = ""

    @abstractmethod
    def indices(self, epoch: int) -> Array:
        """Return the indices of epoch ``epoch``."""


class SequentialOrder(SampleOrder):
    """0, 1, 2 … in every epoch."""

    straight = True

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def indices(self, epoch: int) -> Array:
        return np.arange(self.samples)


class ShuffledOrder(SampleOrder):
    """A permutation from (seed, epoch)."""

    def __init__(self, samples: int, seed: int) -> None:
        self.samples = samples
        self._seed = seed

    def _epoch_seed(self, epoch: int) -> int:
        return mix_seed(self._seed, epoch)

    def indices(self, epoch: int) -> Array:
        generator = torch.Generator().manual_seed(self._epoch_seed(epoch))
        draw_items: Array = torch.randperm(self.samples, generator=generator).numpy()
        return draw_items


class DistributedSamplerOrder(ShuffledOrder):
    """The permutation of a DistributedSampler, without its padding and truncation."""

    def _epoch_seed(self, epoch: int) -> int:
        return self._seed + epoch


class TruncatedOrder(SampleOrder):
    """An order without its last few samples, as a DistributedSampler with drop_last has it."""

    def __init__(self, order: SampleOrder, samples: int) -> None:
        self._order = order
        self.samples = samples
        self.own = self.straight = False

    def indices(self, epoch: int) -> Array:
        return self._order.indices(epoch)[: self.samples]


class SamplerOrder(SampleOrder):
    """The indices of a user's sampler, which runs on every rank with the same random numbers."""

    own = False

    def __init__(self, sampler: Any, seed: int) -> None:
        self.samples = len(sampler)
        self._sampler = sampler
        self._seed = seed

    def indices(self, epoch: int) -> Array:
        with OwnRandomState(seed_sampler(self._sampler, self._seed, epoch)):
            return index_array(list(self._sampler))


def seed_sampler(sampler: Any, seed: int, epoch: int) -> int:
    """Set a sampler's epoch and generator; return the seed for all other generators."""
    number = mix_seed(seed, epoch)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    if isinstance(getattr(sampler, "generator", 0), torch.Generator | None):
        sampler.generator = torch.Generator().manual_seed(number)
    inner = getattr(sampler, "sampler", None)  # a batch sampler holds the one that draws
    if inner is not None and isinstance(inner, Iterable):
        seed_sampler(inner, seed, epoch)
    return number


def draw_items(
    sampler: Any, seed: int, epoch: int, step: int, done: int = 0
) -> Iterator[list[Any]]:
    """Yield a sampler's items after the first ``done``, ``step`` at a time; never read ahead."""
    state: Any = OwnRandomState(seed_sampler(sampler, seed, epoch))
    if isinstance(sampler, EndlessSampler):  # draws from its own generator alone
        state = nullcontext()
    with state:
        items = iter(sampler)
        deque(islice(items, done), maxlen=0)
    while True:
        with state:
            chunk = list(islice(items, step))
        if not chunk:
            return
        yield chunk


def has_length(sampler: Any) -> bool:
    """Return whether ``len()`` works."""
    try:
        len(sampler)
    except (TypeError, NotImplementedError):  # torch's own samplers raise either
        return False
    return True


def order_of(loader: DataLoader, sampler: Any, seed: int, size: int, training: bool) -> SampleOrder:
    """Return the order that ``sampler`` defines."""
    if type(sampler) is SequentialSampler:
        return SequentialOrder(len(sampler))
    if type(sampler) is RandomSampler and _is_permutation(sampler, loader):
        order: SampleOrder = ShuffledOrder(len(sampler), seed)
        order.note = (
            "sampler RandomSampler replaced: each rank takes its part of every global batch."
        )
        return order
    if isinstance(sampler, DistributedSampler) and _draws_as_its_base(sampler):
        return _undistributed(sampler, size, training)
    order = SamplerOrder(sampler, seed)
    order.note = (
        f"sampler {type(sampler).__name__} runs on every rank with the same random numbers; "
        "each rank takes its part of every global batch."
    )
    return order


def _is_permutation(sampler: Any, loader: DataLoader) -> bool:
    return not sampler.replacement and len(sampler) == len(loader.dataset)


def _draws_as_its_base(sampler: Any) -> bool:
    return type(sampler).__iter__ is DistributedSampler.__iter__


def _undistributed(sampler: Any, size: int, training: bool) -> SampleOrder:
    samples = len(sampler.dataset)
    order: SampleOrder = (
        DistributedSamplerOrder(samples, sampler.seed)
        if sampler.shuffle
        else SequentialOrder(samples)
    )
    if sampler.drop_last and training and samples % size:
        order = TruncatedOrder(order, samples - samples % size)
    order.note = (
        "sampler DistributedSampler replaced: it pads with samples that are then seen twice; its "
        "shuffle, seed and drop_last are kept."
    )
    return order


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
            for piece in torch.randperm(self._samples, generator=generator).split(_INDICES_AT_ONCE):
                yield from piece.tolist()


class StridedSampler:
    """For loaders with batch_size=None: this rank takes the items i with i % size == rank."""

    def __init__(
        self, sampler: Any, order: SampleOrder | None, seed: int, rank: int, size: int
    ) -> None:
        self._sampler, self._order, self._seed = sampler, order, seed
        self._rank, self._size = rank, size
        self._epoch = self._done = 0

    def start(self, epoch: int, done: int) -> None:
        """Set the epoch of the next iteration, and how many items of all ranks to skip."""
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
        for hand in draw_items(self._sampler, self._seed, self._epoch, self._size, self._done):
            if self._rank < len(hand):
                yield hand[self._rank]
