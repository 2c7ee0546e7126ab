"""A file to which lines are appended, a few at a time, by one process."""

from __future__ import annotations

import threading
from collections import deque
from io import FileIO
from pathlib import Path

from allranks.core.background_thread import background_thread
from allranks.train.loggers.undo import count_lines

FLUSH_SECONDS = 1.0
FLUSH_LINES = 64
MOST_BYTES = 16 * 2**20


class LineFile:
    """Appends, also to what another process has left, torn within a line perhaps.

    Lines wait for company for at most a second or 64 lines; a thread looks after the second, so that a
    training that hangs shows what it did last. When the disk is full they wait in memory for it to have
    room again: then ``flush`` and the next ``add`` raise, and may be called again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        self._lines: deque[str] = deque()
        self._pending = b""
        self._lock = threading.Lock()
        """Held by whoever writes; adding a line needs none."""
        self._refused = False
        """The thread could not write: the next line is written at once, so that its owner is told why."""
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.written = 0
        """Lines in the file."""

    def add(self, line: str, *, at_once: bool = False) -> None:
        """A whole line, with its end."""
        self._lines.append(line)
        refused, self._refused = self._refused, False
        if at_once or refused or len(self._lines) >= FLUSH_LINES:
            self.flush()
        elif self._thread is None:
            self._thread = background_thread(self._write_now_and_then, "allranks lines")
            self._thread.start()

    def _write_now_and_then(self) -> None:
        while not self._closed.wait(FLUSH_SECONDS):
            try:
                self.flush()
            except OSError:
                self._refused = True

    def flush(self) -> None:
        """Write what waits. What the disk does not take stays for the next time."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        taken = [self._lines.popleft() for _ in range(len(self._lines))]
        self._pending += "".join(taken).encode()
        if not self._pending:
            return
        if len(self._pending) > MOST_BYTES:
            self._pending = self._pending[self._pending.index(b"\n", -MOST_BYTES) + 1 :]
        file = self.open()
        while self._pending:
            # Unbuffered, so that the number of bytes that got through is known: none is written twice.
            through = file.write(self._pending) or 0
            self.written += self._pending.count(b"\n", 0, through)
            self._pending = self._pending[through:]

    def open(self) -> FileIO:
        """The file; tried anew at every flush as long as it cannot be opened."""
        if self._file is None:
            torn = self._path.exists() and not _ends_in_newline(self._path)
            self.written = count_lines(self._path)
            self._file = FileIO(self._path, "a")
            if torn:  # the run before was killed within a line
                self._file.write(b"\n")
        return self._file

    def close(self) -> None:
        """Write what waits; what the disk does not take now is lost."""
        self._closed.set()
        with self._lock:
            try:
                self._flush()
            finally:
                self._pending = b""
                if self._file is not None:
                    self._file.close()
                    self._file = None


def _ends_in_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        if size == 0:
            return True
        file.seek(size - 1)
        return file.read(1) == b"\n"
