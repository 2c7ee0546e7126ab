"""Metrics as columns of numbers, compact: a million lines of twenty metrics are 160 MB, not several GB."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from allranks.monitor.numbers import ABSENT, number

_WHOLE = ("step", "epoch")
HEAD = ("time", "step", "epoch")
"""What every line has; the other names are metrics."""


class Columns:
    """Columns of equal length by name. What is no number (absent, null, text) is None."""

    def __init__(self) -> None:
        self._columns: dict[str, array[float]] = {}
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

    def last(self, name: str) -> float | None:
        """The latest value that is one."""
        column = self._columns.get(name, ())
        return next((each for each in reversed(column) if each == each), None)

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
        self._length += len(rows)
        for column in self._columns.values():
            column.extend([ABSENT] * (self._length - len(column)))

    def clear(self) -> None:
        """Forget everything, for a file that is read from its beginning again."""
        self._columns.clear()
        self._length = 0


def _numbers(rows: Sequence[Mapping[str, Any]], name: str) -> Iterable[float]:
    try:
        return array("d", [row[name] for row in rows])
    except (KeyError, TypeError, OverflowError):
        return array("d", [number(row.get(name)) for row in rows])
