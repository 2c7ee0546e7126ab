"""The clock of the steps: what each rank spends its time on, from one log to the next.

All of a rank's time is on one of four accounts, so the parts of a step add up to it. Waiting for data is
measured at every step, the phases of a step in some of them (`marks`).
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
from allranks.train.marks import MARKED, Marks

ACCOUNTS = ("steps", "checkpoint", "other", "away")
"""Steps with their waiting for data; saves; callbacks, logging and all else; what is no step's time."""
FEW = 5
"""Marked steps that stand for a window; where it has fewer of its own, the latest so many do."""
BORDERS = 64
"""Places that a GPU may have before it."""
UNKNOWN = math.nan
"""For a number that a rank does not have: a sum over ranks of which one does not know is not known."""
OWN = ("step", "data", "compute", "communication")
"""What each rank tells of itself."""
SHARED = ("step", "data", "checkpoint", *MARKED, "samples", "tokens", "flops", "peak")
"""What is added up over the ranks."""


def is_on() -> bool:
    """Whether steps are timed: ALLRANKS_TIMING=off is for measuring what timing costs."""
    return not is_switched_off(os.environ.get("ALLRANKS_TIMING", ""))


@dataclass
class Spent:
    """Seconds per step of one rank in one window; they add up to ``step`` with what is left over."""

    steps: int = 0
    step: float | None = None
    data: float | None = None
    checkpoint: float | None = None
    phases: dict[str, float] | None = None
    facts: dict[str, float] = field(default_factory=dict)
    """The ``samples`` of a step on this rank, the ``tokens`` and ``flops`` of a sample and the ``peak`` of
    the device, where they are known."""

    @property
    def shared(self) -> list[float]:
        """By the names of `SHARED`."""
        known = {"step": self.step, "data": self.data, "checkpoint": self.checkpoint}
        known |= {**(self.phases or {}), **self.facts}
        return _with_unknown([known.get(name) for name in SHARED])

    @property
    def own(self) -> list[float]:
        """By the names of `OWN`."""
        compute = communication = None
        if (phases := self.phases) is not None:
            compute = phases["forward"] + phases["backward"] + phases["optimizer"]
            communication = phases["communication"]
        return _with_unknown([self.step, self.data, compute, communication])


def _with_unknown(values: Sequence[float | None]) -> list[float]:
    return [UNKNOWN if value is None else value for value in values]


class Border(NamedTuple):
    """A place between two steps."""

    step: int
    spent: dict[str, float]
    """What was on each account when the host came by, and ``data``, which is a part of ``steps``."""
    event: Any
    """When a GPU comes by; None on a CPU."""

    def is_past(self) -> bool:
        return self.event is None or bool(self.event.query())


