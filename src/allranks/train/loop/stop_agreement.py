"""When a training ends, saves or is preempted: each rank may ask, all ranks act at the same step.

A time limit, a signal and a request to stop reach ranks at different moments. They exchange flags about
every two seconds, at the same step, and act on what any of them asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from allranks.core.units import parse_time
from allranks.runtime.preemption.deadline import shared_deadline
from allranks.runtime.preemption.flag_exchange import SyncPoints
from allranks.runtime.world.communicator import get_communicator
from allranks.train.context import TrainContext
from allranks.train.data import DistributedLoader


class StopConditions:
    """Where the current ``fit`` ends. All ranks find the same, except in `is_requested`."""

    def __init__(self, context: TrainContext) -> None:
        self._context, self._config = context, context.config

    def begin(self) -> None:
        """Stop at once when an earlier attempt used up the time."""
        if self._check_time(self._context.state.seconds_before):
            self._context.agree_to_stop()

    def is_over(self) -> bool:
        """Whether no step follows."""
        most = self._config.max_steps
        if most is not None and self._context.state.step >= most:
            return True
        return self._context.stop_agreed

    def has_ended(self, epoch: int) -> bool:
        """Whether no step of this epoch follows."""
        last = self._config.last_epoch
        return self.is_over() or (last is not None and epoch > last)

    def is_requested(self) -> bool:
        """Whether this rank asks to stop."""
        self._check_time(self._context.state.seconds)
        return bool(self._context.stop_reason)

    def steps_left(self, step: int) -> float | None:
        """Return the steps after this one, where that can be known."""
        total = self._context.state.total_steps
        return None if total is None else total - step

    def _check_time(self, seconds: float) -> bool:
        most = self._config.max_seconds
        if most is None or seconds < most:
            return False
        self._context.request_stop(f"max_time={self._config.max_time} is over")
        return True


class SyncDecision(NamedTuple):
    """What all ranks do at this step."""

    preempt: bool
    stop: bool
    save: bool


class PreemptionRequested(BaseException):
    """Ends a validation at the batch at which all ranks agreed to save and exit."""


class Coordinator:
    """Exchanges the flags of all ranks during one ``fit``."""

    def __init__(self, context: TrainContext) -> None:
        config = context.config
        self._context = context
        self.deadline = shared_deadline() if config.checkpoint else None
        """None when nothing may be saved: without a checkpoint to resume from, nobody exits early."""
        if self.deadline is not None:
            self.deadline.margin = float(parse_time(config.deadline_margin))
        self._communicator = get_communicator(context.world.size)
        self._steps = SyncPoints(self._communicator, context.state.step)
        self._batches = SyncPoints(self._communicator, 0)
        periodic = config.checkpoint and not config.checkpoint_best_only
        every = config.checkpoint_every_time if periodic else None
        self._every = None if every is None else float(parse_time(every))
        self._saved = time.monotonic()
        self.next_sync = self._steps.next_step
        """The step at which all ranks exchange their flags."""

    @contextmanager
    def watch_signals(self) -> Iterator[None]:
        """Record TERM, USR1 and USR2 instead of ending the process, if a checkpoint can be saved."""
        if self.deadline is None:
            yield
            return
        self.deadline.watch_signals()
        try:
            yield
        finally:
            self.deadline.signals.restore_term()

    def is_due(self, step: int) -> bool:
        """Whether to exchange flags at this step; a single process need not wait for others."""
        stopping = self._communicator.size == 1 and bool(self._context.stop_reason)
        return step >= self.next_sync or stopping

    def sync(self, *, stop: bool, save_seconds: float, now: bool = False) -> SyncDecision:
        """Exchange flags, all ranks at the same step; ``now`` waits for the result (end of an epoch).

        How long a save takes decides how early to exit before the job ends.
        """
        if self.deadline is not None:
            self.deadline.save_seconds = save_seconds
        flags = [float(self._must_exit()), float(stop), float(self._is_save_due())]
        found = self._steps.sync(self._context.state.step, flags, wait=now)
        self.next_sync = self._steps.next_step
        return SyncDecision(*(bool(each) for each in found))

    @property
    def longest_gap(self) -> float:
        """The longest time between two exchanges, in training or in a validation."""
        return max(self._steps.longest_gap, self._batches.longest_gap)

    def note_validated(self) -> None:
        """Leave the validation out of the pace of steps: it exchanged flags by itself."""
        self._steps.exclude_time(self._context.state.step)

    def note_saved(self) -> None:
        """Count the time to the next save from here, and leave this one out of the pace of steps."""
        self._saved = time.monotonic()
        self._steps.exclude_time(self._context.state.step)

    def interruptible(self, loader: DistributedLoader) -> Any:
        """Return the loader for a validation, which raises when the ranks agree to exit."""
        return loader if self.deadline is None else _InterruptibleLoader(loader, self)

    def begin_batches(self) -> None:
        """Count the batches of a validation from 0, at the pace of the last one."""
        self._batches.restart_count()

    def sync_batch(self, number: int) -> None:
        """Exchange flags in a validation; every rank has the same number of batches."""
        if number >= self._batches.next_step:
            found = self._batches.sync(number, [float(self._must_exit())])
            if found[0]:
                raise PreemptionRequested

    def _must_exit(self) -> bool:
        rank, deadline = self._communicator.rank, self.deadline
        return deadline is not None and deadline.wants_to_stop(rank, self.longest_gap)

    def _is_save_due(self) -> bool:
        # Rank 0's clock alone: every rank's would make a save for each.
        due = self._every is not None and time.monotonic() - self._saved >= self._every
        return due and self._communicator.rank == 0


class _InterruptibleLoader:
    """A loader whose batches are points at which the ranks may exit."""

    def __init__(self, loader: DistributedLoader, coordinator: Coordinator) -> None:
        self._loader, self._coordinator = loader, coordinator

    def epoch(self, number: int) -> Iterator[Any]:
        self._coordinator.begin_batches()
        for done, item in enumerate(self._loader.epoch(number), start=1):
            yield item
            self._coordinator.sync_batch(done)
