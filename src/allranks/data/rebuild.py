"""A user's DataLoader with another source of indices, and everything else as it was."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from allranks.data.digest import mixed_seed
from allranks.data.schedule import Round, Schedule


def rebuilt(
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


def end_workers(loader: Any) -> None:
    """End persistent workers now rather than when the collector comes by."""
    running = getattr(loader, "_iterator", None)
    if running is not None:
        loader._iterator = None
        running._shutdown_workers()


class RankBatches:
    """The batch sampler of the copy: hands out indices and remembers the rounds under way."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._rounds: Iterator[Round] = iter(())
        self.under_way: deque[Round] = deque()

    def start(self, epoch: int, skip: int) -> deque[Round]:
        """Which epoch the next iteration is for. Rounds come in the order of the batches."""
        self._rounds = self._schedule.rounds(epoch, skip)
        self.under_way = deque()
        return self.under_way

    def __len__(self) -> int:
        if self._schedule.batches is None:
            raise TypeError("the sampler has no length")
        return self._schedule.batches

    def __iter__(self) -> Iterator[list[Any]]:
        remember = self.under_way.append
        for entry in self._rounds:
            remember(entry)
            yield entry[0].tolist()
