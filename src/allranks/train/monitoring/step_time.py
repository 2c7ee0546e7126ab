"""What each rank spends its time on, from one log to the next.

All of a rank's time is on one of four accounts, so the parts of a step add up to it. Waiting for data is
measured at every step, the phases of a step in some of them (`PhaseTimer`).
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from allranks.runtime.telemetry import is_switched_off
from allranks.train.step.phase_timer import PHASES, PhaseTimer

ACCOUNTS = ("steps", "checkpoint", "other", "away")
"""Steps with their waiting for data; saves; callbacks, logging and the rest; time outside of steps."""
ENOUGH = 5
"""Measured steps that represent a window; a window with fewer uses the latest ones."""
MAX_BOUNDARIES = 64
"""Step boundaries that a GPU may not have reached yet."""
UNKNOWN = math.nan
"""A number that this rank does not have; it makes the sum over ranks unknown."""
OWN = ("step", "data", "compute", "communication")
"""What each rank reports about itself."""
SHARED = ("step", "data", "checkpoint", *PHASES, "samples", "tokens", "flops", "peak")
"""What is summed over the ranks."""


def is_timing_on() -> bool:
    """Whether steps are timed: ALLRANKS_TIMING=off is for measuring what timing costs."""
    return not is_switched_off(os.environ.get("ALLRANKS_TIMING", ""))


@dataclass
class StepTimes:
    """Seconds per step of one rank in one window; they add up to ``step`` with what is left over."""

    steps: int = 0
    step: float | None = None
    data: float | None = None
    checkpoint: float | None = None
    phases: dict[str, float] | None = None
    facts: dict[str, float] = field(default_factory=dict)
    """``samples`` per step on this rank, ``tokens`` and ``flops`` per sample and the ``peak`` of the device,
    where they are known."""

    @property
    def shared(self) -> list[float]:
        """The values of `SHARED`."""
        known = {"step": self.step, "data": self.data, "checkpoint": self.checkpoint}
        known |= {**(self.phases or {}), **self.facts}
        return _with_unknown([known.get(name) for name in SHARED])

    @property
    def own(self) -> list[float]:
        """The values of `OWN`."""
        compute = communication = None
        if (phases := self.phases) is not None:
            compute = phases["forward"] + phases["backward"] + phases["optimizer"]
            communication = phases["communication"]
        return _with_unknown([self.step, self.data, compute, communication])


def _with_unknown(values: Sequence[float | None]) -> list[float]:
    return [UNKNOWN if value is None else value for value in values]


class StepBoundary(NamedTuple):
    """A point between two steps."""

    step: int
    spent: dict[str, float]
    """The accounts when the host passed it, and ``data``, which is a part of ``steps``."""
    event: Any
    """Recorded when the GPU passes it; None on a CPU."""

    def is_past(self) -> bool:
        return self.event is None or bool(self.event.query())


class StepClock:
    """Measures the steps of one ``fit`` on this rank."""

    def __init__(self, device: torch.device, timer: PhaseTimer) -> None:
        self.is_on = is_timing_on()
        self._gpu = device if device.type == "cuda" else None
        self._timer = timer
        self._recent: deque[dict[str, float]] = deque(maxlen=ENOUGH)
        self._phases: dict[str, float] | None = None
        self._waited = 0.0
        self._spent = dict.fromkeys(ACCOUNTS, 0.0)
        self._account, self._since = "other", time.perf_counter()
        self._boundaries: deque[StepBoundary] = deque(maxlen=MAX_BOUNDARIES)
        self._reported = StepBoundary(0, {}, None)
        """The end of the last window."""

    def begin(self, step: int) -> None:
        """Start before the first step."""
        self._reported = self._boundary(step)

    # -- what the time goes to

    def timed(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the same batches, and measure how long each was waited for."""
        return self._timed(batches) if self.is_on else batches

    def _timed(self, batches: Iterator[Any]) -> Iterator[Any]:
        now = time.perf_counter
        began = now()
        for pair in batches:
            self._waited += now() - began
            yield pair
            began = now()

    def stepping(self) -> AbstractContextManager[None]:
        """Return a context for the steps and their waiting for data."""
        return self._in_account("steps")

    def paused(self, step: int) -> AbstractContextManager[None]:
        """Return a context for the work after this step."""
        if self._gpu is not None:  # the more boundaries, the closer is one that the GPU has passed
            self._boundaries.append(self._boundary(step))
        return self._in_account("other")

    def aside(self) -> AbstractContextManager[None]:
        """Return a context for callbacks between steps."""
        return self._in_account("other") if self._account == "steps" else nullcontext()

    def saving(self) -> AbstractContextManager[None]:
        """Return a context for steps that wait for a checkpoint."""
        self._wait()
        return self._in_account("checkpoint")

    def away(self) -> AbstractContextManager[None]:
        """Return a context for time that belongs to no step."""
        self._wait()
        return self._in_account("away")

    @contextmanager
    def _in_account(self, account: str) -> Iterator[None]:
        before = self._switch_to(account)
        try:
            yield
        finally:
            self._switch_to(before)

    def _switch_to(self, account: str) -> str:
        before, since = self._account, self._since
        self._account, self._since = account, time.perf_counter()
        self._spent[before] += self._since - since
        return before

    def _wait(self) -> None:
        """Wait for the GPU: its remaining work belongs to the steps before."""
        if self._gpu is not None:
            torch.cuda.synchronize(self._gpu)

    # -- windows

    def _boundary(self, step: int) -> StepBoundary:
        self._switch_to(self._account)
        event = None
        if self._gpu is not None:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        return StepBoundary(step, {**self._spent, "data": self._waited}, event)

    def window(self, step: int, *, wait: bool = False) -> StepTimes:
        """Return the times since the last window; empty when the GPU has finished no step since.

        What the GPU has not finished belongs to the next window, unless this one is to ``wait`` for it. It is
        never more than a window behind, since the metrics of the last log have been read by now.
        """
        self._boundaries.append(self._boundary(step))
        first = last = self._reported
        while self._boundaries and (wait or self._boundaries[0].is_past()):
            last = self._boundaries.popleft()
        if last.step == first.step:
            return StepTimes()
        self._reported = last
        return self._between(first, last, wait)

    def _between(self, first: StepBoundary, last: StepBoundary, wait: bool) -> StepTimes:
        steps = last.step - first.step
        took = {name: (total - first.spent[name]) / steps for name, total in last.spent.items()}
        seconds = took["steps"] + took["checkpoint"] + took["other"]
        if self._gpu is not None:
            last.event.synchronize()  # already passed, unless waiting was asked for
            passed = first.event.elapsed_time(last.event) / 1000 / steps
            seconds = max(passed - took["away"], 0.0)
        spent = StepTimes(steps, seconds, checkpoint=min(took["checkpoint"], seconds))
        if self.is_on:
            self._read_phases(steps, wait)
            available, overlaps = max(seconds - took["checkpoint"], 0.0), self._gpu is not None
            spent.data, spent.phases = fit_phases(
                self._phases, took["data"], took["other"], available, overlaps=overlaps
            )
        return spent

    def _read_phases(self, steps: int, wait: bool) -> None:
        """Take the mean of this window's measured steps, or of the latest ones when it has too few."""
        if measured := self._timer.read(wait=wait):
            self._recent.extend(measured)
            self._phases = _mean(measured if len(measured) >= min(ENOUGH, steps) else self._recent)


def _mean(measured: Collection[dict[str, float]]) -> dict[str, float]:
    return {name: sum(each[name] for each in measured) / len(measured) for name in PHASES}


def fit_phases(
    phases: dict[str, float] | None, data: float, other: float, available: float, *, overlaps: bool
) -> tuple[float, dict[str, float] | None]:
    """Scale the phases of measured steps to a mean step; return its data wait and phases.

    On a CPU the rest of the ``available`` time after ``data`` and ``other`` was spent in steps. On a GPU that
    ``overlaps`` with the host's work it was at least that, and the measured phases tell how much.
    """
    if phases is None:
        return min(data, available), None
    total, least = sum(phases.values()), max(available - data - other, 0.0)
    inside = min(max(total, least), available) if overlaps else least
    factor = inside / total if total else 0.0
    return min(data, available - inside), {name: factor * each for name, each in phases.items()}
