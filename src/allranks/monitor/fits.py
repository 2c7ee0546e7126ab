"""Where one training ends and another begins: a script may train several times in one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allranks.monitor.source import Source

Numbers = Sequence[float | None]


class Fits:
    """Tells line by line whether another fit begins: its number changes, or the steps fall.

    Lines have a number from the second fit on; those of older runs have none.
    """

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def begins(self, step: float | None, fit: float | None = None) -> bool:
        """Whether the line of this step is the first of another fit."""
        if step is None:
            return False
        before, self._last = self._last, (fit or 1.0, step)
        return before is not None and (self._last[0] != before[0] or step < before[1])


def window_steps(steps: Numbers, fits: Numbers, before: int = 0) -> list[float]:
    """How many steps each line tells of; the first of a fit those since its beginning.

    ``before``: so many lines at the beginning are there only to count from.
    """
    watch, done, counts = Fits(), 0.0, []
    for step, fit in zip(steps, fits, strict=True):
        done = 0.0 if watch.begins(step, fit) else done
        counts.append(max((step or 0.0) - done, 1.0))
        done = done if step is None else step
    return counts[before:]


def fit_start(source: Source) -> float:
    """When the fit under way, or the last one, wrote its first line of training steps; 0 of the first.

    One axis of steps can show one fit; what else it wrote is later than that line.
    """
    watch, start = Fits(), 0.0
    columns = (source.train[name] for name in ("step", "fit", "time"))
    for step, fit, time in zip(*columns, strict=True):
        if watch.begins(step, fit) and time is not None:
            start = time
    return start
