"""How a run stands: what the scheduler says, or what the run folder tells when it says nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from allranks.errors import MissingDependencyError, SlurmError
from allranks.runs.files import integer, read_json
from allranks.runs.folder import Run
from allranks.runs.process import process_start
from allranks.slurm.jobs import job_status
from allranks.slurm.parse import JobStatus
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


def run_statuses(runs: Iterable[Run]) -> list[RunStatus]:
    """The state of many runs with few calls to Slurm; none when there is nothing to ask."""
    runs = list(runs)
    ids = [run.job_ids[-1] for run in runs if run.job_ids and not _settled(run)]
    known, silence = _ask_slurm(ids)
    return [_status(run, known, silence) for run in runs]


def _settled(run: Run) -> bool:
    """The folder itself tells the end: this very job wrote its exit code. Not of an array's tasks."""
    last = run.last_attempt
    if read_json(run.path / "run.json").get("array"):
        return False
    return last is not None and last.exit_code == 0 and last.job_id == run.job_ids[-1]


def _ask_slurm(ids: list[str]) -> tuple[dict[str, JobStatus], str]:
    if not ids:
        return {}, ""
    try:
        return job_status(ids), ""
    except (SlurmError, MissingDependencyError) as error:
        return {}, str(error).splitlines()[0]


def _status(run: Run, known: dict[str, JobStatus], silence: str) -> RunStatus:
    folder = _from_folder(run)
    job = known.get(run.job_ids[-1]) if run.job_ids else None
    if job is None or job.state is State.UNKNOWN:
        why = folder.why or (silence if run.job_ids and not _settled(run) else "")
        return RunStatus(**{**vars(folder), "why": why})
    why = folder.why if folder.attempts else ""
    if job.state is State.PENDING:
        why = pending_reason_text(job.reason).replace("JOBID", run.job_ids[-1])
    return RunStatus(
        run,
        job.state,
        job_id=run.job_ids[-1],
        exit_code=job.exit_code if job.state.ended else None,
        nodes=job.nodes or folder.nodes,
        start=job.start or folder.start,
        end=job.end,
        expected_start=job.expected_start,
        why=why,
        attempts=folder.attempts,
    )


def _from_folder(run: Run) -> RunStatus:
    last = run.last_attempt
    job_id = run.job_ids[-1] if run.job_ids else ""
    if last is None:
        return RunStatus(run, State.UNKNOWN, job_id, why="nothing was started")
    failure = last.first_failure()
    why = f"rank {failure.rank} failed first" if failure else ""
    state = State.UNKNOWN
    code = _exit_code(run)
    if code is not None:
        state = State.COMPLETED if code == 0 else State.FAILED
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


def _exit_code(run: Run) -> int | None:
    """The last life's; of an array the worst of its tasks, once all that began have ended."""
    if not read_json(run.path / "run.json").get("array"):
        last = run.last_attempt
        return last.exit_code if last else None
    codes = [attempt.exit_code for attempt in run.attempts]
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
