"""Metrics as compact columns of numbers, and curves thinned to the points that can be shown.

A million lines of twenty metrics take 160 MB as columns, and several GB as rows.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from allranks.core.json_numbers import ABSENT, finite_array
from allranks.runs.metrics_file import FitTracker
from allranks.runs.metrics_tables import KINDS

_POINTS = 200
_Point = tuple[float, float]


def thin(
    xs: Sequence[float | None], ys: Sequence[float | None], most: int = 600
) -> tuple[list[float], list[float]]:
    """Return at most ``most`` points of a curve, with its first and last points, peaks and dips.

    Points without a finite value are dropped. Between the ends the curve is cut into stretches, of each
    of which the lowest and the highest point stay, which averaging would hide.
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
    """A growing curve, thinned: of each stretch its lowest and its highest point.

    Stretches are of equally many points; when there are too many, two become one. So every point is
    looked at once, however long the curve gets.
    """

    def __init__(self, most: int = _POINTS) -> None:
        self._most = most
        self._fits = FitTracker()
        self._begin_anew()

    def add(self, steps: Numbers, ys: Numbers, fits: Numbers) -> None:
        """Add points; where another fit begins, the curve starts over."""
        for x, y, fit in zip(steps, ys, fits, strict=True):
            if self._fits.starts_fit(x, fit):
                self._begin_anew()
            if x is not None and y is not None and math.isfinite(y):
                self._open.append((float(x), float(y)))
                self._close()

    def points(self) -> list[_Point]:
        """Return the thinned points, the first and the last among them."""
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
    """Return an exponential mean: ``weight`` 0 is the curve itself, near 1 very smooth.

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


_WHOLE = ("step", "epoch", "fit")
INDEX_COLUMNS = ("time", *_WHOLE)
"""What says where a line belongs; the other names are metrics."""


class MetricColumns:
    """Columns of equal length by name. Anything but a number (absent, null, text) is None."""

    def __init__(self) -> None:
        self._columns: dict[str, array[float]] = {}
        self._last: dict[str, float] = {}
        self._curves: dict[str, tuple[Curve, int]] = {}
        self._length = 0

    @property
    def names(self) -> list[str]:
        """Return all columns, including ``time``, ``step`` and ``epoch``, in the order of their first
        line.
        """
        return list(self._columns)

    def __len__(self) -> int:
        return self._length

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> list[Any]:
        """Return a column as a list; all None when there is no such column."""
        return self.part(name, 0)

    def part(self, name: str, begin: int) -> list[Any]:
        """Return a column from an index on; a negative one counts from the end, as in a slice."""
        column = self._columns.get(name)
        if column is None:
            return [None] * len(range(self._length)[begin:])
        whole = int if name in _WHOLE else float
        return [None if each != each else whole(each) for each in column[begin:]]

    def first_since(self, since: float) -> int:
        """Return the index of the first line written at that time or later."""
        later = (at for at, time in enumerate(self["time"]) if time is not None and time >= since)
        return next(later, self._length)

    def last(self, name: str) -> float | None:
        """Return the latest finite value."""
        return self._last.get(name)

    def curve(self, name: str) -> list[tuple[float, float]]:
        """Return (step, value) of the current training, thinned; only added lines are read."""
        curve, done = self._curves.get(name) or (Curve(), 0)
        if name in self:
            curve.add(*(self.part(each, done) for each in ("step", name, "fit")))
            self._curves[name] = curve, self._length
        return curve.points()

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append lines."""
        names: dict[str, Any] = {}
        for row in rows:
            names.update(row)
        for name in names:
            values = _numbers(rows, name)
            if name not in self._columns:
                if all(each != each for each in values):
                    continue
                self._columns[name] = array("d", [ABSENT]) * self._length
            self._columns[name].extend(values)
            if (
                last := next((each for each in reversed(values) if each == each), None)
            ) is not None:
                self._last[name] = last
        self._length += len(rows)
        for column in self._columns.values():
            column.extend([ABSENT] * (self._length - len(column)))

    def clear(self) -> None:
        """Drop everything."""
        for known in (self._columns, self._last, self._curves):
            known.clear()
        self._length = 0


class MetricTables:
    """The lines of a training by their kind, as columns."""

    def __init__(self) -> None:
        self.train, self.epoch, self.val, self.test = (MetricColumns() for _ in KINDS)
        self.nonfinite: dict[str, list[str]] = {}
        """Metrics that were NaN or infinite in the last line of each kind."""

    def tables(self) -> list[MetricColumns]:
        """Return the tables in the order of KINDS."""
        return [self.train, self.epoch, self.val, self.test]

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append lines, each to its table."""
        for kind, columns in zip(KINDS, self.tables(), strict=True):
            mine = [row for row in rows if row.get("kind") == kind]
            columns.add(mine)
            if mine:
                bad = mine[-1].get("nonfinite")
                self.nonfinite[kind] = list(map(str, bad)) if isinstance(bad, list) else []

    def clear(self) -> None:
        """Drop everything, for a file that is read from its beginning again."""
        self.nonfinite.clear()
        for columns in self.tables():
            columns.clear()


def _numbers(rows: Sequence[Mapping[str, Any]], name: str) -> array[float]:
    return finite_array("d", [row.get(name) for row in rows])


Numbers = Sequence[float | None]


def window_steps(steps: Numbers, fits: Numbers, before: int = 0) -> list[float]:
    """Return the steps that each line covers; for the first line of a fit those since its beginning.

    ``before``: number of lines at the beginning that serve only as the start of counting.
    """
    watch, done, counts = FitTracker(), 0.0, []
    for step, fit in zip(steps, fits, strict=True):
        done = 0.0 if watch.starts_fit(step, fit) else done
        counts.append(max((step or 0.0) - done, 1.0))
        done = done if step is None else step
    return counts[before:]


def fit_start(tables: MetricTables) -> float:
    """Return when the last fit wrote its first line of training steps; 0 for the first fit.

    One axis of steps can show one fit; what else it wrote is later than that line.
    """
    watch, start = FitTracker(), 0.0
    columns = (tables.train[name] for name in ("step", "fit", "time"))
    for step, fit, time in zip(*columns, strict=True):
        if watch.starts_fit(step, fit) and time is not None:
            start = time
    return start
