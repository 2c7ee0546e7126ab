"""When the job ends: told by its environment, or asked of Slurm."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from allranks.core.formatting import span
from allranks.errors import UsageError

_ASK_SECONDS = 10.0
"""Slurm's controller may be busy; a training does not wait for it any longer."""

_SAME = 2.0


class End(NamedTuple):
    """The end of a job; times are seconds since 1970."""

    at: float
    start: float
    """When the job began, as far as it is known: the margin is fitted to its length."""
    what: str
    """For people: ``the end of job 123 (time limit)``."""
    job: str = ""
    """The id to ask Slurm about, since limits get extended; empty when the end is fixed."""

    @property
    def length(self) -> float:
        return max(self.at - self.start, 0.0)


def find_end(env: Mapping[str, str], *, may_ask: bool = True) -> End | None:
    """What the environment tells, else Slurm; None when nothing is known to end this process."""
    given, limit = env.get("ALLRANKS_DEADLINE", "").strip(), _limit(env, may_ask)
    if not given:
        return limit
    at = _number(given)
    if limit is not None and abs(limit.at - at) < _SAME:
        return limit  # the job script told it, and Slurm may have moved it since
    job = env.get("SLURM_JOB_ID", "")
    what = f"the end set for job {job}" if job else "the end that ALLRANKS_DEADLINE names"
    return End(at, _start(env), what)


def _limit(env: Mapping[str, str], may_ask: bool) -> End | None:
    """The time limit of the Slurm job around this process."""
    job, known = env.get("SLURM_JOB_ID", ""), env.get("SLURM_JOB_END_TIME", "")
    if not job:
        return None
    at = float(known) if known.isdigit() else 0.0
    end = End(at, _start(env), f"the end of job {job} (time limit)", job)
    if at:
        return end
    return ask(end, env) if may_ask else None


def ask(end: End, env: Mapping[str, str]) -> End | None:
    """The end as Slurm knows it now; as it was when Slurm does not answer, None without a limit."""
    if not end.job:
        return end
    words = ["squeue", "--noheader", f"--jobs={end.job}", "--format=%e"]
    try:
        done = subprocess.run(
            words,
            env={**env, "SLURM_TIME_FORMAT": "standard"},
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS,
            check=True,
        )
        told = datetime.fromisoformat(done.stdout.split()[0]).timestamp()
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return end if end.at else None  # not in the container, not answering, or no limit
    return end._replace(at=told)


def _start(env: Mapping[str, str]) -> float:
    """When the job began; for a process that is not told, it begins now."""
    told = env.get("SLURM_JOB_START_TIME", "")
    return float(told) if told.isdigit() else time.time()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        now = int(time.time()) + 3600
        raise UsageError(
            f"ALLRANKS_DEADLINE={text} is not a time: write seconds since 1970, for example "
            f"{now} for an hour from now (date -d '1 hour' +%s)."
        ) from None


def until(seconds: float) -> str:
    """The time until an end, for people: ``58 s``, ``3 min``; ``4 s past and not`` before one that was."""
    return span(seconds) if seconds >= 0 else f"{span(-seconds)} past and not"
