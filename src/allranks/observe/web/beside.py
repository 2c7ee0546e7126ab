"""Work that may take long, done in a thread beside the requests."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Beside:
    """One thing at a time: what is asked for meanwhile is not begun, it can be asked for again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], None]) -> threading.Thread:
        """The thread that does it, or the one that still does something else."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=work, daemon=True)
                self._thread.start()
            return self._thread
