"""A study from where it stands to its end: what is missing or failed is run, what is done is kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from allranks.core.shell import quote
from allranks.errors import AllranksError, JobError, UsageError
from allranks.observe.scaling.analysis import Analysis, Known, analyse, measured
from allranks.observe.scaling.here import run_point
from allranks.observe.scaling.point_states import Looker, forget_lost
from allranks.observe.scaling.points import prepare_point
from allranks.observe.scaling.queue import submit_point, watch
from allranks.observe.scaling.results import write_results
from allranks.observe.scaling.study_file import DONE, FAILED, RUNNING, WAITING, Point, Study
from allranks.schedulers import get_scheduler
from allranks.schedulers.foreground import ForegroundScheduler


class StudyDisplay(Protocol):
    """What shows a study while it goes on."""

    known: Known
    """What it has read of points that are done."""

    def begins(self, study: Study, point: Point) -> None: ...

    def ended(self, study: Study, point: Point) -> None: ...

    def look(self, study: Study) -> None: ...


def go_on(study: Study, view: StudyDisplay, *, python: str, wait: bool = True) -> Analysis:
    """Run what is waiting, or submit it and watch; the results are written as far as there are any.

    KeyboardInterrupt leaves jobs of Slurm as they are, and ends a point that runs here.
    """
    try:
        scheduler = get_scheduler(study.where)
        if isinstance(scheduler, ForegroundScheduler):
            _one_after_the_other(study, view, python, scheduler)
        else:
            _submit(study, view, python)
            if wait:
                watch(study, lambda: view.look(study))
    finally:
        found = analyse(study, view.known)
        write_results(study, found)
    return found


def pick_up(study: Study) -> None:
    """Make a study ready to go on: points that failed, were lost or tell nothing are to be run again."""
    _go_to(study)
    give_secrets(study)
    forget_lost(study)
    Looker(study).refresh()
    _refuse_living(study)
    for point in study.points:
        if point.state == FAILED or (point.state == DONE and not _tells(study, point)):
            point.state, point.why, point.run, point.job_id = WAITING, "", "", ""
    study.save()


def _refuse_living(study: Study) -> None:
    """A point that runs here, or perhaps on another machine, must not run twice."""
    alive = [point for point in study.points if point.state == RUNNING]
    if study.where == "slurm" or not alive:
        return
    path, why = Path(alive[0].run), alive[0].why
    if not why:
        raise JobError(
            f"{study.id} is under way: {path.name} runs now.\nWatch it: allranks logs -f {path.name}"
        )
    raise JobError(
        f"{study.id} may be under way: {path.name} has no end, and {why}.\n"
        f"Go on there: allranks scale --resume {quote(str(study.path))}\n"
        f"Or, when it is over, move its folder away: {path}"
    )


def _tells(study: Study, point: Point) -> bool:
    try:
        measured(study, point, {})
    except AllranksError:
        return False
    return True


def look(study: Study) -> Analysis:
    """How a study stands now. Another process may be at it, so what was found out is not saved."""
    Looker(study).refresh()
    return analyse(study)


def give_secrets(study: Study) -> None:
    """A study that goes on has no secrets in its file: they come from the environment."""
    if missing := [name for name in study.secrets if name not in os.environ]:
        raise UsageError(
            f"{study.id} was given {', '.join(missing)}, which is secret and was not written down.\n"
            f"Set it: export {missing[0]}=…"
        )
    own = [f"{name}={os.environ[name]}" for name in study.secrets]
    if own:
        study.values = {**study.values, "env": [*study.values.get("env", ()), *own]}


def _go_to(study: Study) -> None:
    """Where it was started: its script and its files are named from there."""
    try:
        os.chdir(study.cwd or ".")
    except OSError as error:
        raise UsageError(
            f"{study.id} goes on where it was started, and {study.cwd} cannot be entered: "
            f"{error.strerror}.\nWhat was measured is still there: allranks scale --show {quote(str(study.path))}"
        ) from None


def _one_after_the_other(
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
            view.begins(study, point)
            run_point(study, point, plan, plan.job.python or python, scheduler)
            Looker(study).refresh()
            study.save()
        except KeyboardInterrupt:
            point.state, point.why, point.run = WAITING, "", ""
            study.save()
            raise
        except AllranksError as error:
            _refuse(study, point, error)
        view.ended(study, point)


def _submit(study: Study, view: StudyDisplay, python: str) -> None:
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
            view.begins(study, point)
        except AllranksError as error:
            _refuse(study, point, error)
            view.ended(study, point)


def _refuse(study: Study, point: Point, error: AllranksError) -> None:
    point.state, point.why = FAILED, " ".join(str(error).split())
    study.save()
