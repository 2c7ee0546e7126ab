"""When the job ends: from its environment, or from Slurm."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from allranks.core.formatting import span
from allranks.errors import UsageError

_QUERY_SECONDS = 10.0
"""Slurm's controller may be busy; training does not wait for it any longer."""

_SAME = 2.0


class JobEnd(NamedTuple):
    """The end of a job; times are seconds since 1970."""

    time: float
    start: float
    """When the job began, as far as it is known: the margin is fitted to its length."""
    description: str
    """Such as ``the end of job 123 (time limit)``."""
    job_id: str = ""
    """The id to ask Slurm about, since limits get extended; empty when the end is fixed."""

    @property
    def length(self) -> float:
        return max(self.time - self.start, 0.0)


def find_job_end(env: Mapping[str, str], *, may_ask: bool = True) -> JobEnd | None:
    """Return the end that the environment or else Slurm gives; None when nothing is known to end it."""
    given, limit = env.get("ALLRANKS_DEADLINE", "").strip(), _limit(env, may_ask)
    if not given:
        return limit
    at = _number(given)
    if limit is not None and abs(limit.time - at) < _SAME:
        return limit  # the job script set it, and Slurm may have moved it since
    job = env.get("SLURM_JOB_ID", "")
    description = f"the end set for job {job}" if job else "the end set by ALLRANKS_DEADLINE"
    return JobEnd(at, _start(env), description)


def _limit(env: Mapping[str, str], may_ask: bool) -> JobEnd | None:
    """Return the time limit of the Slurm job around this process."""
    job, known = env.get("SLURM_JOB_ID", ""), env.get("SLURM_JOB_END_TIME", "")
    if not job:
        return None
    at = float(known) if known.isdigit() else 0.0
    end = JobEnd(at, _start(env), f"the end of job {job} (time limit)", job)
    if at:
        return end
    return query_slurm(end, env) if may_ask else None


def query_slurm(end: JobEnd, env: Mapping[str, str]) -> JobEnd | None:
    """Return the end that Slurm reports now; the known one when it does not answer, None without a limit."""
    if not end.job_id:
        return end
    words = ["squeue", "--noheader", f"--jobs={end.job_id}", "--format=%e"]
    try:
        done = subprocess.run(
            words,
            env={**env, "SLURM_TIME_FORMAT": "standard"},
            capture_output=True,
            text=True,
            timeout=_QUERY_SECONDS,
            check=True,
        )
        at = datetime.fromisoformat(done.stdout.split()[0]).timestamp()
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return end if end.time else None  # not in the container, not answering, or no limit
    return end._replace(time=at)


def _start(env: Mapping[str, str]) -> float:
    """Return when the job began; now, where nothing states it."""
    known = env.get("SLURM_JOB_START_TIME", "")
    return float(known) if known.isdigit() else time.time()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        now = int(time.time()) + 3600
        raise UsageError(
            f"ALLRANKS_DEADLINE={text} is not a time: write seconds since 1970, for example "
            f"{now} for an hour from now (date -d '1 hour' +%s)."
        ) from None


def format_remaining(seconds: float) -> str:
    """Return ``58 s`` or ``3 min``, to be followed by "before"; ``4 s past and not`` after the end."""
    return span(seconds) if seconds >= 0 else f"{span(-seconds)} past and not"
