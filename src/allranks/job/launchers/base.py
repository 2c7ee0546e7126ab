"""The interface of a launcher: how processes start, and the facts that the rest of the job needs about it.

Where a job runs (this machine, Slurm) and how its processes start are independent. A launcher that is
started alike in both builds its command from a ``LaunchNode``, which holds the node's rank, address and port
as shell variables of a job script or as values of this machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from allranks.core.shell import Raw, Word
from allranks.errors import JobError

if TYPE_CHECKING:
    from allranks.job.fields import Job
    from allranks.job.plan import Plan

Groups = list[list[Word]]
"""A command as groups of words; a script shows one group per line."""


@dataclass(frozen=True)
class LaunchNode(ABC):
    """What a launcher needs to know about the node on which it starts."""

    node_rank: Word
    address: Word
    port: Word
    endpoint: Word
    """Address and port in one word, with brackets around IPv6."""
    is_host: Word
    """1 on the head node, 0 elsewhere."""
    id: Word
    """Distinguishes this launch from any other."""

    @abstractmethod
    def rank_prefix(self, plan: Plan, *options: Word) -> list[Word]:
        """Return the words that put the agent around a rank's command."""

    def launcher_prefix(self) -> list[Word]:
        """Return the words before a launcher that would end its ranks at a signal."""
        return []


@dataclass(frozen=True)
class SlurmNode(LaunchNode):
    """A node of a Slurm job, described by variables that the job script sets."""

    def rank_prefix(self, plan: Plan, *options: Word) -> list[Word]:
        return [Raw('"${rank[@]}"')]  # empty where allranks is not installed

    def launcher_prefix(self) -> list[Word]:
        return [Raw('"${rank[@]:0:3}" ${rank[0]:+block-signals --}')]


@dataclass(frozen=True)
class LocalNode(LaunchNode):
    """This machine."""

    def rank_prefix(self, plan: Plan, *options: Word) -> list[Word]:
        return plan.agent_words("rank", *options, "--")


SLURM_NODE = SlurmNode(
    node_rank=Raw('"$NODE_RANK"'),
    address=Raw('"$MASTER_ADDR"'),
    port=Raw('"$MASTER_PORT"'),
    endpoint=Raw('"$endpoint"'),
    is_host=Raw('"$is_host"'),
    id=Raw('"$SLURM_JOB_ID"'),
)


class Launcher(ABC):
    """How processes start."""

    name: ClassVar[str]
    module: ClassVar[str | None] = None
    """Python module that must be importable in the job's environment."""
    install: ClassVar[str] = ""
    """How to install it, where pip alone does not."""
    framework: ClassVar[str | None] = None
    """The framework whose scripts it starts, if only those."""
    task_per_rank: ClassVar[bool] = False
    """Whether Slurm counts one task per rank, instead of one per node."""
    uses_srun: ClassVar[bool] = True
    """False: the command runs once, on the first node, and reaches the others by itself."""
    survives_signals: ClassVar[bool] = False
    """Whether USR1 and USR2, which Slurm sends to every process of a step, leave it alive."""
    supervised: ClassVar[bool] = True
    """Whether allranks runs beside the ranks; False: the script starts and watches its own."""
    wraps_ranks: ClassVar[bool] = True
    """Whether the agent is started around each rank."""
    needs_agent: ClassVar[bool] = False
    """Whether the agent starts the ranks or connects them, so that the job needs it."""
    reports_exit_code: ClassVar[bool] = False
    """Whether on this machine it exits with the failing rank's code; others exit with 1."""

    @abstractmethod
    def task_words(self, plan: Plan) -> Groups:
        """Return the command of one Slurm task, or of the batch script without srun."""

    @abstractmethod
    def local_words(self, plan: Plan, node: LocalNode) -> Groups:
        """Return the command that starts all ranks of this machine."""

    def check(self, job: Job) -> None:
        """Raise `JobError` for what this launcher cannot do under Slurm."""
        if self.needs_agent and job.agent is False:
            raise JobError(
                f"--no-agent with --launcher {self.name}: the agent starts its ranks.\n"
                "Leave --no-agent out, or use --launcher srun."
            )

    def is_mpi(self, job: Job) -> bool:
        """Whether the ranks find each other by MPI."""
        return False

    def srun_options(self, job: Job) -> list[Word]:
        """Return further options of the srun that starts the tasks."""
        return []

    def agent_options(self, plan: Plan) -> list[Word]:
        """Return options of ``allranks.runtime.agent rank`` under this launcher."""
        return []

    def without_agent(self) -> list[Word]:
        """Return the words before a rank's command in place of the agent."""
        return []

    def task_lines(self, plan: Plan) -> list[str]:
        """Return shell lines that a task runs before the command."""
        return []

    def script_lines(self, plan: Plan) -> list[str]:
        """Return shell lines that the batch script runs before the launch."""
        return []


class NodeLauncher(Launcher):
    """A launcher that is started once per node, alike on this machine and in a job script."""

    @abstractmethod
    def words(self, plan: Plan, node: LaunchNode) -> Groups:
        """Return the command that starts the ranks of a node."""

    def task_words(self, plan: Plan) -> Groups:
        return self.words(plan, SLURM_NODE)

    def local_words(self, plan: Plan, node: LocalNode) -> Groups:
        return self.words(plan, node)


class ElasticLauncher(NodeLauncher):
    """A launcher of the torchrun family, which starts ``python SCRIPT`` and ends its ranks at signals."""

    no_python: ClassVar[str] = "--no-python"
    """The option by which it starts a program as it is."""

    def task_lines(self, plan: Plan) -> list[str]:
        if not plan.agent:
            return []
        return [
            "# Slurm signals every process of the step. The launcher would end its ranks before they have saved:",
            "# it runs with the signals blocked, and the agent around each rank unblocks them.",
        ]

    def prefix(self, plan: Plan, node: LaunchNode) -> list[Word]:
        """Return the words before the launcher."""
        return node.launcher_prefix() if plan.agent else []

    def tail(self, plan: Plan, node: LaunchNode) -> list[Word]:
        """Return the end of the command line: the agent and the command, or the script."""
        if plan.agent:
            return [
                self.no_python,
                *node.rank_prefix(plan, *self.agent_options(plan)),
                *plan.command,
            ]
        return plan.training if plan.is_python else [self.no_python, *plan.command]
