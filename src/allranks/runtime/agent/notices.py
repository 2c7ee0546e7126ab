"""What threads beside the event loop have to say: it reaches the console by way of the loop.

Only the loop writes to the console, and it may sleep as long as the ranks are silent. A line in a pipe
wakes it.
"""

from __future__ import annotations

import os
from contextlib import suppress

_CAPACITY = 1 << 16
"""Of a pipe: one read takes all, and lines are whole."""


class Notices:
    """Lines from any thread to the one that reads."""

    def __init__(self) -> None:
        self.fd, self._end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        """Readable as long as something was said."""

    def say(self, text: str) -> None:
        """Never waits: what a full pipe does not take is lost."""
        with suppress(BlockingIOError):
            os.write(self._end, text.encode("utf-8", "replace") + b"\n")

    def read(self) -> list[str]:
        """What was said since the last time."""
        try:
            return os.read(self.fd, _CAPACITY).decode("utf-8", "replace").splitlines()
        except BlockingIOError:
            return []
