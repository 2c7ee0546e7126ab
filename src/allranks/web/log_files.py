"""Logs of any size, read from any place in either direction.

A line's place is its attempt, time, rank and offset: the order in which the logs of all ranks are
merged, and the mark that a page ends with and the next one begins after. Files are in the order of
time, so a place is found in one by bisection, whatever its size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from allranks.errors import UsageError
from allranks.runs.attempts import Attempt
from allranks.runs.folder import Run
from allranks.runs.lines import LogLine, parse_line
from allranks.runs.logs import plain_files, read_chunk

_STAMP = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
_STAMPED = re.compile(rb"\n(?=(" + _STAMP + rb") [oe])")
_WINDOW = 16 << 10  # bytes in which a bisection looks for the next stamp
NO_RANK = -1
"""In a place: written by the job script, in what Slurm keeps."""


class Place(NamedTuple):
    """Where a line stands in the merged logs; places sort as the lines do."""

    attempt: int
    time: str
    rank: int
    offset: int

    def __str__(self) -> str:
        return f"{self.attempt}.{self.rank}.{self.offset}.{self.time}"

    @classmethod
    def read(cls, text: str) -> Place:
        """From what a page was given before."""
        try:
            attempt, rank, offset, time = text.split(".", 3)
            return cls(int(attempt), time, int(rank), int(offset))
        except ValueError:
            raise UsageError(f"'{text}' is not a place in the logs.") from None


class Found(NamedTuple):
    """A line and its place; no line: everything up to there was passed over."""

    place: Place
    line: LogLine | None


@dataclass(frozen=True)
class LogFile:
    """The log of one rank in one attempt, or with NO_RANK the output that Slurm kept."""

    path: Path
    attempt: int
    rank: int
    grows: bool = False
    """Its last line may be a part of one still."""

    def forward(
        self, begin: int, chunk: int, skip: Callable[[bytes], bool] | None = None
    ) -> Iterator[Found]:
        """Lines from the offset of a line's beginning on; chunks to ``skip`` leave only their end."""
        offset, start, rest, time = begin, begin, b"", ""
        while data := read_chunk(self.path, offset, chunk):
            offset += len(data)
            block, newline, rest_after = (rest + data).rpartition(b"\n")
            if not newline:
                rest = rest_after
                continue
            if skip and skip(block):
                time = _last_stamp(block) or time
                yield Found(Place(self.attempt, time, self.rank, start + len(block)), None)
            else:
                for found in self._parse(block, start, time):
                    time = found.place.time
                    yield found
            start, rest = start + len(block) + 1, rest_after
        if rest and not self.grows:
            yield from self._parse(rest, start, time)

    def backward(self, end: int, chunk: int) -> Iterator[Found]:
        """Lines that lie before the offset, the last first."""
        tail = b""
        while end > 0:
            begin = max(end - chunk, 0)
            data = read_chunk(self.path, begin, end - begin) + tail
            cut = 0 if begin == 0 else self._clean_cut(data)
            tail, data, end = data[:cut], data[cut:], begin
            yield from reversed(list(self._parse(data.removesuffix(b"\n"), begin + cut, "")))

    def seek(self, time: str) -> int:
        """The beginning of a line before everything that was written at that time or later."""
        low, high = 0, self.size()
        while high - low > _WINDOW:
            middle = (low + high) // 2
            match = _STAMPED.search(read_chunk(self.path, middle, _WINDOW))
            if match and match[1].decode() < time:
                low = middle + match.end()
            else:
                high = middle
        return low

    def size(self) -> int:
        """Bytes of whole lines as of now."""
        try:
            size = self.path.stat().st_size
        except OSError:
            return 0
        if not self.grows:
            return size
        begin = max(size - _WINDOW, 0)
        return begin + read_chunk(self.path, begin, size - begin).rfind(b"\n") + 1

    def _clean_cut(self, data: bytes) -> int:
        """Where a line begins whose time is known; all of it is kept for later when there is none."""
        if self.rank == NO_RANK:
            return data.find(b"\n") + 1 or len(data)
        match = _STAMPED.search(data)
        return match.end() if match else len(data)

    def _parse(self, block: bytes, start: int, time: str) -> Iterator[Found]:
        if not block:
            return
        rank = None if self.rank == NO_RANK else self.rank
        for raw in block.split(b"\n"):
            line = parse_line(raw, self.attempt, rank, time)
            time = line.time
            yield Found(Place(self.attempt, time, self.rank, start), line)
            start += len(raw) + 1


def _last_stamp(block: bytes) -> str:
    tail = b"\n" + block[block.rfind(b"\n") + 1 :]
    match = _STAMPED.match(tail)
    return match[1].decode() if match else ""


def log_files(run: Run, slurm: bool = False) -> list[LogFile]:
    """The ranks' logs; with ``slurm``, or where no agent wrote any, what Slurm kept.

    A folder may be another user's: what is a link in it is left out, or it could show files of
    whoever looks.
    """
    attempts = run.attempts
    ranks = [file for attempt in attempts for file in _of_attempt(run, attempt, attempts[-1])]
    if ranks and not slurm:
        return ranks
    plain = enumerate(plain_files(run), 1)
    return [LogFile(path, number, NO_RANK) for number, path in plain if not path.is_symlink()]


def _of_attempt(run: Run, attempt: Attempt, last: Attempt) -> Iterator[LogFile]:
    grows = attempt.number == last.number and attempt.exit_code is None
    if not (attempt.path / "ranks").resolve().is_relative_to(run.path.resolve()):
        return
    for rank, path in attempt.log_files().items():
        if not path.is_symlink():
            yield LogFile(path, attempt.number, rank, grows)
