"""How a rank ended, and its error in one line, the same in every view."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

_RANK = re.compile(r"^\[rank\d+\]: ?")
_HEADER = re.compile(
    r"^\s*(?:(?:\+ )?Exception Group |Original )?Traceback \(most recent call last\):"
)
_ASIDES = ("Exception in thread ", "Exception ignored ")
"""The line above a traceback that did not end the process."""
CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_GROUP = re.compile(r"^\s*\+ Exception Group Traceback")
_MARGIN = re.compile(r"^\s*[|+][-+]* ?")
_RULER = re.compile(r"^[\d. ]*-{8,}$")
_SUBS = re.compile(r"\(\d+ sub-exceptions?\)$")
_CRASH = re.compile(r"^(?:\s+what\(\):\s+|(?=Fatal Python error: ))(.+)")
_FRAME = re.compile(r"^\s|^frame #\d+|^Extension modules: ")
_CAUSE = "Last error:"
"""What NCCL prints above the line that explains its error."""
KILLS = "for its memory, at a limit of the machine, or by kill -9"
"""What kills a run without leaving a record."""
_LONGEST = 400
"""Letters: what is longer is a dump, not a message."""


def describe_exit(code: int | None, number: int | str | None = None) -> str:
    """Return ``exit code 1``, or the signal by its name and what it may mean."""
    if not number:
        return "no exit code is known" if code is None else f"exit code {code}"
    name = _signal_name(str(number))
    # The kernel's out-of-memory killer says nothing to the process.
    hint = ", perhaps out of memory" if name == "SIGKILL" else ""
    left = "" if code is None else f" (exit code {code})"
    return f"killed by {name}{hint}{left}"


def error_line(traceback: str) -> str:
    """Return the exception of a traceback, not what is printed after it (advice, notes, a dump).

    Of chained exceptions it is the last one that is whole, of a group also its first member. Without a
    traceback it is the message of a crash, else the last line that was printed. Empty when none was.
    """
    lines = [_RANK.sub("", line).rstrip() for line in traceback.splitlines()]
    starts = [at for at, line in enumerate(lines) if _HEADER.match(line)]
    if not starts:
        return _last_words(lines)[:_LONGEST]
    errors = (_below(lines, start) for start in reversed(main_tracebacks(lines, starts)))
    return next(filter(None, errors), "")[:_LONGEST]


def main_tracebacks(lines: Sequence[str], starts: Sequence[int]) -> list[int]:
    """Return which of the tracebacks that start at these lines are those of the process itself.

    Those of threads, and those ignored while Python exits, count only where there is no other.
    """
    weights: list[int] = []
    for before, start in zip([0, *starts], starts, strict=False):
        goes_on = lines[start].startswith("Original ") or any(
            line.strip() in CHAIN for line in lines[before:start]
        )
        above = lines[start - 1] if start else ""
        alone = next((at for at, aside in enumerate(_ASIDES, 1) if above.startswith(aside)), 0)
        weights.append(weights[-1] if goes_on and weights else alone)
    least = min(weights, default=0)
    return [start for start, weight in zip(starts, weights, strict=True) if weight == least]


def _signal_name(number: str) -> str:
    try:
        return signal.Signals(int(number)).name
    except ValueError:
        return f"signal {number}" if number.isdigit() else number


def _below(lines: list[str], start: int) -> str:
    said = _of_group if _GROUP.match(lines[start]) else _of_exception
    return said(lines[start + 1 :])


def _of_exception(lines: list[str]) -> str:
    """Return the exception below a header: frames are indented, the exception is not."""
    place = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), None)
    if place is None:
        return ""
    first, rest = lines[place], lines[place + 1 :]
    if first.endswith(":"):  # the message has only begun
        return f"{first} {_first_word(rest)}".rstrip()
    cause = _first_word(rest[rest.index(_CAUSE) + 1 :]) if _CAUSE in rest else ""
    return f"{first}; {cause}" if cause else first


def _of_group(lines: list[str]) -> str:
    """Return the group, and the first exception in it that is not a group again."""
    bare = [_MARGIN.sub("", line) for line in lines]
    group = _of_exception(bare)
    inside = next((at for at, line in enumerate(bare) if _RULER.match(line)), len(bare))
    members = (
        line
        for line in bare[inside:]
        if line and not (line[0].isspace() or _RULER.match(line) or _HEADER.match(line))
    )
    first = next((line for line in members if not _SUBS.search(line)), "")
    return f"{group}: {first}" if first else group


def _first_word(lines: list[str]) -> str:
    """The first line that is not blank or a ruler."""
    return next((line.strip() for line in lines if any(map(str.isalnum, line))), "")


def _last_words(lines: list[str]) -> str:
    found_lines = [line for line in lines if line.strip()]
    crash = next((found[1] for line in found_lines if (found := _CRASH.match(line))), "")
    printed = [line for line in found_lines if not _FRAME.match(line)] or found_lines[-1:]
    return crash or (printed[-1].strip() if printed else "")
