"""Run a study to its end, or resume it: points that are missing or failed run, finished ones are kept."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from allranks.core.shell import quote
from allranks.errors import AllranksError, JobError, UsageError
from allranks.job.plan import Plan
from allranks.observe.scaling.analysis import MeasuredRuns, analyse, measure_point
from allranks.observe.scaling.point_plans import prepare_point
from allranks.observe.scaling.point_states import (
    CONSOLE,
    PointPoller,
    progress_text,
    reset_lost_points,
    submit_point,
    wait_for_points,
)
from allranks.observe.scaling.scaling_study import DONE, FAILED, RUNNING, WAITING, Point, Study
from allranks.observe.scaling.size_results import Analysis
from allranks.observe.scaling.study_results import write_results
from allranks.runs.run_folder import Run
from allranks.schedulers import get_scheduler
from allranks.schedulers.foreground import ForegroundScheduler


def run_point(
    study: Study, point: Point, plan: Plan, python: str, scheduler: ForegroundScheduler
) -> Run:
    """Run a point to its end; raise KeyboardInterrupt when it was cancelled."""
    run = scheduler.prepare(plan, python)
    _mark_running(study, point, run)  # before it starts, so that a killed study knows of it
    with _progress_line(run, study.axis.count(point.size)), _redirect_output(run.path / CONSOLE):
        scheduler.execute(plan, run, python=python)
    last = run.last_attempt
    if last is not None and last.outcome == "cancelled":
        raise KeyboardInterrupt
    return run


def _mark_running(study: Study, point: Point, run: Run) -> None:
    point.run, point.state, point.why = str(run.path), RUNNING, ""
    study.save()


@contextmanager
def _redirect_output(path: Path) -> Iterator[None]:
    """Redirect the output of this process and its children to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, own in zip((1, 2), kept, strict=True):
            os.dup2(own, number)
            os.close(own)
        os.close(file)


@contextmanager
def _progress_line(run: Run, what: str) -> Iterator[None]:
    """Show a line with the steps done, on a terminal.

    A process and no thread: ranks are forked from a process that must have none.
    """
    if not os.isatty(2):
        yield
        return
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _print_progress(run, what, parent)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.write(2, b"\r\x1b[K")


def _print_progress(run: Run, what: str, parent: int) -> None:
    """Print the line until this process is killed or its parent is gone."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        began = time.monotonic()
        while os.getppid() == parent:
            far = progress_text(run) or "running"
            text = f"  {what}: {far}, {time.monotonic() - began:.0f} s"
            os.write(2, b"\r\x1b[K" + text.encode())
            time.sleep(0.5)
    finally:
        os._exit(0)


class StudyDisplay(Protocol):
    """Shows a study while it runs."""

    known: MeasuredRuns
    """What it has read of points that are done."""

    def point_started(self, study: Study, point: Point) -> None: ...

    def point_ended(self, study: Study, point: Point) -> None: ...

    def refresh(self, study: Study) -> None: ...


def run_study(study: Study, view: StudyDisplay, *, python: str, wait: bool = True) -> Analysis:
    """Run the waiting points, or submit and watch them; results are written as far as there are any.

    KeyboardInterrupt leaves jobs of Slurm as they are, and ends a point that runs here.
    """
    try:
        scheduler = get_scheduler(study.where)
        if isinstance(scheduler, ForegroundScheduler):
            _run_sequentially(study, view, python, scheduler)
        else:
            _submit_points(study, view, python)
            if wait:
                wait_for_points(study, lambda: view.refresh(study))
    finally:
        found = analyse(study, view.known)
        write_results(study, found)
    return found


def prepare_resume(study: Study) -> None:
    """Prepare a study to be resumed: points that failed, were lost or have no measurement run again."""
    _enter_start_folder(study)
    load_secrets(study)
    reset_lost_points(study)
    PointPoller(study).refresh()
    _refuse_running(study)
    for point in study.points:
        if point.state == FAILED or (point.state == DONE and not _is_measured(study, point)):
            point.state, point.why, point.run, point.job_id = WAITING, "", "", ""
    study.save()


def _refuse_running(study: Study) -> None:
    """Refuse to run a point twice that runs here, or perhaps on another machine."""
    alive = [point for point in study.points if point.state == RUNNING]
    if study.is_queued or not alive:
        return
    path, why = Path(alive[0].run), alive[0].why
    if not why:
        raise JobError(
            f"{study.id} is under way: {path.name} runs now.\nWatch it: allranks logs -f {path.name}"
        )
    raise JobError(
        f"{study.id} may be under way: {path.name} has no end, and {why}.\n"
        f"Resume it there: allranks scale --resume {quote(str(study.path))}\n"
        f"Or, when it is over, move its folder away: {path}"
    )


def _is_measured(study: Study, point: Point) -> bool:
    try:
        measure_point(study, point, {})
    except AllranksError:
        return False
    return True


def analyse_now(study: Study) -> Analysis:
    """Analyse a study as it is now, without saving: another process may be running it."""
    PointPoller(study).refresh()
    return analyse(study)


def load_secrets(study: Study) -> None:
    """Read the secrets of a resumed study from the environment: its file has none."""
    if missing := [name for name in study.secrets if name not in os.environ]:
        raise UsageError(
            f"{study.id} was given {', '.join(missing)}, which is secret and was not written down.\n"
            f"Set it: export {missing[0]}=…"
        )
    own = [f"{name}={os.environ[name]}" for name in study.secrets]
    if own:
        study.values = {**study.values, "env": [*study.values.get("env", ()), *own]}


def _enter_start_folder(study: Study) -> None:
    """Change to the folder where the study was started: its paths are relative to it."""
    try:
        os.chdir(study.cwd or ".")
    except OSError as error:
        raise UsageError(
            f"{study.id} resumes where it was started, and {study.cwd} cannot be entered: "
            f"{error.strerror}.\nWhat was measured is still there: allranks scale --show {quote(str(study.path))}"
        ) from None


def _run_sequentially(
    study: Study, view: StudyDisplay, python: str, scheduler: ForegroundScheduler
) -> None:
    for point in study.points:
        if point.state != WAITING:
            continue
        if failed := [one for one in study.at(point.size) if one.state == FAILED]:
            point.state, point.why = FAILED, failed[0].why  # it would fail again
            study.save()
            continue
        try:
            plan = prepare_point(study, point)
            view.point_started(study, point)
            run_point(study, point, plan, plan.job.python or python, scheduler)
            PointPoller(study).refresh()
            study.save()
        except KeyboardInterrupt:
            point.state, point.why, point.run = WAITING, "", ""
            study.save()
            raise
        except AllranksError as error:
            _mark_failed(study, point, error)
        view.point_ended(study, point)


def _submit_points(study: Study, view: StudyDisplay, python: str) -> None:
    last = next((p.job_id for p in reversed(study.points) if p.open), "")
    for point in study.points:
        if point.state != WAITING:
            continue
        try:
            plan = prepare_point(study, point)
            before = last if study.one_by_one else ""
            own = plan.job.python or python
            submit_point(study, point, plan, python=own, after=before)
            last = point.job_id
            view.point_started(study, point)
        except AllranksError as error:
            _mark_failed(study, point, error)
            view.point_ended(study, point)


def _mark_failed(study: Study, point: Point, error: AllranksError) -> None:
    point.state, point.why = FAILED, " ".join(str(error).split())
    study.save()
