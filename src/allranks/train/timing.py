"""The clock of the steps: what each rank spends its time on, from one log to the next.

Waiting for data and saving are measured at every step, the phases of a step in some of them (`marks`).
Validation is left out: it is no step's time.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from allranks.train.marks import PHASES, Marks

FEW = 5
"""Marked steps: of more of them in a window the mean is taken."""
UNKNOWN = -1.0
"""For a number that a rank does not have, where a vector has a place for it."""
OWN = ("step", "data", "compute", "communication")
"""What each rank tells of itself."""
SHARED = ("step", "data", "checkpoint", *PHASES, "timed", "marked", "tokens", "flops", "peak")
"""What is added up over the ranks. ``timed`` and ``marked`` count those that know their data and phases."""


def is_on() -> bool:
    """Whether steps are timed: ALLRANKS_TIMING=off is for measuring what timing costs."""
    return os.environ.get("ALLRANKS_TIMING") != "off"


@dataclass
class Spent:
    """Seconds per step of one rank in one window; they add up to ``step`` with what is left over."""

    steps: int = 0
    step: float = 0.0
    data: float | None = None
    checkpoint: float = 0.0
    phases: dict[str, float] | None = None
    facts: dict[str, float] = field(default_factory=dict)
    """The ``tokens`` and ``flops`` of a sample and the ``peak`` of the device, where they are known."""

    @property
    def shared(self) -> list[float]:
        """By the names of `SHARED`; zeros where nothing is known, as after a window without steps."""
        known = {"step": self.step, "checkpoint": self.checkpoint, **self.facts}
        if self.data is not None:
            known |= {"data": self.data, "timed": 1.0}
        if self.phases is not None:
            known |= {**self.phases, "marked": 1.0}
        return [known.get(name, 0.0) for name in SHARED]

    @property
    def own(self) -> list[float]:
        """By the names of `OWN`."""
        data = UNKNOWN if self.data is None else self.data
        if (phases := self.phases) is None:
            return [self.step, data, UNKNOWN, UNKNOWN]
        compute = phases["forward"] + phases["backward"] + phases["optimizer"]
        return [self.step, data, compute, phases["communication"]]


class Clock:
    """What the steps of one ``fit`` take on this rank."""

    def __init__(self, device: torch.device, marks: Marks) -> None:
        self.is_on = is_on()
        self._device, self._marks = device, marks
        self._recent: deque[dict[str, float]] = deque(maxlen=FEW)
        self._phases: dict[str, float] | None = None
        """Of the latest marked steps: a short window may have none of its own."""
        self._waited = self._saved = self._away = 0.0
        self._began, self._step = time.perf_counter(), 0

    def begin(self, step: int) -> None:
        """The first step follows."""
        self._began, self._step = time.perf_counter(), step

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

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Inside, steps wait for a checkpoint."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._saved += time.perf_counter() - began

    @contextmanager
    def away(self) -> Iterator[None]:
        """What happens inside is no step's time."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # steps that are still under way are not inside
        began = time.perf_counter()
        try:
            yield
        finally:
            self._away += time.perf_counter() - began

    def window(self, step: int, *, wait: bool = False) -> Spent:
        """Since the last window with a step in it. ``wait`` for what a GPU has still to do of it."""
        if wait and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        steps, now = step - self._step, time.perf_counter()
        if steps <= 0:
            return Spent()
        marked = self._marks.read(wait=wait)
        if marked:
            self._recent.extend(marked)
            self._phases = _mean(marked) if len(marked) > FEW else _median(self._recent)
        seconds = max(now - self._began - self._away, 0.0) / steps
        saved = min(self._saved / steps, seconds)
        spent = Spent(steps, seconds, checkpoint=saved)
        if self.is_on:
            waited = self._waited / steps
            spent.data, spent.phases = self._fitted(self._phases, waited, seconds - saved)
        self._began, self._step = now, step
        self._waited = self._saved = self._away = 0.0
        return spent

    def _fitted(
        self, phases: dict[str, float] | None, waited: float, room: float
    ) -> tuple[float, dict[str, float] | None]:
        """Data and phases, made to fit into a step.

        Waiting that a GPU did not notice costs nothing, so there the phases come first; on a CPU the
        wait was measured at every step and the phases in a few of them.
        """
        if phases is None:
            return min(waited, room), None
        total = sum(phases.values())
        hidden = total if self._device.type == "cuda" else 0.0
        data = min(waited, max(room - hidden, 0.0))
        factor = min(1.0, (room - data) / total) if total else 0.0
        return data, {name: factor * seconds for name, seconds in phases.items()}


def _mean(marked: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: sum(each[name] for each in marked) / len(marked) for name in PHASES}


def _median(marked: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of a few steps, so that one that was held up does not stand for all."""
    return {name: sorted(each[name] for each in marked)[len(marked) // 2] for name in PHASES}
