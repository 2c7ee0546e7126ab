"""TERM, USR1 and USR2 set a flag; between two steps the training loop acts on it."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""The signals that schedulers send before they kill; Ctrl-C (INT) keeps its own meaning."""


class SignalFlags:
    """Records which signal came first. A handler that was there before is called, too."""

    def __init__(self) -> None:
        self.received = ""
        """The name of the first signal, such as SIGUSR1."""
        self.is_permanent = False
        """Whether a user's own loop watches signals, so that no `fit` may end that."""
        self._before: dict[int, Any] = {}
        self._owner = os.getpid()
        self._calling = False

    def watch(self) -> bool:
        """Start recording signals; False outside the main thread, where Python allows no handlers."""
        if threading.current_thread() is not threading.main_thread():
            return False
        self._owner = os.getpid()
        if not self._before:
            atexit.register(self._ignore_late_warnings)
        for number in STOP_SIGNALS:
            present = signal.getsignal(number)
            if present != self._record:
                self._before[number] = present
                signal.signal(number, self._record)
        return True

    def restore_term(self) -> None:
        """Let TERM end the process again. USR1 and USR2 are warnings and stay recorded."""
        if self.is_permanent or threading.current_thread() is not threading.main_thread():
            return
        before = self._before.get(signal.SIGTERM)
        if before is not None and signal.getsignal(signal.SIGTERM) == self._record:
            del self._before[signal.SIGTERM]
            signal.signal(signal.SIGTERM, before)

    def _ignore_late_warnings(self) -> None:
        """Python removes its handlers as it ends, and a warning that came then would kill."""
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            if signal.getsignal(number) == self._record:
                signal.signal(number, signal.SIG_IGN)

    def _record(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number)
        if os.getpid() != self._owner:
            _handle_in_fork(number, before)
            return
        self.received = self.received or signal.Signals(number).name
        if callable(before) and not self._calling:  # it may itself call the handler before it: ours
            self._calling = True
            try:
                before(number, frame)
            finally:
                self._calling = False


def _handle_in_fork(number: int, before: Any) -> None:
    """In a process that the rank forked, terminate() must end it; a warning must not."""
    if number == signal.SIGTERM and before is not signal.SIG_IGN:
        signal.signal(number, before if callable(before) else signal.SIG_DFL)
        os.kill(os.getpid(), number)
