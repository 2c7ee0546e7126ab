"""The Plan: a job with every value settled, ready to be rendered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from allranks.cluster.sites.model import Site
from allranks.core.python_imports import ImportScan
from allranks.core.redaction import holds_secret
from allranks.core.shell import Word
from allranks.core.units import Gpus
from allranks.job.fields import Job
from allranks.job.layers import Origin

if TYPE_CHECKING:
    from allranks.job.accelerate_config import AccelerateFile


@dataclass(frozen=True)
class JobShape:
    """How many of everything."""

    nodes: int
    ranks_per_node: int
    tasks_per_node: int
    """Slurm tasks on a node: one per rank, or one that starts the node's ranks."""
    gpus_per_node: Gpus
    cpus_per_task: int | None = None
    """None: nobody said and no site tells; Slurm's default holds."""
    memory: int | None = None
    """MiB on each node; 0 is all of it, None is the partition's default."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def cpus_per_rank(self) -> int | None:
        """CPUs that a rank may use, where it is known."""
        if self.cpus_per_task is None:
            return None
        return max(1, self.cpus_per_task * self.tasks_per_node // self.ranks_per_node)


@dataclass(frozen=True)
class Plan:
    """The resolved job: what ``script`` prints, ``submit`` sends and ``run`` starts.

    Everything that has to be looked up on disk or in the environment is stored here, so that rendering
    a plan gives the same text everywhere.
    """

    job: Job
    shape: JobShape
    launcher: str
    site: Site | None = None
    origins: dict[str, Origin] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    imports: ImportScan | None = None
    framework: str | None = None
    script_in_folder: bool = False
    """Whether the script is a file of the job's folder, not a program on its PATH."""
    local_rank_option: str | None = None
    """``local_rank`` or ``local-rank``, where the script takes such an option."""
    accelerate_file: AccelerateFile | None = None
    """Accelerate's settings file, under its launcher."""

    @property
    def python(self) -> str:
        return self.job.python or "python"

    @property
    def agent(self) -> bool:
        return self.job.agent is not False

    @property
    def training(self) -> list[Word]:
        """The training command without the interpreter: ``train.py --lr 0.1``."""
        script = self.job.script or ""
        return [*(["-m"] if self.job.module else []), script, *self.job.args]

    @property
    def is_python(self) -> bool:
        """Whether the interpreter starts the script (else it is a program of its own)."""
        return bool(self.job.module) or (self.job.script or "").endswith(".py")

    @property
    def command(self) -> list[Word]:
        """The training command as one process of it is started."""
        if self.is_python:
            return [self.python, *self.training]
        script, *args = self.training
        plain = self.script_in_folder and "/" not in script  # PATH is not searched for a file here
        return [f"./{script}" if plain else script, *args]

    @property
    def secrets(self) -> dict[str, str]:
        """Variables that go to the job in its environment and are never written down."""
        return {name: value for name, value in self.job.env.items() if holds_secret(name, value)}

    @property
    def accelerate_needs_cpu(self) -> bool:
        """Without GPUs Accelerate takes every rank for a world of its own unless it is told."""
        modules = self.imports.modules if self.imports else frozenset()
        uses_it = self.launcher == "accelerate" or modules & {"accelerate", "transformers"}
        return bool(uses_it) and not self.shape.gpus_per_node.count

    @property
    def gpu_vendor(self) -> str:
        """Whose GPUs the nodes have."""
        if self.site is not None:
            for partition in self.site.partitions:
                if self.job.partition in (None, partition.name):
                    for shape in partition.shapes:
                        if shape.gpu_vendor:
                            return shape.gpu_vendor
        return "nvidia"
