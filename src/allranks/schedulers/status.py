"""How a run stands: what the scheduler says, or what the run folder tells when it says nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from allranks.errors import MissingDependencyError, SlurmError
from allranks.runs.attempts import Attempt
from allranks.runs.folder import Run
from allranks.runs.process import home_of, last_sign
from allranks.slurm.jobs import job_status
from allranks.slurm.parse import JobStatus, summarise
from allranks.slurm.reasons import pending_reason_text
from allranks.slurm.states import State

ENDS = {
    "finished": State.COMPLETED,
    "interrupted": State.INTERRUPTED,
    "cancelled": State.CANCELLED,
    "timed out": State.TIMEOUT,
    "preempted": State.PREEMPTED,
    "node lost": State.NODE_FAIL,
}
"""The state of what ended with such an outcome; any other end is a failure."""
_FRESH = 120.0
"""Seconds for which a run on another machine is believed to live after it has written anything."""


@dataclass(frozen=True)
class RunStatus:
    """One row of ``ps``."""

    run: Run
    state: State
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

    @property
    def is_running(self) -> bool | None:
        """Whether it holds nodes now; None when nobody knows."""
        return None if self.state is State.UNKNOWN else self.state.active


def run_statuses(runs: Iterable[Run], timeout: float = 30) -> list[RunStatus]:
    """The state of many runs with few calls to Slurm, each for at most so many seconds; none when
    there is nothing to ask.
    """
    runs = list(runs)
    known, silence = _ask_slurm([job for run in runs for job in jobs_of(run)], timeout)
    return [_status(run, known, silence) for run in runs]


def jobs_of(run: Run) -> list[str]:
    """The jobs that Slurm has to be asked about to know how a run stands; none where its folder tells.

    The last job stands for the run; of an array each, as its tasks go on in jobs of their own.
    """
    if not run.job_ids:
        return _around(run)
    if _settled(run):
        return []
    return run.job_ids if run.array else run.job_ids[-1:]


def _settled(run: Run) -> bool:
    """The folder itself tells the end: this very job wrote its exit code. Not of an array's tasks."""
    last = run.last_attempt
    if not run.job_ids or run.array or last is None or last.followed:
        return False
    return last.exit_code == 0 and last.job_id == run.job_ids[-1]


def _around(run: Run) -> list[str]:
    """The job that a run on another machine is inside of: when that is over, so is the run."""
    home = home_of(run)
    if not home.job_id or home.is_here:
        return []
    last = run.last_attempt
    return [home.job_id] if last is not None and not last.is_over else []


def elapsed(status: RunStatus, now: float | None = None) -> float | None:
    """Seconds that it has run, or ran; None where it did not, or nobody knows for how long."""
    if status.start is None or not (status.end or status.state.active):
        return None
    end = status.end.timestamp() if status.end else time.time() if now is None else now
    return max(end - status.start.timestamp(), 0.0)


def _job(run: Run, known: dict[str, JobStatus]) -> JobStatus | None:
    """What Slurm says of the run's jobs as one."""
    jobs = run.job_ids if run.array else run.job_ids[-1:]
    told = [known[job] for job in jobs if job in known and known[job].state is not State.UNKNOWN]
    if len(told) < 2:
        return told[0] if told else None
    return summarise(run.job_ids[-1], told)


def _ask_slurm(ids: list[str], timeout: float) -> tuple[dict[str, JobStatus], str]:
    if not ids:
        return {}, ""
    try:
        return job_status(ids, timeout=timeout), ""
    except (SlurmError, MissingDependencyError) as error:
        return {}, str(error).splitlines()[0]


def _status(run: Run, known: dict[str, JobStatus], silence: str) -> RunStatus:
    around = next((known[job] for job in _around(run) if job in known), None)
    folder = folder_status(run, around)
    job = _job(run, known)
    if job is None:
        why = folder.why or (silence if run.job_ids and not folder.state.ended else "")
        return replace(folder, why=why)
    why = folder.why if folder.attempts else ""
    if job.state is State.PENDING:
        why = pending_reason_text(job.reason).replace("JOBID", run.job_ids[-1])
    return RunStatus(
        run,
        _in_other_words(run, job.state),
        job_id=run.job_ids[-1],
        exit_code=job.exit_code if job.state.ended else None,
        nodes=job.nodes or folder.nodes,
        start=job.start or folder.start,
        end=job.end,
        expected_start=job.expected_start,
        why=why,
        attempts=folder.attempts,
        tasks=_tasks(run, known),
    )


def _tasks(run: Run, known: dict[str, JobStatus]) -> tuple[JobStatus, ...]:
    jobs = [known[job] for job in run.job_ids if job in known] if run.array else []
    return tuple(task for job in jobs for task in job.tasks or (job,))


def folder_status(run: Run, around: JobStatus | None = None) -> RunStatus:
    """The state as the run folder tells it, without a question to Slurm.

    ``around``: what Slurm has said of the job that the run is inside of.
    """
    last = run.last_attempt
    job_id = run.job_ids[-1] if run.job_ids else ""
    if last is None:
        return RunStatus(run, State.UNKNOWN, job_id, why="nothing was started")
    state, why, end = State.UNKNOWN, _reason(last), last.end
    worst = _worst(run, last)
    if worst is not None:
        state = ENDS.get(worst.outcome, State.FAILED)
    elif run.scheduler == "local":
        state, told = _without_end(run, last, around)
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
    )


def _without_end(run: Run, last: Attempt, around: JobStatus | None) -> tuple[State, str]:
    """A run of no job of its own that has written no end: it lives, or was killed.

    Here its process tells. Of another machine the end of the job around it does; that this job still runs
    says nothing, and then only fresh files are a sign of life.
    """
    home = home_of(run)
    if home.is_here:
        return (State.RUNNING, "") if home.process else (State.FAILED, "killed")
    forgotten = around is not None and around.state is State.UNKNOWN
    if around is not None and not forgotten and not around.state.active:
        failed = around.state is State.COMPLETED or not around.state.ended
        state = State.FAILED if failed else around.state
        return state, f"it ended with job {home.job_id}"
    if time.time() - last_sign(run.path, last.path) < _FRESH:
        return State.RUNNING, f"it runs on {home.host}, as its files tell" if home.host else ""
    if forgotten or not home.host:
        return State.FAILED, "killed"
    return State.UNKNOWN, f"it was started on {home.host}; only that machine can tell"


def _in_other_words(run: Run, state: State) -> State:
    """An exit code is a failure to Slurm; the folder knows what it stood for: 75 is for ranks that left."""
    last = run.last_attempt
    if state is not State.FAILED or run.array or last is None or last.followed:
        return state
    known = ENDS.get(last.outcome, state) if last.job_id == run.job_ids[-1] else state
    return state if known is State.COMPLETED else known


def _reason(last: Attempt) -> str:
    """Why the last attempt ended, where it did not just finish."""
    failure = last.first_failure()
    if failure and last.outcome in ("", "failed"):
        return f"rank {failure.rank} failed first"
    return "" if last.outcome in ("", "finished") else last.reason or last.interrupted


def _worst(run: Run, last: Attempt) -> Attempt | None:
    """The life that tells how the run ended, once none goes on: the last; of an array the worst task's."""
    tasks = {one.array_task: one for one in run.attempts} if run.array else {}
    lives = [*tasks.values()] or [last]
    if not all(one.is_over for one in lives):
        return None
    return max(lives, key=lambda one: (one.outcome not in ENDS, one.exit_code or 0))
