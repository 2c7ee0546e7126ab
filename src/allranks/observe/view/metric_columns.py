"""Metrics as columns of numbers, compact: a million lines of twenty metrics are 160 MB, not several GB."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from allranks.observe.view.curve_thinning import Curve
from allranks.observe.view.json_numbers import ABSENT, finite
from allranks.runs.metrics_tables import KINDS

_WHOLE = ("step", "epoch", "fit")
INDEX_COLUMNS = ("time", *_WHOLE)
"""What says where a line belongs; the other names are metrics."""


class Columns:
    """Columns of equal length by name. What is no number (absent, null, text) is None."""

    def __init__(self) -> None:
        self._columns: dict[str, array[float]] = {}
        self._last: dict[str, float] = {}
        self._curves: dict[str, tuple[Curve, int]] = {}
        self._length = 0

    @property
    def names(self) -> list[str]:
        """All columns, ``time``, ``step`` and ``epoch`` among them, in the order of their first line."""
        return list(self._columns)

    def __len__(self) -> int:
        return self._length

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> list[Any]:
        """A column as a list; only None when there is no such column."""
        return self.part(name, 0)

    def part(self, name: str, begin: int) -> list[Any]:
        """A column from a place on; a negative one counts from the end, as in a slice."""
        column = self._columns.get(name)
        if column is None:
            return [None] * len(range(self._length)[begin:])
        whole = int if name in _WHOLE else float
        return [None if each != each else whole(each) for each in column[begin:]]

    def place(self, since: float) -> int:
        """The first line that was not written earlier than that."""
        later = (at for at, time in enumerate(self["time"]) if time is not None and time >= since)
        return next(later, self._length)

    def last(self, name: str) -> float | None:
        """The latest value that is one."""
        return self._last.get(name)

    def curve(self, name: str) -> list[tuple[float, float]]:
        """(step, value) of the training under way, thinned; only what was added is looked at."""
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
        """Forget everything."""
        for known in (self._columns, self._last, self._curves):
            known.clear()
        self._length = 0


class Tables:
    """The lines of a training by their kind, as columns."""

    def __init__(self) -> None:
        self.train, self.epoch, self.val, self.test = (Columns() for _ in KINDS)
        self.nonfinite: dict[str, list[str]] = {}
        """Metrics that were NaN or infinite in the last line of each kind."""

    def tables(self) -> list[Columns]:
        """In the order of KINDS."""
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
        """Forget everything, for a file that is read from its beginning again."""
        self.nonfinite.clear()
        for columns in self.tables():
            columns.clear()


def _numbers(rows: Sequence[Mapping[str, Any]], name: str) -> array[float]:
    return finite("d", [row.get(name) for row in rows])
