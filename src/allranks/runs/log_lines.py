"""The log lines of a run, merged into one stream in order of time.

Each rank's file is in order already, so a k-way merge holds one chunk of each, whatever their
size. Files are opened per chunk, not held open: 10 000 ranks exceed the usual limit of 1 024.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from allranks.runs.atomic_files import open_file, parse_stamp
from allranks.runs.attempt import Attempt, Failure
from allranks.runs.run_folder import Run

_BUDGET = 64 << 20  # bytes of chunks in memory over all files
_LEAST, _MOST = 4 << 10, 64 << 10
_LONGEST = 64 << 10
"""Bytes of a line in a tail; more than these are left out."""
_BACK = 1 << 20
"""Bytes that are read backwards at most for a few lines."""


def read_logs(
    run: Run,
    *,
    ranks: Collection[int] | None = None,
    stream: str | None = None,
    errors: bool = False,
    tail: int | None = None,
    attempt: int | None = None,
) -> Iterator[LogLine]:
    """Yield the lines of all attempts in order, of the chosen ranks and stream (``o`` or ``e``).

    ``errors`` keeps tracebacks, lines that name an error and the agent's records of failures;
    ``tail`` only the last ones. Runs without the agent have only Slurm's output: that is read then.
    """
    attempts = [one for one in run.attempts if attempt in (None, one.number)]
    keep = line_filter(stream, errors)
    last_ones = tail is not None and not errors and not stream
    if not any(one.log_files() for one in attempts):
        if last_ones and ranks is None:
            return _plain_tail(run, tail or 0)
        lines = filter(keep, read_plain(run)) if ranks is None else iter(())
        return lines if tail is None else iter(deque(lines, tail))
    if last_ones:
        return _tail(attempts, ranks, tail or 0)
    lines = (line for one in attempts for line in attempt_lines(one, ranks, errors) if keep(line))
    return lines if tail is None else iter(deque(lines, tail))


def attempt_lines(
    attempt: Attempt, ranks: Collection[int] | None = None, failures: bool = False
) -> Iterator[LogLine]:
    """Yield the merged lines of one attempt; with ``failures`` also the agent's records of them."""
    files = {n: path for n, path in attempt.log_files().items() if wanted_rank(n, ranks)}
    chunk = min(max(_BUDGET // max(len(files), 1), _LEAST), _MOST)
    sources = [_rank_lines(path, attempt.number, rank, chunk) for rank, path in files.items()]
    if failures:
        failed = [one for one in attempt.failures() if wanted_rank(one.rank, ranks)]
        sources.append(failure_line(attempt.number, failure) for failure in failed)
    # Ties keep the order of ranks, since merge takes equal keys from the earlier source first.
    return heapq.merge(*sources, key=_order)


def _order(line: LogLine) -> str:
    """Return the sort key of a line; a half-written failure record has no time and comes last."""
    return line.time or ("~" if line.stream == "f" else "")


def read_plain(run: Run) -> Iterator[LogLine]:
    """Yield Slurm's output, without times: the job script's lines, and copies of the ranks' lines."""
    for number, path in enumerate(plain_files(run), 1):
        for raw in _raw_lines(path, _MOST):
            yield parse_line(raw, number, None, "")


def plain_files(run: Run) -> list[Path]:
    """Return the ``slurm-<jobid>.out`` files, in the order of the run's jobs."""
    known = {f"slurm-{job}.out": place for place, job in enumerate(run.job_ids)}
    files = run.path.glob("slurm-*.out")
    return sorted(files, key=lambda file: (known.get(file.name, len(known)), file.name))


def failure_line(attempt: int, failure: Failure) -> LogLine:
    """Return the record of a failure as a line: a rank that was killed has no other."""
    where = f" on {failure.host}" if failure.host else ""
    text = f"rank {failure.rank} failed{where}: {failure.how}"
    return LogLine(failure.time, attempt, failure.rank, "f", text)


def _rank_lines(path: Path, attempt: int, rank: int, chunk: int) -> Iterator[LogLine]:
    time = ""
    for raw in _raw_lines(path, chunk):
        line = parse_line(raw, attempt, rank, time)
        time = line.time
        yield line


def _raw_lines(path: Path, chunk: int) -> Iterator[bytes]:
    """Yield the lines of a file, also a last one without its end."""
    offset, rest = 0, b""
    while data := read_chunk(path, offset, chunk):
        offset += len(data)
        *whole, rest = (rest + data).split(b"\n")
        yield from whole
    if rest:
        yield rest


def read_chunk(path: Path, offset: int, size: int) -> bytes:
    """Return bytes from a position on; none at the end, or when the file was removed."""
    try:
        with open(open_file(path), "rb", buffering=0) as file:
            file.seek(offset)
            return file.read(size)
    except OSError:
        return b""


def _tail(attempts: list[Attempt], ranks: Collection[int] | None, count: int) -> Iterator[LogLine]:
    """Return the last lines without reading the files from their beginning."""
    kept: list[LogLine] = []
    for attempt in reversed(attempts):
        files = {n: path for n, path in attempt.log_files().items() if wanted_rank(n, ranks)}
        ends: Iterable[list[LogLine]] = (
            _last_lines(path, attempt.number, rank, count - len(kept))
            for rank, path in files.items()
        )
        merged = heapq.merge(*ends, key=lambda line: line.time)
        kept = [*deque(merged, count - len(kept)), *kept]
        if len(kept) >= count:
            break
    return iter(kept)


def _plain_tail(run: Run, count: int) -> Iterator[LogLine]:
    kept: list[LogLine] = []
    for number, path in reversed([*enumerate(plain_files(run), 1)]):
        kept = [*_last_lines(path, number, None, count - len(kept)), *kept]
        if len(kept) >= count:
            break
    return iter(kept)


def _last_lines(path: Path, attempt: int, rank: int | None, count: int) -> list[LogLine]:
    """Return the last lines of one file, read backwards in growing blocks up to a limit."""
    try:
        size = path.stat().st_size
    except OSError:
        return []
    block, most = max(_LEAST, 256 * count), max(_BACK, _LONGEST * count)
    while True:
        begin = max(size - block, 0)
        raw = read_chunk(path, begin, size - begin).split(b"\n")
        raw = raw[:-1] if raw and not raw[-1] else raw
        if begin == 0 or len(raw) > count or block >= most:
            break
        block = min(block * 4, most)
    lines: list[LogLine] = []
    for text in raw[max(len(raw) - count, 0) :]:
        lines.append(parse_line(text[:_LONGEST], attempt, rank, lines[-1].time if lines else ""))
    return lines


_LINE = re.compile(rb"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z) ([oe])(?: (.*))?$", re.DOTALL)
_TRACEBACK = "Traceback (most recent call last)"
# torch.distributed puts this before every line of an uncaught exception.
_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_CHAIN = (
    "During handling of the above exception",
    "The above exception was the direct cause",
)
_ERROR = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL|FAILED|Fatal|fatal error|error:|Error:|Killed)\b"
    r"|(?<!\w)\[E\d|\b\w*(?:Error|Exception|Interrupt|Exit)(?::|$)"
    r"|Segmentation fault|core dumped|[Oo]ut of memory|oom.kill|NCCL WARN|Bus error"
    r"|Aborted|\berror:|CANCELLED AT|DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)"
)


