"""A page of the merged logs: the end, what comes before or after a line, what a search finds."""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import Any

from allranks.errors import UsageError
from allranks.runs.folder import Run
from allranks.runs.lines import Errors, LogLine
from allranks.runs.logs import failure_line
from allranks.web.log_files import Found, LogFile, Place, log_files

_BUDGET = 32 << 20  # bytes of chunks in memory over all files
_LEAST, _MOST = 4 << 10, 256 << 10
_WIDTH = 4000  # characters of a line that are shown and searched
_BEFORE = 32 << 10  # bytes read before a page, so that a traceback that began there is known
_ENDLESS = re.compile(r"[+*}][^()]*\)[+*{]")
_PATIENCE = 0.4  # seconds of a search after which it answers with what it has


@dataclass(frozen=True)
class Query:
    """Which lines are wanted."""

    text: str = ""
    regex: bool = False
    case: bool = False
    ranks: frozenset[int] | None = None
    attempt: int | None = None
    errors: bool = False
    stream: str = ""
    """``o``, ``e``, or ``slurm`` for what Slurm kept; empty: both of the ranks."""

    @property
    def chosen(self) -> bool:
        """Whether lines are left out, so that they must be read from the beginning."""
        return bool(self.text or self.errors or self.stream in ("o", "e"))

    def files(self, run: Run) -> list[LogFile]:
        """The files to read."""
        return [
            file
            for file in log_files(run, self.stream == "slurm")
            if (self.ranks is None or file.rank in self.ranks)
            and self.attempt in (None, file.attempt)
        ]

    def matcher(self) -> Callable[[LogLine], bool]:
        """Whether a line is wanted; lines of one rank must come in their order."""
        is_error, pattern = Errors() if self.errors else None, self._pattern()

        def wanted(line: LogLine) -> bool:
            if self.stream in ("o", "e") and line.stream not in (self.stream, "f"):
                return False
            if is_error and not is_error(line):
                return False
            return pattern is None or pattern.search(line.text[:_WIDTH]) is not None

        return wanted

    def skip(self) -> Callable[[bytes], bool] | None:
        """Whether a whole chunk has nothing of the search: most of them, and found out at once."""
        if not self.text or self.regex or self.errors or not (self.case or self.text.isascii()):
            return None
        wanted = self.text.encode()
        if self.case:
            return lambda chunk: wanted not in chunk
        return lambda chunk: wanted.lower() not in chunk.lower()

    def _pattern(self) -> re.Pattern[str] | None:
        if not self.text:
            return None
        if self.regex and _ENDLESS.search(self.text):
            raise UsageError(
                f"'{self.text}' repeats what is repeated already, which can take longer than anyone waits.\n"
                "Write it with one repetition: a+ in place of (a+)+."
            )
        try:
            text = self.text if self.regex else re.escape(self.text)
            return re.compile(text, 0 if self.case else re.IGNORECASE)
        except (re.error, RecursionError) as error:
            raise UsageError(f"'{self.text}' is not a regular expression: {error}.") from None


def last_page(run: Run, query: Query, limit: int, before: Place | None = None) -> dict[str, Any]:
    """The last lines, or the last before a place: what one scrolls up to."""
    files = query.files(run)
    found = list(islice(_backward(files, before), limit + 1))
    lines = found[:limit][::-1]
    return _page(lines, earlier=len(found) > limit, more=False)


def next_page(run: Run, query: Query, limit: int, after: Place | None = None) -> dict[str, Any]:
    """The first lines that are wanted, or the first after a place.

    A search that takes long answers before its end, with ``more`` and the place to go on from.
    """
    files = query.files(run)
    wanted, until = query.matcher(), time.monotonic() + _PATIENCE
    lines: list[Found] = []
    place, more = after, False
    for passed, found in enumerate(_forward(run, files, query, after), 1):
        fresh = after is None or found.place > after
        if found.line is not None and wanted(found.line) and fresh:
            lines.append(found)
        place = max(place, found.place) if place else found.place
        if len(lines) >= limit or (passed % 256 == 0 and time.monotonic() > until):
            more = True
            break
    return _page(lines, earlier=False, more=more, next_place=place) | {
        "share": _share(files, place) if more else 1.0
    }


