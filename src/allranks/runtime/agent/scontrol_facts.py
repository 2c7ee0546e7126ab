"""What ``scontrol show job`` and ``scontrol show node`` say, read for the decision after an attempt.

Slurm 22.05 calls every job COMPLETING between its end and that of its processes; what ended it is
told by its reason, by the time of a preemption, and by the count of restarts, which rises at once when
Slurm puts the job back by itself. A job that is completing for none of these was cancelled. Every other
state (suspended, signalled, resized, staged out …) is one of a job that nobody has ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

CANCELLED, TIMED_OUT, PREEMPTED = "cancelled", "timed out", "preempted"
REQUEUED, NODE_LOST = "requeued", "node lost"
_FIELD = re.compile(r"(?:^|\s)([A-Za-z]+)=(\S*)")
_GONE = ("DOWN", "FAIL", "NOT_RESPONDING", "NO_RESPOND", "POWERED_DOWN", "POWERING_DOWN")
_REASONS = {"TimeLimit": TIMED_OUT, "NodeDown": NODE_LOST}
_ENDED_BY = {
    "CANCELLED": CANCELLED,
    "TIMEOUT": TIMED_OUT,
    "DEADLINE": TIMED_OUT,
    "PREEMPTED": PREEMPTED,
    "NODE_FAIL": NODE_LOST,
    "BOOT_FAIL": NODE_LOST,
}
_COMPLETING = "COMPLETING"


class JobFacts(NamedTuple):
    """What Slurm says of the job around an attempt."""

    ended_by: str = ""
    """Why Slurm ends it: one of the words above; empty while it runs, or when nothing is known."""
    may_requeue: bool = True
    dying: bool = False
    """Whether Slurm has begun to end its processes, so that KILL follows soon."""


def read_job(text: str, restarts: int) -> JobFacts:
    """``scontrol show job -o``; ``restarts`` is the job's count when the attempt began."""
    fields = _job_fields(text)
    if "JobState" not in fields:
        return JobFacts()
    words = fields["JobState"].upper().split(",")
    dying = any(word == _COMPLETING or word in _ENDED_BY for word in words)
    return JobFacts(_ended_by(fields, words, restarts), fields.get("Requeue", "1") != "0", dying)


def _job_fields(text: str) -> dict[str, str]:
    """The first of each name from the state on: a user's own words (comment, folder) come later."""
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(text[max(text.find("JobState="), 0) :]):
        fields.setdefault(name, value)
    return fields


def _ended_by(fields: dict[str, str], words: list[str], restarts: int) -> str:
    count = fields.get("Restarts", "0")
    if count.isdigit() and int(count) > restarts:
        return REQUEUED
    if (reason := fields.get("Reason")) in _REASONS:
        return _REASONS[reason]
    if _preempted(fields):
        return PREEMPTED
    by_itself = {"COMPLETED", "FAILED", "OUT_OF_MEMORY"} & set(words)
    otherwise = CANCELLED if _COMPLETING in words and not by_itself else ""
    return next((_ENDED_BY[word] for word in words if word in _ENDED_BY), otherwise)


def _preempted(fields: dict[str, str]) -> bool:
    """In this life: the time of an earlier preemption stays in the record."""
    when, start = _time(fields.get("PreemptTime")), _time(fields.get("StartTime"))
    return when is not None and (start is None or when >= start)


def gone_nodes(text: str) -> list[str]:
    """Nodes in ``scontrol show node -o`` that do not answer."""
    return [name for name, fields in _nodes(text) if _is_in(fields, _GONE)]


def lost_nodes(text: str, since: datetime | None) -> list[str]:
    """Nodes that are gone, or were taken out of service or started anew after that time.

    Only of an attempt that was killed: while a job runs, a node may well be drained for later.
    """
    return [
        name
        for name, fields in _nodes(text)
        if _is_in(fields, (*_GONE, "DRAIN")) or _began_after(fields, since)
    ]


def _nodes(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        if name := fields.get("NodeName"):
            yield name, fields


def _is_in(fields: dict[str, str], states: tuple[str, ...]) -> bool:
    """Slurm marks a node that does not answer by a word, older versions by a star."""
    state = fields.get("State", "").upper()
    return state.endswith("*") or any(word.startswith(states) for word in state.split("+"))


def _began_after(fields: dict[str, str], since: datetime | None) -> bool:
    starts = (_time(fields.get("BootTime")), _time(fields.get("SlurmdStartTime")))
    return since is not None and any(start is not None and start > since for start in starts)


def _time(text: str | None) -> datetime | None:
    """Slurm's times are local, or seconds where SLURM_TIME_FORMAT says so."""
    try:
        if text and text.isdigit():
            return datetime.fromtimestamp(int(text)).astimezone()
        return datetime.fromisoformat(text or "").astimezone()
    except ValueError:
        return None
