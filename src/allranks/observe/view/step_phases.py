"""The mean time of each phase of a step, from the lines of training steps.

Waiting for data and saving are timed at every step, the other phases at marked steps only. In a window
without one they are unknown and all of their time is "other": such windows are left out as soon as any
has all phases, so that the phases of a step add up to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from allranks.core.json_numbers import finite_number
from allranks.observe.view.metric_columns import window_steps
from allranks.observe.view.model import PHASES
from allranks.observe.view.run_source import RunSource

_MARKED = "forward"
"""The phase by which a window with a marked step is known."""
_SPARSE = 50
"""At least one in this many windows has a marked step, where windows are short."""

_Columns = Mapping[str, Sequence[float | None]]


def mean_phases(source: RunSource, last: int | None = None) -> dict[str, float]:
    """Return the seconds of a step by phase, in the order of PHASES, over the last measured windows; None: all.

    Every step counts the same, whatever the length of its window. Empty where nothing was measured.
    """
    begin = max(len(source.train) - _SPARSE * last, 0) if last else 0
    columns = _columns(source, begin)
    return _means(columns, _steps(source, begin), _measured_windows(columns)[-(last or 0) :])


def phases_of(windows: Sequence[Mapping[str, Any]], steps: Sequence[float]) -> dict[str, float]:
    """Return the seconds of a step by phase from lines, with the steps that each covers."""
    columns = {
        name: [finite_number(each.get(f"{name}_seconds")) for each in windows] for name in PHASES
    }
    return _means(columns, steps, _measured_windows(columns))


def phases_over_time(
    source: RunSource, most: int = 200, begin: int = 0
) -> tuple[list[float], dict[str, list[float]]]:
    """Return the steps at which groups of windows end, and the mean of each phase in every group.

    Of the windows from ``begin`` on: a script that trains several times begins each at step 0.
    """
    columns, counts = _columns(source, begin), _steps(source, begin)
    steps = source.train.part("step", begin)
    groups = _groups([at for at in _measured_windows(columns) if steps[at] is not None], most)
    means = [_means(columns, counts, group) for group in groups]
    names = [name for name in columns if any(name in each for each in means)]
    return (
        [float(steps[group[-1]]) for group in groups],
        {name: [each.get(name, 0.0) for each in means] for name in names},
    )


def _columns(source: RunSource, begin: int) -> _Columns:
    return {name: source.train.part(f"{name}_seconds", begin) for name in PHASES}


def _steps(source: RunSource, begin: int) -> list[float]:
    """Return the steps of each window; the line before them tells where the first one began."""
    before = min(begin, 1)
    steps, fits = (source.train.part(name, begin - before) for name in ("step", "fit"))
    return window_steps(steps, fits, before)


def _measured_windows(columns: _Columns) -> list[int]:
    """Return the windows with all phases; where there is none, those with any."""
    marked = [at for at, value in enumerate(columns[_MARKED]) if value is not None]
    if marked:
        return marked
    rows = enumerate(zip(*columns.values(), strict=True))
    return [at for at, row in rows if any(value is not None for value in row)]


def _means(columns: _Columns, steps: Sequence[float], places: Sequence[int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, values in columns.items():
        known = [(value, steps[at]) for at in places if (value := values[at]) is not None]
        if known:
            found[name] = sum(v * count for v, count in known) / sum(count for _, count in known)
    return found


def _groups(places: list[int], most: int) -> list[list[int]]:
    count = min(len(places), most)
    cuts = [len(places) * each // count for each in range(count + 1)] if count else [0]
    return [places[a:b] for a, b in pairwise(cuts)]
