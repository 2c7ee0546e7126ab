"""srun: one Slurm task per rank. On this machine, without srun, the agent starts the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.shell import Word
from allranks.job.launchers.base import SLURM_NODE, Groups, Launcher, LocalNode

if TYPE_CHECKING:
    from allranks.job.fields import Job
    from allranks.job.plan import Plan


class SrunLauncher(Launcher):
    """The training command itself, in every task."""

    name = "srun"
    survives_signals = True
    task_per_rank = True
    reports_exit_code = True

    def task_words(self, plan: Plan) -> Groups:
        return [[*(SLURM_NODE.rank_prefix(plan) if plan.agent else []), *plan.command]]

    def local_words(self, plan: Plan, node: LocalNode) -> Groups:
        ranks = str(plan.shape.ranks_per_node)
        start = plan.agent_words("ranks", "--nprocs", ranks, "--mode", "exec")
        return [start, ["--", *plan.command]]

    def is_mpi(self, job: Job) -> bool:
        return bool(job.mpi)

    def srun_options(self, job: Job) -> list[Word]:
        return [f"--mpi={job.mpi}"] if job.mpi else []

    def task_lines(self, plan: Plan) -> list[str]:
        lines = ["export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID"]
        if plan.job.head:
            # Rank 0 must be on the head node, whose address is MASTER_ADDR.
            cyclic = (plan.job.distribution or "block").startswith("cyclic")
            first = "head_index" if cyclic else f"head_index * {plan.shape.tasks_per_node}"
            lines = [
                f"export RANK=$(((SLURM_PROCID - {first} + WORLD_SIZE) % WORLD_SIZE)) LOCAL_RANK=$SLURM_LOCALID"
            ]
        return lines
