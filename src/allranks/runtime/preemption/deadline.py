"""``allranks.deadline()``: when to save and exit, for the Trainer and for a training loop of your own.

stop = allranks.deadline()
for step in range(first, last + 1):
    ...
    if stop.should_stop(step):
        save(step)
        stop.exit(step)
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from allranks.errors import Interrupted, UsageError
from allranks.runtime.preemption.flag_exchange import SECONDS, SyncPoints
from allranks.runtime.preemption.job_end_time import find_job_end, format_remaining, query_slurm
from allranks.runtime.preemption.progress_writer import ProgressWriter, StepCounter
from allranks.runtime.preemption.signal_flags import SignalFlags
from allranks.runtime.preemption.worker_signals import shield_workers
from allranks.runtime.world.communicator import Communicator, SingleProcess, find_communicator

MARGIN = 30.0
_QUERY_AGAIN = 60.0
"""A limit that Slurm has confirmed is not asked for again sooner."""
_OTHER_FRAMEWORKS = {"jax", "tensorflow"}
"""Frameworks with connections of their own, beside which PyTorch may be loaded for its data."""


class Deadline:
    """When this process must exit, and the one step at which all ranks do.

    The end of the job, a signal (TERM, USR1, USR2) to any rank: either makes `should_stop` true on
    every rank at the same step.
    """

    def __init__(self, margin: float = MARGIN) -> None:
        self.margin = margin
        """Seconds kept free before the end of the job, besides what saving takes."""
        self.reason = ""
        """Why the ranks stop; empty as long as they do not."""
        self.save_seconds = 0.0
        """The longest that a save took."""
        self.signals = SignalFlags()
        self._end = find_job_end(os.environ, may_ask=_is_rank_zero())
        self._confirmed = 0.0
        self._on_stop: Callable[[int], Any] | None = None
        self._sync_points: SyncPoints | None = None
        self._progress: ProgressWriter | None = None
        self._next = 0
        self._counter = StepCounter()
        self._began = time.time()
        self._earlier: int | None = None

    # -- for a loop

    def should_stop(self, step: int) -> bool:
        """Whether to save and exit now: the same answer on every rank. Call it once for each step.

        Count steps from the beginning of the training, over all attempts, where you can; a loop that
        counts each epoch from 0 stops in time as well. Most calls only compare numbers; about every
        two seconds the ranks exchange their flags.
        """
        number = self._counter.count(step)
        if number < self._next:
            return False
        if self.reason:
            return True
        points = self._sync_points = self._sync_points or self._begin(number)
        flag = self.wants_to_stop(points.communicator.rank, points.longest_gap)
        stops = points.sync(number, [float(flag)])[0]
        self._next = points.next_step
        if self._is_main:
            self.progress.record_step(self._total(number))
        if not stops:
            return False
        self.resolve_reason()
        self._next = 0
        if self._on_stop is not None:
            with self.time_save(step):
                self._on_stop(step)
            self.exit(step)
        return True

    def on_stop(self, save: Callable[[int], Any]) -> Callable[[int], Any]:
        """Have `should_stop` call ``save(step)`` on every rank and exit. Also as a decorator."""
        self._on_stop = save
        return save

    @contextmanager
    def time_save(self, step: int) -> Iterator[None]:
        """Time a save of your own: its duration sets how early to stop, its step is progress."""
        began = time.monotonic()
        yield
        self.record_save(step, time.monotonic() - began)

    def record_save(self, step: int, seconds: float | None = None) -> None:
        """Record that a checkpoint of this step is on the disk; ``seconds`` is how long it took."""
        self.save_seconds = max(self.save_seconds, seconds or 0.0)
        number = self._counter.count_saved(step)
        if self._sync_points is not None:
            self._sync_points.exclude_time(number)
        if self._is_main:
            self.progress.record_save(self._total(number), self.save_seconds or None)

    def exit(self, step: int) -> NoReturn:
        """End this process on purpose; the next attempt resumes. Call it on every rank."""
        self.resolve_reason()
        self.record_save(step)
        number = self._total(self._counter.count_saved(step))
        sentence = f"{self.describe_save(step)}; the next attempt resumes from there"
        interrupted = self.record_interruption(number, sentence)
        if interrupted.code and self._is_main:  # no job script prints it
            print(f"allranks: {sentence}", flush=True)
        raise interrupted

    @property
    def end_time(self) -> float | None:
        """When the job ends, in seconds since 1970; None when nothing is known to end it."""
        return None if self._end is None else self._end.time

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the job ends; None when nothing is known to end it."""
        return None if self._end is None else self._end.time - time.time()

    # -- for the Trainer

    @property
    def progress(self) -> ProgressWriter:
        """The progress file of this attempt; for rank 0."""
        self._progress = self._progress or ProgressWriter()
        return self._progress

    def set_attempt_folder(self, attempt: Path | None) -> None:
        """Write progress to this folder, which a Trainer made where no job script did."""
        self._progress = ProgressWriter(attempt)

    def watch_signals(self) -> bool:
        """Record signals from now on; False outside the main thread, where only the clock counts."""
        shield_workers()
        return self.signals.watch()

    def lead_time(self, gap: float = 0.0) -> float:
        """Return how many seconds before the end of the job to stop."""
        if self._end is None:
            return 0.0
        margin = min(self.margin, self._end.length / 4)
        return margin + 2 * self.save_seconds + max(gap, min(SECONDS, margin))

    def wants_to_stop(self, rank: int, gap: float = 0.0) -> bool:
        """Whether this rank received a signal or, as rank 0, sees the end of the job come."""
        return bool(self.signals.received) or (rank == 0 and self._is_due(self.lead_time(gap)))

    def resolve_reason(self) -> None:
        """Set the reason once all ranks have agreed to stop."""
        end = self._end
        is_near = end is not None and time.time() >= end.time - self.lead_time() - 60
        if self.signals.received:
            self.reason = self.reason or self.signals.received
        elif end is not None and is_near:
            self.reason = self.reason or end.description
        self.reason = self.reason or "another rank received a signal"

    def describe_save(self, step: int) -> str:
        """Return ``saved step 520 on SIGUSR1, 3 min before the end of job 123 (time limit)``."""
        why = f" on {self.reason}" if self.reason == self.signals.received else ""
        if self._end is None or self.seconds_left is None:
            return f"saved step {step}{why or f' because {self.reason}'}"
        remaining = format_remaining(self.seconds_left)
        return f"saved step {step}{why}, {remaining} before {self._end.description}"

    def record_interruption(self, step: int, sentence: str) -> Interrupted:
        """Return what to raise on this rank; rank 0 records that the ranks exit on purpose."""
        recorded = (
            self.progress.record_interruption(step, sentence)
            if self._is_main
            else _has_job_script()
        )
        return Interrupted(sentence, watched=recorded)

    def _is_due(self, lead: float) -> bool:
        """Whether the lead time has begun; Slurm is asked first, since limits get extended."""
        if self._end is None or time.time() < self._end.time - lead:
            return False
        if time.time() - self._confirmed > _QUERY_AGAIN:
            self._confirmed = time.time()
            self._end = query_slurm(self._end, os.environ)
        return self._end is not None and time.time() >= self._end.time - lead

    def _begin(self, step: int) -> SyncPoints:
        """Start syncing after the first step, which began when this object was made."""
        communicator = find_communicator() or _communicator_of_one()
        shield_workers()
        if self._is_main:
            self.progress.update(first_step=max(step - 1, 0), step=step, began=self._began)
        return SyncPoints(communicator, step - 1)

    def _total(self, number: int) -> int:
        """Return the step over all attempts, for rank 0's progress file.

        A loop that counts each epoch from 0 does not know how far the attempts before it came.
        """
        if self._counter.restarts and self._earlier is None and self._is_main:
            self._earlier = self.progress.newest_earlier_save()
            self.progress.shift_first_step(self._earlier)
        return number + (self._earlier or 0)

    @property
    def _is_main(self) -> bool:
        points = self._sync_points
        found = points.communicator if points is not None else find_communicator()
        return found.rank == 0 if found is not None and found.size > 1 else _is_rank_zero()


