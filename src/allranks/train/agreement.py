"""What any rank may wish for in the middle of training, and the one step at which all act on it.

Leaving before the job's end, stopping, saving because time has passed: each rank may come to it at a
moment of its own. They look at each other's wishes about every two seconds, at the same step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from allranks.core.units import parse_time
from allranks.runtime.preemption.deadline import Deadline
from allranks.runtime.preemption.sync_points import SyncPoints
from allranks.runtime.world.communicator import get_communicator
from allranks.train.config import TrainConfig
from allranks.train.data import DistributedLoader
from allranks.train.session import Session


class Agreed(NamedTuple):
    """What all ranks do at this step."""

    leave: bool
    stop: bool
    save: bool


class LeaveNow(BaseException):
    """Ends a validation at the batch at which all ranks agreed to leave."""


class Agreement:
    """The wishes of all ranks during one ``fit``."""

    def __init__(
        self, config: TrainConfig, session: Session, step: int, deadline: Deadline | None
    ) -> None:
        self.deadline = deadline
        """None when nothing may be saved: then there is nothing to go on from, and nobody leaves."""
        self._communicator = get_communicator(session.world.size)
        self._looks = SyncPoints(self._communicator, step)
        self._batch_looks = SyncPoints(self._communicator, 0)
        periodic = config.checkpoint and not config.checkpoint_best_only
        every = config.checkpoint_every_time if periodic else None
        self._every = None if every is None else float(parse_time(every))
        self._saved = time.monotonic()
        self.next = self._looks.next_step
        """The step at which all ranks look."""

    @property
    def alone(self) -> bool:
        return self._communicator.size == 1

    def hurry(self) -> None:
        """One process need not wait for others."""
        if self.alone:
            self.next = 0

    def look(self, step: int, stop: bool, *, now: bool = False) -> Agreed:
        """All ranks at the same step; ``now`` is for the end of an epoch, where all wait anyway."""
        wishes = [float(self._wants_to_leave()), float(stop), float(self._wants_to_save())]
        found = self._looks.sync(step, wishes, wait=now)
        self.next = self._looks.next_step
        return Agreed(*(bool(each) for each in found))

    @property
    def gap(self) -> float:
        """The longest time between two looks, in training or in a validation."""
        return max(self._looks.longest_gap, self._batch_looks.longest_gap)

    def validated(self, step: int) -> None:
        """A validation has looked for itself: its whole length lies between no two looks."""
        self._looks.exclude_time(step)

    def saved(self, step: int) -> None:
        """The next save by time counts from here; the time that it took is no step's."""
        self._saved = time.monotonic()
        self._looks.exclude_time(step)

    def watched(self, loader: DistributedLoader) -> Any:
        """The loader for a validation, which is broken off when the ranks agree to leave."""
        return loader if self.deadline is None else _Watched(loader, self)

    def look_at_batch(self, number: int) -> None:
        """In a validation, after so many batches; every rank has the same number of them."""
        if number >= self._batch_looks.next_step:
            found = self._batch_looks.sync(number, [float(self._wants_to_leave())])
            if found[0]:
                raise LeaveNow

    def begin_batches(self) -> None:
        """A validation begins: its batches count from 0, at the pace of the last one."""
        self._batch_looks.restart_count()

    def _wants_to_leave(self) -> bool:
        return self.deadline is not None and self.deadline.wants_to_stop(
            self._communicator.rank, self.gap
        )

    def _wants_to_save(self) -> bool:
        # Rank 0's clock alone: every rank's would make a save for each.
        due = self._every is not None and time.monotonic() - self._saved >= self._every
        return due and self._communicator.rank == 0


class _Watched:
    """A loader that looks at the other ranks between its batches."""

    def __init__(self, loader: DistributedLoader, agreement: Agreement) -> None:
        self._loader, self._agreement = loader, agreement

    def epoch(self, number: int) -> Iterator[Any]:
        self._agreement.begin_batches()
        for done, item in enumerate(self._loader.epoch(number), start=1):
            yield item
            self._agreement.look_at_batch(done)
