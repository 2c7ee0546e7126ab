"""``metrics.jsonl`` in the run folder, always written, and ``metrics.csv`` for spreadsheets.

JSON has no NaN and no infinity: such a value is null, and its name is in the line's "nonfinite".
"""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allranks.errors import UsageError
from allranks.train.loggers.base import Logger, RunInfo
from allranks.train.loggers.line_file import FILES, LineFile, truncate_log

_encode = json.JSONEncoder(allow_nan=False, default=float).encode


class JsonlLogger(Logger):
    """Appends one JSON object per line, also over resumed runs.

    Lines of training steps are buffered for a moment, all others are written at once. When the disk is full
    they stay in memory until there is space again.
    """

    name = "jsonl"
    keeps_trying = True

    def __init__(self) -> None:
        self._out: LineFile | None = None
        self._fit = 1

    def start(self, run: RunInfo) -> None:
        path = run.folder / FILES[self.name]
        self._fit = run.fit
        self._out = LineFile(path)
        truncate_log(path, self.name, run)
        self._out.open()

    def log(self, values: Mapping[str, float], *, step: int, epoch: int, kind: str) -> None:
        when = {"time": round(time.time(), 3), "step": step, "epoch": epoch}
        head = {**when, "fit": self._fit, "kind": kind}
        self._file.add(to_line(head, values), at_once=kind != "train")

    def flush(self) -> None:
        """Write what waits. What the disk does not take stays for the next time."""
        self._file.flush()

    def position(self) -> int | None:
        return self._file.written

    def close(self, status: str) -> None:
        if self._out is not None:
            self._out.close()

    @property
    def _file(self) -> LineFile:
        if self._out is None:
            raise RuntimeError("the jsonl logger was not started")
        return self._out


def to_line(head: dict[str, Any], values: Mapping[str, float]) -> str:
    """Return one line of the file. A metric called "step" does not replace the one of the head."""
    row = {**head, **values, **head}
    try:
        return _encode(row) + "\n"
    except ValueError:
        return _encode(_with_nulls(row)) + "\n"


def _with_nulls(row: dict[str, Any]) -> dict[str, Any]:
    bad = [
        name
        for name, value in row.items()
        if not isinstance(value, str) and not math.isfinite(float(value))
    ]
    return {**row, **dict.fromkeys(bad), "nonfinite": bad}


HEAD = ("time", "step", "epoch", "kind")
"""The first columns; new files have ``fit`` as the next one."""


class CsvLogger(Logger):
    """One row per write; a metric that the row does not have is an empty cell.

    A new metric rewrites the file with one more column, which happens a few times early in a run.
    """

    name = "csv"

    def __init__(self) -> None:
        self._path = Path()
        self._out: LineFile | None = None
        self._columns: list[str] = list(HEAD)
        self._fit = 1

    def start(self, run: RunInfo) -> None:
        self._path = run.folder / FILES[self.name]
        self._fit = run.fit
        truncate_log(self._path, self.name, run)
        there = _header(self._path)
        if there and there[: len(HEAD)] != list(HEAD):
            raise UsageError(
                f"{self._path} is not written by allranks: its columns do not start with {HEAD}.\n"
                "Move it away, or use another run folder."
            )
        self._columns = there or [*HEAD, "fit"]
        self._out = LineFile(self._path)
        self._out.open()
        if not there:
            self._file.add(_line(self._columns), at_once=True)

    def log(self, values: Mapping[str, float], *, step: int, epoch: int, kind: str) -> None:
        values = {**values, "fit": self._fit}
        new = [name for name in values if name not in self._columns]
        if new:
            self._widen(new)
        row = {**values, "time": round(time.time(), 3), "step": step, "epoch": epoch, "kind": kind}
        cells = [_cell(row.get(name, "")) for name in self._columns]
        self._file.add(_line(cells), at_once=kind != "train")

    def flush(self) -> None:
        self._file.flush()

    def position(self) -> int | None:
        return self._file.written

    def close(self, status: str) -> None:
        if self._out is not None:
            self._out.close()

    @property
    def _file(self) -> LineFile:
        if self._out is None:
            raise RuntimeError("the csv logger was not started")
        return self._out

    def _widen(self, names: list[str]) -> None:
        """Write the file again and replace it, so that a kill leaves one or the other."""
        self._file.close()
        self._columns += names
        beside = self._path.with_suffix(".csv.new")
        with (
            open(self._path, newline="", encoding="utf-8") as old,
            open(beside, "w", newline="", encoding="utf-8") as new,
        ):
            writer = csv.writer(new)
            writer.writerow(self._columns)
            rows = csv.reader(old)
            next(rows, None)
            for row in rows:
                writer.writerow(row + [""] * (len(self._columns) - len(row)))
        beside.replace(self._path)
        self._out = LineFile(self._path)
        self._out.open()


def _header(path: Path) -> list[str]:
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])


def _line(cells: Sequence[Any]) -> str:
    made = io.StringIO()
    csv.writer(made).writerow(cells)
    return made.getvalue()


def _cell(value: Any) -> Any:
    return value if isinstance(value, (str, int)) else float(value)
