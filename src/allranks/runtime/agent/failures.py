"""What a rank said last, and the record of a rank that failed."""

from __future__ import annotations

import re
from collections import deque
from typing import Any

from allranks.runs.exit_reasons import CHAIN, without_asides
from allranks.runtime.agent.attempt_files import stamp
from allranks.runtime.agent.placement import Place

_HEADER = "Traceback (most recent call last):"
# torch.distributed puts this before every line of an uncaught exception.
_RANK = re.compile(r"^\[rank\d+\]: ?")
# Lines that others print after the traceback, while the process goes down.
_NOISE = re.compile(
    r"^(\[rank\d+\]:)?\[?[WEIF]\d{4} |^\[[WEI]\d{4}|^Exception (ignored|in thread) |^\S+: .*Warning: "
)
_MESSAGE_LINES = 25
"""Of an exception, without the frames of a traceback that is told in it."""
_LAST_LINES = 20
_KEPT = 128 * 1024


class Tail:
    """The last blocks of lines that one pipe brought, with their times."""

    def __init__(self) -> None:
        self._blocks: deque[tuple[float, bytes]] = deque()
        self._size = 0

    def add(self, block: bytes, now: float) -> None:
        """Remember a block of lines."""
        self._blocks.append((now, block[-_KEPT:]))
        self._size += len(block)
        while self._size > _KEPT and len(self._blocks) > 1:
            self._size -= len(self._blocks.popleft()[1])

    def lines(self) -> list[tuple[float, str]]:
        """Every line that is still known, with the time at which it was read."""
        return [
            (when, line)
            for when, block in self._blocks
            for line in block.decode("utf-8", "replace").splitlines()
        ]


def last_traceback(lines: list[str]) -> tuple[int, list[str]] | None:
    """The last Python traceback with those it is chained to: where it starts, its text."""
    plain = [_RANK.sub("", line) for line in lines]
    starts = [at for at, line in enumerate(plain) if line.strip() == _HEADER]
    if not starts:
        return None
    starts = without_asides(plain, starts)
    start = starts[-1]
    for at in reversed(starts[:-1]):
        if not any(line.strip() in CHAIN for line in plain[at:start]):
            break
        start = at
    return start, plain[start : _end(lines, plain, starts[-1])]


def _end(lines: list[str], plain: list[str], header: int) -> int:
    at = header + 1
    while at < len(plain) and (plain[at].startswith((" ", "\t")) or not plain[at]):
        at += 1
    stop = at + 1  # past the line with the exception itself; its message may have more lines
    left, in_frames = _MESSAGE_LINES - 1, False
    while stop < len(plain) and left and not _NOISE.match(lines[stop]):
        in_frames = plain[stop].endswith(_HEADER) or (in_frames and plain[stop][:1].isspace())
        left -= not in_frames
        stop += 1
    while stop > at + 1 and not plain[min(stop, len(plain)) - 1].strip():
        stop -= 1
    return stop


def describe(out: Tail, err: Tail, python_error: bool, ended: float) -> tuple[float, str]:
    """When the failure happened, and the text that explains it best."""
    timed = err.lines()
    found = last_traceback([line for _, line in timed])
    if found:
        start, text = found
        # An uncaught exception: its first line is closer to the cause than the end of the process,
        # which may take seconds and would put another rank's broken connection first.
        return (timed[start][0] if python_error else ended), "\n".join(text)
    said = timed or out.lines()
    return ended, "\n".join(line for _, line in said[-_LAST_LINES:])


def record(place: Place, pid: int, status: tuple[int, int | None], command: list[str],
           found: tuple[float, str]) -> dict[str, Any]:  # fmt: skip
    """The content of ``failures/rank-NNNNN.json``."""
    code, signal_number = status
    when, text = found
    return {
        "rank": place.rank,
        "local_rank": place.local_rank,
        "host": place.host,
        "pid": pid,
        "exit_code": code,
        "signal": signal_number,
        "time": stamp(when),
        "traceback": text,
        "command": command,
    }
