"""Ending a run, wherever it is."""

from __future__ import annotations

import os
import signal

from allranks.agent.after import CANCELLED_FILE
from allranks.errors import AllranksError
from allranks.runs.files import now, read_json, write_text
from allranks.runs.folder import Run
from allranks.schedulers.status import run_statuses, running_process
from allranks.slurm import jobs


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
    host = read_json(run.path / "run.json").get("host")
    if host is not None and host != os.uname().nodename:
        raise AllranksError(f"{run.id} runs on {host}, not here. Log in there and cancel it.")
    pid = running_process(run)
    if pid is None:
        return run.id, "is not running"
    os.kill(pid, signal.SIGTERM)
    return run.id, f"told process {pid} to end"
