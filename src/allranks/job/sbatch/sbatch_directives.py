"""The ``#SBATCH`` lines: one option per line, in Slurm's own quoting."""

from __future__ import annotations

import re
from collections.abc import Mapping

from allranks.core.units import format_memory, format_time
from allranks.errors import JobError
from allranks.job.fields import options
from allranks.job.plan import Plan

_BARE = re.compile(r"[\w./:=,%@+~^*{}\[\]()&|!-]+", re.ASCII)


def directive_lines(plan: Plan, output: str) -> list[str]:
    """Return all directives of a plan; ``output`` is the default of Slurm's log file."""
    values = {**_plain(plan), **_size(plan), **_flags(plan)}
    values.setdefault("output", plan.job.output or output)
    _refuse_sizes(plan.job.sbatch)
    values |= plan.job.sbatch
    return [directive(name, value) for name, value in values.items() if value is not None]


_SIZES = {
    "nodes": "--nodes",
    "ntasks": "--nprocs",
    "ntasks-per-node": "--tasks-per-node",
    "cpus-per-task": "--cpus-per-task",
    "gpus-per-node": "--gpus-per-node",
    "gpus-per-task": "--gpus-per-task",
    "gres": "--gpus-per-node",
}
"""Sizes that the rest of the script depends on, and the options for them."""


def _refuse_sizes(given: Mapping[str, str]) -> None:
    for name in given:
        if name in _SIZES and not (name == "gres" and not given[name].startswith("gpu")):
            raise JobError(
                f"--sbatch {name}={given[name]} would contradict the number of ranks in the script.\n"
                f"Use {_SIZES[name]} instead."
            )


def directive(name: str, value: str) -> str:
    """Return one line; sbatch ends it at a bare ``#``, so unusual values are quoted."""
    return f"#SBATCH --{name}={_quote(value)}" if value != "" else f"#SBATCH --{name}"


def _quote(value: str) -> str:
    if _BARE.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _plain(plan: Plan) -> dict[str, str | None]:
    """Return fields that go to sbatch unchanged, by the table in ``job.fields``; empty text unsets one."""
    return {
        spec.directive: getattr(plan.job, name)
        for name, spec in options().items()
        if spec.directive and getattr(plan.job, name)
    }


def _size(plan: Plan) -> dict[str, str | None]:
    job, shape = plan.job, plan.shape
    result: dict[str, str | None] = {
        "nodes": str(shape.nodes),
        "ntasks-per-node": str(shape.tasks_per_node),
        **_gpus(plan),
        "cpus-per-task": str(shape.cpus_per_task) if shape.cpus_per_task else None,
        "mem": None
        if shape.memory is None
        else format_memory(shape.memory)
        if shape.memory
        else "0",
        "time": format_time(job.time) if job.time else None,
    }
    return result


def _gpus(plan: Plan) -> dict[str, str | None]:
    job, gpus = plan.job, plan.shape.gpus_per_node
    if not gpus.count:
        return {}
    if job.gpus_per_task:
        return {"gpus-per-task": str(job.gpus_per_task)}
    if plan.site is not None and plan.site.gpu_option == "gres":
        return {"gres": f"gpu:{gpus}"}
    return {"gpus-per-node": str(gpus)}


def _flags(plan: Plan) -> dict[str, str | None]:
    job = plan.job
    result: dict[str, str | None] = {}
    if job.exclusive:
        result["exclusive"] = ""
    if job.wait_all_nodes:
        result["wait-all-nodes"] = "1"
    if job.requeue is not None:
        result["requeue" if job.requeue else "no-requeue"] = ""
    if job.requeue:
        result["open-mode"] = "append"  # else a second attempt would erase the log of the first
    return result