_shared: Deadline | None = None


def deadline() -> Deadline:
    """Return this process's `Deadline`, and record TERM, USR1 and USR2 from now on.

    Call it in the main thread, before the loop. A second call returns the same object.
    """
    found = shared_deadline()
    if not found.watch_signals():
        raise UsageError(
            "deadline() watches signals, which only the main thread may: call it there."
        )
    found.signals.is_permanent = True
    return found


def shared_deadline() -> Deadline:
    """Return the same object without watching signals yet."""
    global _shared
    if _shared is None:
        _shared = Deadline()
    return _shared


def _communicator_of_one() -> Communicator:
    """Refuse ranks of PyTorch that are not connected yet: each would stop at a step of its own."""
    rank, size = _rank_and_size()
    if size > 1 and "torch" in sys.modules and not _OTHER_FRAMEWORKS & sys.modules.keys():
        raise UsageError(
            f"should_stop() was called on rank {rank} of {size} before torch.distributed was "
            "initialized: the ranks cannot agree on a step.\n"
            "Call allranks.init() or init_process_group() before the loop. Ranks that train "
            "independently: start each with WORLD_SIZE=1 and RANK=0."
        )
    return SingleProcess()


def _is_rank_zero() -> bool:
    """Whether this is rank 0, which alone asks Slurm: a thousand ranks would overload it."""
    return _rank_and_size()[0] == 0


def _rank_and_size() -> tuple[int, int]:
    from allranks.runtime.world import world

    here = world()
    return here.rank, here.size


def _has_job_script() -> bool:
    """Whether allranks started this process, and so decides what follows."""
    return bool(os.environ.get("ALLRANKS_ATTEMPT_DIR"))
