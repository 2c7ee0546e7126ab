"""What the time of a step goes to, from the lines of training steps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from allranks.monitor.model import PHASES
from allranks.monitor.source import Source


def phases(source: Source, last: int | None = None) -> dict[str, float]:
    """Seconds of a step by phase, in the order of PHASES, over the last windows; None: over all.

    Every step counts the same, whatever the length of its window. Empty where nothing was measured.
    """
    begin = max(len(source.train) - last, 0) if last else 0
    weights = _weights(source, begin)
    found = {name: source.train.part(f"{name}_seconds", begin) for name in PHASES}
    means = {name: _mean(values, weights) for name, values in found.items()}
    return {name: value for name, value in means.items() if value is not None}


def phases_over_time(
    source: Source, most: int = 200, begin: int = 0
) -> tuple[list[float], dict[str, list[float]]]:
    """The steps at which groups of windows end, and for each phase its mean in every group.

    Of the windows from ``begin`` on: a script that trains several times begins each at step 0.
    """
    names = [name for name in PHASES if f"{name}_seconds" in source.train]
    columns = {name: source.train.part(f"{name}_seconds", begin) for name in names}
    steps, weights = source.train.part("step", begin), _weights(source, begin)
    known = [
        place
        for place, step in enumerate(steps)
        if step is not None and any(columns[name][place] is not None for name in names)
    ]
    groups = _groups(known, most)
    series = {
        name: [
            _mean([values[at] for at in group], [weights[at] for at in group]) or 0.0
            for group in groups
        ]
        for name, values in columns.items()
    }
    return [float(steps[group[-1]]) for group in groups], series


def _weights(source: Source, begin: int) -> list[int]:
    """Steps in each window from there on; one that does not follow the line before it (another fit)
    counts once.
    """
    steps = [step or 0 for step in source.train.part("step", max(begin - 1, 0))]
    return [max(step - before, 1) for before, step in pairwise(steps if begin else [0, *steps])]


def _mean(values: list[Any], weights: list[int]) -> float | None:
    pairs = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None]
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total else None


def _groups(places: list[int], most: int) -> list[list[int]]:
    count = min(len(places), most)
    cuts = [len(places) * each // count for each in range(count + 1)] if count else [0]
    return [places[a:b] for a, b in pairwise(cuts)]
