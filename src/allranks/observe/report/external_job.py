"""The facts of a job that allranks did not start, from Slurm's accounting."""

from __future__ import annotations

import shlex
from datetime import datetime, timedelta, timezone

from allranks.cluster.slurm.accounting import job_usage
from allranks.cluster.slurm.job_usage import Usage
from allranks.core.redaction import redact_text
from allranks.errors import RunNotFoundError
from allranks.observe.report.job_records import allocated_resources
from allranks.observe.report.model import GpuUsed, RunFacts, UsedResources
from allranks.runs.run_folder import Run

WAIT = 10.0
"""Seconds for an answer of Slurm: a report is also one without it."""
SLACK = timedelta(minutes=2)
"""Clocks of nodes differ, and Slurm's times are whole seconds."""


def require_usage(job_id: str) -> Usage:
    """Return what Slurm knows of a job; raise RunNotFoundError when it knows nothing."""
    usage = job_usage(job_id, timeout=WAIT)
    if usage is None:
        raise RunNotFoundError(
            f"Slurm does not know the job {job_id}, neither now nor in its accounting.\n"
            "List your jobs: sacct --starttime now-7days -X, your runs: allranks ps"
        )
    return usage


def is_job_of(run: Run, usage: Usage) -> bool:
    """Return whether it is a job of this run: a reinstalled cluster assigns the same ids again."""
    starts = [attempt.start for attempt in run.attempts if attempt.start]
    if starts and usage.start:
        ended = usage.end or datetime.now(timezone.utc)
        return any(usage.start - SLACK <= start <= ended + SLACK for start in starts)
    if run.created and usage.submit:
        return usage.submit >= run.created - SLACK
    return True


def external_job_facts(usage: Usage, *, now: datetime | None = None) -> RunFacts:
    """Return the facts from accounting, or from what the controller still knows of the job."""
    return RunFacts(
        name=usage.name or f"job {usage.job_id}",
        id=f"job {usage.job_id}",
        kind="job",
        state=usage.state.value,
        ended=usage.state.ended,
        exit_code=usage.exit_code,
        tasks=_tasks(usage),
        job_ids=[usage.job_id],
        scheduler="slurm",
        folder=usage.folder,
        user=usage.user,
        hosts=[usage.hosts] if usage.hosts else [],
        submitted=usage.submit,
        start=usage.start,
        end=usage.end,
        seconds=usage.seconds,
        waited=usage.waited,
        requested=allocated_resources(usage),
        used=used_by_job(usage),
        mixed=usage.mixed,
        original_command=_commands(usage),
        limitations=_limitations(usage),
        time=now or datetime.now(timezone.utc),
    )


def used_by_job(usage: Usage) -> UsedResources:
    """Return means and peaks over the whole job; without a source where nothing was recorded."""
    largest = usage.largest
    if usage.cpu_seconds is None and largest is None:
        return UsedResources()
    nodes = usage.nodes or 1
    busy = usage.busy_cpus
    return UsedResources(
        source="accounting",
        seconds=usage.seconds,
        samples=len(usage.steps),
        cpus=None if busy is None else busy / nodes,
        memory=usage.node_memory,
        memory_at_most=any(step.tasks > step.nodes for step in usage.steps) or len(usage.steps) > 1,
        memory_host=largest.max_rss_node if largest and nodes > 1 else "",
        memory_limit=usage.memory // nodes if usage.memory and not usage.mixed else None,
        energy=usage.energy,
        gpus=_gpus(usage),
    )


def _gpus(usage: Usage) -> list[GpuUsed]:
    """Return each GPU with the mean of all: accounting does not tell them apart."""
    if usage.gpu_use is None or not usage.gpus:
        return []
    host = usage.hosts or "the job"
    return [
        GpuUsed(place // max(usage.gpus // max(usage.nodes, 1), 1), host, place, use=usage.gpu_use)
        for place in range(usage.gpus)
    ]


def _commands(usage: Usage) -> list[str]:
    words = redact_text(usage.command)
    if not words:
        return []
    return [f"cd {shlex.quote(usage.folder)}", words] if usage.folder else [words]


def _limitations(usage: Usage) -> list[str]:
    found = ["allranks did not start this job, so there are no steps, losses and logs to show."]
    if usage.source == "scontrol":
        found.append("This site has no accounting: what the job used is unknown.")
    elif not usage.state.ended:
        found.append("The job has not ended; Slurm writes down what it used when it does.")
    elif usage.gpus and usage.gpu_use is None:
        found.append("This site's accounting does not record how busy GPUs are.")
    if len(usage.parts) > 1:
        kind = "parts" if usage.mixed else "array tasks"
        one = f" Of one alone: allranks report --job {usage.parts[0].job_id}" if usage.mixed else ""
        found.append(f"These are the numbers of {len(usage.parts)} {kind} together.{one}")
    return found


def _tasks(usage: Usage) -> dict[str, str]:
    """Return the state of each task of an array."""
    parts = {part.job_id.partition("_")[2]: part.state.value for part in usage.parts}
    return {} if usage.mixed else parts
