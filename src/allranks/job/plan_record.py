"""A plan for people and files: the explanation of each value, ``job.toml`` and ``plan.json``."""

from __future__ import annotations

from typing import Any

from allranks._version import __version__
from allranks.core.redaction import redact_words
from allranks.core.units import Gpus, format_memory, format_time
from allranks.job.config_sources import given
from allranks.job.plan import Plan


def explain(plan: Plan) -> list[tuple[str, str, str]]:
    """Return a row (name, value, origin) for every value."""
    job, shape = plan.job, plan.shape
    resolved: dict[str, Any] = {
        "nodes": shape.nodes,
        "nprocs": shape.world_size,
        "tasks_per_node": shape.tasks_per_node,
        "gpus_per_node": shape.gpus_per_node if shape.gpus_per_node.count else None,
        "cpus_per_task": shape.cpus_per_task,
        "memory": shape.memory,
        "launcher": plan.launcher.name,
        "framework": plan.framework,
    }
    rows = []
    for name, origin in plan.origins.items():
        value = resolved.get(name, getattr(job, name, None))
        if value is None or value == ():
            continue
        if name == "time":
            value = format_time(int(value))
        if name == "memory":
            value = format_memory(int(value)) if value else "all of the node"
        rows.append((name, _show(value), str(origin)))
    return rows


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(redact_words(f"{key}={item}" for key, item in value.items()))
    if isinstance(value, tuple):
        return " ".join(str(item) for item in value)
    return str(value)


def job_toml(plan: Plan) -> str:
    """The job as resolved, in the form that ``--config`` reads."""
    import tomli_w

    shape, job = plan.shape, plan.job
    resolved: dict[str, Any] = {
        **given(job),
        "nodes": shape.nodes,
        "nprocs": shape.world_size,
        "cpus_per_task": shape.cpus_per_task,
        "memory": shape.memory,
        "launcher": plan.launcher.name,
        "env": {name: value for name, value in job.env.items() if name not in plan.secrets} or None,
    }
    values = {name: _plain(name, value) for name, value in resolved.items() if value is not None}
    tables = {name: value for name, value in values.items() if isinstance(value, dict)}
    return tomli_w.dumps({name: v for name, v in values.items() if name not in tables} | tables)


def plan_record(plan: Plan) -> dict[str, Any]:
    """The plan as JSON: values with their origins, the shape, the notes."""
    shape = plan.shape
    return {
        "allranks": __version__,
        "launcher": plan.launcher.name,
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
