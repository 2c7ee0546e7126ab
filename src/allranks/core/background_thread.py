"""A background thread that does not disturb the main thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

_OWN_FAULT = {
    signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP,
    signal.SIGSYS,
}  # fmt: skip
"""Signals of a fault in the thread itself: blocked, it would die without faulthandler's traceback."""


def background_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Return a thread that no exit waits for and that receives no signals, which the main thread waits for."""

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OWN_FAULT)
        target()

    return threading.Thread(target=run, name=name, daemon=True)
