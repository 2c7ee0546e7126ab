"""Logs of any size, read from any position in either direction, and which of their lines are wanted.

A line's position is its time, attempt, rank and offset: the order in which the logs of all ranks are
merged. Files are in the order of time, so a position is found by bisection, whatever the size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from allranks.core.formatting import clean
from allranks.errors import UsageError
from allranks.runs.attempt import Attempt
from allranks.runs.log_lines import Errors, LogLine, parse_line, plain_files, read_chunk
from allranks.runs.run_folder import Run

_STAMP = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
_STAMPED = re.compile(rb"\n(?=(" + _STAMP + rb") [oe])")
_WINDOW = 16 << 10  # bytes in which a bisection looks for the next stamp
_LONGEST = 64 << 10  # bytes of a line that are read; more of it is passed over
NO_RANK = -1
"""In a place: written by the job script, in what Slurm keeps."""


class LogPosition(NamedTuple):
    """The position of a line in the merged logs; positions sort as the lines do."""

    group: int
    time: str
    attempt: int
    rank: int
    offset: int

    def __str__(self) -> str:
        return f"{self.group}.{self.attempt}.{self.rank}.{self.offset}.{self.time}"

    @classmethod
    def read(cls, text: str) -> LogPosition:
        """Parse a position that a page was given before."""
        try:
            group, attempt, rank, offset, time = text.split(".", 4)
            return cls(int(group), time, int(attempt), int(rank), int(offset))
        except ValueError:
            raise UsageError(f"'{text[:100]}' is not a position in the logs.") from None


class LocatedLine(NamedTuple):
    """A line, its position, its file and its end there; without a line, everything up to there was skipped."""

    place: LogPosition
    line: LogLine | None
    file: str
    end: int
    task: str = ""


@dataclass(frozen=True)
class SeekableLog:
    """The log of one rank in one attempt, or with NO_RANK Slurm's output file."""

    path: Path
    group: int
    """Groups follow each other; the files of one are merged by time."""
    attempt: int
    rank: int
    task: str = ""
    grows: bool = False
    """Its last line may be a part of one still."""

    @property
    def key(self) -> str:
        """Return its name in a cursor."""
        return f"{self.attempt}.{self.rank}"

    def forward(
        self, begin: int, chunk: int, skip: Callable[[bytes], bool] | None = None
    ) -> Iterator[LocatedLine]:
        """Yield lines from an offset at the beginning of a line; of chunks to ``skip`` only their end."""
        offset, start, rest, time = begin, begin, b"", ""
        while data := read_chunk(self.path, offset, chunk):
            offset += len(data)
            lines, newline, after = data.rpartition(b"\n")
            if not newline:
                rest = (rest + after)[:_LONGEST]
                continue
            block, end = rest + lines, offset - len(after)
            if skip and skip(block):
                time = _last_stamp(block) or time
                yield LocatedLine(self._place(time, end - 1), None, self.key, end)
            else:
                for found in self._parse(block, start, time, end - 1 - start - len(block)):
                    time = found.place.time
                    yield found
            start, rest = end, after
        if rest and not self.grows:
            yield from self._parse(rest, start, time, offset - start - len(rest))

    def backward(self, end: int, chunk: int) -> Iterator[LocatedLine]:
        """Yield the lines before the offset, the last first."""
        tail = b""
        while end > 0:
            begin = max(end - chunk, 0)
            data = read_chunk(self.path, begin, end - begin) + tail
            cut = 0 if begin == 0 else self._clean_cut(data)
            tail, data, end = data[:cut][:_LONGEST], data[cut:], begin
            if data:
                yield from reversed([*self._parse(data.removesuffix(b"\n"), begin + cut, "")])

    def seek(self, time: str) -> int:
        """Return the beginning of a line before everything written at that time or later."""
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
        """Return the current bytes of whole lines."""
        try:
            end = self.path.stat().st_size
        except OSError:
            return 0
        while self.grows and end > 0:
            begin = max(end - _WINDOW, 0)
            newline = read_chunk(self.path, begin, end - begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
        return end

    def _place(self, time: str, offset: int) -> LogPosition:
        return LogPosition(self.group, time, self.attempt, self.rank, offset)

    def _clean_cut(self, data: bytes) -> int:
        """Return where a line with a known time begins; the whole length without any."""
        stamped = None if self.rank == NO_RANK else _STAMPED.search(data)
        if stamped:
            return stamped.end()
        if self.rank != NO_RANK and len(data) < _LONGEST:
            return len(data)
        return data.find(b"\n") + 1 or len(data)

    def _parse(
        self, block: bytes, start: int, time: str, missing: int = 0
    ) -> Iterator[LocatedLine]:
        """Yield the lines of a block; ``missing`` bytes of its first line were left out."""
        rank = None if self.rank == NO_RANK else self.rank
        for raw in block.split(b"\n"):
            line = parse_line(raw[:_LONGEST], self.attempt, rank, time)
            time, end = line.time, start + len(raw) + missing + 1
            yield LocatedLine(self._place(time, start), line, self.key, end, self.task)
            start, missing = end, 0


def _last_stamp(block: bytes) -> str:
    tail = b"\n" + block[block.rfind(b"\n") + 1 :]
    match = _STAMPED.match(tail)
    return match[1].decode() if match else ""


def log_files(run: Run, slurm: bool = False) -> list[SeekableLog]:
    """Return the ranks' logs; with ``slurm``, or where no agent wrote any, Slurm's output.

    Attempts follow each other, except the tasks of a job array, which run side by side.
    A folder may be another user's: what is a link in it is left out, or it could show files of
    whoever looks.
    """
    attempts, array = run.attempts, bool(run.array)
    over = bool(attempts) and attempts[-1].exit_code is not None
    ranks = [
        file
        for attempt in attempts
        for file in _of_attempt(run, attempt, array, attempt.number == attempts[-1].number)
    ]
    if ranks and not slurm:
        return ranks
    return [
        SeekableLog(path, 0 if array else number, number, NO_RANK, grows=not over)
        for number, path in enumerate(plain_files(run), 1)
        if not path.is_symlink()
    ]


def _of_attempt(run: Run, attempt: Attempt, array: bool, last: bool) -> Iterator[SeekableLog]:
    grows = attempt.exit_code is None and (array or last)
    group = 0 if array else attempt.number
    if not (attempt.path / "ranks").resolve().is_relative_to(run.path.resolve()):
        return
    for rank, path in attempt.log_files().items():
        if not path.is_symlink():
            yield SeekableLog(path, group, attempt.number, rank, attempt.array_task, grows)


WIDTH = 4000
"""Characters of a line that are shown and searched."""
_ESCAPE = b"\x1b"


@dataclass(frozen=True)
class LogQuery:
    """A search in the logs, with filters by ranks, attempt and stream."""

    text: str = ""
    regex: bool = False
    case: bool = False
    ranks: Sequence[range] | None = None
    attempt: int | None = None
    task: str = ""
    """Of a job array."""
    errors: bool = False
    stream: str = ""
    """``o``, ``e``, or ``slurm`` for what Slurm kept; empty: both of the ranks."""

    @property
    def filtered(self) -> bool:
        """Return whether lines are filtered, so that they must be read from the beginning."""
        return bool(self.text or self.errors or self.stream in ("o", "e"))

    def without_filters(self) -> LogQuery:
        """Return the query for all lines of the same files."""
        stream = self.stream if self.stream == "slurm" else ""
        return replace(self, text="", regex=False, errors=False, stream=stream)

    def wants(self, rank: int) -> bool:
        """Return whether it is one of the requested ranks."""
        return self.ranks is None or any(rank in span for span in self.ranks)

    def files(self, run: Run) -> list[SeekableLog]:
        """Return the files to read."""
        return [
            file
            for file in log_files(run, self.stream == "slurm")
            if self.wants(file.rank)
            and self.attempt in (None, file.attempt)
            and self.task in ("", file.task)
        ]

    def matcher(self) -> Callable[[LogLine], bool]:
        """Return a function that tells whether a line matches; it needs each rank's lines in order."""
        is_error, pattern = Errors() if self.errors else None, self._pattern()

        def wanted(line: LogLine) -> bool:
            if self.stream in ("o", "e") and line.stream not in (self.stream, "f"):
                return False
            if is_error and not is_error(line):
                return False
            return pattern is None or pattern.search(_visible_text(line.text[:WIDTH])) is not None

        return wanted

    def skip(self) -> Callable[[bytes], bool] | None:
        """Return a function that tells whether a whole chunk has no match, which is fast.

        Not of one with colours: they may stand within what is searched for.
        """
        if not self.text or self.regex or self.errors or not (self.case or self.text.isascii()):
            return None
        wanted = self.text.encode()
        if self.case:
            return lambda chunk: wanted not in chunk and _ESCAPE not in chunk
        lower = wanted.lower()
        return lambda chunk: lower not in chunk.lower() and _ESCAPE not in chunk

    def _pattern(self) -> re.Pattern[str] | None:
        if not self.text:
            return None
        try:
            text = self.text if self.regex else re.escape(self.text)
            return re.compile(text, 0 if self.case else re.IGNORECASE)
        except (re.error, RecursionError, OverflowError) as error:
            raise UsageError(f"'{self.text}' is not a regular expression: {error}.") from None


def _visible_text(text: str) -> str:
    """Return a line as the page shows it, without its colours."""
    return clean(text) if "\x1b" in text else text
