"""Steps of a script that trains several times in one run: how many a line tells of, since when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from allranks.runs.metrics_file import FitTracker

if TYPE_CHECKING:
    from allranks.observe.view.run_source import RunSource

Numbers = Sequence[float | None]


def window_steps(steps: Numbers, fits: Numbers, before: int = 0) -> list[float]:
    """How many steps each line tells of; the first of a fit those since its beginning.

    ``before``: so many lines at the beginning are there only to count from.
    """
    watch, done, counts = FitTracker(), 0.0, []
    for step, fit in zip(steps, fits, strict=True):
        done = 0.0 if watch.starts_fit(step, fit) else done
        counts.append(max((step or 0.0) - done, 1.0))
        done = done if step is None else step
    return counts[before:]


def fit_start(source: RunSource) -> float:
    """When the fit under way, or the last one, wrote its first line of training steps; 0 of the first.

    One axis of steps can show one fit; what else it wrote is later than that line.
    """
    watch, start = FitTracker(), 0.0
    columns = (source.train[name] for name in ("step", "fit", "time"))
    for step, fit, time in zip(*columns, strict=True):
        if watch.starts_fit(step, fit) and time is not None:
            start = time
    return start
