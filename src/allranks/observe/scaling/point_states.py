"""The states of the points of a study, from the scheduler and their run folders; submit and wait for them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from allranks.cluster.slurm.job_states import JobState
from allranks.core.formatting import one_line
from allranks.job.plan import Plan
from allranks.observe.scaling.scaling_study import (
    DONE,
    FAILED,
    QUEUED,
    RUNNING,
    WAITING,
    Point,
    Study,
)
from allranks.runs.run_folder import Run
from allranks.schedulers import run_statuses
from allranks.schedulers.run_state import RunStatus
from allranks.schedulers.slurm import SlurmScheduler

PATIENCE = 120.0
"""Seconds for which a job may be unknown to Slurm, which may be unavailable."""
CONSOLE = "console.log"
"""The output of a point's launcher and ranks, in its run folder, where it is not a job."""
_ERROR = re.compile(r"\berror\b", re.IGNORECASE)
_TAIL = 16_384


class PointPoller:
    """Polls the open points; remembers since when Slurm does not know a job."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._unknown: dict[str, float] = {}

    def refresh(self) -> bool:
        """Query the open points; True when anything changed. The holder of the study saves it."""
        pairs = [
            (point, run)
            for point in self.study.points
            if point.open and (run := self.study.run_of(point))
        ]
        before = [(point.state, point.why) for point, _ in pairs]
        for (point, _), status in zip(pairs, run_statuses([run for _, run in pairs]), strict=True):
            self._settle(point, status)
        return before != [(point.state, point.why) for point, _ in pairs]

    def _settle(self, point: Point, status: RunStatus) -> None:
        state = status.state
        if state is JobState.UNKNOWN and not point.job_id:
            began = status.attempts > 0  # elsewhere: it may still run there
            point.state, point.why = RUNNING if began else FAILED, one_line(status.why)
            return
        if state is JobState.UNKNOWN:
            now = time.monotonic()
            if now - self._unknown.setdefault(point.run, now) > PATIENCE:
                point.state, point.why = FAILED, "Slurm no longer knows its job."
            return
        self._unknown.pop(point.run, None)
        if state is JobState.COMPLETED:
            point.state, point.why = DONE, ""
        elif state.ended:
            point.state, point.why = FAILED, failure_text(status)
        elif state.active:
            point.state, point.why = RUNNING, ""
        else:
            point.state, point.why = QUEUED, status.why


def reset_lost_points(study: Study) -> None:
    """Reset open points whose run folder is gone."""
    for point in study.points:
        if point.open and study.run_of(point) is None:
            point.state, point.why, point.run = WAITING, "", ""


def failure_text(status: RunStatus) -> str:
    """Return in one line why a run failed: its first error, else the scheduler's reason or the last error
    line.
    """
    last = status.run.last_attempt
    failure = last.first_failure() if last else None
    if failure is not None:
        return f"rank {failure.rank}: {one_line(failure.error) or failure.how}"
    state = "" if status.state is JobState.FAILED else status.state.value
    code = f"exit code {status.exit_code}" if status.exit_code else ""
    how = ", ".join(filter(None, (state, code)))
    return ": ".join(filter(None, (how, one_line(status.why) or _last_error_line(status.run))))


def _last_error_line(run: Run) -> str:
    """Return the last error around the ranks, printed by srun or the script."""
    files = [path for path in (run.path / CONSOLE, *run.path.glob("slurm-*.out")) if path.is_file()]
    newest = sorted(files, key=lambda path: path.stat().st_mtime)[-1:]
    lines = [line for path in newest for line in _tail(path).splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)]
    return one_line((errors or lines or [""])[-1])


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - _TAIL, 0))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""  # somebody else's


def progress_text(run: Run | None) -> str:
    """Return the progress of a run: ``step 40 of 100``; empty when unknown."""
    last = run.last_attempt if run else None
    progress = last.progress if last else None
    if progress is None or not progress.total_steps:
        return ""
    return f"step {progress.step} of {progress.total_steps}"


QUICK, SLOW, QUICK_FOR = 2.0, 10.0, 180.0
"""Seconds between two polls: at first, and after QUICK_FOR seconds."""


def submit_point(
    study: Study, point: Point, plan: Plan, *, python: str | None, after: str = ""
) -> None:
    """Submit one point to Slurm; ``after`` is a job that must have ended before."""
    if after:
        wish = ",".join(filter(None, (plan.job.dependency, f"afterany:{after}")))
        plan = replace(plan, job=replace(plan.job, dependency=wish))
    submitted = SlurmScheduler().start(plan, made_by=study.command, python=python)
    point.run, point.job_id = str(submitted.run.path), submitted.job_id
    point.state, point.why = QUEUED, ""
    study.save()


def wait_for_points(study: Study, show: Callable[[], None]) -> None:
    """Wait until no point is open; ``show`` is called at every poll."""
    looker, began = PointPoller(study), time.monotonic()
    while True:
        if looker.refresh():
            study.save()
        show()
        if not any(point.open for point in study.points):
            return
        time.sleep(QUICK if time.monotonic() - began < QUICK_FOR else SLOW)
