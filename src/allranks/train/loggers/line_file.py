"""A file of lines, appended in small batches by one process, and truncated by a resumption."""

from __future__ import annotations

import threading
from collections import deque
from io import FileIO
from pathlib import Path

from allranks.core.background_thread import background_thread
from allranks.runs.atomic_files import write_bytes
from allranks.train.loggers.base import RunInfo

FLUSH_SECONDS = 1.0
FLUSH_LINES = 64
MOST_BYTES = 16 * 2**20


class LineFile:
    """Appends, also to a file that another process left with a torn last line.

    Lines are buffered for at most a second or 64 lines; a thread writes them after a second, so that a
    training that hangs shows what it did last. When the disk is full they stay in memory until there is
    space again: then ``flush`` and the next ``add`` raise, and may be called again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        self._lines: deque[str] = deque()
        self._pending = b""
        self._lock = threading.Lock()
        """Held while writing; adding a line needs no lock."""
        self._refused = False
        """The thread could not write: the next line is written at once, so that the caller gets the error."""
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.written = 0
        """Lines in the file."""

    def add(self, line: str, *, at_once: bool = False) -> None:
        """Add a whole line, with its newline."""
        self._lines.append(line)
        refused, self._refused = self._refused, False
        if at_once or refused or len(self._lines) >= FLUSH_LINES:
            self.flush()
        elif self._thread is None:
            self._thread = background_thread(self._flush_periodically, "allranks lines")
            self._thread.start()

    def _flush_periodically(self) -> None:
        while not self._closed.wait(FLUSH_SECONDS):
            try:
                self.flush()
            except OSError:
                self._refused = True

    def flush(self) -> None:
        """Write what is buffered. What the disk does not take stays for the next time."""
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
            # Unbuffered, so that the number of bytes written is known: none is written twice.
            through = file.write(self._pending) or 0
            self.written += self._pending.count(b"\n", 0, through)
            self._pending = self._pending[through:]

    def open(self) -> FileIO:
        """Return the open file; retried at every flush while it cannot be opened."""
        if self._file is None:
            torn = self._path.exists() and not _ends_in_newline(self._path)
            self.written = count_lines(self._path)
            self._file = FileIO(self._path, "a")
            if torn:  # the run before was killed within a line
                self._file.write(b"\n")
        return self._file

    def close(self) -> None:
        """Write what is buffered; what the disk does not take now is lost."""
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


FILES = {"jsonl": "metrics.jsonl", "csv": "metrics.csv"}


def count_logged_lines(folder: Path) -> dict[str, int]:
    """Return how many lines the file of each logger in the run folder has."""
    paths = {name: folder / file for name, file in FILES.items()}
    return {name: count_lines(path) for name, path in paths.items()}


def count_lines(path: Path) -> int:
    """Return the lines of a file, a torn last one included; 0 without a file."""
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def truncate_log(path: Path, name: str, run: RunInfo) -> None:
    """Move the lines that an attempt wrote after the step from which the run resumes to ``undone-…``.

    First the copy, then one rename: a kill in between leaves lines twice, never none.
    """
    if run.logged is None or name not in run.logged or not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    kept, lost = lines[: run.logged[name]], lines[run.logged[name] :]
    if lost:
        with open((run.undone or run.folder) / f"undone-{path.name}", "ab") as file:
            file.writelines(lost)
        write_bytes(path, b"".join(kept))
