"""Compare a request with the limits of a partition: one problem for each limit it exceeds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from allranks.cluster.sites.model import NodeShape, Partition
from allranks.core.units import Gpus, format_memory, format_time


@dataclass(frozen=True)
class ResourceRequest:
    """The resources that a job requests of a site."""

    nodes: int = 1
    """Machines."""
    gpus_per_node: int = 0
    """GPUs on each."""
    gpu_type: str | None = None
    """Their type. None: any."""
    cpus_per_node: int | None = None
    """CPUs on each. None: not asked."""
    memory_per_node: int | None = None
    """MiB on each. None: the default; 0: all."""
    time: int | None = None
    """Time limit in seconds."""
    partition: str | None = None
    """Partition, or several with commas between. None: the site's first choice."""


class Problem(NamedTuple):
    """One limit of a partition that a request exceeds."""

    kind: str
    asks: str
    has: str
    use: str
    """What to give in its place; empty when nothing would help here."""


Explained = tuple[Problem, list[NodeShape]]
"""What is lacking, and the nodes that come nearest to it."""


def problems(partition: Partition, request: ResourceRequest) -> list[Problem]:
    """Return every limit of this partition that the request exceeds."""
    shapes, found = narrow(partition, request)
    limits = (_nodes(partition, request, [] if found else shapes), _time(partition, request))
    return found + [each for each in limits if each is not None]


def narrow(partition: Partition, request: ResourceRequest) -> tuple[list[NodeShape], list[Problem]]:
    """Return the kinds of nodes that satisfy the request, and the limits that none of them satisfies.

    Where no node satisfies a demand, those that come nearest stay: the advice is about them, and the next
    demand is checked on them.
    """
    shapes, found = list(partition.shapes), []
    for fits, explain in _DEMANDS:
        left = [each for each in shapes if fits(each, partition, request)]
        if shapes and not left:
            problem, left = explain(shapes, partition, request)
            found.append(problem)
        shapes = left
    return shapes, found


def offer(partition: Partition, request: ResourceRequest, kind: str) -> str:
    """Describe what a partition that fits has more of."""
    shapes, _ = narrow(partition, request)
    if kind == "gpus":
        return f"{_most(each.gpus for each in shapes)} per node"
    if kind == "type":
        return ", ".join(sorted({str(Gpus(each.gpus, each.gpu_type)) for each in shapes}))
    if kind == "cpus":
        return f"{_most(cpu_limit(each, partition) for each in shapes)} CPUs per node"
    if kind == "memory":
        return f"{format_memory(_most(memory_limit(each, partition) for each in shapes))} per node"
    if kind == "nodes":
        most = partition.max_nodes or partition.nodes
        return f"up to {most} nodes" if most else ""
    return f"up to {format_time(partition.max_time)}" if partition.max_time else ""


def types(shapes: Iterable[NodeShape]) -> str:
    """Describe GPU types with their numbers: ``a100 (4 per node), v100 (2 per node)``."""
    counts: dict[str, int] = {}
    for each in shapes:
        if each.gpus:
            name = each.gpu_type or "GPUs without a type"
            counts[name] = max(counts.get(name, 0), each.gpus)
    return ", ".join(f"{name} ({count} per node)" for name, count in counts.items())


def cpu_limit(shape: NodeShape, partition: Partition) -> int | None:
    """Return the most CPUs that a job can have on a node of this kind."""
    known = [each for each in (shape.usable_cpus, partition.max_cpus_per_node) if each is not None]
    return min(known, default=None)


def memory_limit(shape: NodeShape, partition: Partition) -> int | None:
    """Return the most MiB that a job can have on a node of this kind."""
    limits = (shape.usable_memory, partition.max_memory_per_node)
    return min((each for each in limits if each is not None), default=None)


def _most(values: Iterable[int | None]) -> int:
    return max((each for each in values if each is not None), default=0)


def _with_gpus(shape: NodeShape, _: Partition, request: ResourceRequest) -> bool:
    return not request.gpus_per_node or shape.gpus > 0


