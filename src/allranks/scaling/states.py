"""How the points of a study stand, asked of the scheduler and of their run folders."""

from __future__ import annotations

import re
import time

from allranks.runs.folder import Run
from allranks.scaling.study import DONE, FAILED, QUEUED, RUNNING, WAITING, Point, Study
from allranks.schedulers.status import RunStatus, run_statuses
from allranks.slurm.states import State
from allranks.wording import clean

PATIENCE = 120.0
"""Seconds for which Slurm is asked for a job that it does not know; it may be away itself."""
_FRAME = re.compile(r"\s+|Traceback|During handling|The above exception")


class Looker:
    """Looks at the points that are under way; remembers since when Slurm does not know a job."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._unknown: dict[str, float] = {}

    def refresh(self) -> bool:
        """Ask for those under way; True when anything changed. Whoever holds the study saves it."""
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
        if state is State.UNKNOWN and not point.job_id:
            point.state, point.why = FAILED, "it was never started."
            return
        if state is State.UNKNOWN:
            now = time.monotonic()
            if now - self._unknown.setdefault(point.run, now) > PATIENCE:
                point.state, point.why = FAILED, "Slurm no longer knows its job."
            return
        self._unknown.pop(point.run, None)
        if state is State.COMPLETED:
            point.state, point.why = DONE, ""
        elif state.ended:
            point.state, point.why = FAILED, failure_text(status)
        elif state.active:
            point.state, point.why = RUNNING, ""
        else:
            point.state, point.why = QUEUED, status.why


def forget_lost(study: Study) -> None:
    """Points under way whose run folder is gone have never been."""
    for point in study.points:
        if point.open and study.run_of(point) is None:
            point.state, point.why, point.run = WAITING, "", ""


def failure_text(status: RunStatus) -> str:
    """In one line why a run failed: the last line of its first error, else what the scheduler says."""
    first = _first_error(status.run)
    if first:
        return first
    code = f" (exit code {status.exit_code})" if status.exit_code else ""
    return f"{status.state.value}{code}{': ' if status.why else ''}{plain(status.why)}"


def _first_error(run: Run) -> str:
    last = run.last_attempt
    failure = last.first_failure() if last else None
    if failure is None:
        return ""
    lines = [line for line in failure.traceback.splitlines() if line.strip()]
    told = next((line for line in reversed(lines) if not _FRAME.match(line)), "")
    if "OutOfMemory" in told or "out of memory" in told:
        told = f"out of memory: {told}"
    how = f"signal {failure.signal}" if failure.signal else f"exit code {failure.exit_code}"
    return f"rank {failure.rank}: {plain(told) or how}"


def progress_text(run: Run | None) -> str:
    """How far a run is: ``step 40 of 100``; empty when its ranks do not tell."""
    last = run.last_attempt if run else None
    progress = last.progress if last else None
    if progress is None or not progress.total_steps:
        return ""
    return f"step {progress.step} of {progress.total_steps}"


def plain(text: str) -> str:
    """Other people's text as one line: its words, without what plays tricks on a terminal."""
    return clean(" ".join(text.split())).strip()
