"""The seam: a launcher turns the training command into what a task runs.

Where a job goes (this machine, Slurm) and how its processes start are independent: a launcher says its
words once, in terms of a ``Place`` that holds the node's rank, the address and the port, either as
shell variables of a job script or as plain values of this machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from allranks.core.shell import Raw, Word
from allranks.job.plan import Plan

Groups = list[list[Word]]
"""A command as groups of words; a script shows one group a line."""


@dataclass(frozen=True)
class Place:
    """What a launcher needs to know of the node it starts on."""

    node_rank: Word
    address: Word
    port: Word
    endpoint: Word
    """Address and port in one word, brackets around IPv6."""
    is_host: Word
    """1 on the head node, 0 elsewhere."""
    id: Word
    """Tells this launch from any other."""
    agent: tuple[Word, ...] = ()
    """The agent's command up to its verb, or nothing when it is off."""

    def rank(self, *options: Word) -> list[Word]:
        """The words to put before a rank's command."""
        return [Raw('"${rank[@]}"')] if self is SLURM else [*self.agent, "rank", *options, "--"]


SLURM = Place(
    node_rank=Raw('"$NODE_RANK"'),
    address=Raw('"$MASTER_ADDR"'),
    port=Raw('"$MASTER_PORT"'),
    endpoint=Raw('"$endpoint"'),
    is_host=Raw('"$is_host"'),
    id=Raw('"$SLURM_JOB_ID"'),
)
"""A node of a Slurm job; the variables are set by the script's parts."""


class Launcher(ABC):
    """How processes start."""

    name: ClassVar[str]
    module: ClassVar[str | None] = None
    """Python module that must be importable in the job's environment."""
    install: ClassVar[str] = ""
    """How to get it, where pip alone does not."""
    through_srun: ClassVar[bool] = True
    """False: the command runs once, on the first node, and reaches the others by itself."""
    survives_signals: ClassVar[bool] = False
    """Whether USR1 and USR2, which Slurm sends to every process of a step, leave it alive."""
    wraps_ranks: ClassVar[bool] = True
    """Whether the agent stands around each rank."""

    @abstractmethod
    def words(self, plan: Plan, place: Place) -> Groups:
        """The command that one Slurm task runs, or that starts all ranks of this machine."""

    def agent_options(self, plan: Plan) -> list[Word]:
        """Options of ``allranks.runtime.agent rank`` under this launcher."""
        return []

    def bare(self) -> list[Word]:
        """What stands before a rank's command in place of the agent."""
        return []

    def task_lines(self, plan: Plan) -> list[str]:
        """Shell lines that a task runs before the command."""
        return []

    def script_lines(self, plan: Plan) -> list[str]:
        """Shell lines that the batch script runs before the launch."""
        return []


_BLOCK_SIGNALS = Raw('"${rank[@]:0:3}" ${rank[0]:+block-signals --}')
"""``python -m allranks.runtime.agent block-signals --`` where the agent is there, else nothing."""

_SIGNALS_COMMENT = [
    "# Slurm signals every process of the step. The launcher would end its ranks before they have saved:",
    "# it runs with the signals blocked, and the agent around each rank unblocks them.",
]


def block_signals(plan: Plan, place: Place) -> list[Word]:
    """Return the words before a launcher that would end its ranks at a signal."""
    return [_BLOCK_SIGNALS] if plan.agent and place is SLURM else []


def signals_comment(plan: Plan) -> list[str]:
    """Return the comment that explains `block_signals` in a task."""
    return _SIGNALS_COMMENT if plan.agent else []


def counts(plan: Plan) -> tuple[str, str]:
    """Nodes and ranks per node, as words."""
    return str(plan.shape.nodes), str(plan.shape.ranks_per_node)


def tail(plan: Plan, launcher: Launcher, place: Place, no_python: str) -> list[Word]:
    """The end of a command line of the torchrun family: the agent and the command, or the script.

    These launchers start ``python SCRIPT`` unless told otherwise; the agent is told about by their
    ``--no-python`` option.
    """
    if plan.agent:
        return [no_python, *place.rank(*launcher.agent_options(plan)), *plan.command]
    return plan.training if plan.is_python else [no_python, *plan.command]
