"""The model of a cluster: its kinds of nodes, its partitions, and the defaults of its jobs.

Whatever is not known is ``None``, and nothing is checked against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

GpuOption = Literal["gpus-per-node", "gres"]
GPU_OPTIONS: tuple[GpuOption, ...] = ("gpus-per-node", "gres")
GPU_VENDORS = ("nvidia", "amd")


@dataclass(frozen=True)
class NodeShape:
    """One kind of node. Nodes that a job cannot tell apart have equal shapes."""

    gpus: int = 0
    """GPUs in a node, as Slurm counts them: a card of two dies may be two."""
    gpu_type: str | None = None
    """Their type as Slurm spells it, for ``--gpus-per-node TYPE:N``. None: Slurm has no type."""
    gpu_vendor: str | None = None
    """``nvidia`` or ``amd``."""
    cpus: int | None = None
    """CPUs in a node, as ``--cpus-per-task`` counts them, with the reserved ones."""
    memory: int | None = None
    """Memory of a node in MiB, with what is reserved."""
    threads_per_core: int = 1
    """CPUs that are one core. A share of a node is made of whole cores."""
    reserved_cpus: int = 0
    """CPUs that the system keeps; jobs cannot have them."""
    reserved_memory: int = 0
    """MiB that the system keeps."""
    cpu_lists: tuple[str, ...] = ()
    """CPUs nearest to each GPU, in the order of the GPUs: ``49-55``."""
    nodes: int | None = None
    """Nodes of this kind in the partition."""

    @property
    def usable_cpus(self) -> int | None:
        """CPUs that jobs can have."""
        return None if self.cpus is None else max(self.cpus - self.reserved_cpus, 0)

    @property
    def usable_memory(self) -> int | None:
        """MiB that jobs can have."""
        return None if self.memory is None else max(self.memory - self.reserved_memory, 0)

    def offers(self, gpu_type: str | None) -> bool:
        """Return whether a job may request these GPUs by that type; no type matches any."""
        if gpu_type is None:
            return True
        return self.gpu_type is not None and self.gpu_type.lower() == gpu_type.lower()


@dataclass(frozen=True)
class Partition:
    """A queue, and the nodes behind it."""

    name: str
    """What ``--partition`` takes."""
    shapes: tuple[NodeShape, ...] = ()
    """The kinds of nodes in it. None listed: not known."""
    nodes: int | None = None
    """Nodes in it."""
    max_time: int | None = None
    """Longest time limit, in seconds."""
    max_nodes: int | None = None
    """Most nodes of one job."""
    max_cpus_per_node: int | None = None
    """Most CPUs on each node, where that is less than the node has."""
    max_memory_per_node: int | None = None
    """Most MiB on each node, where that is less than the node has."""
    default: bool = False
    """Slurm takes it when the job names none."""
    exclusive: bool = False
    """Whole nodes only; a job is alone on its nodes."""
    preemptible: bool = False
    """Jobs may be stopped for others."""
    note: str = ""
    """What else to know."""


@dataclass(frozen=True)
class Match:
    """How to know that we are on this site."""

    clusters: tuple[str, ...] = ()
    """Names that Slurm gives the cluster (``ClusterName``)."""
    hostnames: tuple[str, ...] = ()
    """Patterns of host names: ``uan*``."""


@dataclass(frozen=True)
class Site:
    """Facts of one cluster."""

    name: str
    """What ``--site`` takes."""
    description: str = ""
    """One line about the cluster."""
    partitions: tuple[Partition, ...] = ()
    """Its queues. None listed: not known, nothing is checked."""
    default_partition: str | None = None
    """Partition of a job that names none; given to Slurm explicitly."""
    match: Match = Match()
    """How to know that we are there."""
    environment: Mapping[str, object] = field(default_factory=dict)
    """Defaults of the job's environment fields: modules, conda, container, binds, setup."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables exported in every job, such as the network's."""
    interface: str | None = None
    """Network interface by which the nodes reach each other."""
    gpu_option: GpuOption = "gpus-per-node"
    """How sbatch there wants to be asked for GPUs."""
    job: Mapping[str, object] = field(default_factory=dict)
    """Defaults of any other job field: qos, constraint, directives."""
    requires: tuple[str, ...] = ()
    """Job fields that a user must give, such as ``account``."""
    slurm_version: str | None = None
    """Version seen there."""
    requeue_allowed: bool | None = None
    """Whether jobs may be put back into the queue (``JobRequeue``)."""
    kill_wait: int | None = None
    """Seconds between TERM and KILL at the end of the time limit."""
    note: str = ""
    """What else to know."""
    references: tuple[str, ...] = ()
    """Where the facts come from."""
    source: str = field(default="", compare=False)
    """The file that this was read from, or the cluster it was detected on."""
    found: str = field(default="", compare=False)
    """Why this site was chosen, when the user named none."""

    def partition(self, name: str) -> Partition | None:
        """Return the partition of that name."""
        return next((each for each in self.partitions if each.name == name), None)

    @property
    def first_choice(self) -> Partition | None:
        """The partition of a job that names none."""
        if self.default_partition is not None:
            return self.partition(self.default_partition)
        return next((each for each in self.partitions if each.default), None)
