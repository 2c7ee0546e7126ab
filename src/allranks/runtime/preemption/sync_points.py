"""At which steps all ranks look at each other's wishes, and what they find.

A look is one small sum over the ranks. How many steps lie between two looks travels in that very sum:
rank 0 measures how long a step takes and says after how many the next look comes, so that all ranks look
at the same steps though none has a clock in common.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from allranks.errors import UsageError
from allranks.runtime.preemption.communicator import Alone, Numbers

SECONDS = 2.0
"""From a wish to the step at which all ranks act on it, about."""
_ALONE_SECONDS = 0.2
_GROWTH = 8
"""The first steps may be slow (compilation, caches): the pace is found in a few looks."""
_WRAP = 1 << 16


class Looks:
    """Looks at the wishes of all ranks, seldom enough to cost nothing."""

    def __init__(self, talk: Alone, step: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.talk = talk
        self.next = step + 1
        """The step at which the next look is due."""
        self.gap = 0.0
        """The longest time between two looks: what happens in between cannot be broken off."""
        self._clock = clock
        self._last = (clock(), step)
        self._steps = 1
        self._sent = 0
        self._pending: Callable[[], Numbers] | None = None
        # Read one look late, a wish waits for two of them.
        seconds = SECONDS / 2 if talk.late else SECONDS
        self._seconds = _ALONE_SECONDS if talk.size == 1 else seconds

    def look(self, step: int, wishes: Sequence[float], *, now: bool = False) -> Numbers:
        """The sum of every wish over the ranks; all ranks call it at the same steps.

        Over GPUs it is the sum of the look before, unless ``now`` waits for this one.
        """
        found = None
        if self._pending is not None and not now:
            found, self._pending = self._pending(), None
        if found is None or not any(found[: len(wishes)]):
            self._pending = self._send(step, wishes)
            if now or not self.talk.late:
                found, self._pending = self._pending(), None
        if found is None:
            found = [0.0] * len(wishes) + [1.0]
        self._steps = max(int(found[len(wishes)]), 1)
        self.next = step + self._steps
        return found[: len(wishes)]

    def begin_again(self) -> None:
        """Steps are counted from 0 once more; the pace stays."""
        self.restart(0)
        self.next = self._steps

    def restart(self, step: int) -> None:
        """Time passed that is no step's and reckoned with elsewhere: a save, a validation."""
        self._last = (self._clock(), step)

    def _send(self, step: int, wishes: Sequence[float]) -> Callable[[], Numbers]:
        """The wishes, rank 0's pace, and the step itself to find ranks that are elsewhere."""
        pace, at = self._pace(step), step % _WRAP
        head = pace if self.talk.rank == 0 else 0.0
        read = self.talk.start([*wishes, head, float(at), float(at * at)])

        def checked() -> Numbers:
            numbers = read()
            total, squares = numbers[-2:]
            if total * total != squares * self.talk.size:
                raise UsageError(
                    f"Rank {self.talk.rank} is at step {step}, other ranks are at another one.\n"
                    "Every rank must count the same steps: near(step) once for each, on all ranks."
                )
            return numbers

        return checked

    def _pace(self, step: int) -> float:
        """Steps until the next look, from the time that the last ones took."""
        now, (before, first) = self._clock(), self._last
        seconds, steps = now - before, step - first
        if self._sent:  # the first steps compile and fill caches: they are not like the others
            self.gap = max(self.gap, seconds)
        self._sent += 1
        self._last = (now, step)
        if steps <= 0 or seconds <= 0:
            return float(self._steps)
        fitting = int(self._seconds * steps / seconds)
        return float(max(1, min(fitting, self._steps * _GROWTH)))
