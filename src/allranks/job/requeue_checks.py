"""What a job says of going on by itself, checked before it waits in a queue."""

from __future__ import annotations

from allranks.errors import JobError
from allranks.job.fields import Job, flag


def going_on_notes(job: Job) -> list[str]:
    """Limits of something that was not asked for; a signal that would be misread is refused."""
    _refuse_term(job)
    given = [flag(name) for name in ("max_attempts", "max_no_progress") if getattr(job, name)]
    if not given or job.requeue or job.restarts:
        return []
    without = f"without {flag('requeue')} or {flag('restarts')}"
    return [f"{' and '.join(given)} {without}: the run has one attempt."]


def _refuse_term(job: Job) -> None:
    """A job script with --requeue takes TERM for Slurm's own, which says that the job ends."""
    asked = job.signal or ""
    options, _, signal = asked.rpartition(":")
    name, _, seconds = signal.partition("@")
    if not job.requeue or "B" not in options or name.removeprefix("SIG") not in ("TERM", "15"):
        return
    other = f"{options}:USR1" + (f"@{seconds}" if seconds else "")
    raise JobError(
        f"{flag('signal')} {asked} with {flag('requeue')}: Slurm ends jobs with TERM, so the job script "
        f"could not tell it from a cancellation.\nUse another: {flag('signal')} {other}"
    )