def around(run: Run, query: Query, limit: int, place: Place) -> dict[str, Any]:
    """A line between its neighbours."""
    half = max(limit // 2, 1)
    before = last_page(run, query, half, place)
    just_before = place._replace(offset=place.offset - 1)
    after = next_page(run, query, half, just_before)
    return after | {"lines": before["lines"] + after["lines"], "earlier": before["earlier"]}


def _forward(run: Run, files: list[LogFile], query: Query, after: Place | None) -> Iterator[Found]:
    """Attempt by attempt, each merged by time."""
    chunk, skip = _chunk(files), query.skip()
    for number, group in groupby(files, key=lambda file: file.attempt):
        if after and number < after.attempt:
            continue
        time_ = after.time if after and number == after.attempt else ""
        sources: list[Iterable[Found]] = [
            file.forward(_begin(file, time_, query.errors), chunk, skip) for file in group
        ]
        if query.errors:
            sources.append(_failures(run, number, query))
        yield from heapq.merge(*sources, key=lambda found: found.place)


def _begin(file: LogFile, time_: str, errors: bool) -> int:
    """Where to read from; of errors some lines earlier, as one may have begun there."""
    offset = file.seek(time_) if time_ else 0
    if not errors or not offset:
        return offset
    first = next(file.backward(max(offset - _BEFORE, 0), _LEAST), None)
    return first.place.offset if first else 0


def _failures(run: Run, number: int, query: Query) -> list[Found]:
    """The records of ranks that failed: one that died without a word has nothing else."""
    attempt = next((one for one in run.attempts if one.number == number), None)
    failed = attempt.failures() if attempt else []
    lines = [failure_line(number, one) for one in failed]
    return [
        Found(Place(number, line.time or "~", line.rank or 0, -1), line)
        for line in lines
        if query.ranks is None or line.rank in query.ranks
    ]


def _backward(files: list[LogFile], before: Place | None) -> Iterator[Found]:
    """The last first."""
    chunk = min(_chunk(files), 16 << 10)
    groups = [(n, list(group)) for n, group in groupby(files, key=lambda file: file.attempt)]
    merged = (
        heapq.merge(
            *(file.backward(_end(file, before), chunk) for file in group),
            key=lambda found: found.place,
            reverse=True,
        )
        for number, group in reversed(groups)
        if before is None or number <= before.attempt
    )
    return (one for one in chain.from_iterable(merged) if before is None or one.place < before)


def _end(file: LogFile, before: Place | None) -> int:
    """An offset with everything before it that comes before the place, and little more."""
    size = file.size()
    if before is None or file.attempt < before.attempt:
        return size
    if file.rank == before.rank:
        return min(before.offset, size)
    # The bisection ends in front of the place; a line or two of the same time lie behind it.
    begin = file.seek(before.time)
    for found in file.forward(begin, _LEAST):
        if found.place > before:
            return found.place.offset
    return size


def _chunk(files: list[LogFile]) -> int:
    return min(max(_BUDGET // max(len(files), 1), _LEAST), _MOST)


def _share(files: list[LogFile], place: Place | None) -> float:
    """How much of the logs lies before the place."""
    whole = done = 0
    for file in files:
        size = file.size()
        whole += size
        if place and (file.attempt < place.attempt):
            done += size
        elif place and file.attempt == place.attempt:
            done += place.offset if file.rank == place.rank else file.seek(place.time)
    return done / whole if whole else 1.0


def _page(
    found: list[Found], *, earlier: bool, more: bool, next_place: Place | None = None
) -> dict[str, Any]:
    last = next_place or (found[-1].place if found else None)
    return {
        "lines": [_line(one.place, one.line) for one in found if one.line],
        "next": str(last) if last else None,
        "earlier": earlier,
        "more": more,
    }


def _line(place: Place, line: LogLine) -> dict[str, Any]:
    return {
        "place": str(place),
        "time": line.time,
        "attempt": line.attempt,
        "rank": line.rank,
        "stream": line.stream,
        "text": line.text[:_WIDTH],
        "cut": max(len(line.text) - _WIDTH, 0),
    }
