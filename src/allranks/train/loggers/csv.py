"""``metrics.csv`` in the run folder, for spreadsheets. Columns are added as new metrics come up."""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from allranks.errors import UsageError
from allranks.train.loggers.base import Logger, RunInfo
from allranks.train.loggers.undo import FILES, count_lines, undo

HEAD = ("time", "step", "epoch", "kind")
FLUSH_SECONDS = 1.0


class CsvLogger(Logger):
    """One row per write; a metric that the row does not have is an empty cell.

    A new metric rewrites the file with one more column, which happens a few times early in a run.
    """

    name = "csv"

    def __init__(self) -> None:
        self._path = Path()
        self._file: TextIO | None = None
        self._columns: list[str] = list(HEAD)
        self._writer: Any = None
        self._flushed = -FLUSH_SECONDS
        self._written = 0

    def start(self, run: RunInfo) -> None:
        self._path = run.folder / FILES[self.name]
        undo(self._path, self.name, run)
        there = _header(self._path)
        if there and there[: len(HEAD)] != list(HEAD):
            raise UsageError(f"{self._path} is another file's: its columns do not begin {HEAD}.")
        self._columns = there or list(HEAD)
        self._open()
        self._written = count_lines(self._path)
        if not there:
            self._written = 1
            self._writer.writerow(self._columns)

    def log(self, values: Mapping[str, float], *, step: int, epoch: int, kind: str) -> None:
        new = [name for name in values if name not in self._columns]
        if new:
            self._widen(new)
        row = {**values, "time": round(time.time(), 3), "step": step, "epoch": epoch, "kind": kind}
        self._writer.writerow([_cell(row.get(name, "")) for name in self._columns])
        self._written += 1
        due = time.monotonic() - self._flushed >= FLUSH_SECONDS
        if self._file is not None and (kind != "train" or due):
            self._flushed = time.monotonic()
            self._file.flush()

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def position(self) -> int | None:
        return self._written

    def close(self, status: str) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> None:
        self._file = open(self._path, "a", newline="", encoding="utf-8")  # noqa: SIM115
        self._writer = csv.writer(self._file)

    def _widen(self, names: list[str]) -> None:
        """Rewrite beside the file and put it in its place, so that a kill leaves one or the other."""
        self.close("")
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
        self._open()


def _header(path: Path) -> list[str]:
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])


def _cell(value: Any) -> Any:
    return value if isinstance(value, (str, int)) else float(value)
