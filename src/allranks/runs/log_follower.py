"""Follow the logs of a run while they are written: new lines, new ranks, new attempts.

Lines come from many nodes through a shared file system, each with its own delay. They are held for a
short window and returned in order of time; a line that comes later than that is returned late, never
lost.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from allranks.runs.log_lines import (
    LogLine,
    failure_line,
    line_filter,
    parse_line,
    plain_files,
    read_chunk,
    wanted_rank,
)
from allranks.runs.run_folder import Run

_CHUNK = 256 << 10
_MANY = 256  # more files than this are asked for their size before they are opened
_Waiting = tuple[int, str, int, float, LogLine]


@dataclass
class _Growing:
    """A growing file, and the position up to which it was read."""

    path: Path
    attempt: int
    rank: int | None
    offset: int = 0
    rest: bytes = b""
    time: str = ""

    def read(self, ask_size: bool) -> list[LogLine]:
        """Return the complete lines. Opening the file again makes NFS query the server."""
        if ask_size and not self._has_grown():
            return []
        lines: list[LogLine] = []
        while data := read_chunk(self.path, self.offset, _CHUNK):
            self.offset += len(data)
            *whole, self.rest = (self.rest + data).split(b"\n")
            lines += map(self._line, whole)
        return lines

    def last(self) -> list[LogLine]:
        """Return the last line without its end, of a killed process."""
        raw, self.rest = self.rest, b""
        return [self._line(raw)] if raw else []

    def _has_grown(self) -> bool:
        try:
            return self.path.stat().st_size > self.offset
        except OSError:
            return False

    def _line(self, raw: bytes) -> LogLine:
        line = parse_line(raw, self.attempt, self.rank, self.time)
        self.time = line.time
        return line


@dataclass
class _LogReader:
    """Reads all log files of a run, as they appear."""

    run: Run
    ranks: Collection[int] | None
    files: dict[Path, _Growing] = field(default_factory=dict)
    plain: dict[Path, _Growing] = field(default_factory=dict)
    failed: set[tuple[int, int]] = field(default_factory=set)
    failures: bool = False

    def read(self) -> list[LogLine]:
        """Return all new lines since the last call."""
        if not self._find_ranks():
            return self._read_plain()
        self.plain.clear()
        ask_size = len(self.files) > _MANY
        lines = [line for file in self.files.values() for line in file.read(ask_size)]
        return lines + self._read_failures()

    def last(self) -> list[LogLine]:
        """Return the unfinished lines, when nothing more can come."""
        files = [*self.plain.values(), *self.files.values()]
        return [line for file in files for line in file.last()]

    def _find_ranks(self) -> bool:
        """Find new log files; return whether any rank has written one."""
        logs = [(attempt, attempt.log_files()) for attempt in self.run.attempts]
        for attempt, files in logs:
            for rank, path in files.items():
                if wanted_rank(rank, self.ranks) and path not in self.files:
                    self.files[path] = _Growing(path, attempt.number, rank)
        return any(files for _, files in logs)

    def _read_plain(self) -> list[LogLine]:
        """Read Slurm's output before the first rank starts: modules, the environment, errors.

        Later it holds copies of the ranks' lines, so it is dropped as soon as a rank has a log.
        """
        if self.ranks is not None:
            return []
        for number, path in enumerate(plain_files(self.run), 1):
            self.plain.setdefault(path, _Growing(path, number, None))
        lines = [line for file in self.plain.values() for line in file.read(False)]
        # A rank may have begun in between; then these may be copies already.
        return [] if self._find_ranks() else lines

    def _read_failures(self) -> list[LogLine]:
        if not self.failures:
            return []
        lines = []
        for attempt in self.run.attempts:
            for failure in attempt.failures():
                who = (attempt.number, failure.rank)
                if who not in self.failed and wanted_rank(failure.rank, self.ranks):
                    self.failed.add(who)
                    lines.append(failure_line(attempt.number, failure))
        return lines


def follow(
    run: Run,
    *,
    ranks: Collection[int] | None = None,
    stream: str | None = None,
    errors: bool = False,
    stop: Callable[[], bool] = lambda: False,
    interval: float = 0.25,
    window: float = 0.3,
    settle: float = 1.0,
) -> Iterator[LogLine]:
    """Yield lines as they come, until ``stop()`` is true and nothing came for ``settle`` seconds.

    ``stop`` may be slow (it may query Slurm): it is called once a second at most.
    """
    reader = _LogReader(run, ranks, failures=errors)
    keep = line_filter(stream, errors)
    waiting: list[_Waiting] = []
    count = 0
    stopped, asked, quiet_since = False, 0.0, time.monotonic()
    while True:
        began = time.monotonic()
        if not stopped and (not asked or began - asked >= 1.0):
            stopped, asked = stop(), began
        if lines := reader.read():
            quiet_since = time.monotonic()
        for line in lines:
            count += 1
            heapq.heappush(waiting, (line.attempt, line.time, count, quiet_since, line))
        yield from filter(keep, _ripe(waiting, time.monotonic() - window))
        if stopped and time.monotonic() - quiet_since >= settle:
            break
        # A poll over thousands of files takes long itself: rest at least as long as it took.
        time.sleep(max(interval, time.monotonic() - began))
    yield from filter(keep, _ripe(waiting, float("inf")))
    yield from filter(keep, reader.last())


def _ripe(waiting: list[_Waiting], before: float) -> Iterator[LogLine]:
    """Return the lines that were held long enough, in order of time."""
    while waiting and waiting[0][3] <= before:
        yield heapq.heappop(waiting)[4]
