"""At which steps all ranks exchange their flags, and what they agree on there.

A sync point is one small sum over the ranks. How many steps lie between two of them travels in that very
sum: rank 0 measures how long a step takes and sets after how many the next one comes, so that all ranks
sync at the same steps though they have no clock in common.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from allranks.errors import UsageError
from allranks.runtime.world.communicator import Communicator, Numbers

SECONDS = 2.0
"""About the time from a flag to the step at which all ranks act on it."""
_SINGLE_PROCESS_SECONDS = 0.2
_GROWTH = 8
"""The first steps may be slow (compilation, caches): the interval is found in a few sync points."""
_WRAP = 1 << 16


class SyncPoints:
    """Exchanges the flags of all ranks, seldom enough to cost nothing."""

    def __init__(
        self,
        communicator: Communicator,
        step: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.communicator = communicator
        self.next_step = step + 1
        """The step at which the next sync is due."""
        self.longest_gap = 0.0
        """The longest time between two sync points: what happens in between cannot be interrupted."""
        self._clock = clock
        self._last = (clock(), step)
        self._steps = 1
        self._sent = 0
        self._pending: Callable[[], Numbers] | None = None
        # Read one sync point later, a flag waits for two of them.
        seconds = SECONDS / 2 if communicator.is_deferred else SECONDS
        self._seconds = _SINGLE_PROCESS_SECONDS if communicator.size == 1 else seconds

    def sync(self, step: int, flags: Sequence[float], *, wait: bool = False) -> Numbers:
        """Return the sum of every flag over the ranks; all ranks call it at the same steps.

        On GPUs it is the sum of the previous sync point, unless ``wait`` waits for this one.
        """
        found = None
        if self._pending is not None and not wait:
            found, self._pending = self._pending(), None
        if found is None or not any(found[: len(flags)]):
            self._pending = self._send(step, flags)
            if wait or not self.communicator.is_deferred:
                found, self._pending = self._pending(), None
        if found is None:
            found = [0.0] * len(flags) + [1.0]
        self._steps = max(int(found[len(flags)]), 1)
        self.next_step = step + self._steps
        return found[: len(flags)]

    def restart_count(self) -> None:
        """Count steps from 0 again; the interval stays."""
        self.exclude_time(0)
        self.next_step = self._steps

    def exclude_time(self, step: int) -> None:
        """Leave the time since the last sync out of the interval: a save or a validation took it."""
        self._last = (self._clock(), step)

    def _send(self, step: int, flags: Sequence[float]) -> Callable[[], Numbers]:
        """Send the flags, rank 0's interval, and the step itself to find ranks that are elsewhere."""
        interval, at = self._interval(step), step % _WRAP
        head = interval if self.communicator.rank == 0 else 0.0
        read = self.communicator.start_sum([*flags, head, float(at), float(at * at)])

        def read_and_check() -> Numbers:
            numbers = read()
            total, squares = numbers[-2:]
            if total * total != squares * self.communicator.size:
                raise UsageError(
                    f"Rank {self.communicator.rank} is at step {step}, other ranks are at another "
                    "one.\nEvery rank must count the same steps: call should_stop(step) once for "
                    "each, on all ranks."
                )
            return numbers

        return read_and_check

    def _interval(self, step: int) -> float:
        """Return the steps until the next sync point, from the time that the last ones took."""
        now, (before, first) = self._clock(), self._last
        seconds, steps = now - before, step - first
        if self._sent:  # the first steps compile and fill caches: they are not like the others
            self.longest_gap = max(self.longest_gap, seconds)
        self._sent += 1
        self._last = (now, step)
        if steps <= 0 or seconds <= 0:
            return float(self._steps)
        fitting = int(self._seconds * steps / seconds)
        return float(max(1, min(fitting, self._steps * _GROWTH)))
