"""Curves made fit to be shown: fewer points that look the same, and smoother ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def thin(
    xs: Sequence[float | None], ys: Sequence[float | None], most: int = 600
) -> tuple[list[float], list[float]]:
    """At most ``most`` points of a curve that still show its first and last, its peaks and its dips.

    Points without a finite value are dropped. Between the ends the curve is cut into stretches, of each
    of which the lowest and the highest point stay: what averaging would hide is what is looked for.
    """
    points = [
        (float(x), float(y))
        for x, y in zip(xs, ys, strict=False)
        if x is not None and y is not None and math.isfinite(x) and math.isfinite(y)
    ]
    if len(points) > max(most, 2):
        points = [points[0], *_extremes(points[1:-1], (most - 2) // 2), points[-1]]
    return [x for x, _ in points], [y for _, y in points]


def _extremes(points: list[tuple[float, float]], stretches: int) -> Iterable[tuple[float, float]]:
    for place in range(stretches):
        begin = len(points) * place // stretches
        end = len(points) * (place + 1) // stretches
        values = [y for _, y in points[begin:end]]
        low = begin + values.index(min(values))
        high = begin + values.index(max(values))
        yield from (points[each] for each in sorted({low, high}))


def smooth(ys: Sequence[float], weight: float) -> list[float]:
    """An exponential mean: ``weight`` 0 is the curve itself, near 1 very smooth.

    It is corrected for its beginning, so that it does not start at zero.
    """
    weight = min(max(weight, 0.0), 0.9999)
    total = held = 0.0
    smoothed = []
    for y in ys:
        if not math.isfinite(y):
            smoothed.append(y)
            continue
        total = total * weight + y * (1 - weight)
        held = held * weight + (1 - weight)
        smoothed.append(total / held)
    return smoothed
