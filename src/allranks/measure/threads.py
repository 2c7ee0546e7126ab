"""Threads beside a main thread that must not be disturbed by them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable


def background(target: Callable[[], None], name: str) -> threading.Thread:
    """A thread that no exit waits for and that takes no signals: the main thread waits for those."""

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        target()

    return threading.Thread(target=run, name=name, daemon=True)
