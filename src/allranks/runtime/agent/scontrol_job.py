"""The facts in ``scontrol show job`` and ``scontrol show node`` that the requeue decision needs.

Slurm 22.05 reports every job as COMPLETING from its end until its processes are gone. What ended it is
in the reason, the time of a preemption, and the count of restarts, which rises at once when Slurm
requeues the job itself. A job that is completing for none of these was cancelled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from allranks.cluster.slurm.job_states import JobState, parse_states

_FIELD = re.compile(r"(?:^|\s)([A-Za-z]+)=(\S*)")
_GONE = ("DOWN", "FAIL", "NOT_RESPONDING", "NO_RESPOND", "POWERED_DOWN", "POWERING_DOWN")
_REASONS = {"TimeLimit": JobState.TIMEOUT, "NodeDown": JobState.NODE_FAIL}


class JobFacts(NamedTuple):
    """What Slurm reports about the job of an attempt."""

    ended_by: JobState | None = None
    """Why Slurm ends the job, REQUEUED if it has requeued it already; None while it runs."""
    may_requeue: bool = True
    ending: bool = False
    """Whether Slurm has begun to end its processes, so that KILL follows soon."""
    state: str = "JobState=UNKNOWN"
    """State and reason as scontrol printed them."""


def read_job(text: str, restarts: int) -> JobFacts:
    """Read ``scontrol show job -o``; ``restarts`` is the job's count when the attempt began."""
    fields = _job_fields(text)
    if "JobState" not in fields:
        return JobFacts()
    states = parse_states(fields["JobState"])
    # Not JobState.COMPLETING: a job that stages out data is not being ended by anybody.
    completing = "COMPLETING" in fields["JobState"].upper().split(",")
    return JobFacts(
        _ended_by(fields, states, completing, restarts),
        fields.get("Requeue", "1") != "0",
        completing or any(state.terminated for state in states),
        " ".join(f"{name}={fields[name]}" for name in ("JobState", "Reason") if name in fields),
    )


def _job_fields(text: str) -> dict[str, str]:
    """Return the first value of each name from the state on; text of the user (a comment) comes later."""
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(text[max(text.find("JobState="), 0) :]):
        fields.setdefault(name, value)
    return fields


def _ended_by(
    fields: dict[str, str], states: list[JobState], completing: bool, restarts: int
) -> JobState | None:
    count = fields.get("Restarts", "0")
    if count.isdigit() and int(count) > restarts:
        return JobState.REQUEUED
    if (reason := fields.get("Reason")) in _REASONS:
        return _REASONS[reason]
    if _preempted(fields):
        return JobState.PREEMPTED
    exited = any(state.ended and not state.terminated for state in states)
    otherwise = JobState.CANCELLED if completing and not exited else None
    return next((state for state in states if state.terminated), otherwise)


def _preempted(fields: dict[str, str]) -> bool:
    """Whether this attempt was preempted; the record keeps the time of an earlier preemption."""
    when, start = _time(fields.get("PreemptTime")), _time(fields.get("StartTime"))
    return when is not None and (start is None or when >= start)


def gone_nodes(text: str) -> list[str]:
    """Return the nodes in ``scontrol show node -o`` that do not respond."""
    return [name for name, fields in _nodes(text) if _is_in(fields, _GONE)]


def lost_nodes(text: str, since: datetime | None) -> list[str]:
    """Return the nodes that are gone, drained, or were rebooted after that time.

    For an attempt that was killed only: a node may be drained while its jobs still run.
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
    """Newer versions of Slurm mark a node that does not respond by a word, older ones by a star."""
    state = fields.get("State", "").upper()
    return state.endswith("*") or any(word.startswith(states) for word in state.split("+"))


def _began_after(fields: dict[str, str], since: datetime | None) -> bool:
    starts = (_time(fields.get("BootTime")), _time(fields.get("SlurmdStartTime")))
    return since is not None and any(start is not None and start > since for start in starts)


def _time(text: str | None) -> datetime | None:
    """Parse a time of Slurm: local, or in seconds, depending on SLURM_TIME_FORMAT."""
    try:
        if text and text.isdigit():
            return datetime.fromtimestamp(int(text)).astimezone()
        return datetime.fromisoformat(text or "").astimezone()
    except ValueError:
        return None
