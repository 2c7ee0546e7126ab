"""Threads beside a main thread that must not be disturbed by them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

_OWN_FAULT = {
    signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP,
    signal.SIGSYS,
}  # fmt: skip
"""What a thread does to itself. Blocked, it would die without a word of faulthandler."""


def background(target: Callable[[], None], name: str) -> threading.Thread:
    """A thread that no exit waits for and that takes no signals: the main thread waits for those."""

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OWN_FAULT)
        target()

    return threading.Thread(target=run, name=name, daemon=True)
