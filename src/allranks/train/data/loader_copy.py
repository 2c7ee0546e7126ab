"""Copy a user's DataLoader with another source of indices and everything else unchanged."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from allranks.train.data.batch_schedule import BatchSchedule, RankBatch
from allranks.train.data.random_state import seed_all
from allranks.train.data.sample_hash import mix_seed


def copy_loader(
    loader: DataLoader, generator: torch.Generator, device: torch.device, **changed: Any
) -> Any:
    """Return a copy of ``loader`` with the attributes ``changed``.

    A copy and not a new one, so that a subclass keeps its class, its arguments and its own fields. The
    generator seeds torch, random and numpy of the workers, before the user's worker_init_fn.
    """
    made = copy.copy(loader)
    # Not by setattr: DataLoader.__setattr__ forbids this after the first use, which the copy never had.
    made.__dict__.update(changed, generator=generator, _iterator=None)
    if device.type == "cuda" and made.num_workers > 0:
        made.__dict__["pin_memory"] = True
    return made


def seed_workers(generator: torch.Generator, seed: int, rank: int, epoch: int) -> None:
    """Seed the generator from (seed, epoch, rank); each worker adds its own number."""
    generator.manual_seed(mix_seed(seed, epoch, rank))


def shut_down_workers(loader: Any) -> None:
    """End persistent workers now rather than at garbage collection."""
    running = getattr(loader, "_iterator", None)
    if running is not None:
        loader._iterator = None
        running._shutdown_workers()


class RankBatchSampler:
    """The batch sampler of the copy: yields indices and queues the batches in progress.

    For worker processes each batch carries a seed: the random numbers of batch b do not depend on what a
    worker did before, so that a resumed epoch draws the same as an uninterrupted one.
    """

    def __init__(self, schedule: BatchSchedule, seed: int, in_workers: bool) -> None:
        self._schedule = schedule
        self._seed, self._in_workers = seed, in_workers
        self._epoch = self._number = 0
        self._rounds: Iterator[RankBatch] = iter(())
        self.in_progress: deque[RankBatch] = deque()

    def start(self, epoch: int, skip: int) -> deque[RankBatch]:
        """Set the epoch of the next iteration and return the queue that it fills, in order."""
        self._epoch, self._number = epoch, skip
        self._rounds = self._schedule.batches_from(epoch, skip)
        self.in_progress = deque()
        return self.in_progress

    def seed_of(self, number: int) -> int:
        """Return the seed of batch ``number`` of this epoch on this rank."""
        return mix_seed(self._seed, self._epoch, number, self._schedule.rank)

    def __len__(self) -> int:
        if self._schedule.batches is None:
            raise TypeError("the sampler has no length")
        return self._schedule.batches

    def __iter__(self) -> Iterator[list[Any]]:
        remember = self.in_progress.append
        for number, entry in enumerate(self._rounds, self._number):
            remember(entry)
            indices = entry[0].tolist()
            yield SeededIndices(indices, self.seed_of(number)) if self._in_workers else indices


class SeededIndices(list[Any]):
    """The indices of a batch; unpickling them in a worker seeds the worker."""

    def __init__(self, indices: list[Any], seed: int) -> None:
        super().__init__(indices)
        self._seed = seed

    def __reduce__(self) -> Any:
        return _arrived, ([*self], self._seed)


def _arrived(indices: list[Any], seed: int) -> list[Any]:
    if get_worker_info() is not None:
        seed_all(seed)
    return indices
