"""The status of a job, parsed from a line of squeue or sacct."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from allranks.cluster.slurm.job_states import PRECEDENCE, JobState, parse_state
from allranks.cluster.slurm.pending_reasons import REASONS
from allranks.core.units import parse_time
from allranks.errors import UsageError

# The name comes last: it is the only field that may hold the delimiter.
SQUEUE_FIELDS = (
    "JobArrayID",
    "JobID",
    "State",
    "Reason",
    "exit_code",
    "StartTime",
    "EndTime",
    "TimeLimit",
    "RestartCnt",
    "NodeList",
    "Partition",
    "UserName",
    "Name",
)
SQUEUE_FORMAT = ",".join(f"{field}:|" for field in SQUEUE_FIELDS)
SACCT_FIELDS = (
    "JobID",
    "JobIDRaw",
    "State",
    "Reason",
    "ExitCode",
    "Start",
    "End",
    "Timelimit",
    "NodeList",
    "Partition",
    "User",
    "JobName",
)
SACCT_FORMAT = ",".join(SACCT_FIELDS)

_NOTHING = frozenset({"", "N/A", "None", "Unknown", "(null)", "NONE", "None assigned"})
_FATAL_REASONS = frozenset({"BadConstraints", "JobLaunchFailure", "NodeDown"})
_FAILED_CODES = {JobState.TIMEOUT: 124, JobState.CANCELLED: 143}


@dataclass(frozen=True)
class JobStatus:
    """The status of one job, one array task, or an array or heterogeneous job as a whole."""

    job_id: str
    """As Slurm writes it: ``12``, ``12_3`` (array task), ``12+1`` (part of a heterogeneous job)."""
    name: str = ""
    state: JobState = JobState.UNKNOWN
    reason: str = ""
    """Slurm's own word; ``pending_reason_text`` puts it in plain ones."""
    exit_code: int | None = None
    """As a shell gives it, 128 + signal when killed; None before the end, 0 only if completed."""
    signal: int | None = None
    nodes: str = ""
    """Slurm's host list, ``node[1-2]``."""
    start: datetime | None = None
    end: datetime | None = None
    expected_start: datetime | None = None
    """While pending, when the scheduler has made a plan."""
    time_limit: int | None = None
    """Seconds; None when unlimited."""
    restarts: int = 0
    partition: str = ""
    user: str = ""
    raw_id: str = ""
    """Slurm's internal number of an array task or part: what ``SLURM_JOB_ID`` holds inside."""
    tasks: tuple[JobStatus, ...] = ()
    """The tasks of an array or the parts of a heterogeneous job, when the whole was asked for."""


def parse_squeue(text: str) -> Iterator[JobStatus]:
    """Yield the jobs in the output of ``squeue -h -O SQUEUE_FORMAT``; other lines are skipped."""
    for line in text.splitlines():
        words = line.split("|", len(SQUEUE_FIELDS) - 1)
        if len(words) == len(SQUEUE_FIELDS):
            job, raw, state, reason, code, start, end, limit, restarts, *place = words
            # The last column carries the delimiter as its suffix too.
            nodes, partition, user, name = (*place[:3], place[3].removesuffix("|"))
            yield _status(
                job, raw, state, reason, _wait_status(code), start, end, limit,
                nodes, partition, user, name, int(restarts or 0) if restarts.isdigit() else 0,
            )  # fmt: skip


def parse_sacct(text: str) -> Iterator[JobStatus]:
    """Yield the jobs in the output of ``sacct -D -X -n -P``: the last run of each, the earlier ones counted.

    22.05 has no Restarts field, but with -D each run of a requeued job is a line.
    """
    runs_of_job: dict[str, list[list[str]]] = {}
    for line in text.splitlines():
        words = line.split("|", len(SACCT_FIELDS) - 1)
        if len(words) == len(SACCT_FIELDS):
            runs_of_job.setdefault(words[0], []).append(words)
    for rows in runs_of_job.values():
        job, raw, state, reason, code, start, end, limit, nodes, partition, user, name = rows[-1]
        yield _status(
            job, raw, state, reason, code_and_signal(code), start, end, limit,
            nodes, partition, user, name, len(rows) - 1,
        )  # fmt: skip


def summarise(job_id: str, tasks: Iterable[JobStatus]) -> JobStatus:
    """Return an array or heterogeneous job as one: running while any task runs, failed when one failed."""
    parts = tuple(tasks)
    lead = min(parts, key=lambda task: PRECEDENCE.index(task.state))
    ended = lead.state.ended
    codes = [task.exit_code for task in parts if task.exit_code]
    return replace(
        lead,
        job_id=job_id,
        raw_id=job_id,
        exit_code=(lead.exit_code or (codes[0] if codes else 0)) if ended else None,
        nodes=",".join(dict.fromkeys(task.nodes for task in parts if task.nodes)),
        start=min((task.start for task in parts if task.start), default=None),
        end=max((task.end for task in parts if task.end), default=None) if ended else None,
        restarts=max(task.restarts for task in parts),
        tasks=parts,
    )


def _status(
    job: str, raw: str, word: str, reason: str, code: tuple[int, int], start: str, end: str,
    limit: str, nodes: str, partition: str, user: str, name: str, restarts: int,
) -> JobStatus:  # fmt: skip
    state = parse_state(word)
    waiting = state.waiting
    return JobStatus(
        job_id=job,
        raw_id=raw,
        name=name,
        state=state,
        reason=_reason(state, reason),
        exit_code=shell_code(state, code) if state.ended else None,
        signal=(code[1] or None) if state.ended else None,
        nodes="" if nodes in _NOTHING else nodes,
        start=None if waiting else moment(start),
        end=moment(end) if state.ended else None,
        expected_start=moment(start) if state is JobState.PENDING else None,
        time_limit=time_limit(limit),
        restarts=restarts,
        partition=partition,
        user=user,
    )


def _reason(state: JobState, reason: str) -> str:
    """Return the reason, but not one that a job waited for before it started: Slurm keeps it."""
    if state.waiting:
        return reason
    stale = reason in REASONS and reason not in _FATAL_REASONS
    return "" if stale or reason in _NOTHING else reason


def _wait_status(text: str) -> tuple[int, int]:
    """Parse the raw wait status that squeue prints: 768 is exit 3, 9 is SIGKILL. Also takes ``3:0``."""
    if ":" in text:
        return code_and_signal(text)
    number = int(text) if text.isdigit() else 0
    return number >> 8 & 0xFF, number & 0x7F


def code_and_signal(text: str) -> tuple[int, int]:
    """Parse exit code and signal, sacct's ``3:0``."""
    match = re.match(r"^(\d+):(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def shell_code(state: JobState, code: tuple[int, int]) -> int:
    """Return the exit code as a shell has it; Slurm's 0:0 of a job that timed out or was cancelled is not 0."""
    number, signal = code
    if state is JobState.COMPLETED:
        return 0
    if signal:
        return 128 + signal
    return number or _FAILED_CODES.get(state, 1)


def moment(text: str) -> datetime | None:
    """Parse a time: seconds since the epoch as requested, or ISO local time where the format was ignored."""
    if text.isdigit():
        return datetime.fromtimestamp(int(text), timezone.utc)
    try:
        return datetime.fromisoformat(text).astimezone(timezone.utc)
    except ValueError:
        return None


def time_limit(text: str) -> int | None:
    try:
        return parse_time(text)
    except UsageError:
        return None
