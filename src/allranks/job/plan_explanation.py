"""A plan in words: every value with where it came from."""

from __future__ import annotations

from typing import Any

from allranks.core.redaction import redact_words
from allranks.core.units import format_memory, format_time
from allranks.job.plan import Plan


def explain(plan: Plan) -> list[tuple[str, str, str]]:
    """Every value with where it came from: rows of (name, value, origin)."""
    job, shape = plan.job, plan.shape
    settled: dict[str, Any] = {
        "nodes": shape.nodes,
        "nprocs": shape.world_size,
        "tasks_per_node": shape.tasks_per_node,
        "gpus_per_node": shape.gpus_per_node if shape.gpus_per_node.count else None,
        "cpus_per_task": shape.cpus_per_task,
        "memory": shape.memory,
        "launcher": plan.launcher,
        "framework": plan.framework,
    }
    rows = []
    for name, origin in plan.origins.items():
        value = settled.get(name, getattr(job, name, None))
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
