"""Runs that are processes of this machine and end with them: on this machine, or across an allocation."""

from __future__ import annotations

import os
import signal
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from allranks.errors import AllranksError, JobError
from allranks.job.plan import Plan
from allranks.runs.attempt import Attempt
from allranks.runs.run_folder import Run
from allranks.runs.run_process import last_activity, process_of
from allranks.schedulers.base import Scheduler, StartedRun

if TYPE_CHECKING:
    from allranks.cluster.slurm.job_states import JobState
    from allranks.cluster.slurm.job_status import JobStatus
    from allranks.schedulers.run_state import RunFolder, RunStatus

_FRESH = 120.0
"""Seconds for which a run on another machine is taken for running after it has written anything."""


class ForegroundScheduler(Scheduler):
    """Starts processes of its own and waits for them."""

    verb: ClassVar[str] = "run"

    @abstractmethod
    def prepare(self, plan: Plan, python: str) -> Run:
        """Make the run folder of a plan that is executed later."""

    @abstractmethod
    def execute(self, plan: Plan, run: Run, *, python: str, show: str = "all") -> int:
        """Run the plan in its prepared folder, wait for its end and return the exit code."""

    def start(
        self, plan: Plan, *, python: str | None, made_by: str = "", show: str = "all"
    ) -> StartedRun:
        run = self.prepare(plan, python or plan.python)
        return StartedRun(
            run, exit_code=self.execute(plan, run, python=python or plan.python, show=show)
        )

    def terminate(self, run: Run) -> str:
        process = process_of(run)
        if process.host and not process.is_here:
            job = f", or end the job around it: scancel {process.job_id}" if process.job_id else ""
            raise AllranksError(
                f"{run.id} was started on {process.host}, not here. Log in there and cancel it{job}."
            )
        if (pid := process.live_pid) is None:
            return "is not running"
        os.kill(pid, signal.SIGTERM)
        return f"sent SIGTERM to process {pid}"

    def check_ended(self, status: RunStatus, force: bool) -> None:
        if status.is_here or not status.attempts or status.state.ended:
            super().check_ended(status, force)
        elif not force:  # only the files of another machine's run tell that it runs
            raise JobError(
                f"{status.run.id}: {status.why}, and a second attempt would write the same files.\n"
                f"If it has ended: allranks resume --force {status.run.id}"
            )

    def jobs_to_query(self, folder: RunFolder) -> list[str]:
        """Return the job that a run on another machine is inside of: when that is over, so is the run."""
        if not folder.process.job_id or folder.process.is_here:
            return []
        return (
            [folder.process.job_id] if folder.last is not None and not folder.last.is_over else []
        )

    def status(self, folder: RunFolder, known: Mapping[str, JobStatus], error: str) -> RunStatus:
        return self.folder_status(folder, known.get(folder.process.job_id))

    def folder_status(self, folder: RunFolder, enclosing: JobStatus | None = None) -> RunStatus:
        status = folder.status()
        if folder.last is None or status.state.ended:
            return status
        state, why = _state_without_end(folder, folder.last, enclosing)
        ended = enclosing.end if enclosing else folder.last.end
        return replace(
            status, state=state, why=status.why or why, end=ended if state.ended else None
        )


def _state_without_end(
    folder: RunFolder, last: Attempt, enclosing: JobStatus | None
) -> tuple[JobState, str]:
    """Return the state of a run that has written no end: it runs, or was killed.

    On this machine its process shows that; on another the end of the enclosing job does. While that job
    runs, only files written a moment ago show that the run does.
    """
    from allranks.cluster.slurm.job_states import JobState

    process = folder.process
    if process.is_here:
        return (JobState.RUNNING, "") if process.live_pid else (JobState.FAILED, "killed")
    forgotten = enclosing is not None and enclosing.state is JobState.UNKNOWN
    if enclosing is not None and not forgotten and not enclosing.state.active:
        failed = enclosing.state is JobState.COMPLETED or not enclosing.state.ended
        state = JobState.FAILED if failed else enclosing.state
        return state, f"it ended with job {process.job_id}"
    if time.time() - last_activity(folder.run.path, last.path) < _FRESH:
        return (
            JobState.RUNNING,
            f"it runs on {process.host}, as its files show" if process.host else "",
        )
    if forgotten or not process.host:
        return JobState.FAILED, "killed"
    return JobState.UNKNOWN, f"it was started on {process.host}; only that machine knows its state"
