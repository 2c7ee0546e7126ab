"""Slurm's queue: submit a job, report its state, cancel it, resume its run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from allranks.cluster.slurm import jobs
from allranks.cluster.slurm.job_states import OUTCOMES, JobState
from allranks.cluster.slurm.job_status import JobStatus, summarise
from allranks.cluster.slurm.pending_reasons import pending_reason_text
from allranks.cluster.slurm.submission import submit
from allranks.cluster.slurm.submit_environment import clean_environment
from allranks.errors import JobError
from allranks.job.plan import Plan
from allranks.job.sbatch import render
from allranks.runs.atomic_files import now, read_json, write_json, write_text
from allranks.runs.run_folder import Run
from allranks.runtime.agent.attempt_end import CANCELLED_FILE
from allranks.schedulers.base import Scheduler, StartedRun
from allranks.schedulers.requeue_warnings import cluster_notes, job_notes
from allranks.schedulers.resume_job import last_attempt_note, resubmit
from allranks.schedulers.run_setup import (
    copy_allranks,
    copy_strict_configs,
    make_run,
    record_versions,
    snapshot_code,
)
from allranks.schedulers.run_state import RunFolder, RunStatus


class SlurmScheduler(Scheduler):
    """The queue of the cluster."""

    name: ClassVar[str] = "slurm"
    verb: ClassVar[str] = "submit"
    limits_time: ClassVar[bool] = True

    def start(
        self, plan: Plan, *, python: str | None, made_by: str = "", show: str = "all"
    ) -> StartedRun:
        """Make the run folder, write the job script into it and submit that."""
        check_syntax(render(plan))
        notes = cluster_notes(plan)
        run = make_run(plan, self.name)
        plan, snapshot = snapshot_code(copy_strict_configs(plan, run), run, "copy")
        if plan.agent:
            copy_allranks(run)
        record_versions(plan, run, python)
        script = run.path / "job.sh"
        write_text(script, render(plan, made_by=made_by, run_dir=str(run.path)))
        if plan.job.array:
            record = run.path / "run.json"
            write_json(record, read_json(record) | {"array": plan.job.array})
        job_id = submit(script, cwd=plan.job.chdir, env={**os.environ, **plan.secrets})
        notes = [*snapshot.notes, *notes, *job_notes(plan, job_id)]
        return StartedRun(run.add_job_id(job_id), job_id, notes=tuple(notes))

    def terminate(self, run: Run) -> str:
        if not run.job_ids:
            return "is not running"
        # First: a job script that requeues itself at this moment would bring the job back otherwise.
        write_text(run.path / CANCELLED_FILE, f"{now()}\n")
        # Two at once when a job has just submitted the one that follows it; more of an array.
        ids = run.job_ids if run.array else run.job_ids[-2:]
        jobs.cancel(ids)
        return f"cancelled job {ids[-1]}"

    def resume(
        self, run: Run, changes: Mapping[str, int | None], *, python: str | None
    ) -> StartedRun:
        job_id = resubmit(run, changes)
        note = last_attempt_note(run)
        return StartedRun(run, job_id, notes=(note,) if note else ())

    def jobs_to_query(self, folder: RunFolder) -> list[str]:
        return [] if not folder.jobs or folder.has_exited else folder.jobs

    def status(self, folder: RunFolder, known: Mapping[str, JobStatus], error: str) -> RunStatus:
        """Return what Slurm reports; without a report, what the folder has."""
        run, by_folder = folder.run, folder.status()
        reports = [known[job] for job in folder.jobs if job in known]
        job = _as_one_job(folder, reports)
        if job is None:
            ended = by_folder.state.ended or not run.job_ids
            return replace(by_folder, why=by_folder.why or ("" if ended else error))
        why = by_folder.why if by_folder.attempts else ""
        if job.state is JobState.PENDING:
            why = pending_reason_text(job.reason).replace("JOBID", run.job_ids[-1])
        tasks = [task for each in reports for task in each.tasks or (each,)]
        return RunStatus(
            run,
            _by_outcome(folder, job.state),
            job_id=run.job_ids[-1],
            exit_code=job.exit_code if job.state.ended else None,
            nodes=job.nodes or by_folder.nodes,
            start=job.start or by_folder.start,
            end=job.end,
            expected_start=job.expected_start,
            why=why,
            attempts=by_folder.attempts,
            tasks=tuple(tasks) if folder.is_array else (),
        )


def _as_one_job(folder: RunFolder, reports: list[JobStatus]) -> JobStatus | None:
    found = [job for job in reports if job.state is not JobState.UNKNOWN]
    if len(found) < 2:
        return found[0] if found else None
    return summarise(folder.jobs[-1], found)


def _by_outcome(folder: RunFolder, state: JobState) -> JobState:
    """Return what an exit code stood for, which is a failure to Slurm: 75 is for ranks that saved."""
    last = folder.last
    if state is not JobState.FAILED or folder.is_array or last is None or last.has_successor:
        return state
    known = OUTCOMES.get(last.outcome, state) if last.job_id == folder.jobs[-1] else state
    return state if known is JobState.COMPLETED else known


def check_syntax(text: str) -> None:
    """Run ``bash -n``: a broken set-up line of the user is an error before the queue, not after it."""
    checked = subprocess.run(
        ["bash", "-n"], input=text, capture_output=True, text=True, check=False
    )
    if checked.returncode:
        raise JobError(f"The job script is not valid bash:\n{checked.stderr.strip()}")


def expected_start(text: str, cwd: str | None) -> str | None:
    """Return what ``sbatch --test-only`` prints for a script: when and where it would start, or None."""
    environment = clean_environment(os.environ)
    try:
        checked = subprocess.run(
            ["sbatch", "--test-only"], input=text, capture_output=True, text=True, check=False,
            env=environment, cwd=cwd, timeout=30,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "nothing within 30 s; its controller may be down (scontrol ping)"
    printed = (checked.stderr or checked.stdout).strip()
    return printed.removeprefix("sbatch: ").strip() or None
