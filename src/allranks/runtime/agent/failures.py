"""Failed ranks: find the error in their last lines, record it, and print the first of an attempt.

When one rank of many fails, the others fail too, a little later and with other messages: broken
connections, time-outs. The one that failed first is the one to read.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.runs.exit_reasons import CHAIN, describe_exit, main_tracebacks
from allranks.runtime.agent.attempt_files import stamp
from allranks.runtime.agent.rank_environment import RankPlacement

if TYPE_CHECKING:
    import datetime

Record = Mapping[str, Any]

_HEADER = "Traceback (most recent call last):"
# torch.distributed puts this before every line of an uncaught exception.
_RANK = re.compile(r"^\[rank\d+\]: ?")
# Lines that others print after the traceback, while the process goes down.
_NOISE = re.compile(
    r"^(\[rank\d+\]:)?\[?[WEIF]\d{4} |^\[[WEI]\d{4}|^Exception (ignored|in thread) |^\S+: .*Warning: "
)
_MESSAGE_LINES = 25
"""Of an exception, without the frames of a traceback inside its message."""
_LAST_LINES = 20
_KEPT = 128 * 1024
_NAMED_RANKS = 8
_LOST_PEER = re.compile(
    r"Connection (closed|reset) by peer|[Ss]ocket closed|Broken pipe|ncclRemoteError|"
    r"NCCL (error|timeout)|Timed out waiting|did not find rank 0"
)


class Tail:
    """The last blocks of lines of one pipe, with their times."""

    def __init__(self) -> None:
        self._blocks: deque[tuple[float, bytes]] = deque()
        self._size = 0

    def add(self, block: bytes, now: float) -> None:
        """Add a block of lines."""
        self._blocks.append((now, block[-_KEPT:]))
        self._size += len(block)
        while self._size > _KEPT and len(self._blocks) > 1:
            self._size -= len(self._blocks.popleft()[1])

    def lines(self) -> list[tuple[float, str]]:
        """Return the lines that are still kept, each with the time at which it was read."""
        return [
            (when, line)
            for when, block in self._blocks
            for line in block.decode("utf-8", "replace").splitlines()
        ]


def last_traceback(lines: list[str]) -> tuple[int, list[str]] | None:
    """Return where the last Python traceback starts, and its text with those it is chained to."""
    plain = [_RANK.sub("", line) for line in lines]
    starts = [at for at, line in enumerate(plain) if line.strip() == _HEADER]
    if not starts:
        return None
    starts = main_tracebacks(plain, starts)
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


def explain_failure(out: Tail, err: Tail, python_error: bool, ended: float) -> tuple[float, str]:
    """Return when the failure happened, and the text that explains it best."""
    timed = err.lines()
    found = last_traceback([line for _, line in timed])
    if found:
        start, text = found
        # An uncaught exception: its first line is closer to the cause than the end of the process,
        # which may take seconds and would put another rank's broken connection first.
        return (timed[start][0] if python_error else ended), "\n".join(text)
    lines = timed or out.lines()
    return ended, "\n".join(line for _, line in lines[-_LAST_LINES:])


def is_lost_peer(text: str) -> bool:
    """Return whether an error is that of a rank whose connection to another rank broke."""
    return bool(_LOST_PEER.search(text))


def failure_record(
    placement: RankPlacement,
    pid: int,
    status: tuple[int, int | None],
    command: list[str],
    found: tuple[float, str],
) -> dict[str, Any]:
    """Return the content of ``failures/rank-NNNNN.json``."""
    code, signal_number = status
    when, text = found
    return {
        "rank": placement.rank,
        "local_rank": placement.local_rank,
        "host": placement.host,
        "pid": pid,
        "exit_code": code,
        "signal": signal_number,
        "time": stamp(when),
        "traceback": text,
        "command": command,
    }


def read_failures(attempt: Path) -> list[Record]:
    """Return the failure records of an attempt, the earliest first."""
    return earliest(
        [r for p in sorted((attempt / "failures").glob("rank-*.json")) if (r := _json(p))]
    )


def earliest(records: Sequence[Record]) -> list[Record]:
    """Return the records in the order in which the ranks failed."""
    return sorted(records, key=lambda record: (record["time"], record["rank"]))


def summary(attempt: Path) -> str:
    """Return the block to print; empty when nothing failed, or the ranks saved and were interrupted."""
    failures = read_failures(attempt)
    if not failures or (attempt / "interrupted").exists():
        return ""
    name = f"rank-{failures[0]['rank']:05d}"
    started = (_json(attempt / "ranks" / f"{name}.json") or {}).get("start")
    log = attempt / "ranks" / f"{name}.log"
    return describe_first(failures, started, log if log.exists() else None)


def describe_first(failures: Sequence[Record], started: str | None, log: Path | None) -> str:
    """Return the first failure in full, and the ranks of the others."""
    first, *others = failures
    lines = [f"first error: {headline(first, started)}"]
    lines += str(first["traceback"]).splitlines()
    if log:
        lines.append(f"log: {log}")
    if others:
        lines.append(f"also failed: {_ranks([record['rank'] for record in others])}")
    return "\n".join(lines)


def headline(record: Record, started: str | None) -> str:
    """Return ``rank 3 (local rank 1) on node2, exit code 1, 12 s after start``."""
    text = f"rank {record['rank']} (local rank {record['local_rank']}) on {record['host']}, "
    text += describe_exit(int(record["exit_code"]), record["signal"])
    if started:
        seconds = (_time(str(record["time"])) - _time(started)).total_seconds()
        text += f", {max(seconds, 0):.0f} s after start"
    return text


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, sorted(ranks)[:_NAMED_RANKS]))
    more = f" and {len(ranks) - _NAMED_RANKS} more" if len(ranks) > _NAMED_RANKS else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}{more}"


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _time(text: str) -> datetime.datetime:
    import datetime

    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
