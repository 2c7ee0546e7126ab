"""Pages of the merged logs: the end, what comes before or after a page, a line between its neighbours.

Pages are linked by cursors, an offset in each file, not by times: a line that arrives late, from a slow
clock or file system, is shown late, but never left out.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

from allranks.errors import UsageError
from allranks.observe.web.log_files import WIDTH, LocatedLine, LogPosition, LogQuery, SeekableLog
from allranks.runs.attempt import Failure
from allranks.runs.log_lines import failure_line
from allranks.runs.run_folder import Run

_BUDGET = 32 << 20  # bytes of chunks in memory over all files
_LEAST, _MOST = 4 << 10, 256 << 10
_BEFORE = 32 << 10  # bytes read before a page, so that a traceback that began there is known
_FARTHEST = 1 << 62  # an offset that every file system takes
_NOWHERE = -1  # the offset of what no file holds, yet has a time
PATIENCE = 0.4
"""Seconds of a search after which it answers with what it has."""


@dataclass
class Cursor:
    """Offsets up to which one group of files was read; earlier groups are read completely, later ones not."""

    group: int = -1
    offsets: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return "_".join([str(self.group), *(f"{key}.{at}" for key, at in self.offsets.items())])

    @classmethod
    def read(cls, text: str) -> Cursor:
        """Parse a cursor that a page was given before."""
        try:
            group, *files = text.split("_")
            pairs = (each.rpartition(".") for each in files)
            return cls(int(group), {key: min(max(int(at), 0), _FARTHEST) for key, _, at in pairs})
        except ValueError:
            raise UsageError(f"'{text[:100]}' is not a position in the logs.") from None

    @classmethod
    def at_end(cls, files: Sequence[SeekableLog]) -> Cursor:
        """Return the cursor behind everything that is there now."""
        last = files[-1].group if files else -1
        return cls(last, {file.key: file.size() for file in files if file.group == last})

    @classmethod
    def at_line(cls, files: Sequence[SeekableLog], place: LogPosition) -> Cursor:
        """Return the cursor before a line."""
        mine = [file for file in files if file.group == place.group]
        return cls(place.group, {file.key: _before(file, place) for file in mine})

    def share(self, files: Sequence[SeekableLog]) -> float:
        """Return the share of the logs before the cursor."""
        sizes = [(file, file.size()) for file in files]
        done = sum(
            size if file.group < self.group else min(self.offsets.get(file.key, 0), size)
            for file, size in sizes
            if file.group <= self.group
        )
        return done / (sum(size for _, size in sizes) or 1)


def last_page(
    run: Run, query: LogQuery, limit: int, before: Cursor | None = None
) -> dict[str, Any]:
    """Return the last lines, or the last before a cursor, for scrolling up; not for searches."""
    files = query.files(run)
    cursor = before or Cursor.at_end(files)
    after = str(cursor)
    found = _backward(files, cursor)
    lines = list(islice(found, limit))[::-1]
    first = str(cursor)
    earlier = first if next(found, None) else None
    return {"lines": [_line(one) for one in lines], "before": earlier, "next": after, "more": False}


def next_page(run: Run, query: LogQuery, limit: int, after: Cursor | None = None) -> dict[str, Any]:
    """Return the first matching lines, or the first after a cursor.

    A long search answers before its end, with ``more`` and the cursor to continue from.
    """
    files, until = query.files(run), time.monotonic() + PATIENCE
    cursor, lines, more = after or Cursor(), list[LocatedLine](), False
    for passed, found in enumerate(_forward(run, files, query, cursor), 1):
        if found:
            lines.append(found)
        if len(lines) >= limit or (passed % 64 == 0 and time.monotonic() > until):
            more = True
            break
    return {
        "lines": [_line(one) for one in lines],
        "before": None,
        "next": str(cursor),
        "more": more,
        "share": cursor.share(files) if more else 1.0,
    }


def around(run: Run, query: LogQuery, limit: int, place: LogPosition) -> dict[str, Any]:
    """Return a line between its neighbours, regardless of filters; ``at`` is its position.

    The record of a failure is in no log: its place is that of the line written after it.
    """
    all_lines = query.without_filters()
    files, half = all_lines.files(run), max(limit // 2, 1)
    before = last_page(run, all_lines, half, Cursor.at_line(files, place))
    after = next_page(run, all_lines, half, Cursor.at_line(files, place))
    lines = before["lines"] + after["lines"]
    nearest = [*after["lines"][:1], *before["lines"][-1:]]
    at = nearest[0]["place"] if nearest else str(place)
    return after | {"lines": lines, "before": before["before"], "at": at}


def _forward(
    run: Run, files: Sequence[SeekableLog], query: LogQuery, cursor: Cursor
) -> Iterator[LocatedLine | None]:
    """Yield lines group by group, merged by time, while the cursor advances; None for a filtered one."""
    chunk, skip, wanted = _chunk(files), query.skip(), query.matcher()
    for group, some in groupby(files, key=lambda file: file.group):
        if group < cursor.group:
            continue
        if group > cursor.group:
            cursor.group, cursor.offsets = group, {}
        mine = list(some)
        sources = [file.forward(_begin(file, cursor, query), chunk, skip) for file in mine]
        failures = _failures(run, mine, query) if query.errors else []
        for found in heapq.merge(*sources, failures, key=lambda found: found.place):
            chosen = found.line is not None and wanted(found.line)
            if found.end > cursor.offsets.get(
                found.file, 0
            ):  # else it was read for what it leads to
                cursor.offsets[found.file] = found.end
                yield found if chosen else None


def _begin(file: SeekableLog, cursor: Cursor, query: LogQuery) -> int:
    """Return where to read from; for errors some lines earlier, as one may have begun there."""
    offset = cursor.offsets.get(file.key, 0)
    if not query.errors or not offset:
        return offset
    first = next(file.backward(max(offset - _BEFORE, 0), _LEAST), None)
    return first.place.offset if first else 0


def _failures(run: Run, files: Sequence[SeekableLog], query: LogQuery) -> list[LocatedLine]:
    """Return the records of failed ranks: a killed rank may have logged nothing."""
    groups = {file.attempt: file.group for file in files}
    attempts = [one for one in run.attempts if one.number in groups]
    found = [(one.number, failure) for one in attempts for failure in one.failures()]
    lines = [
        _failure(groups[number], number, one) for number, one in found if query.wants(one.rank)
    ]
    return sorted(lines, key=lambda one: one.place)


def _failure(group: int, attempt: int, failure: Failure) -> LocatedLine:
    line = failure_line(attempt, failure)
    place = LogPosition(group, line.time or "~", attempt, failure.rank, _NOWHERE)
    return LocatedLine(place, line, f"{attempt}.f{failure.rank}", 1)


def _backward(files: Sequence[SeekableLog], cursor: Cursor) -> Iterator[LocatedLine]:
    """Yield lines, the last first, while the cursor moves back."""
    chunk = min(_chunk(files), 16 << 10)
    groups = [(n, list(group)) for n, group in groupby(files, key=lambda file: file.group)]
    for group, some in reversed(groups):
        if group > cursor.group:
            continue
        if group < cursor.group:
            cursor.group, cursor.offsets = group, {file.key: file.size() for file in some}
        ends = [(file, min(cursor.offsets.get(file.key, 0), file.size())) for file in some]
        sources = [file.backward(end, chunk) for file, end in ends]
        for found in heapq.merge(*sources, key=lambda found: found.place, reverse=True):
            cursor.offsets[found.file] = found.place.offset
            yield found


def _before(file: SeekableLog, place: LogPosition) -> int:
    """Return the offset in a file from which on everything comes after that line."""
    if (file.attempt, file.rank) == (place.attempt, place.rank) and place.offset >= 0:
        return min(place.offset, file.size())
    if not place.time:  # the outputs of an array's tasks, one after the other
        return file.size() if file.attempt < place.attempt else 0
    # The bisection ends in front of the place; a line or two of the same time lie behind it.
    for found in file.forward(file.seek(place.time), _LEAST):
        if found.place > place:
            return found.place.offset
    return file.size()


def _chunk(files: Sequence[SeekableLog]) -> int:
    return min(max(_BUDGET // max(len(files), 1), _LEAST), _MOST)


def _line(found: LocatedLine) -> dict[str, Any]:
    line = found.line
    assert line is not None
    return {
        "place": str(found.place),
        "time": line.time,
        "attempt": line.attempt,
        "task": found.task,
        "rank": line.rank,
        "stream": line.stream,
        "text": line.text[:WIDTH],
        "cut": max(len(line.text) - WIDTH, 0),
    }
