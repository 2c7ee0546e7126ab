"""Ending a run, wherever it is."""

from __future__ import annotations

import os
import signal

from allranks.cluster.slurm import jobs
from allranks.errors import AllranksError
from allranks.runs.atomic_files import now, write_text
from allranks.runs.run import Run
from allranks.runs.run_process import home_of
from allranks.runtime.agent.attempt_end import CANCELLED_FILE
from allranks.schedulers.run_state import run_statuses


def end_run(run: Run) -> tuple[str, str]:
    """The run's id and what was done to it."""
    status = run_statuses([run])[0]
    if status.state.ended:
        return run.id, f"has ended already ({status.state.value})"
    if run.job_ids:
        # First: a job script that goes on at this moment would bring the job back otherwise.
        write_text(run.path / CANCELLED_FILE, f"{now()}\n")
        # Two at once when a job has just submitted the one that goes on after it; more of an array.
        ids = run.job_ids if run.array else run.job_ids[-2:]
        jobs.cancel(ids)
        return run.id, f"cancelled job {ids[-1]}"
    home = home_of(run)
    if home.host and not home.is_here:
        job = f", or end the job around it: scancel {home.job_id}" if home.job_id else ""
        raise AllranksError(
            f"{run.id} was started on {home.host}, not here. Log in there and cancel it{job}."
        )
    if (pid := home.process) is None:
        return run.id, "is not running"
    os.kill(pid, signal.SIGTERM)
    return run.id, f"told process {pid} to end"
