"""Curves made fit to be shown: fewer points that look the same, and smoother ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from allranks.observe.view.fit_steps import Numbers
from allranks.runs.metrics_file import FitTracker

_POINTS = 200
_Point = tuple[float, float]


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


class Curve:
    """A curve that grows, kept thin: of each stretch its lowest and its highest point.

    Stretches are of equally many points; when there are too many, two become one. So every point is
    looked at once, however long the curve gets.
    """

    def __init__(self, most: int = _POINTS) -> None:
        self._most = most
        self._fits = FitTracker()
        self._begin_anew()

    def add(self, steps: Numbers, ys: Numbers, fits: Numbers) -> None:
        """Go on with these points; where another fit begins, so does another curve."""
        for x, y, fit in zip(steps, ys, fits, strict=True):
            if self._fits.starts_fit(x, fit):
                self._begin_anew()
            if x is not None and y is not None and math.isfinite(y):
                self._open.append((float(x), float(y)))
                self._close()

    def points(self) -> list[_Point]:
        """At most so many, the first and the last among them."""
        found = [point for stretch in [*self._stretches, self._open] for point in stretch]
        xs, ys = thin([x for x, _ in found], [y for _, y in found], self._most)
        return list(zip(xs, ys, strict=True))

    def _begin_anew(self) -> None:
        self._stretches: list[list[_Point]] = []
        self._open: list[_Point] = []
        self._length = 1

    def _close(self) -> None:
        if len(self._open) < self._length:
            return
        self._stretches.append(list(_extremes(self._open, 1)))
        self._open = []
        if len(self._stretches) > 2 * self._most:
            head, *rest = self._stretches  # the first point stays
            pairs = zip(rest[::2], rest[1::2], strict=True)
            self._stretches = [head, *(list(_extremes(a + b, 1)) for a, b in pairs)]
            self._length *= 2


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
