"""What ``--requeue`` will do on this cluster, where that is not the usual.

Queried once and never fatal: a cluster that does not answer here still gets the job.
"""

from __future__ import annotations

import re

from allranks.cluster.slurm.commands import query
from allranks.errors import AllranksError
from allranks.job.plan import Plan

SHORT_KILL_WAIT = 10
"""Seconds between TERM and KILL below which a batch script may not get to requeue itself."""


def cluster_notes(plan: Plan) -> list[str]:
    """Return what to expect, before a submission; nothing without ``--requeue``."""
    if not plan.job.requeue:
        return []
    try:
        config = _pairs(query(["scontrol", "show", "config"], timeout=10))
        partition = _pairs(_partition(plan.job.partition))
    except AllranksError:
        return []
    return [note for note in (_preemption(config, partition), _kill_wait(config)) if note]


def job_notes(plan: Plan, job_id: str) -> list[str]:
    """Return what Slurm made of the job: a site may switch requeueing off whatever a job asks."""
    if not plan.job.requeue:
        return []
    try:
        text = query(["scontrol", "show", "job", "-o", job_id], timeout=10)
    except AllranksError:
        return []
    if not re.search(r"\bRequeue=0\b", text):
        return []
    return [
        "Slurm does not let this job be requeued: it will submit itself again instead, "
        "each time as a new job."
    ]


def _partition(name: str | None) -> str:
    """Return Slurm's record of the partition, or of the default one."""
    text = query(["scontrol", "show", "partition", "-o", *([name] if name else [])], timeout=10)
    lines = text.splitlines()
    return next((line for line in lines if name or "Default=YES" in line), "")


def _pairs(text: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)\s*=\s*(\S+)", text))


def _preemption(config: dict[str, str], partition: dict[str, str]) -> str:
    mode = partition.get("PreemptMode") or config.get("PreemptMode", "")
    if config.get("PreemptType", "preempt/none") == "preempt/none" or "CANCEL" not in mode.upper():
        return ""
    grace = partition.get("GraceTime", "0")
    return (
        f"Jobs of this partition are cancelled when another takes their place (grace time {grace} s): "
        "the script submits itself again if it gets the time to."
    )


def _kill_wait(config: dict[str, str]) -> str:
    wait = config.get("KillWait", "")
    if not wait.isdigit() or int(wait) >= SHORT_KILL_WAIT:
        return ""
    return (
        f"This cluster kills a job {wait} s after its time limit: a training that has not exited by "
        "then may lose what it did since its last checkpoint."
    )
