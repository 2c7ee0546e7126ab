"""How a run stands: what the scheduler says, or what the run folder tells when it says nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from allranks.errors import MissingDependencyError, SlurmError
from allranks.runs.attempts import Attempt
from allranks.runs.files import integer, read_json
from allranks.runs.folder import Run
from allranks.runs.process import process_start
from allranks.slurm.jobs import job_status
from allranks.slurm.parse import JobStatus, summarise
from allranks.slurm.reasons import pending_reason_text
from allranks.slurm.states import State


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


def run_statuses(runs: Iterable[Run], timeout: float = 30) -> list[RunStatus]:
    """The state of many runs with few calls to Slurm, each for at most so many seconds; none when
    there is nothing to ask.
    """
    runs = list(runs)
    ids = [job for run in runs if not _settled(run) for job in _asked(run)]
    known, silence = _ask_slurm(ids, timeout)
    return [_status(run, known, silence) for run in runs]


def _asked(run: Run) -> list[str]:
    """The last job stands for the run; of an array each, as its tasks go on in jobs of their own."""
    return run.job_ids if run.array else run.job_ids[-1:]


def _settled(run: Run) -> bool:
    """The folder itself tells the end: this very job wrote its exit code. Not of an array's tasks."""
    last = run.last_attempt
    if not run.job_ids or run.array or last is None or last.followed:
        return False
    return last.exit_code == 0 and last.job_id == run.job_ids[-1]


def _job(run: Run, known: dict[str, JobStatus]) -> JobStatus | None:
    """What Slurm says of the run's jobs as one."""
    found = [known[job] for job in _asked(run) if job in known]
    told = [one for one in found if one.state is not State.UNKNOWN]
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
    folder = folder_status(run)
    job = _job(run, known)
    if job is None:
        why = folder.why or (silence if run.job_ids and not _settled(run) else "")
        return RunStatus(**{**vars(folder), "why": why})
    why = folder.why if folder.attempts else ""
    if job.state is State.PENDING:
        why = pending_reason_text(job.reason).replace("JOBID", run.job_ids[-1])
    return RunStatus(
        run,
        _left_on_purpose(run, job.state),
        job_id=run.job_ids[-1],
        exit_code=job.exit_code if job.state.ended else None,
        nodes=job.nodes or folder.nodes,
        start=job.start or folder.start,
        end=job.end,
        expected_start=job.expected_start,
        why=why,
        attempts=folder.attempts,
    )


def folder_status(run: Run) -> RunStatus:
    """The state as the run folder tells it, without a question to Slurm."""
    last = run.last_attempt
    job_id = run.job_ids[-1] if run.job_ids else ""
    if last is None:
        return RunStatus(run, State.UNKNOWN, job_id, why="nothing was started")
    why = _reason(last)
    state = State.UNKNOWN
    code = _exit_code(run)
    if code is not None:
        state = State.COMPLETED if code == 0 else _left_on_purpose(run, State.FAILED)
        state = State.CANCELLED if last.outcome == "cancelled" else state
    elif run.scheduler == "local":
        state = State.RUNNING if _alive(run) else State.FAILED
        why = why or ("" if state is State.RUNNING else "killed")
    return RunStatus(
        run,
        state,
        job_id,
        exit_code=code,
        nodes=",".join(last.hosts),
        start=last.start,
        end=last.end,
        why=why,
        attempts=last.number,
    )


def _left_on_purpose(run: Run, state: State) -> State:
    """Exit code 75 is a failure to Slurm; the folder knows that the ranks had saved and left."""
    last = run.last_attempt
    if state is not State.FAILED or run.array or last is None or not last.interrupted:
        return state
    return State.INTERRUPTED if last.outcome == "interrupted" else state


def _reason(last: Attempt) -> str:
    """Why the last attempt ended, where it did not just finish."""
    failure = last.first_failure()
    if failure and last.outcome in ("", "failed"):
        return f"rank {failure.rank} failed first"
    return "" if last.outcome in ("", "finished") else last.reason or last.interrupted


def _exit_code(run: Run) -> int | None:
    """The last life's; of an array the worst of its tasks, once all that began have ended."""
    if not run.array:
        last = run.last_attempt
        return last.exit_code if last and not last.followed else None
    last_lives = {attempt.array_task: attempt for attempt in run.attempts}
    codes = [attempt.exit_code for attempt in last_lives.values()]
    return (
        None if None in codes else max((code for code in codes if code is not None), default=None)
    )


def _alive(run: Run) -> bool:
    return running_process(run) is not None


def running_process(run: Run) -> int | None:
    """The process in which a run of this machine lives; None when it is gone or elsewhere."""
    about = read_json(run.path / "run.json")
    pid = integer(about.get("pid"))
    if pid is None or about.get("host") != os.uname().nodename:
        return None
    return pid if about.get("started") and process_start(pid) == about["started"] else None
