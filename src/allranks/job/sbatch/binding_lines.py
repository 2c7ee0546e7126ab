"""Which CPUs a rank runs on: near its GPU, where the site or the user tells."""

from __future__ import annotations

from allranks.core.shell import Word
from allranks.job.plan import Plan


def cpu_lists(plan: Plan) -> tuple[str, ...]:
    """One CPU list per local rank, from ``--bind`` or from the site's node shape; else nothing."""
    bind = plan.job.bind or "auto"
    if bind not in ("auto", "none"):
        return tuple(bind.split(";"))
    if bind == "auto" and plan.site is not None:
        for partition in plan.site.partitions:
            if plan.job.partition in (None, partition.name):
                for shape in partition.shapes:
                    # The lists hold for a whole node only: on a part of one, Slurm chooses the CPUs.
                    if shape.cpu_lists and plan.shape.gpus_per_node.count == shape.gpus:
                        return tuple(shape.cpu_lists)
    return ()


def srun_binding(plan: Plan) -> list[Word]:
    """srun's own option, where one task is one rank."""
    lists = cpu_lists(plan)
    if plan.job.bind == "none":
        return ["--cpu-bind=none"]
    if lists and plan.shape.tasks_per_node == plan.shape.ranks_per_node > 1:
        return ["--cpu-bind=mask_cpu:" + ",".join(mask(item) for item in lists)]
    return []


def agent_binding(plan: Plan) -> str:
    """What the agent is told: it binds the ranks that it starts itself."""
    lists = cpu_lists(plan)
    if plan.job.bind == "none" or (lists and srun_binding(plan)):
        return "none"
    return ";".join(lists) or "auto"


def mask(cpus: str) -> str:
    """``49-55`` as the hexadecimal mask that srun reads."""
    bits = 0
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        for cpu in range(int(first), int(last or first) + 1):
            bits |= 1 << cpu
    return hex(bits)
