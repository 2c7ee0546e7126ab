"""Plan the points of a study: the same job at each size, with nothing else different."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

from allranks.errors import JobError, UsageError
from allranks.job.config_sources import JobLayer
from allranks.job.plan import Plan
from allranks.job.resolve import resolve
from allranks.observe.scaling.scaling_study import Point, Study
from allranks.observe.scaling.sizes import fill_placeholders
from allranks.schedulers import get_scheduler

STUDY_VARIABLE = "ALLRANKS_STUDY"
"""Tells the ranks that they are measured: JSON with steps, batch and the size of the point."""
_BATCH = {"strong": "global", "weak": "per_rank"}
THREADS = "OMP_NUM_THREADS"


def prepare_point(study: Study, point: Point) -> Plan:
    """Return the plan of a point and record its shape; raise AllranksError when it cannot be planned."""
    machine = machine_layer_for(study.where)
    plan = plan_point(study, point, machine)
    record_shape(study, point, plan)
    check_capacity(study, point, plan, machine)
    return plan


def plan_point(study: Study, point: Point, machine: JobLayer | None = None) -> Plan:
    """Return the plan of one point, with its name, its arguments and the study's environment variable.

    ``machine`` is what this machine or the allocation around has.
    """
    plan = resolve(
        {
            **_local_values(study, point, machine),
            **study.values,
            study.axis.field: _size(study, point),
        },
        on_cluster=get_scheduler(study.where).on_cluster,
        config=study.config,
        between=(machine,) if machine else (),
        detect=study.is_queued,
    )
    if plan.job.array:
        raise JobError("A scaling study cannot be a job array. Leave --array out.")
    shape = plan.shape
    size = {"ranks": shape.world_size, "nodes": shape.nodes}
    env = dict(zip(plan.job.env, fill_placeholders(plan.job.env.values(), **size), strict=True))
    job = replace(
        plan.job,
        name=f"{plan.job.name}-{point_label(study, point)}",
        args=fill_placeholders(plan.job.args, **size),
        env={**_threads(study, env), **env, STUDY_VARIABLE: _study_record(study, point)},
        requeue=None,  # a requeued point would mix two places in one measurement
        restarts=None,
    )
    return replace(plan, job=job)


def _local_values(study: Study, point: Point, machine: JobLayer | None) -> dict[str, str]:
    """Return values of a local point: one node, and as many GPUs as ranks."""
    if not study.is_local:
        return {}
    gpus = int((machine.values if machine else {}).get("gpus_per_node", 0))
    return {"nodes": "1", "gpus_per_node": str(min(gpus, point.size))}


def record_shape(study: Study, point: Point, plan: Plan) -> None:
    """Record the resources of the point, for its cost."""
    shape = plan.shape
    point.nodes, point.ranks = shape.nodes, shape.world_size
    point.gpus = shape.gpus_per_node.count * shape.nodes
    if study.is_local:
        point.cpus = shape.world_size * _threads_of(plan)
    else:
        asked = shape.tasks_per_node * (shape.cpus_per_task or 1)
        point.cpus = shape.nodes * max(asked, _exclusive_cpus(plan))


def record_machine(study: Study) -> None:
    """Record the CPUs and the load of this machine, where the points run on it.

    Every rank gets the cores shared by the ranks of the largest size as threads: else a single process
    would be measured with all cores, and more processes would bring nothing.
    """
    if not study.is_local:
        return
    study.machine_cpus, study.load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    if not _first_number(os.environ.get(THREADS)):
        study.threads = max(1, study.machine_cpus // max(study.sizes))


def machine_layer_for(where: str) -> JobLayer | None:
    """Return the layer below the user's values: this machine's GPUs, or the current allocation."""
    layer = get_scheduler(where).base_layer()
    if where == "allocation" and layer is None:
        raise UsageError(
            "This study ran inside an allocation, and here is none. Make one with salloc."
        )
    return layer


def check_capacity(study: Study, point: Point, plan: Plan, machine: JobLayer | None) -> None:
    """Refuse a point that exceeds the machine or the current allocation."""
    if study.where == "allocation" and machine is not None:
        there = int(machine.values.get("nodes", 1))
        if plan.shape.nodes > there:
            raise JobError(
                f"{plan.shape.nodes} nodes are more than the {there} of {machine.source}."
            )
    if study.is_local:
        if plan.shape.nodes > 1:
            raise JobError(f"{plan.shape.nodes} nodes are requested, and this is one machine.")
        there = int((machine.values if machine else {}).get("gpus_per_node", 0))
        if study.axis.field == "gpus_per_node" and point.size > there:
            has = f"{there} GPU{'s' if there > 1 else ''}" if there else "no GPU"
            raise JobError(f"--gpus-per-node {point.size}: this machine has {has}.")


def _size(study: Study, point: Point) -> str:
    return f"{study.gpu_type}:{point.size}" if study.gpu_type else str(point.size)


def point_label(study: Study, point: Point) -> str:
    """Return ``4nodes``; in a study with repetitions ``4nodes-1``, ``4nodes-2``."""
    what = study.axis.short.removesuffix("s") if point.size == 1 else study.axis.short
    again = f"-{point.repeat}" if study.repeats > 1 else ""
    return f"{point.size}{what}{again}"


def _threads_of(plan: Plan) -> int:
    """Return the OpenMP threads of a rank here: the job's value, else the environment's."""
    return _first_number(plan.job.env.get(THREADS)) or _first_number(os.environ.get(THREADS)) or 1


def _first_number(text: str | None) -> int:
    """Return the first of OpenMP's numbers (``4``, or ``4,2`` for nested loops); 0 without any."""
    first = (text or "").partition(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def _exclusive_cpus(plan: Plan) -> int:
    """Return the cores of a node that a job has exclusively; 0 when it shares them or they are unknown."""
    site, name = plan.site, plan.job.partition
    partition = (site.partition(name) if name else site.first_choice) if site else None
    if partition is None or not (plan.job.exclusive or partition.exclusive):
        return 0
    return min((shape.usable_cpus or 0 for shape in partition.shapes), default=0)


def _threads(study: Study, env: dict[str, str]) -> dict[str, str]:
    return {THREADS: str(study.threads)} if study.threads and THREADS not in env else {}


def _study_record(study: Study, point: Point) -> str:
    content: dict[str, Any] = {
        "steps": study.steps,
        "batch": _BATCH.get(study.kind or ""),
        "size": point.size,
    }
    return json.dumps({name: value for name, value in content.items() if value is not None})
