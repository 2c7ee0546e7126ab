"""``metrics.jsonl`` in the run folder: one JSON object per line. Always on.

JSON knows no NaN and no infinity: such a value is null, and its name is in the line's "nonfinite".
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from typing import Any

from allranks.train.loggers.base import Logger, RunInfo
from allranks.train.loggers.lines import LineFile
from allranks.train.loggers.undo import FILES, undo

_encode = json.JSONEncoder(allow_nan=False, default=float).encode


class JsonlLogger(Logger):
    """Appends, also over resumed runs.

    Lines of training steps wait for company for a moment, all others are written at once. When the disk is
    full they wait in memory for it to have room again.
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
        undo(path, self.name, run)
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
