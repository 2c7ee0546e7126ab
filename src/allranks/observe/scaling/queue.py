"""The points as jobs of Slurm: submitted at once or one after the other, then watched."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from allranks.job.plan import Plan
from allranks.observe.scaling.point_states import Looker
from allranks.observe.scaling.study_file import QUEUED, Point, Study
from allranks.schedulers.slurm import SlurmScheduler

QUICK, SLOW, QUICK_FOR = 2.0, 10.0, 180.0
"""Seconds between two looks: at first, and after so many seconds."""


def submit_point(
    study: Study, point: Point, plan: Plan, *, python: str | None, after: str = ""
) -> None:
    """Hand one point to Slurm; ``after`` is a job that must have ended before."""
    if after:
        wish = ",".join(filter(None, (plan.job.dependency, f"afterany:{after}")))
        plan = replace(plan, job=replace(plan.job, dependency=wish))
    submitted = SlurmScheduler().start(plan, made_by=study.command, python=python)
    point.run, point.job_id = str(submitted.run.path), submitted.job_id
    point.state, point.why = QUEUED, ""
    study.save()


def watch(study: Study, show: Callable[[], None]) -> None:
    """Until no point is under way; ``show`` is called at every look."""
    looker, began = Looker(study), time.monotonic()
    while True:
        if looker.refresh():
            study.save()
        show()
        if not any(point.open for point in study.points):
            return
        time.sleep(QUICK if time.monotonic() - began < QUICK_FOR else SLOW)
