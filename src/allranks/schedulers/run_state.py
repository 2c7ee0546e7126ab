"""How a run stands: what the scheduler says, or what the run folder tells when it says nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path

from allranks.cluster.slurm.job_states import OUTCOMES, JobState
from allranks.cluster.slurm.job_status import JobStatus, summarise
from allranks.cluster.slurm.jobs import job_status
from allranks.cluster.slurm.pending_reasons import pending_reason_text
from allranks.errors import MissingDependencyError, SlurmError
from allranks.runs.attempt import Attempt
from allranks.runs.run import Run
from allranks.runs.run_process import Home, home_of, last_sign

_FRESH = 120.0
"""Seconds for which a run on another machine is believed to live after it has written anything."""


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
    """Of a job array what Slurm says of each task that it knows."""
    is_here: bool = False
    """It is no job but a process of this machine."""

    @property
    def is_running(self) -> bool | None:
        """Whether it holds nodes now; None when nobody knows."""
        return None if self.state is JobState.UNKNOWN else self.state.active


def run_statuses(runs: Iterable[Run], timeout: float = 30) -> list[RunStatus]:
    """The state of many runs with few calls to Slurm, each for at most so many seconds; none when
    there is nothing to ask.
    """
    folders = [_Folder(run) for run in runs]
    jobs = [job for folder in folders for job in folder.asked_about]
    known, silence = _ask_slurm(jobs, timeout)
    if jobs:  # what a job wrote before its end is there once Slurm tells of the end, not sooner
        folders = [_Folder(folder.run) for folder in folders]
    return [_status(folder, known, silence) for folder in folders]


def jobs_of(run: Run) -> list[str]:
    """The jobs that Slurm has to be asked about to know how a run stands; none where its folder tells."""
    return _Folder(run).asked_about


class _Folder:
    """What a run's folder tells; each file is read once, and only where it matters."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @cached_property
    def last(self) -> Attempt | None:
        return self.run.last_attempt

    @cached_property
    def home(self) -> Home:
        return home_of(self.run)

    @cached_property
    def jobs(self) -> list[str]:
        """The last job stands for the run; of an array each, as its tasks go on in jobs of their own."""
        return self.run.job_ids if self.is_array else self.run.job_ids[-1:]

    @cached_property
    def is_array(self) -> bool:
        return bool(self.run.job_ids and self.run.array)

    @property
    def asked_about(self) -> list[str]:
        """As jobs_of."""
        if not self.run.job_ids:
            return self.around
        return [] if self._settled else self.jobs

    @property
    def around(self) -> list[str]:
        """The job that a run on another machine is inside of: when that is over, so is the run."""
        if not self.home.job_id or self.home.is_here:
            return []
        return [self.home.job_id] if self.last is not None and not self.last.is_over else []

    @property
    def _settled(self) -> bool:
        """It tells the end itself: this very job wrote its exit code. Not of an array's tasks."""
        last = self.last
        if self.is_array or last is None or last.followed:
            return False
        return last.exit_code == 0 and last.job_id == self.run.job_ids[-1]


def elapsed(status: RunStatus, now: float | None = None) -> float | None:
    """Seconds that it has run, or ran; None where it did not, or nobody knows for how long."""
    if status.start is None or not (status.end or status.state.active):
        return None
    end = status.end.timestamp() if status.end else time.time() if now is None else now
    return max(end - status.start.timestamp(), 0.0)


def _job(folder: _Folder, known: dict[str, JobStatus]) -> JobStatus | None:
    """What Slurm says of the run's jobs as one."""
    told = [known[job] for job in folder.jobs if job in known]
    told = [job for job in told if job.state is not JobState.UNKNOWN]
    if len(told) < 2:
        return told[0] if told else None
    return summarise(folder.jobs[-1], told)


def _ask_slurm(ids: list[str], timeout: float) -> tuple[dict[str, JobStatus], str]:
    if not ids:
        return {}, ""
    try:
        return job_status(ids, timeout=timeout), ""
    except (SlurmError, MissingDependencyError) as error:
        return {}, str(error).splitlines()[0]


