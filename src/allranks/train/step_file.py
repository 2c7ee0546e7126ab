"""``attempts/N/steps.jsonl``: what every rank's steps took, window by window; written by rank 0.

Windows that are short, or lines that are long because there are many ranks, are put together to means, so
that the file grows by a few KiB a second at most.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from allranks.train.loggers.lines import LineFile
from allranks.train.timing import OWN

NAME = "steps.jsonl"
LEAST_SECONDS = 0.25
"""Between two lines."""
BYTES_PER_SECOND = 4096


class StepFile:
    """The file of one attempt. A disk that refuses it costs the file, told once, and not the training."""

    def __init__(
        self, folder: Path, ranks: int, warn: Callable[[str], None], *, fit: int = 1
    ) -> None:
        """``fit``: which one of the script, when it makes several."""
        self._out = LineFile(folder / NAME)
        self._ranks, self._warn, self._fit = ranks, warn, fit
        self._told = False
        self._next = 0.0
        self._reset()

    def _reset(self) -> None:
        self._sums = [0.0] * (self._ranks * len(OWN))
        self._steps = [0] * (self._ranks * len(OWN))
        self._last: tuple[int, int] | None = None

    def add(self, step: int, epoch: int, steps: int, places: Sequence[float]) -> None:
        """A window of ``steps`` steps; ``places`` are the ranks' numbers by `OWN`, one rank after the other."""
        for place, seconds in enumerate(places):
            if seconds >= 0:
                self._sums[place] += steps * seconds
                self._steps[place] += steps
        self._last = (step, epoch)
        if time.monotonic() >= self._next:
            self._write()

    def _write(self) -> None:
        if self._last is None:
            return
        line = self._line(*self._last)
        self._reset()
        self._next = time.monotonic() + max(LEAST_SECONDS, len(line) / BYTES_PER_SECOND)
        self._try(self._out.add, line)

    def _line(self, step: int, epoch: int) -> str:
        means = [
            float(f"{total / steps:.4g}") if steps else None
            for total, steps in zip(self._sums, self._steps, strict=True)
        ]
        row: dict[str, Any] = {"time": round(time.time(), 3), "step": step, "epoch": epoch}
        row["fit"] = self._fit
        row |= {f"{name}_seconds": means[at :: len(OWN)] for at, name in enumerate(OWN)}
        return json.dumps(row) + "\n"

    def flush(self) -> None:
        """The next line may be long in coming."""
        self._try(self._out.flush)

    def close(self) -> None:
        """Write what waits."""
        self._write()
        self._try(self._out.close)

    def _try(self, call: Callable[..., None], *args: Any) -> None:
        try:
            call(*args)
        except OSError as error:
            if not self._told:
                self._told = True
                self._warn(
                    f"What the steps of each rank took cannot be written to {NAME}: {error}."
                )
