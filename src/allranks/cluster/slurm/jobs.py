"""Jobs in the queue and after: their status, from squeue and then sacct; cancel and requeue.

squeue is called with ``--states=all``: slurmctld keeps ended jobs for MinJobAge (300 s by default)
with their exit codes, so scontrol could not add anything. Only accounting knows older jobs; it
lags some seconds and may be off, so it is never queried first and never fails a call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from allranks.cluster.slurm.commands import query
from allranks.cluster.slurm.job_status import (
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    JobStatus,
    parse_sacct,
    parse_squeue,
    summarise,
)
from allranks.errors import AllranksError, SlurmError, UsageError

Env = Mapping[str, str] | None

_ID = re.compile(r"^\d+(?:[_+]\d+)?$")
_BATCH = 500  # ids on one command line: far below the kernel's limit, few calls for thousands
_UNKNOWN = "Slurm does not know this job (any more)"


def job_status(
    ids: str | Iterable[str], *, env: Env = None, timeout: float = 30
) -> dict[str, JobStatus]:
    """Return the status of each id; state UNKNOWN where Slurm does not know it any more.

    ``12`` of an array or a heterogeneous job gives the whole, with its parts in ``tasks``.
    """
    asked = checked_ids(ids)
    found = _collect(_squeue(asked, env, timeout))
    known = {job: _pick(job, found) for job in asked}
    if gone := [job for job, status in known.items() if status is None or _purged(status)]:
        old = _collect(_sacct(gone, env, min(timeout, 10)))
        known |= {job: _pick(job, old, found) for job in gone}
    return {job: known[job] or JobStatus(job, reason=_UNKNOWN) for job in asked}


def list_jobs(user: str | None = None, *, env: Env = None, timeout: float = 30) -> list[JobStatus]:
    """Return the jobs in the queue: yours, those of ``user``, or all (``*``). A waiting array is one row."""
    whose = [] if user == "*" else ["-u", user or str(os.getuid())]
    text = query(["squeue", "-h", "-a", *whose, "-O", SQUEUE_FORMAT], timeout, env)
    return list(parse_squeue(text))


def cancel(
    ids: str | Iterable[str],
    signal: str | int | None = None,
    *,
    batch: bool = False,
    env: Env = None,
    timeout: float = 30,
) -> None:
    """End jobs, or send them a signal: to the steps, or with ``batch`` to the job script only.

    A job that has ended already is no error.
    """
    how = [] if signal is None else [f"--signal={signal}"]
    how += ["--batch"] if batch else []
    for some in _batches(checked_ids(ids)):
        try:
            query(["scancel", *how, *some], timeout, env)
        except SlurmError as error:
            if "already" not in str(error) and "Invalid job id" not in str(error):
                raise


def requeue(job_id: str, *, env: Env = None, timeout: float = 30) -> None:
    """Put a running or ended job back into the queue under the same id."""
    query(["scontrol", "requeue", *checked_ids(job_id)], timeout, env)


def _squeue(ids: Sequence[str], env: Env, timeout: float) -> Iterator[JobStatus]:
    for some in _batches(ids):
        command = ["squeue", "-h", "-a", "-r", "-t", "all", "-j", ",".join(some)]
        try:
            text = query([*command, "-O", SQUEUE_FORMAT], timeout, env)
        except SlurmError as error:
            # A single forgotten id is an error to squeue; among several it is passed over.
            if "Invalid job id" not in str(error):
                raise
            continue
        yield from parse_squeue(text)


def _sacct(ids: Sequence[str], env: Env, timeout: float) -> Iterator[JobStatus]:
    for some in _batches(ids):
        command = ["sacct", "-D", "-X", "-n", "-P", "-j", ",".join(some), "-o", SACCT_FORMAT]
        try:
            text = query(command, timeout, env)
        except AllranksError:
            return  # accounting is off, down or not installed: there is nothing more to know
        yield from parse_sacct(text)


def _collect(found: Iterable[JobStatus]) -> dict[str, list[JobStatus]]:
    """Index the jobs by every id a user may give: the task's, the whole's, Slurm's internal one."""
    by_id: dict[str, list[JobStatus]] = {}
    for status in found:
        whole = _whole(status.job_id)
        for name in dict.fromkeys((status.job_id, whole)):
            by_id.setdefault(name, []).append(status)
        if status.raw_id not in (status.job_id, whole):
            by_id.setdefault(status.raw_id, []).append(status)
    return by_id


def _purged(status: JobStatus) -> bool:
    """Return whether tasks may be missing: slurmctld purges an array task by task once they have ended."""
    return bool(status.tasks) and status.state.ended and "_" in status.tasks[0].job_id


def _pick(job_id: str, *answers: Mapping[str, list[JobStatus]]) -> JobStatus | None:
    """Return the job in these answers, of which later ones win; None when none has it."""
    by_task = {part.job_id: part for found in answers for part in found.get(job_id, ())}
    # sacct keeps a row 12_[4-5] for tasks that never began, beside those that did.
    parts = [part for part in by_task.values() if "[" not in part.job_id] or [*by_task.values()]
    if not parts:
        return None
    is_part = re.search(r"[_+]", job_id) or _whole(parts[0].job_id) != job_id
    return parts[0] if is_part or parts[0].job_id == job_id else summarise(job_id, parts)


def _whole(job_id: str) -> str:
    """Return the array or heterogeneous job that a task belongs to: 12 of 12_3 and 12+1."""
    return re.split(r"[_+]", job_id, maxsplit=1)[0]


def checked_ids(ids: str | Iterable[str]) -> list[str]:
    """Return the ids as a list; refuse what is not an id, such as an option."""
    asked = list(dict.fromkeys([ids] if isinstance(ids, str) else ids))
    for job in asked:
        if not _ID.match(job):
            raise UsageError(f"'{job}' is not a Slurm job id. Write 123, 123_4 or 123+1.")
    return asked


def _batches(ids: Sequence[str]) -> Iterator[list[str]]:
    rest = iter(ids)
    while some := list(islice(rest, _BATCH)):
        yield some
