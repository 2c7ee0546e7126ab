"""The one reader of ``metrics.jsonl``: what a training wrote, line by line, also while it is being written.

``read_metrics`` reads a file once from its beginning, ``MetricsFile`` follows one that grows, and
``last_metrics`` reads only its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from allranks.runs.jsonl_tail import JsonlTail, Row, last_rows

METRICS_FILE = "metrics.jsonl"


class FitTracker:
    """Tracks which fit the lines of training steps belong to: a script may train several times in one run.

    Another fit begins where the lines' own number changes, or where the steps start over.
    """

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self.number: float = 1
        """The fit of the last line."""

    def starts_fit(self, step: float | None, fit: float | None = None) -> bool:
        """Return whether the line of this step is the first of another fit."""
        if step is None:
            return False
        before, self._last = self._last, (fit or 1.0, step)
        starts = before is not None and (self._last[0] != before[0] or step < before[1])
        self.number = fit or self.number + starts
        return starts


class MetricsFile:
    """The rows of ``metrics.jsonl`` in a run folder, or in the folder of an array's task.

    Each row is returned once, by ``read``, and has a ``fit``. A torn last line is returned when it is
    complete.
    """

    def __init__(self, folder: Path) -> None:
        self._file = JsonlTail(folder / METRICS_FILE)
        self._read = 0
        self._fits = FitTracker()

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def unread(self) -> int:
        """How many rows ``read`` has not returned so far."""
        return len(self._file) - self._read

    def refresh(self) -> bool:
        """Look for new rows. True when the file was replaced, so that reading starts over."""
        generation = self._file.generation
        self._file.refresh()
        if self._file.generation == generation:
            return False
        self._read, self._fits = 0, FitTracker()
        return True

    def read(self, most: int = 20_000) -> list[Row]:
        """Return the next rows; empty when there are no more, or the file cannot be read just now."""
        rows = self._file.since(self._read, self._read + most)
        self._read += len(rows)
        for row in rows:
            if row.get("kind") == "train":
                self._fits.starts_fit(_number(row.get("step")), _number(row.get("fit")))
            row.setdefault("fit", self._fits.number)
        return rows


def read_metrics(folder: Path) -> Iterator[Row]:
    """Yield all rows that are there now."""
    file = MetricsFile(folder)
    file.refresh()
    while rows := file.read(256):
        yield from rows


def last_metrics(folder: Path) -> list[Row]:
    """Return the rows at the end of the file, for one look at each of hundreds of runs."""
    return last_rows(folder / METRICS_FILE)


def _number(value: object) -> float | None:
    return value if isinstance(value, (int, float)) else None