def _no_gpus(shapes: list[NodeShape], _: Partition, request: ResourceRequest) -> Explained:
    asks = f"{_count(request.gpus_per_node, 'GPU')} per node"
    return Problem("gpus", asks, "has none", ""), shapes


def _with_type(shape: NodeShape, _: Partition, request: ResourceRequest) -> bool:
    return not request.gpus_per_node or not shape.gpus or shape.offers(request.gpu_type)


def _no_type(shapes: list[NodeShape], _: Partition, request: ResourceRequest) -> Explained:
    best = max(shapes, key=lambda each: each.gpus)
    use = f"--gpus-per-node {Gpus(min(request.gpus_per_node, best.gpus), best.gpu_type)}"
    problem = Problem("type", f"GPUs of type {request.gpu_type}", f"has {types(shapes)}", use)
    return problem, [each for each in shapes if each.gpu_type == best.gpu_type]


def _enough_gpus(shape: NodeShape, _: Partition, request: ResourceRequest) -> bool:
    return not shape.gpus or shape.gpus >= request.gpus_per_node


def _few_gpus(shapes: list[NodeShape], _: Partition, request: ResourceRequest) -> Explained:
    best = max(shapes, key=lambda each: each.gpus)
    typed = best.gpu_type if request.gpu_type else None
    asks = f"{_count(request.gpus_per_node, f'{typed} GPU' if typed else 'GPU')} per node"
    use = f"--gpus-per-node {Gpus(best.gpus, typed)}"
    nearest = [each for each in shapes if each.gpus == best.gpus]
    return Problem("gpus", asks, f"has {best.gpus}", use), nearest


def _enough_cpus(shape: NodeShape, partition: Partition, request: ResourceRequest) -> bool:
    limit = cpu_limit(shape, partition)
    return limit is None or (request.cpus_per_node or 0) <= limit


def _few_cpus(shapes: list[NodeShape], partition: Partition, request: ResourceRequest) -> Explained:
    most = _most(cpu_limit(each, partition) for each in shapes)
    asks = f"{_count(request.cpus_per_node or 0, 'CPU')} per node"
    problem = Problem("cpus", asks, f"has {most} for jobs", f"at most {most} CPUs per node")
    return problem, [each for each in shapes if cpu_limit(each, partition) == most]


def _enough_memory(shape: NodeShape, partition: Partition, request: ResourceRequest) -> bool:
    limit = memory_limit(shape, partition)
    return limit is None or (request.memory_per_node or 0) <= limit


def _little_memory(
    shapes: list[NodeShape], partition: Partition, request: ResourceRequest
) -> Explained:
    most = _most(memory_limit(each, partition) for each in shapes)
    asks = f"{format_memory(request.memory_per_node or 0)} of memory per node"
    has = format_memory(most)
    problem = Problem("memory", asks, f"has {has} for jobs", f"--memory {has}")
    return problem, [each for each in shapes if memory_limit(each, partition) == most]


_DEMANDS = (
    (_with_gpus, _no_gpus), (_with_type, _no_type), (_enough_gpus, _few_gpus),
    (_enough_cpus, _few_cpus), (_enough_memory, _little_memory),
)  # fmt: skip


def _nodes(
    partition: Partition, request: ResourceRequest, fitting: list[NodeShape]
) -> Problem | None:
    counts = [each.nodes for each in fitting]
    such = None if not counts or None in counts else sum(each or 0 for each in counts)
    for most, has in (
        (partition.max_nodes, "allows {} for a job"),
        (partition.nodes, "has {}"),
        (such, "has {} of that kind"),
    ):
        if most is not None and request.nodes > most:
            asks = _count(request.nodes, "node")
            return Problem("nodes", asks, has.format(most), f"--nodes {most}" if most else "")
    return None


def _time(partition: Partition, request: ResourceRequest) -> Problem | None:
    if request.time is None or partition.max_time is None or request.time <= partition.max_time:
        return None
    longest = format_time(partition.max_time)
    return Problem("time", format_time(request.time), f"allows {longest}", f"--time {longest}")


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")
