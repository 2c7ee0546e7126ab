"""``metrics.jsonl`` in the run folder: one JSON object per line. Always on.

JSON knows no NaN and no infinity: such a value is null, and its name is in the line's "nonfinite".
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from io import FileIO
from typing import Any

from allranks.train.loggers.base import Logger, RunInfo
from allranks.train.loggers.undo import FILES, count_lines, undo

FLUSH_SECONDS = 1.0
FLUSH_LINES = 64
MOST_BYTES = 16 * 2**20

_encode = json.JSONEncoder(allow_nan=False, default=float).encode


class JsonlLogger(Logger):
    """Appends, also over resumed runs.

    Lines of training steps wait for company for at most a second or 64 lines as long as more come; all
    others are written at once. When the disk is full they wait in memory for it to have room again.
    """

    name = "jsonl"
    keeps_trying = True

    def __init__(self) -> None:
        self._run: RunInfo | None = None
        self._file: FileIO | None = None
        self._lines: list[str] = []
        self._pending = b""
        self._flushed = 0.0
        self._written = 0

    def start(self, run: RunInfo) -> None:
        self._run = run
        undo(run.folder / FILES[self.name], self.name, run)
        self._open()

    def log(self, values: Mapping[str, float], *, step: int, epoch: int, kind: str) -> None:
        now = time.time()
        head = {"time": round(now, 3), "step": step, "epoch": epoch, "kind": kind}
        self._lines.append(to_line(head, values))
        due = now - self._flushed >= FLUSH_SECONDS or len(self._lines) >= FLUSH_LINES
        if due or kind != "train":
            self._flushed = now
            self.flush()

    def flush(self) -> None:
        """Write what waits. What the disk does not take stays for the next time."""
        self._pending += "".join(self._lines).encode()
        self._lines.clear()
        if len(self._pending) > MOST_BYTES:
            self._pending = self._pending[self._pending.index(b"\n", -MOST_BYTES) + 1 :]
        file = self._open()
        while self._pending:
            # Unbuffered, so that the number of bytes that got through is known: none is written twice.
            through = file.write(self._pending) or 0
            self._written += self._pending.count(b"\n", 0, through)
            self._pending = self._pending[through:]

    def position(self) -> int | None:
        return self._written

    def close(self, status: str) -> None:
        if self._run is None:
            return
        try:
            self.flush()
        finally:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _open(self) -> FileIO:
        """The file; tried anew at every flush as long as it cannot be opened."""
        if self._file is None:
            if self._run is None:
                raise RuntimeError("the jsonl logger was not started")
            path = self._run.folder / FILES[self.name]
            torn = path.exists() and not _ends_in_newline(path)
            self._written = count_lines(path)
            self._file = FileIO(path, "a")
            if torn:  # the run before was killed within a line
                self._file.write(b"\n")
        return self._file


def to_line(head: dict[str, Any], values: Mapping[str, float]) -> str:
    """One line of the file. The head's names are its own: a metric called "step" does not replace it."""
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


def _ends_in_newline(path: Any) -> bool:
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        if size == 0:
            return True
        file.seek(size - 1)
        return file.read(1) == b"\n"
