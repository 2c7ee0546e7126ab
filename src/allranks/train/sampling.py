"""Which steps are marked: some in every second, the same ones on all ranks.

The loop stops before such a step and after it, and the step in between is another function. All other steps
run as if there were no marks.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from allranks.train.stepping import Step, full_step
from allranks.train.work import make_counting, peak_of, positions

if TYPE_CHECKING:
    from allranks.train.data import BatchWeight
    from allranks.train.flops import Counting
    from allranks.train.loop import Fit
    from allranks.train.marks import Marks

SECONDS = {"cpu": 0.05, "cuda": 0.25}
"""Between two marked steps, about, as soon as it is known how long a step takes."""
NEVER = 1 << 62


class Sampling:
    """Exchanges the step of a `Fit` where one is to be marked."""

    def __init__(self, fit: Fit, marks: Marks, *, ordinary: bool) -> None:
        """``ordinary``: our own forward, backward and step, and not one that somebody else drives."""
        self._fit, self._marks, self._config = fit, marks, fit.engine.config
        self._marked = full_step(fit.parts, marks) if ordinary else None
        self._counting: Counting | None = None
        self._seen = [0, 0]
        """Positions and samples of the batches that were looked at since the facts were asked for."""
        self._tokens = float(self._config.tokens_per_sample or 0)
        self._peak = 0.0
        self.pace: float | None = None
        """Seconds of a step, over all ranks, so that all have the same steps marked."""
        self._gap = 2
        self._seconds = SECONDS.get(fit.engine.session.device.type, 0.25)
        self._chance = Random(0)
        """The same on all ranks. Work that comes back every so many steps must not keep step with the marks."""
        self._start = self.next = NEVER
        self._used: tuple[Step, Step] | None = None
        """The exchanged step while it is in place, and what it stands for."""

    def begin(self, step: int) -> None:
        """Before the first step, which is never like the others; the second one may be counted."""
        self._peak = peak_of(self._fit)
        if self._marked is not None:
            self._counting = make_counting(self._fit, self._marks, self._peak)
        if self._marked is not None or self._looks:
            self._start = self.next = step + (2 if self._counting is None else 1)

    @property
    def _looks(self) -> bool:
        return self._config.tokens_per_sample is None

    def facts(self) -> dict[str, float]:
        """``tokens`` and ``flops`` of a sample, ``peak`` of the device, where they are known."""
        there, samples = self._seen
        if samples:
            self._tokens, self._seen = there / samples, [0, 0]
        flops = float(self._config.flops_per_sample or 0.0)
        if self._counting is not None:
            flops = self._counting.flops
        facts = {"tokens": self._tokens, "flops": flops, "peak": self._peak}
        return {name: value for name, value in facts.items() if value}

    def look(self, step: int) -> None:
        """At a stop: take back the marked step that was made, and put the next one in place if it is due."""
        if self._used is not None:
            self._take_back()
            self._plan(step)
        if step >= self._start:
            self._put_in_place()
            self.next = step + 1
        else:
            self.next = self._start

    def _plan(self, step: int) -> None:
        if self.pace:
            seconds = self._seconds * self._chance.uniform(0.5, 1.5)
            self._start = step + max(round(seconds / self.pace), 1) - 1
        else:
            self._start = step + self._gap
            self._gap *= 2

    def _put_in_place(self) -> None:
        fit = self._fit
        step = self._looking(self._marked or fit.step)
        if self._counting is not None and self._counting.is_wanted:
            step = self._counting.around(step)
        self._used = (step, fit.step)
        fit.step = step

    def _take_back(self) -> None:
        assert self._used is not None
        step, before = self._used
        self._used = None
        if self._fit.step is step:
            self._fit.step = before  # and not where compiling has made another
        else:
            self._marks.forget()
        if self._counting is not None and self._counting.has_run:
            self._counting.has_run = False
            self._marks.forget()  # counting makes a step slow

    def _looking(self, step: Step) -> Step:
        if not self._looks:
            return step

        def run(data: Any, batch_weight: BatchWeight | None) -> bool:
            there, samples = positions(data)
            self._seen[0] += there
            self._seen[1] += samples
            return step(data, batch_weight)

        return run
