"""Select the partition and the node shape for a job, or explain what to type instead."""

from __future__ import annotations

from typing import NamedTuple

from allranks.cluster.sites.model import NodeShape, Partition, Site
from allranks.cluster.sites.partition_limits import (
    Problem,
    ResourceRequest,
    narrow,
    offer,
    problems,
)
from allranks.core.units import format_memory
from allranks.errors import SiteError, nearest

__all__ = ["NodeShare", "ResourceRequest", "select_node_shape", "select_partition", "share_of_node"]

# Memory that a share leaves to the system: Slurm often has a little less than the data sheet says.
_MEMORY_RESERVE = 1 / 64


class NodeShare(NamedTuple):
    """A share of a node. What the site does not specify is None."""

    cpus: int | None
    memory: int | None
    """MiB."""
    why: str
    """How it was computed, for people."""


def select_partition(site: Site, request: ResourceRequest) -> Partition:
    """Return the partition for the job; SiteError when none fits.

    A site that lists no partitions fits any job: the result is then a partition without limits.
    """
    if not site.partitions:
        return Partition(name=request.partition or "")
    found = [(each, problems(each, request)) for each in _wanted(site, request)]
    nearest, lacking = min(found, key=lambda each: len(each[1]))
    if lacking:
        raise SiteError(_message(site, request, nearest, lacking))
    return nearest


def _wanted(site: Site, request: ResourceRequest) -> list[Partition]:
    if request.partition is None:
        first = site.first_choice
        return [first] if first else list(site.partitions)
    return [_named(site, name.strip()) for name in request.partition.split(",")]


def _named(site: Site, name: str) -> Partition:
    if partition := site.partition(name):
        return partition
    names = [each.name for each in site.partitions]
    close = nearest(name, names)
    hint = f"Did you mean --partition {close}? " if close else ""
    raise SiteError(
        f"Site '{site.name}' has no partition '{name}'.\n{hint}There is: {', '.join(names)}."
    )


def _message(
    site: Site, request: ResourceRequest, partition: Partition, lacking: list[Problem]
) -> str:
    lines = [
        f"Job asks for {each.asks}, but partition '{partition.name}' {each.has}."
        for each in lacking
    ]
    kind = lacking[0].kind
    changes = [each.use for each in lacking]
    ways = [" and ".join(changes)] if all(changes) else []
    for other in site.partitions:
        if not problems(other, request):
            words = offer(other, request, kind)
            ways.append(f"--partition {other.name}" + (f" ({words})" if words else ""))
    if ways:
        lines.append(f"Use {', or '.join(ways)}.")
    else:
        lines.append(f"No partition of site '{site.name}' has all that the job asks for.")
    return "\n".join(lines)


def select_node_shape(partition: Partition, request: ResourceRequest) -> NodeShape | None:
    """Return the kind of node to plan for: of those that fit, the one with least per GPU.

    Slurm may give any of them, so a share must be right on the smallest.
    """
    fitting, _ = narrow(partition, request)
    return min(fitting, key=_per_gpu, default=None)


def _per_gpu(shape: NodeShape) -> tuple[float, float]:
    gpus = max(shape.gpus, 1)
    return (shape.usable_cpus or 0) / gpus, (shape.usable_memory or 0) / gpus


def share_of_node(shape: NodeShape, gpus: int) -> NodeShare:
    """Return the share of a node's CPUs and memory that belongs to that many of its GPUs."""
    if not shape.gpus or not gpus:
        memory = _less_reserve(shape.usable_memory, 1, 1)
        return NodeShare(shape.usable_cpus, memory, f"the whole node{_size(shape)}")
    gpus = min(gpus, shape.gpus)
    cpus = None
    if shape.usable_cpus is not None:
        cores = shape.usable_cpus // shape.threads_per_core // shape.gpus
        cpus = max(cores * shape.threads_per_core, 1) * gpus
    memory = _less_reserve(shape.usable_memory, gpus, shape.gpus)
    return NodeShare(cpus, memory, f"{gpus} of the node's {shape.gpus} GPUs{_size(shape)}")


def _size(shape: NodeShape) -> str:
    words = []
    if shape.usable_cpus is not None:
        words.append(f"{shape.usable_cpus} CPUs")
    if shape.usable_memory is not None:
        words.append(format_memory(shape.usable_memory))
    return f"; a node has {' and '.join(words)} for jobs" if words else ""


def _less_reserve(memory: int | None, part: int, whole: int) -> int | None:
    if memory is None:
        return None
    mebibytes = int(memory * (1 - _MEMORY_RESERVE) * part / whole)
    return mebibytes // 1024 * 1024 if mebibytes >= 4096 else mebibytes