class Clock:
    """What the steps of one ``fit`` take on this rank."""

    def __init__(self, device: torch.device, marks: Marks) -> None:
        self.is_on = is_on()
        self._gpu = device if device.type == "cuda" else None
        self._marks = marks
        self._recent: deque[dict[str, float]] = deque(maxlen=FEW)
        self._phases: dict[str, float] | None = None
        self._waited = 0.0
        self._spent = dict.fromkeys(ACCOUNTS, 0.0)
        self._account, self._since = "other", time.perf_counter()
        self._borders: deque[Border] = deque(maxlen=BORDERS)
        self._told = Border(0, {}, None)
        """Up to where the windows have come."""

    def begin(self, step: int) -> None:
        """The first step follows."""
        self._told = self._border(step)

    # -- what the time goes to

    def timed(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches; how long each was waited for is noted."""
        return self._timed(batches) if self.is_on else batches

    def _timed(self, batches: Iterator[Any]) -> Iterator[Any]:
        now = time.perf_counter
        began = now()
        for pair in batches:
            self._waited += now() - began
            yield pair
            began = now()

    def stepping(self) -> AbstractContextManager[None]:
        """Inside, steps are made and waited for."""
        return self._on("steps")

    def stopped(self, step: int) -> AbstractContextManager[None]:
        """Inside, something else is done after this step."""
        if self._gpu is not None:  # the more such places, the nearer is one that the GPU has passed
            self._borders.append(self._border(step))
        return self._on("other")

    def aside(self) -> AbstractContextManager[None]:
        """Inside, somebody is told of a batch or a step."""
        return self._on("other") if self._account == "steps" else nullcontext()

    def saving(self) -> AbstractContextManager[None]:
        """Inside, steps wait for a checkpoint."""
        self._wait()
        return self._on("checkpoint")

    def away(self) -> AbstractContextManager[None]:
        """What happens inside is no step's time."""
        self._wait()
        return self._on("away")

    @contextmanager
    def _on(self, account: str) -> Iterator[None]:
        before = self._turn_to(account)
        try:
            yield
        finally:
            self._turn_to(before)

    def _turn_to(self, account: str) -> str:
        before, since = self._account, self._since
        self._account, self._since = account, time.perf_counter()
        self._spent[before] += self._since - since
        return before

    def _wait(self) -> None:
        """For what a GPU has still to do: it is a part of the steps before."""
        if self._gpu is not None:
            torch.cuda.synchronize(self._gpu)

    # -- windows

    def _border(self, step: int) -> Border:
        self._turn_to(self._account)
        event = None
        if self._gpu is not None:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        return Border(step, {**self._spent, "data": self._waited}, event)

    def window(self, step: int, *, wait: bool = False) -> Spent:
        """Since the last window with a step in it; empty when a GPU has come to the end of none.

        Of what it has not done yet the next one tells, unless this one shall ``wait`` for it. It is never
        more than a window behind, since the numbers of the log before have been read by now.
        """
        self._borders.append(self._border(step))
        first = last = self._told
        while self._borders and (wait or self._borders[0].is_past()):
            last = self._borders.popleft()
        if last.step == first.step:
            return Spent()
        self._told = last
        return self._between(first, last, wait)

    def _between(self, first: Border, last: Border, wait: bool) -> Spent:
        steps = last.step - first.step
        took = {name: (total - first.spent[name]) / steps for name, total in last.spent.items()}
        seconds = took["steps"] + took["checkpoint"] + took["other"]
        if self._gpu is not None:
            last.event.synchronize()  # past, unless it is to be waited for
            passed = first.event.elapsed_time(last.event) / 1000 / steps
            seconds = max(passed - took["away"], 0.0)
        spent = Spent(steps, seconds, checkpoint=min(took["checkpoint"], seconds))
        if self.is_on:
            self._look_at_marks(steps, wait)
            room, hides = max(seconds - took["checkpoint"], 0.0), self._gpu is not None
            spent.data, spent.phases = fitted(
                self._phases, took["data"], took["other"], room, hides=hides
            )
        return spent

    def _look_at_marks(self, steps: int, wait: bool) -> None:
        """Their mean, where this window has enough of its own, else that of the latest ones."""
        if marked := self._marks.read(wait=wait):
            self._recent.extend(marked)
            self._phases = _mean(marked if len(marked) >= min(FEW, steps) else self._recent)


def _mean(marked: Collection[dict[str, float]]) -> dict[str, float]:
    return {name: sum(each[name] for each in marked) / len(marked) for name in MARKED}


def fitted(
    phases: dict[str, float] | None, data: float, other: float, room: float, *, hides: bool
) -> tuple[float, dict[str, float] | None]:
    """Data and phases of a mean step, from those of marked steps.

    On a CPU what is left of the ``room`` after ``data`` and ``other`` was spent in steps. On a GPU that
    ``hides`` the host's doings behind its own, no less than that was, and the marks tell how much.
    """
    if phases is None:
        return min(data, room), None
    total, least = sum(phases.values()), max(room - data - other, 0.0)
    inside = min(max(total, least), room) if hides else least
    factor = inside / total if total else 0.0
    return min(data, room - inside), {name: factor * each for name, each in phases.items()}
