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

from allranks.train.data.digest import Array, index_array, mixed_seed
from allranks.train.data.infinite import EndlessSampler
from allranks.train.data.random_state import OwnRandomState


class Order(ABC):
    """All indices of an epoch."""

    samples: int
    own = True
    """Whether the order is ours, and so a permutation of 0 … n-1 on every rank."""
    straight = False
    """Whether it is simply 0, 1, 2 …"""
    note = ""

    @abstractmethod
    def indices(self, epoch: int) -> Array:
        """The indices of epoch ``epoch``."""


class Straight(Order):
    """0, 1, 2 … in every epoch."""

    straight = True

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def indices(self, epoch: int) -> Array:
        return np.arange(self.samples)


class Shuffled(Order):
    """A permutation from (seed, epoch)."""

    def __init__(self, samples: int, seed: int) -> None:
        self.samples = samples
        self._seed = seed

    def _epoch_seed(self, epoch: int) -> int:
        return mixed_seed(self._seed, epoch)

    def indices(self, epoch: int) -> Array:
        generator = torch.Generator().manual_seed(self._epoch_seed(epoch))
        drawn: Array = torch.randperm(self.samples, generator=generator).numpy()
        return drawn


class AsDistributed(Shuffled):
    """The permutation that a DistributedSampler draws, without its padding and its cutting."""

    def _epoch_seed(self, epoch: int) -> int:
        return self._seed + epoch


class Cut(Order):
    """An order without its last few samples: what a DistributedSampler with drop_last leaves out."""

    def __init__(self, order: Order, samples: int) -> None:
        self._order = order
        self.samples = samples
        self.own = self.straight = False

    def indices(self, epoch: int) -> Array:
        return self._order.indices(epoch)[: self.samples]


class Sampled(Order):
    """The indices of a user's sampler, run as a whole on every rank with the same random numbers."""

    own = False

    def __init__(self, sampler: Any, seed: int) -> None:
        self.samples = len(sampler)
        self._sampler = sampler
        self._seed = seed

    def indices(self, epoch: int) -> Array:
        with OwnRandomState(seeded(self._sampler, self._seed, epoch)):
            return index_array(list(self._sampler))


def seeded(sampler: Any, seed: int, epoch: int) -> int:
    """Tell a sampler the epoch and give it a generator for it; the seed for all other generators."""
    number = mixed_seed(seed, epoch)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    if isinstance(getattr(sampler, "generator", 0), torch.Generator | None):
        sampler.generator = torch.Generator().manual_seed(number)
    inner = getattr(sampler, "sampler", None)  # a batch sampler holds the one that draws
    if inner is not None and isinstance(inner, Iterable):
        seeded(inner, seed, epoch)
    return number


def drawn(sampler: Any, seed: int, epoch: int, step: int, done: int = 0) -> Iterator[list[Any]]:
    """A sampler's items after the first ``done``, ``step`` at a time, never more than asked for."""
    state: Any = OwnRandomState(seeded(sampler, seed, epoch))
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


def sized(sampler: Any) -> bool:
    """Whether a sampler knows its length."""
    try:
        len(sampler)
    except (TypeError, NotImplementedError):  # torch's own samplers raise either
        return False
    return True


def order_of(loader: DataLoader, sampler: Any, seed: int, size: int, training: bool) -> Order:
    """The order that ``sampler`` stands for."""
    if type(sampler) is SequentialSampler:
        return Straight(len(sampler))
    if type(sampler) is RandomSampler and _is_permutation(sampler, loader):
        order: Order = Shuffled(len(sampler), seed)
        order.note = (
            "sampler RandomSampler replaced: each rank takes its part of every global batch."
        )
        return order
    if isinstance(sampler, DistributedSampler) and _draws_as_its_base(sampler):
        return _undistributed(sampler, size, training)
    order = Sampled(sampler, seed)
    order.note = (
        f"sampler {type(sampler).__name__} runs on every rank with the same random numbers; "
        "each rank takes its part of every global batch."
    )
    return order


def _is_permutation(sampler: Any, loader: DataLoader) -> bool:
    return not sampler.replacement and len(sampler) == len(loader.dataset)


def _draws_as_its_base(sampler: Any) -> bool:
    return type(sampler).__iter__ is DistributedSampler.__iter__


def _undistributed(sampler: Any, size: int, training: bool) -> Order:
    samples = len(sampler.dataset)
    order: Order = AsDistributed(samples, sampler.seed) if sampler.shuffle else Straight(samples)
    if sampler.drop_last and training and samples % size:
        order = Cut(order, samples - samples % size)
    order.note = (
        "sampler DistributedSampler replaced: it pads with samples that are then seen twice; its "
        "shuffle, seed and drop_last are kept."
    )
    return order
