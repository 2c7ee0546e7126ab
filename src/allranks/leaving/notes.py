"""What an attempt tells of itself: how far it came, what it saved, that it left on purpose."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from allranks.runs.progress import Progress, note_interrupted, own_attempt

_EVERY = 15.0
"""Seconds between two notes of the step."""


class Notes:
    """``progress.json`` of the attempt, for rank 0; nothing where allranks did not start it."""

    def __init__(self, attempt: Path | None = None) -> None:
        self._attempt = attempt or own_attempt()
        self._noted = time.monotonic()
        self._lock = threading.Lock()  # a checkpoint is told of by the thread that wrote it

    def note(self, **changed: Any) -> None:
        """Change what is known; a disk that cannot take it must not end the training."""
        if self._attempt is None:
            return
        with self._lock:
            known = Progress.read(self._attempt) or Progress(began=time.time())
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

    def interrupted(self, step: int, sentence: str) -> bool:
        """The ranks saved this step and leave. False when no job script will know of it."""
        self.note(step=step, outcome="interrupted", reason=sentence)
        return self._try(lambda path: note_interrupted(path, sentence))

    def _try(self, write: Callable[[Path], None]) -> bool:
        if self._attempt is None:
            return False
        try:
            write(self._attempt)
        except OSError as error:
            print(f"allranks: {self._attempt} cannot be written: {error}", flush=True)
            return False
        return True