@dataclass(frozen=True)
class LogLine:
    """One line, with its rank, stream and time."""

    time: str
    """UTC, ISO 8601 with microseconds and ``Z``: sorts as text. Empty in a plain Slurm output."""
    attempt: int
    rank: int | None
    """None: written by the job script, not by a rank."""
    stream: str
    """``o`` stdout, ``e`` stderr, ``f`` the agent's record of a rank's failure."""
    text: str

    @property
    def when(self) -> datetime | None:
        """The time as a datetime."""
        return parse_stamp(self.time)


def parse_line(raw: bytes, attempt: int, rank: int | None, before: str) -> LogLine:
    """Parse a line of a log file. One without a time stamp is kept as it is, at the time of the last."""
    if match := _LINE.match(raw):
        text = (match[3] or b"").decode("utf-8", "replace")
        return LogLine(match[1].decode(), attempt, rank, match[2].decode(), text)
    return LogLine(before, attempt, rank, "o", raw.decode("utf-8", "replace"))


class Errors:
    """Filter for complete tracebacks and lines that name an error, with a state per rank."""

    def __init__(self) -> None:
        self._inside: set[tuple[int, int | None]] = set()
        self._after: set[tuple[int, int | None]] = set()

    def __call__(self, line: LogLine) -> bool:
        """Return whether the line is part of an error."""
        if line.stream == "f":
            return True
        who = (line.attempt, line.rank)
        text = _PREFIX.sub("", line.text)
        if _TRACEBACK in text:
            self._inside.add(who)
            return True
        if who in self._inside:
            return self._continue(who, text)
        if who in self._after and (not text.strip() or text.startswith(_CHAIN)):
            return text.startswith(_CHAIN)
        self._after.discard(who)
        return bool(_ERROR.search(text))

    def _continue(self, who: tuple[int, int | None], text: str) -> bool:
        """Continue a traceback while lines are indented; the first other line names the exception."""
        if not text.startswith((" ", "\t")) and text:
            self._inside.discard(who)
            self._after.add(who)
        return True


def line_filter(stream: str | None = None, errors: bool = False) -> Callable[[LogLine], bool]:
    """Return one function for all filters but ranks, which are chosen by their files."""
    is_error = Errors() if errors else None

    def wanted(line: LogLine) -> bool:
        if stream and line.stream != stream and line.stream != "f":
            return False
        return is_error(line) if is_error else True

    return wanted


def wanted_rank(rank: int | None, ranks: Collection[int] | None) -> bool:
    """Return whether to read this rank's file; the job script's lines only when no rank is chosen."""
    return ranks is None or rank in ranks
