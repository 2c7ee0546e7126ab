"""What an attempt tells of itself: how far it came, what it saved, that it left on purpose."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from allranks.runs.attempt import Attempt
from allranks.runs.attempt_history import attempts_of
from allranks.runs.progress_file import AttemptProgress, note_interrupted, own_attempt

_EVERY = 15.0
"""Seconds between two notes of the step."""


class Count:
    """A loop's steps as one number that never goes back, though it counts each epoch from 0."""

    def __init__(self) -> None:
        self.at = -1
        """The running number of the last step."""
        self.repeats = False
        """Whether the loop has begun to count again."""
        self._added = 0
        self._saved = -1

    def stepped(self, step: int) -> int:
        """The running number of a step that was done; the same on every rank."""
        number = step + self._added
        if number < self.at:
            self.repeats = True
            number = self.at + 1
            self._added = number - step
        self.at = number
        return number

    def saved(self, step: int) -> int:
        """The running number of a saved step; of a new epoch's first the loop may not have told yet."""
        number = step + self._added
        if number < self._saved:
            number = self.at + 1
        self._saved = number
        return number


class Notes:
    """``progress.json`` of the attempt, for rank 0; nothing where there is no folder for it."""

    def __init__(self, attempt: Path | None = None) -> None:
        self._attempt = attempt or own_attempt()
        self._noted = time.monotonic()
        self._lock = threading.Lock()  # a checkpoint is told of by the thread that wrote it

    def note(self, **changed: Any) -> None:
        """Change what is known; a disk that cannot take it must not end the training."""
        if self._attempt is None:
            return
        with self._lock:
            known = AttemptProgress.read(self._attempt) or AttemptProgress(began=time.time())
            self._try(lambda path: replace(known, **changed).write(path))

    def stepped(self, step: int) -> None:
        """This step is done; written down now and then."""
        if time.monotonic() - self._noted > _EVERY:
            self._noted = time.monotonic()
            self.note(step=step)

    def saved(self, step: int, seconds: float | None) -> None:
        """A checkpoint of this step is on the disk."""
        values: dict[str, Any] = {"step": step, "saved_step": step, "saved_time": time.time()}
        self.note(**values | ({} if seconds is None else {"save_seconds": seconds}))

    def kept_before(self) -> int:
        """The newest step that earlier attempts kept."""
        if self._attempt is None:
            return 0
        own = Attempt.open(self._attempt)
        earlier = [
            each.progress
            for each in attempts_of(self._attempt.parent.parent, own.array_task)
            if each.number < own.number
        ]
        return max((each.saved_step or 0 for each in earlier if each), default=0)

    def began_later(self, steps: int) -> None:
        """The attempt began so many steps later than it was noted."""
        known = AttemptProgress.read(self._attempt) if self._attempt is not None else None
        if known is not None:
            self.note(first_step=known.first_step + steps)

    def interrupted(self, step: int, sentence: str) -> bool:
        """The ranks saved this step and leave. False when no job script will know of it."""
        self.note(step=step, outcome="interrupted", reason=sentence)
        noted = self._try(lambda path: note_interrupted(path, sentence))
        return noted and own_attempt() is not None

    def _try(self, write: Callable[[Path], None]) -> bool:
        if self._attempt is None:
            return False
        try:
            write(self._attempt)
        except OSError as error:
            print(f"allranks: {self._attempt} cannot be written: {error}", flush=True)
            return False
        return True
