"""The user's jobs on Slurm that are no runs of allranks: shown beside them, and only shown."""

from __future__ import annotations

import time
from typing import Any

from allranks.cluster.slurm.job_states import JobState
from allranks.cluster.slurm.job_status import JobStatus
from allranks.cluster.slurm.jobs import list_jobs
from allranks.cluster.slurm.pending_reasons import pending_reason_text
from allranks.errors import AllranksError
from allranks.observe.view.json_numbers import seconds
from allranks.observe.web.beside import Beside

_QUEUE = 10.0  # seconds for which the queue holds


class QueuedJobs:
    """The user's jobs on Slurm, those that are no run of ours; nothing where there is no Slurm."""

    def __init__(self) -> None:
        self._asked = float("-inf")
        self._beside = Beside()
        self._jobs: list[JobStatus] | None = None

    def jobs(self, ours: set[str]) -> list[dict[str, Any]] | None:
        """As of the last answer, another is asked for beside; None where Slurm gives none."""
        if time.monotonic() - self._asked > _QUEUE:
            self._asked = time.monotonic()
            self._beside.start(self._ask)
        jobs = self._jobs  # the thread may change it meanwhile
        if jobs is None:
            return None
        return [_job(job) for job in jobs if not _ids(job) & ours]

    def _ask(self) -> None:
        try:
            self._jobs = list_jobs(timeout=30)
        except AllranksError:
            self._jobs = None


def _ids(job: JobStatus) -> set[str]:
    return {job.job_id, job.job_id.partition("_")[0].partition("+")[0], job.raw_id}


def _job(job: JobStatus) -> dict[str, Any]:
    pending = job.state is JobState.PENDING
    return {
        "job_id": job.job_id,
        "name": job.name,
        "state": job.state.value,
        "why": pending_reason_text(job.reason).replace("JOBID", job.job_id) if pending else "",
        "nodes": job.nodes,
        "partition": job.partition,
        "start": seconds(job.start),
        "expected_start": seconds(job.expected_start),
        "time_limit": job.time_limit,
    }
