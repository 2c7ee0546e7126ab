"""Check what a user requests of a study before anything starts, and create the study."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from allranks.errors import AllranksError, UsageError
from allranks.job.plan import Plan
from allranks.observe.scaling.measurement import SECONDS, check_metric
from allranks.observe.scaling.point_plans import point_label, prepare_point, record_machine
from allranks.observe.scaling.scaling_study import FAILED, Point, Study
from allranks.observe.scaling.sizes import SizeChoice, choose_axis
from allranks.runs.run_lookup import runs_root

Say = Callable[[str], None]
LEAST_STEPS = 20
"""Of a Trainer: four windows of five."""


def make_study(
    values: Mapping[str, Any],
    *,
    repeat: int = 1,
    place: str | None = None,
    wait: bool = True,
    say: Say,
    **asked: Any,
) -> Study:
    """Create the study and its folder.

    All points are planned first: a mistake that concerns them all is reported before anything is created.

    ``values`` are those of the job, ``asked`` those of the study's fields that the user chooses.
    """
    choice = choose_axis(values)
    where = choose_execution(choice, place)
    check_wait_option(where, wait)
    study = Study(
        "", choice.axis.field, where, values=choice.values, gpu_type=choice.gpu_type, **asked
    )
    # One repetition after the other, so that a busy hour does not fall on one size alone.
    study.points = [Point(size, each + 1) for each in range(repeat) for size in choice.sizes]
    check_metric(study.metric)
    record_machine(study)
    ensure_enough_steps(study, say)
    plan = _first_plan(study, say)
    check_kind(study, plan)
    first = next(point for point in study.points if point.state != FAILED)
    study.name = (plan.job.name or "run").removesuffix(f"-{point_label(study, first)}")
    study.secrets = sorted(plan.secrets)
    return study.create_folder(Path(plan.job.runs) if plan.job.runs else runs_root())


def ensure_enough_steps(study: Study, say: Say) -> None:
    """Raise the steps to what a Trainer needs for a few windows after the warm-up."""
    if not study.metric and study.steps < LEAST_STEPS:
        say(f"--steps {study.steps} are too few to measure: a Trainer does {LEAST_STEPS}.")
        study.steps = LEAST_STEPS


def check_kind(study: Study, plan: Plan) -> None:
    """Refuse a study that would measure only times, without knowing the amount of work."""
    if study.asked_kind:
        return
    if study.metric and SECONDS in re.compile(study.metric).groupindex:
        raise UsageError(
            f"--metric '{study.metric}' is the time of a step. How much work is done in it?\n"
            "Say --strong when it is the same at every size, --weak when it grows with the ranks."
        )
    scanned = plan.imports if plan.is_python and not study.metric else None
    if scanned and not any(name.partition(".")[0] == "allranks" for name in scanned.modules):
        raise UsageError(
            f"{plan.job.script} has no Trainer of allranks, so its wall time would be measured. "
            "Is the work the same at every size?\n"
            r"Say --strong if it is, or give --metric 'samples/s: ([\d.]+)', with what the script prints."
        )


def check_wait_option(where: str, wait: bool) -> None:
    """Refuse --no-wait without Slurm."""
    if not wait and where != "slurm":
        raise UsageError("--no-wait is for jobs of Slurm. Here each size is waited for.")


def choose_execution(choice: SizeChoice, place: str | None) -> str:
    """Return where the points run: "local", "allocation" or "slurm"; ``place`` is the user's choice, if
    any.
    """
    inside = "SLURM_JOB_ID" in os.environ
    slurm = shutil.which("sbatch") is not None
    if place == "submit" and not slurm:
        raise UsageError("--submit needs Slurm's commands, and sbatch is not on the PATH.")
    if place == "submit" or (not place and not inside and slurm and choice.axis.field != "nprocs"):
        return "slurm"
    if inside and _has_usable_allocation():
        return "allocation"
    if choice.axis.field == "nodes":
        raise UsageError(
            "--nodes needs Slurm, and there is no sbatch here.\nOn this machine: --procs 1,2,4; a "
            "cluster to try it on: allranks sandbox up"
            if not slurm
            else "--nodes needs Slurm: leave --here out, or be inside an allocation (salloc)."
        )
    return "local"


def _has_usable_allocation() -> bool:
    """Return whether the current allocation can run our steps."""
    from allranks.schedulers.allocation import in_allocation

    return in_allocation(os.environ)


def _first_plan(study: Study, say: Say) -> Plan:
    """Plan every size once; sizes that cannot be planned are marked as failed, unless none can."""
    plans: list[Plan] = []
    errors: list[AllranksError] = []
    said: set[str] = set()
    for size in study.sizes:
        try:
            plans.append(prepare_point(study, study.at(size)[0]))
        except AllranksError as error:
            errors.append(error)
            for point in study.at(size):
                point.state, point.why = FAILED, " ".join(str(error).split("\n"))
    if not plans:
        raise errors[0]
    _check_growth(study, plans)
    for note in (note for plan in plans for note in plan.notes):
        if note not in said:
            said.add(note)
            say(note)
    return plans[0]


def _check_growth(study: Study, plans: list[Plan]) -> None:
    """Refuse a job file that fixes the number of ranks at every size."""
    plan = plans[-1]
    if study.axis.field != "nprocs" and plan.job.nprocs:
        raise UsageError(
            f"The number of ranks is {plan.job.nprocs} at every size (nprocs in "
            f"{plan.origins['nprocs'].source}).\nGive the ranks of a node instead: --gpus-per-node N, or "
            "--tasks-per-node N without GPUs."
        )