def _status(folder: _Folder, known: dict[str, JobStatus], silence: str) -> RunStatus:
    run = folder.run
    told = _folder_status(folder, next((known[job] for job in folder.around if job in known), None))
    job = _job(folder, known)
    if job is None:
        why = told.why or (silence if run.job_ids and not told.state.ended else "")
        return replace(told, why=why)
    why = told.why if told.attempts else ""
    if job.state is JobState.PENDING:
        why = pending_reason_text(job.reason).replace("JOBID", run.job_ids[-1])
    return RunStatus(
        run,
        _in_other_words(folder, job.state),
        job_id=run.job_ids[-1],
        exit_code=job.exit_code if job.state.ended else None,
        nodes=job.nodes or told.nodes,
        start=job.start or told.start,
        end=job.end,
        expected_start=job.expected_start,
        why=why,
        attempts=told.attempts,
        tasks=_tasks(folder, known),
    )


def _tasks(folder: _Folder, known: dict[str, JobStatus]) -> tuple[JobStatus, ...]:
    jobs = [known[job] for job in folder.jobs if job in known] if folder.is_array else []
    return tuple(task for job in jobs for task in job.tasks or (job,))


def folder_status(run: Run, around: JobStatus | None = None) -> RunStatus:
    """The state as the run folder tells it, without a question to Slurm.

    ``around``: what Slurm has said of the job that the run is inside of.
    """
    return _folder_status(_Folder(run), around)


def _folder_status(folder: _Folder, around: JobStatus | None) -> RunStatus:
    run, last = folder.run, folder.last
    job_id = run.job_ids[-1] if run.job_ids else ""
    is_here = not job_id and folder.home.is_here
    if last is None:
        return RunStatus(run, JobState.UNKNOWN, job_id, why="nothing was started", is_here=is_here)
    state, why, end = JobState.UNKNOWN, _reason(last), last.end
    worst = _worst(run, last)
    if worst is not None:
        state = OUTCOMES.get(worst.outcome, JobState.FAILED)
    elif run.scheduler == "local":
        state, told = _without_end(folder.home, run.path, last, around)
        why = why or told
        end = None if not state.ended else around.end if around else last.end
    return RunStatus(
        run,
        state,
        job_id,
        exit_code=worst.exit_code if worst else None,
        nodes=",".join(last.hosts),
        start=last.start,
        end=end,
        why=why,
        attempts=last.number,
        is_here=is_here,
    )


def _without_end(
    home: Home, run: Path, last: Attempt, around: JobStatus | None
) -> tuple[JobState, str]:
    """A run of no job of its own that has written no end: it lives, or was killed.

    Here its process tells. Of another machine the end of the job around it does; that this job still runs
    says nothing, and then only fresh files are a sign of life.
    """
    if home.is_here:
        return (JobState.RUNNING, "") if home.process else (JobState.FAILED, "killed")
    forgotten = around is not None and around.state is JobState.UNKNOWN
    if around is not None and not forgotten and not around.state.active:
        failed = around.state is JobState.COMPLETED or not around.state.ended
        state = JobState.FAILED if failed else around.state
        return state, f"it ended with job {home.job_id}"
    if time.time() - last_sign(run, last.path) < _FRESH:
        return JobState.RUNNING, f"it runs on {home.host}, as its files tell" if home.host else ""
    if forgotten or not home.host:
        return JobState.FAILED, "killed"
    return JobState.UNKNOWN, f"it was started on {home.host}; only that machine can tell"


def _in_other_words(folder: _Folder, state: JobState) -> JobState:
    """An exit code is a failure to Slurm; the folder knows what it stood for: 75 is for ranks that left."""
    last = folder.last
    if state is not JobState.FAILED or folder.is_array or last is None or last.followed:
        return state
    known = OUTCOMES.get(last.outcome, state) if last.job_id == folder.jobs[-1] else state
    return state if known is JobState.COMPLETED else known


def _reason(last: Attempt) -> str:
    """Why the last attempt ended, where it did not just finish."""
    failure = last.first_failure()
    if failure and last.outcome in ("", "failed"):
        return f"rank {failure.rank} failed first"
    return "" if last.outcome in ("", "finished") else last.reason or last.interrupted


def _worst(run: Run, last: Attempt) -> Attempt | None:
    """The life that tells how the run ended, once none goes on: the last; of an array the worst task's."""
    tasks = {one.array_task: one for one in run.attempts} if last.array_task else {}
    lives = [*tasks.values()] or [last]
    if not all(one.is_over for one in lives):
        return None
    return max(lives, key=lambda one: (one.outcome not in OUTCOMES, one.exit_code or 0))
