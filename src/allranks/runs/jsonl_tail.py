"""Follow a growing JSONL file cheaply: the positions of lines are kept, their content is read on demand.

A file of per-rank timings has tens of megabytes after a day on many ranks, of which a view shows a few
hundred lines. So a refresh looks only at the bytes that were added and notes where lines begin and end.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from allranks.runs.atomic_files import open_file

CHUNK_BYTES = 4 << 20
LONGEST_LINE = 64 << 20
"""A longer line is skipped: it is not one of ours, and would be held in memory."""
_MARK = 64
"""Bytes before the read position that are compared, to detect a file that was replaced."""

Row = dict[str, Any]


class JsonlTail(Sequence[Row]):
    """The lines of one file as a sequence of objects, each parsed when it is used.

    A last line without its end waits for the next refresh; what is no object is left out; a line that
    cannot be parsed is an empty object. A file that was replaced or cut is read from its beginning.
    """

    def __init__(self, path: Path, aside: re.Pattern[bytes] | None = None) -> None:
        self.path = path
        self.generation = 0
        """Increases whenever the file is read from its beginning again."""
        self.aside: list[Row] = []
        """Lines that the pattern was found in: parsed at once, and no part of the sequence."""
        self._pattern = aside
        self._file: tuple[int, int] | None = None
        self._clear()

    def refresh(self) -> bool:
        """Read what was added; return whether anything changed."""
        try:
            handle = open_file(self.path)
        except FileNotFoundError:
            return self._gone()
        except OSError:
            return False
        try:
            about = os.fstat(handle)
            restarted = self._restart((about.st_dev, about.st_ino), about.st_size, handle)
            before = len(self._begins), len(self.aside)
            if about.st_size > self._searched:
                self._index(handle)
            return restarted or before != (len(self._begins), len(self.aside))
        except OSError:  # a file system that is being taken away; the next look may find it again
            return False
        finally:
            os.close(handle)

    def __len__(self) -> int:
        return len(self._begins)

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...

    def __getitem__(self, place: int | slice) -> Row | list[Row]:
        places = range(len(self))[place]
        return self.at(places) if isinstance(places, range) else next(iter(self.at([places])), {})

    def __iter__(self) -> Iterator[Row]:
        for begin in range(0, len(self), 256):
            yield from self.since(begin, begin + 256)

    def at(self, places: Iterable[int]) -> list[Row]:
        """Return the objects at these positions, in one read; none when the file cannot be read just now."""
        return [_parse(raw) for raw in self._raw(places)]

    def since(self, place: int, end: int | None = None) -> list[Row]:
        """Return all objects from a position on, parsed together: much faster than one by one.

        Empty when the file cannot be read just now.
        """
        raws = self._raw(range(len(self))[place:end])
        try:
            found = json.loads(b"[" + b",".join(raws) + b"]")
        except (ValueError, RecursionError):
            return [_parse(raw) for raw in raws]
        return found if len(found) == len(raws) else [_parse(raw) for raw in raws]

    def _clear(self) -> None:
        self._begins, self._ends = array("Q"), array("Q")
        self._read = 0
        """Where the first line begins whose end is not there yet."""
        self._searched = 0
        """Up to where that end has been looked for."""
        self._lost = False
        """The beginning of that line was passed over."""
        self._mark = b""
        self.aside.clear()

    def _gone(self) -> bool:
        if self._file is None:
            return False
        self._file = None
        self.generation += 1
        self._clear()
        return True

    def _restart(self, file: tuple[int, int], size: int, handle: int) -> bool:
        """Start over when the file was replaced, or has other content."""
        same = file == self._file and size >= self._searched
        if same and os.pread(handle, len(self._mark), self._read - len(self._mark)) == self._mark:
            return False
        known, self._file = self._file, file
        if known is None:
            return False
        self.generation += 1
        self._clear()
        return True

    def _index(self, handle: int) -> None:
        """Find the line ends in what was added."""
        held, pieces = self._searched, list[bytes]()  # what lies from there on up to _searched
        while chunk := os.pread(handle, CHUNK_BYTES, self._searched):
            pieces.append(chunk)
            self._searched += len(chunk)
            if b"\n" in chunk:
                before = os.pread(handle, held - self._read, self._read)
                pieces = [self._lines(b"".join([before, *pieces]))]
                held = self._read
            elif self._searched - self._read > LONGEST_LINE:
                self._read = held = self._searched
                self._mark, self._lost, pieces = chunk[-_MARK:], True, []

    def _lines(self, data: bytes) -> bytes:
        """Index the complete lines in the data, which begins at _read; return the rest."""
        start = data.find(b"\n") + 1 if self._lost else 0
        self._lost = False
        while (end := data.find(b"\n", start)) >= 0:
            stop = end - 1 if data[end - 1 : end] == b"\r" else end
            if stop - start > 1 and data[start] == 0x7B and data[stop - 1] == 0x7D:  # { and }
                self._note(data, start, stop)
            start = end + 1
        self._read += start
        self._mark = (self._mark + data[max(start - _MARK, 0) : start])[-_MARK:]
        return data[start:]

    def _note(self, data: bytes, start: int, end: int) -> None:
        if self._pattern is not None and self._pattern.search(data, start, end):
            if row := _parse(data[start:end]):
                self.aside.append(row)
            return
        self._begins.append(self._read + start)
        self._ends.append(self._read + end)

    def _raw(self, places: Iterable[int]) -> list[bytes]:
        wanted = [(self._begins[place], self._ends[place]) for place in places]
        if not wanted:
            return []
        try:
            with open(open_file(self.path), "rb", buffering=0) as file:
                about = os.fstat(file.fileno())
                if (about.st_dev, about.st_ino) != self._file:  # replaced since the last refresh
                    return []
                return list(_pieces(file.fileno(), wanted))
        except OSError:
            return []


def last_rows(path: Path, most: int = 32 << 10) -> list[Row]:
    """Return the objects in the last ``most`` bytes of a file; none when it cannot be read."""
    try:
        with open(open_file(path), "rb", buffering=0) as file:
            begin = max(os.fstat(file.fileno()).st_size - most, 0)
            raws = os.pread(file.fileno(), most, begin).split(b"\n")
    except OSError:
        return []
    whole = raws[1:-1] if begin else raws[:-1]
    return [row for raw in whole if (row := _parse(raw))]


def _pieces(handle: int, wanted: list[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the lines; neighbouring ones are read together."""
    place = 0
    while place < len(wanted):
        begin, end = wanted[place]
        last = place
        while last + 1 < len(wanted) and 0 <= wanted[last + 1][0] - end < 4096:
            if wanted[last + 1][1] - begin > CHUNK_BYTES:
                break
            last += 1
            end = wanted[last][1]
        data = os.pread(handle, end - begin, begin)
        yield from (data[a - begin : b - begin] for a, b in wanted[place : last + 1])
        place = last + 1


def _parse(raw: bytes) -> Row:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
