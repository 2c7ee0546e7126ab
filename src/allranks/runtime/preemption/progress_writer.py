"""The progress file of an attempt: how far it came, what it saved, that it exited on purpose."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from allranks.runs.attempt import Attempt
from allranks.runs.attempt_history import attempts_of
from allranks.runs.progress_file import AttemptProgress, current_attempt, record_interruption

_EVERY = 15.0
"""Seconds between two writes of the step."""


class StepCounter:
    """Turns a loop's steps into one number that never goes back, though each epoch counts from 0."""

    def __init__(self) -> None:
        self.last = -1
        """The running number of the last step."""
        self.restarts = False
        """Whether the loop has begun to count from 0 again."""
        self._added = 0
        self._saved = -1

    def count(self, step: int) -> int:
        """Return the running number of a finished step; the same on every rank."""
        number = step + self._added
        if number < self.last:
            self.restarts = True
            number = self.last + 1
            self._added = number - step
        self.last = number
        return number

    def count_saved(self, step: int) -> int:
        """Return the running number of a saved step, which may be a new epoch's first."""
        number = step + self._added
        if number < self._saved:
            number = self.last + 1
        self._saved = number
        return number


class ProgressWriter:
    """Writes ``progress.json`` of the attempt, on rank 0; nothing where it has no folder."""

    def __init__(self, attempt: Path | None = None) -> None:
        self._attempt = attempt or current_attempt()
        self._written = time.monotonic()
        self._lock = threading.Lock()  # the thread that writes a checkpoint records it

    def update(self, **changed: Any) -> None:
        """Change some fields; a disk that cannot be written must not end the training."""
        if self._attempt is None:
            return
        with self._lock:
            known = AttemptProgress.read(self._attempt) or AttemptProgress(began=time.time())
            self._try(lambda path: replace(known, **changed).write(path))

    def record_step(self, step: int) -> None:
        """Record a finished step, at most every few seconds."""
        if time.monotonic() - self._written > _EVERY:
            self._written = time.monotonic()
            self.update(step=step)

    def record_save(self, step: int, seconds: float | None) -> None:
        """Record that a checkpoint of this step is on the disk."""
        values: dict[str, Any] = {"step": step, "saved_step": step, "saved_time": time.time()}
        self.update(**values | ({} if seconds is None else {"save_seconds": seconds}))

    def newest_earlier_save(self) -> int:
        """Return the newest step that earlier attempts saved."""
        if self._attempt is None:
            return 0
        own = Attempt.open(self._attempt)
        earlier = [
            each.progress
            for each in attempts_of(self._attempt.parent.parent, own.array_task)
            if each.number < own.number
        ]
        return max((each.saved_step or 0 for each in earlier if each), default=0)

    def shift_first_step(self, steps: int) -> None:
        """Record that the attempt began this many steps later."""
        known = AttemptProgress.read(self._attempt) if self._attempt is not None else None
        if known is not None:
            self.update(first_step=known.first_step + steps)

    def record_interruption(self, step: int, sentence: str) -> bool:
        """Record that the ranks saved this step and exit. False when no job script will read it."""
        self.update(step=step, outcome="interrupted", reason=sentence)
        written = self._try(lambda path: record_interruption(path, sentence))
        return written and current_attempt() is not None

    def _try(self, write: Callable[[Path], None]) -> bool:
        if self._attempt is None:
            return False
        try:
            write(self._attempt)
        except OSError as error:
            print(f"allranks: {self._attempt} cannot be written: {error}", flush=True)
            return False
        return True
