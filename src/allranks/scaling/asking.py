"""What a user asks a study for, checked before anything is started, and the study made of it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.errors import AllranksError, UsageError
from allranks.job.plan import Plan
from allranks.runs.index import runs_root
from allranks.scaling.measure import SECONDS, check_metric
from allranks.scaling.points import (
    check_room,
    label,
    machine_layer_of,
    note_shape,
    plan_point,
    same_threads,
)
from allranks.scaling.sizes import Choice, choose_axis
from allranks.scaling.study import FAILED, Point, Study

Say = Callable[[str], None]
LEAST_STEPS = 20
"""Of a Trainer: four windows of five."""


@dataclass(frozen=True)
class Ask:
    """The options of a study that are no options of a job."""

    kind: str | None = None
    """"strong", "weak", or None: as the script has it."""
    steps: int = 100
    repeat: int = 1
    metric: str | None = None
    samples: int | None = None
    place: str = ""
    """"here", "submit", or empty: by what is varied and what is there."""
    one_by_one: bool = False
    wait: bool = True


def make_study(
    values: Mapping[str, Any], ask: Ask, *, config: str | None, command: str, say: Say
) -> Study:
    """The study of what was typed, with its folder. All points are planned first: a mistake that
    concerns them all is told before anything is made."""
    choice = choose_axis(values)
    if ask.metric:
        check_metric(ask.metric)
    where = choose_place(choice, ask.place)
    check_patience(where, ask.wait)
    draft = Study(Path(), "", choice.axis.field, where, choice.values, config, choice.gpu_type)
    draft.kind, draft.steps, draft.metric = ask.kind, enough_steps(ask, say), ask.metric
    draft.samples, draft.one_by_one = ask.samples, ask.one_by_one
    draft.points = [
        Point(size, repeat) for repeat in range(1, ask.repeat + 1) for size in choice.sizes
    ]  # one repetition after the other, so that a busy hour does not fall on one size alone
    draft.machine_cpus = len(os.sched_getaffinity(0)) if where == "local" else None
    draft.threads = same_threads(draft)
    plan = _first_plan(draft, say)
    check_kind(draft, plan)
    return _made(draft, plan, command)


def enough_steps(ask: Ask, say: Say) -> int:
    """What a Trainer needs for some windows of metrics of which the first is left out."""
    if ask.metric or ask.steps >= LEAST_STEPS:
        return ask.steps
    say(f"--steps {ask.steps} are too few to measure: a Trainer does {LEAST_STEPS}.")
    return LEAST_STEPS


def check_kind(draft: Study, plan: Plan) -> None:
    """Refuse where a time will be all that is measured, and nobody says what work was done in it."""
    if draft.asked_kind:
        return
    if draft.metric and SECONDS in re.compile(draft.metric).groupindex:
        raise UsageError(
            f"--metric '{draft.metric}' is the time of a step. How much work is done in it?\n"
            "Say --strong when it is the same at every size, --weak when it grows with the ranks."
        )
    scanned = plan.imports if plan.is_python and not draft.metric else None
    if scanned and not any(name.partition(".")[0] == "allranks" for name in scanned.modules):
        raise UsageError(
            f"{plan.job.script} has no Trainer of allranks, so its wall time would be measured. "
            "Is the work the same at every size?\n"
            r"Say --strong if it is, or give --metric 'samples/s: ([\d.]+)', with what the script prints."
        )


def check_patience(where: str, wait: bool) -> None:
    """Only jobs go on by themselves."""
    if not wait and where != "slurm":
        raise UsageError("--no-wait is for jobs of Slurm. Here each size is waited for.")


def choose_place(choice: Choice, place: str) -> str:
    """Where the points run: "local", "allocation" or "slurm"."""
    inside = "SLURM_JOB_ID" in os.environ
    slurm = shutil.which("sbatch") is not None
    if place == "submit" and not slurm:
        raise UsageError("--submit needs Slurm's commands, and sbatch is not on the PATH.")
    if place == "submit" or (not place and not inside and slurm and choice.axis.field != "nprocs"):
        return "slurm"
    if inside and machine_layer_of_allocation():
        return "allocation"
    if choice.axis.field == "nodes":
        raise UsageError(
            "--nodes needs Slurm, and there is no sbatch here.\nOn this machine: --procs 1,2,4; a "
            "cluster to try it on: allranks sandbox start"
            if not slurm
            else "--nodes needs Slurm: leave --here out, or be inside an allocation (salloc)."
        )
    return "local"


def machine_layer_of_allocation() -> bool:
    """Whether the allocation around can hold steps of ours."""
    from allranks.schedulers.slurm import allocation_layer

    return allocation_layer(dict(os.environ)) is not None


def prepare_point(study: Study, point: Point) -> Plan:
    """The plan of a point, with its shape noted; AllranksError when it cannot be."""
    machine = machine_layer_of(study.where)
    plan = plan_point(study, point, machine)
    note_shape(study, point, plan)
    check_room(study, point, plan, machine)
    return plan


def _first_plan(draft: Study, say: Say) -> Plan:
    """Plan every size once; those that cannot be are marked as failed, unless none can."""
    plans: list[Plan] = []
    errors: list[AllranksError] = []
    said: set[str] = set()
    for size in draft.sizes:
        try:
            plans.append(prepare_point(draft, draft.at(size)[0]))
        except AllranksError as error:
            errors.append(error)
            for point in draft.at(size):
                point.state, point.why = FAILED, " ".join(str(error).split("\n"))
    if not plans:
        raise errors[0]
    _check_growth(draft, plans)
    for note in (note for plan in plans for note in plan.notes):
        if note not in said:
            said.add(note)
            say(note)
    return plans[0]


def _check_growth(draft: Study, plans: list[Plan]) -> None:
    """A job file may fix the number of ranks, which would then be the same at every size."""
    plan = plans[-1]
    if draft.axis.field != "nprocs" and plan.job.nprocs:
        raise UsageError(
            f"The number of ranks is {plan.job.nprocs} at every size (nprocs in "
            f"{plan.origins['nprocs'].source}).\nGive the ranks of a node instead: --gpus-per-node N, or "
            "--tasks-per-node N without GPUs."
        )


def _made(draft: Study, plan: Plan, command: str) -> Study:
    """The draft in a folder of its own."""
    root = Path(plan.job.runs).absolute() if plan.job.runs else runs_root()
    first = next(point for point in draft.points if point.state != FAILED)
    name = (plan.job.name or "run").removesuffix(f"-{label(draft, first)}")
    draft.secrets = sorted(plan.secrets)
    about = {key: value for key, value in vars(draft).items() if key not in _OWN}
    return Study.create(root, name, **about, command=command)


_OWN = ("path", "name", "created", "cwd", "command")


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
