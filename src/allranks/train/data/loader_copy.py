"""A user's DataLoader with another source of indices, and everything else as it was."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from allranks.train.data.batch_schedule import BatchSchedule, RankBatch
from allranks.train.data.digest import mixed_seed
from allranks.train.data.random_state import seed_all


def copy_loader(
    loader: DataLoader, generator: torch.Generator, device: torch.device, **changed: Any
) -> Any:
    """A copy of ``loader`` with the attributes ``changed``.

    A copy and not a new one, so that a subclass keeps its class, its arguments and its own fields. The
    generator seeds the workers: torch, random and numpy, before the user's worker_init_fn.
    """
    made = copy.copy(loader)
    # Past DataLoader.__setattr__, which forbids this after the first use; this copy has had none.
    made.__dict__.update(changed, generator=generator, _iterator=None)
    if device.type == "cuda" and made.num_workers > 0:
        made.__dict__["pin_memory"] = True
    return made


def seed_workers(generator: torch.Generator, seed: int, rank: int, epoch: int) -> None:
    """From now on workers start from (seed, rank, epoch), each with its own number added."""
    generator.manual_seed(mixed_seed(seed, epoch, rank))


def shut_down_workers(loader: Any) -> None:
    """End persistent workers now rather than when the collector comes by."""
    running = getattr(loader, "_iterator", None)
    if running is not None:
        loader._iterator = None
        running._shutdown_workers()


class RankBatchSampler:
    """The batch sampler of the copy: hands out indices and remembers the rounds under way.

    For worker processes each batch carries a seed: whatever a worker did before, the random numbers of
    batch b are the same, so that a resumed epoch draws what an undisturbed one does.
    """

    def __init__(self, schedule: BatchSchedule, seed: int, in_workers: bool) -> None:
        self._schedule = schedule
        self._seed, self._in_workers = seed, in_workers
        self._epoch = self._number = 0
        self._rounds: Iterator[RankBatch] = iter(())
        self.under_way: deque[RankBatch] = deque()

    def start(self, epoch: int, skip: int) -> deque[RankBatch]:
        """Which epoch the next iteration is for. Rounds come in the order of the batches."""
        self._epoch, self._number = epoch, skip
        self._rounds = self._schedule.rounds(epoch, skip)
        self.under_way = deque()
        return self.under_way

    def seed_of(self, number: int) -> int:
        """The random numbers of batch ``number`` of this epoch on this rank."""
        return mixed_seed(self._seed, self._epoch, number, self._schedule.rank)

    def __len__(self) -> int:
        if self._schedule.batches is None:
            raise TypeError("the sampler has no length")
        return self._schedule.batches

    def __iter__(self) -> Iterator[list[Any]]:
        remember = self.under_way.append
        for number, entry in enumerate(self._rounds, self._number):
            remember(entry)
            indices = entry[0].tolist()
            yield SeededIndices(indices, self.seed_of(number)) if self._in_workers else indices


class SeededIndices(list[Any]):
    """The indices of a batch on their way to a worker, which is seeded as they arrive there."""

    def __init__(self, indices: list[Any], seed: int) -> None:
        super().__init__(indices)
        self._seed = seed

    def __reduce__(self) -> Any:
        return _arrived, ([*self], self._seed)


def _arrived(indices: list[Any], seed: int) -> list[Any]:
    if get_worker_info() is not None:
        seed_all(seed)
    return indices
