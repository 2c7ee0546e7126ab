"""A plan on disk: ``job.toml`` to read and use again, ``plan.json`` with every value's origin."""

from __future__ import annotations

from typing import Any

from allranks._version import __version__
from allranks.core.units import Gpus, format_memory, format_time
from allranks.job.fields import Job
from allranks.job.layers import given
from allranks.job.plan import Plan
from allranks.job.plan_explanation import explain


def job_toml(plan: Plan) -> str:
    """The job as resolved, in the form that ``--config`` reads."""
    import tomli_w

    shape, job = plan.shape, plan.job
    settled: dict[str, Any] = {
        **given(job),
        "nodes": shape.nodes,
        "nprocs": shape.world_size,
        "cpus_per_task": shape.cpus_per_task,
        "memory": shape.memory,
        "launcher": plan.launcher,
        "env": {name: value for name, value in job.env.items() if name not in plan.secrets} or None,
    }
    values = {name: _plain(name, value) for name, value in settled.items() if value is not None}
    tables = {name: value for name, value in values.items() if isinstance(value, dict)}
    return tomli_w.dumps({name: v for name, v in values.items() if name not in tables} | tables)


def plan_record(plan: Plan) -> dict[str, Any]:
    """The plan as JSON: values with their origins, the shape, the notes."""
    shape = plan.shape
    return {
        "allranks": __version__,
        "launcher": plan.launcher,
        "site": plan.site.name if plan.site else None,
        "framework": plan.framework,
        "shape": {
            "nodes": shape.nodes,
            "ranks_per_node": shape.ranks_per_node,
            "world_size": shape.world_size,
            "tasks_per_node": shape.tasks_per_node,
            "gpus_per_node": str(shape.gpus_per_node),
            "cpus_per_task": shape.cpus_per_task,
            "memory_mib": shape.memory,
        },
        "values": [
            {"name": name, "value": value, "origin": origin}
            for name, value, origin in explain(plan)
        ],
        "notes": list(plan.notes),
    }


def _plain(name: str, value: Any) -> Any:
    if name == "time":
        return format_time(value)
    if name == "memory":
        return format_memory(value) if value else "0"
    if isinstance(value, Gpus):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, dict) else value


__all__ = ["Job", "job_toml", "plan_record"]
