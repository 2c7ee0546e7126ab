"""What a run asked for: from its plan, and where that leaves it to Slurm, from what the job got."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allranks.cluster.slurm.job_usage import Usage
from allranks.core.units import Gpus
from allranks.errors import UsageError
from allranks.observe.report.model import RequestedResources
from allranks.runs.atomic_files import integer, read_json
from allranks.runs.run_records import plan_time, plan_values

MIB = 2**20


def asked(folder: Path, usage: Usage | None, on_slurm: bool) -> RequestedResources:
    """On this machine nothing is asked for but ranks: it has what it has."""
    plan = read_json(folder / "plan.json")
    shape = plan.get("shape") if isinstance(plan.get("shape"), dict) else {}
    assert isinstance(shape, dict)
    values = plan_values(plan)
    base = _shape(shape)
    if not on_slurm:
        return RequestedResources(
            nodes=base.nodes, ranks=base.ranks, ranks_per_node=base.ranks_per_node
        )
    memory = integer(shape.get("memory_mib"))
    got = from_usage(usage) if usage else RequestedResources()
    return RequestedResources(
        nodes=base.nodes or got.nodes,
        ranks=base.ranks or got.ranks,
        ranks_per_node=base.ranks_per_node or got.ranks_per_node,
        tasks_per_node=base.tasks_per_node or got.tasks_per_node,
        cpus_per_task=base.cpus_per_task,
        cpus_per_node=base.cpus_per_node or got.cpus_per_node,
        memory_per_node=memory * MIB if memory else got.memory_per_node,
        gpus_per_node=base.gpus_per_node if base.gpus_per_node is not None else got.gpus_per_node,
        gpus=got.gpus,
        gpu_type=base.gpu_type or got.gpu_type,
        time_limit=plan_time(plan) or got.time_limit,
        partition=values.get("partition") or got.partition,
        account=values.get("account") or got.account,
        exclusive=values.get("exclusive") == "True",
        memory_is_all=memory == 0,
    )


def from_usage(usage: Usage) -> RequestedResources:
    """What Slurm gave a job; per node only what all of its nodes have alike."""
    nodes = usage.nodes or 1
    return RequestedResources(
        nodes=usage.nodes or None,
        tasks_per_node=_each(usage.tasks, usage) or None,
        cpus_per_task=usage.cpus_per_task,
        cpus_per_node=_each(usage.cpus, usage) or None,
        memory_per_node=usage.memory // nodes if usage.memory and not usage.mixed else None,
        gpus_per_node=_each(usage.gpus, usage),
        gpus=usage.gpus,
        gpu_type=usage.gpu_type,
        time_limit=usage.time_limit,
        partition=usage.partition,
        account=usage.account,
    )


def _each(count: int, usage: Usage) -> int | None:
    """Of one node; None where the nodes differ."""
    whole, rest = divmod(count, usage.nodes or 1)
    return None if rest or usage.mixed else whole


def _shape(shape: Mapping[str, Any]) -> RequestedResources:
    tasks, cpus = integer(shape.get("tasks_per_node")), integer(shape.get("cpus_per_task"))
    try:
        gpus = Gpus.parse(str(shape["gpus_per_node"]))
    except (KeyError, ValueError, UsageError):
        gpus = None
    return RequestedResources(
        nodes=integer(shape.get("nodes")),
        ranks=integer(shape.get("world_size")),
        ranks_per_node=integer(shape.get("ranks_per_node")),
        tasks_per_node=tasks,
        cpus_per_task=cpus,
        cpus_per_node=tasks * cpus if tasks and cpus else None,
        gpus_per_node=gpus.count if gpus else None,
        gpu_type=(gpus.type or "") if gpus else "",
    )
