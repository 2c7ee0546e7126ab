"""The state of a run, from its folder and from what Slurm reports of its jobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from allranks.cluster.slurm.job_states import OUTCOMES, JobState
from allranks.cluster.slurm.job_status import JobStatus
from allranks.cluster.slurm.jobs import job_status
from allranks.errors import MissingDependencyError, SlurmError
from allranks.runs.attempt import Attempt
from allranks.runs.run_folder import Run
from allranks.runs.run_process import RunProcess, process_of


@dataclass(frozen=True)
class RunStatus:
    """One row of ``ps``."""

    run: Run
    state: JobState
    job_id: str = ""
    exit_code: int | None = None
    nodes: str = ""
    start: datetime | None = None
    end: datetime | None = None
    expected_start: datetime | None = None
    why: str = ""
    attempts: int = 0
    tasks: tuple[JobStatus, ...] = ()
    """The tasks of a job array that Slurm knows."""
    is_here: bool = False
    """It is a process of this machine, not a job."""

    @property
    def is_running(self) -> bool | None:
        """Whether it holds nodes now; None when that is unknown."""
        return None if self.state is JobState.UNKNOWN else self.state.active


def elapsed(status: RunStatus, now: float | None = None) -> float | None:
    """Return the seconds that a run has run, or ran; None where it did not, or that is unknown."""
    if status.start is None or not (status.end or status.state.active):
        return None
    end = status.end.timestamp() if status.end else time.time() if now is None else now
    return max(end - status.start.timestamp(), 0.0)


def query_jobs(ids: Sequence[str], timeout: float) -> tuple[dict[str, JobStatus], str]:
    """Return what Slurm reports of these jobs, or the first line of its error."""
    if not ids:
        return {}, ""
    try:
        return job_status(ids, timeout=timeout), ""
    except (SlurmError, MissingDependencyError) as error:
        return {}, str(error).splitlines()[0]


class RunFolder:
    """The facts in a run's folder; each file is read once, and only when it is needed."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @cached_property
    def last(self) -> Attempt | None:
        """The present attempt, or the one that ended last."""
        return self.run.last_attempt

    @cached_property
    def process(self) -> RunProcess:
        """The process and the machine of a run that is not a job."""
        return process_of(self.run)

    @cached_property
    def is_array(self) -> bool:
        return bool(self.run.job_ids and self.run.array)

    @cached_property
    def jobs(self) -> list[str]:
        """The last job stands for the run; of an array each, as its tasks are requeued separately."""
        return self.run.job_ids if self.is_array else self.run.job_ids[-1:]

    @property
    def has_exited(self) -> bool:
        """Whether the last job wrote its exit code, 0. Never of an array, whose tasks each write one."""
        last = self.last
        if self.is_array or last is None or last.has_successor:
            return False
        return last.exit_code == 0 and last.job_id == self.run.job_ids[-1]

    def status(self) -> RunStatus:
        """Return the state by the outcome of the attempts; UNKNOWN while there is none."""
        run, last = self.run, self.last
        job_id = run.job_ids[-1] if run.job_ids else ""
        is_here = not job_id and self.process.is_here
        if last is None:
            return RunStatus(
                run, JobState.UNKNOWN, job_id, why="nothing was started", is_here=is_here
            )
        worst = self._decisive_attempt(last)
        return RunStatus(
            run,
            OUTCOMES.get(worst.outcome, JobState.FAILED) if worst else JobState.UNKNOWN,
            job_id,
            exit_code=worst.exit_code if worst else None,
            nodes=",".join(last.hosts),
            start=last.start,
            end=last.end,
            why=_reason(last),
            attempts=last.number,
            is_here=is_here,
        )

    def _decisive_attempt(self, last: Attempt) -> Attempt | None:
        """Return the attempt by which the run ended, once none follows: of an array the worst task's."""
        tasks = {one.array_task: one for one in self.run.attempts} if last.array_task else {}
        attempts = [*tasks.values()] or [last]
        if not all(one.is_over for one in attempts):
            return None
        return max(attempts, key=lambda one: (one.outcome not in OUTCOMES, one.exit_code or 0))


def _reason(last: Attempt) -> str:
    """Return why the last attempt ended, where it did not just finish."""
    failure = last.first_failure()
    if failure and last.outcome in ("", "failed"):
        return f"rank {failure.rank} failed first"
    return "" if last.outcome in ("", "finished") else last.reason or last.interrupted
