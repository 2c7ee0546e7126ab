"""The Plan: a job with every value resolved, ready to be rendered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from allranks.cluster.sites.model import Site
from allranks.core.python_imports import ImportScan
from allranks.core.redaction import holds_secret
from allranks.core.shell import Word
from allranks.core.units import Gpus
from allranks.job.config_sources import Origin
from allranks.job.fields import Job
from allranks.job.launchers import Launcher
from allranks.runtime.agent.agent_options import RequeuePolicy

if TYPE_CHECKING:
    from allranks.job.accelerate_config import AccelerateFile


@dataclass(frozen=True)
class JobShape:
    """The size of a job: nodes, ranks, tasks, GPUs, CPUs, memory."""

    nodes: int
    ranks_per_node: int
    tasks_per_node: int
    """Slurm tasks on a node: one per rank, or one that starts the node's ranks."""
    gpus_per_node: Gpus
    cpus_per_task: int | None = None
    """None: unknown, so Slurm's default applies."""
    memory: int | None = None
    """MiB on each node; 0 is all of it, None is the partition's default."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def cpus_per_rank(self) -> int | None:
        """CPUs that a rank may use, if known."""
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
    launcher: Launcher
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
    def uses_agent(self) -> bool:
        """Whether allranks does anything on the nodes."""
        return self.agent and self.launcher.supervised

    def agent_words(self, *words: Word) -> list[Word]:
        """Return a command of the agent."""
        return [self.python, "-m", "allranks.runtime.agent", *words]

    @property
    def uses_pyxis(self) -> bool:
        """Whether srun itself starts the tasks in the container."""
        return bool(self.job.container) and self.job.container_runtime == "pyxis"

    @property
    def setup_in_task(self) -> bool:
        """Whether every task sets up its environment, instead of the batch script once."""
        return self.job.setup_on == "node" and self.launcher.uses_srun

    @property
    def only_tasks_have_environment(self) -> bool:
        """Whether the batch script runs outside the environment of the ranks."""
        return self.setup_in_task or self.uses_pyxis

    @property
    def requeues(self) -> bool:
        """Whether the job script requeues itself."""
        return bool(self.job.requeue) and self.uses_agent

    @property
    def restarts_ranks(self) -> bool:
        """Whether failed ranks are started again in place."""
        return bool(self.job.restarts) and self.uses_agent

    @property
    def requeue_policy(self) -> RequeuePolicy:
        """The limits within which another attempt follows."""
        usual, job = RequeuePolicy(), self.job
        return RequeuePolicy(
            self.requeues,
            job.max_attempts or usual.max_attempts,
            job.max_no_progress or usual.max_no_progress,
            job.restarts or usual.restarts,
        )

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
        """Variables that reach the job by its environment and are never written to a file."""
        return {name: value for name, value in self.job.env.items() if holds_secret(name, value)}

    @property
    def accelerate_needs_cpu(self) -> bool:
        """Without GPUs and this variable, Accelerate trains in every rank separately."""
        modules = self.imports.modules if self.imports else frozenset()
        uses_it = self.launcher.module == "accelerate" or modules & {"accelerate", "transformers"}
        return bool(uses_it) and not self.shape.gpus_per_node.count

    @property
    def gpu_vendor(self) -> str:
        """The vendor of the nodes' GPUs."""
        if self.site is not None:
            for partition in self.site.partitions:
                if self.job.partition in (None, partition.name):
                    for shape in partition.shapes:
                        if shape.gpu_vendor:
                            return shape.gpu_vendor
        return "nvidia"
