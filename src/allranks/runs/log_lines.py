"""A line of a rank's log, and which of them to show."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime

from allranks.runs.atomic_files import parse_stamp

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
    """One line, and where it came from."""

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
    """A line of a log file. One without a stamp is kept as it is, at the time of the last."""
    if match := _LINE.match(raw):
        text = (match[3] or b"").decode("utf-8", "replace")
        return LogLine(match[1].decode(), attempt, rank, match[2].decode(), text)
    return LogLine(before, attempt, rank, "o", raw.decode("utf-8", "replace"))


class Errors:
    """Tracebacks, whole, and lines that name an error. Remembers per rank what it is inside of."""

    def __init__(self) -> None:
        self._inside: set[tuple[int, int | None]] = set()
        self._after: set[tuple[int, int | None]] = set()

    def __call__(self, line: LogLine) -> bool:
        """Whether the line is part of an error."""
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
        """A traceback goes on while lines are indented; the first other names the exception."""
        if not text.startswith((" ", "\t")) and text:
            self._inside.discard(who)
            self._after.add(who)
        return True


def line_filter(stream: str | None = None, errors: bool = False) -> Callable[[LogLine], bool]:
    """One function for the asked filters. The ranks are chosen before, by their files."""
    is_error = Errors() if errors else None

    def wanted(line: LogLine) -> bool:
        if stream and line.stream != stream and line.stream != "f":
            return False
        return is_error(line) if is_error else True

    return wanted


def wanted_rank(rank: int | None, ranks: Collection[int] | None) -> bool:
    """Whether to read this rank's file; the job script's own lines only when no rank is chosen."""
    return ranks is None or rank in ranks
