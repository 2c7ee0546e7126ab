"""TERM, USR1 and USR2 set a flag. What to do about it is decided between two steps, never here."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from types import FrameType
from typing import Any

LEAVING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers send before they kill; Ctrl-C (INT) keeps its own meaning."""


class Signals:
    """Notes which signal came first. A handler that was there before is called, too."""

    def __init__(self) -> None:
        self.caught = ""
        """The first one's name, such as SIGUSR1."""
        self.stays = False
        """Somebody's own loop asked for it, so that no `fit` may end it."""
        self._before: dict[int, Any] = {}
        self._owner = os.getpid()
        self._calling = False

    def watch(self) -> bool:
        """From now on; False outside the main thread, where Python allows no handlers."""
        if threading.current_thread() is not threading.main_thread():
            return False
        self._owner = os.getpid()
        if not self._before:
            atexit.register(self._outlive_warnings)
        for number in LEAVING:
            present = signal.getsignal(number)
            if present != self._note:
                self._before[number] = present
                signal.signal(number, self._note)
        return True

    def release(self) -> None:
        """TERM ends the process again. USR1 and USR2 are warnings and go on being noted."""
        if self.stays or threading.current_thread() is not threading.main_thread():
            return
        before = self._before.get(signal.SIGTERM)
        if before is not None and signal.getsignal(signal.SIGTERM) == self._note:
            del self._before[signal.SIGTERM]
            signal.signal(signal.SIGTERM, before)

    def _outlive_warnings(self) -> None:
        """Python takes its handlers away as it ends, and a warning that came then would kill."""
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            if signal.getsignal(number) == self._note:
                signal.signal(number, signal.SIG_IGN)

    def _note(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number)
        if os.getpid() != self._owner:
            _in_a_copy(number, before)
            return
        self.caught = self.caught or signal.Signals(number).name
        if callable(before) and not self._calling:  # it may itself call the one before it: us
            self._calling = True
            try:
                before(number, frame)
            finally:
                self._calling = False


def _in_a_copy(number: int, before: Any) -> None:
    """A process that the rank forked: terminate() must end it, a warning must not."""
    if number == signal.SIGTERM and before is not signal.SIG_IGN:
        signal.signal(number, before if callable(before) else signal.SIG_DFL)
        os.kill(os.getpid(), number)
