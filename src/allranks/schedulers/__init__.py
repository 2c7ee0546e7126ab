"""Where a job goes: this machine (``local``), the allocation around (``allocation``) or the queue (``slurm``).

Each is a Scheduler (``base.py``): plan, start, state, cancel, resume. The choice by
name is made here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allranks.cluster.slurm.job_status import JobStatus
    from allranks.runs.run_folder import Run
    from allranks.schedulers.base import Scheduler
    from allranks.schedulers.foreground import ForegroundScheduler
    from allranks.schedulers.run_state import RunStatus

NAMES = ("local", "allocation", "slurm")


def get_scheduler(name: str) -> Scheduler:
    """Return the scheduler of that name."""
    if name == "local":
        from allranks.schedulers.local import LocalScheduler

        return LocalScheduler()
    if name == "allocation":
        from allranks.schedulers.allocation import AllocationScheduler

        return AllocationScheduler()
    from allranks.schedulers.slurm import SlurmScheduler

    return SlurmScheduler()


def foreground_scheduler() -> ForegroundScheduler:
    """Return the scheduler of ``allranks run``: the allocation around, else this machine."""
    if "SLURM_JOB_ID" in os.environ:
        from allranks.schedulers.allocation import AllocationScheduler, in_allocation

        if in_allocation(os.environ):
            return AllocationScheduler()
    from allranks.schedulers.local import LocalScheduler

    return LocalScheduler()


def scheduler_of(run: Run) -> Scheduler:
    """Return the scheduler that a run was started by; a folder that a job script made is Slurm's."""
    return get_scheduler("slurm" if run.job_ids else run.scheduler)


def run_statuses(runs: Iterable[Run], timeout: float = 30) -> list[RunStatus]:
    """Return the state of many runs with few calls to Slurm, each at most ``timeout`` seconds long.

    Slurm is not called when no run depends on it.
    """
    from allranks.schedulers.run_state import RunFolder, query_jobs

    folders = [(scheduler_of(run), RunFolder(run)) for run in runs]
    jobs = [job for scheduler, folder in folders for job in scheduler.jobs_to_query(folder)]
    known, error = query_jobs(jobs, timeout)
    if jobs:  # what a job wrote before its end is there once Slurm reports the end, not sooner
        folders = [(scheduler, RunFolder(folder.run)) for scheduler, folder in folders]
    return [scheduler.status(folder, known, error) for scheduler, folder in folders]


def jobs_to_query(run: Run) -> list[str]:
    """Return the jobs that the state of a run depends on; none where its folder is enough."""
    from allranks.schedulers.run_state import RunFolder

    return scheduler_of(run).jobs_to_query(RunFolder(run))


def folder_status(run: Run, enclosing: JobStatus | None = None) -> RunStatus:
    """return the state that the run folder has, without a call to Slurm.

    ``enclosing``: what Slurm reported of the job that the run is inside of.
    """
    from allranks.schedulers.run_state import RunFolder

    return scheduler_of(run).folder_status(RunFolder(run), enclosing)
