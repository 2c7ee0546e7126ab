"""srun: one Slurm task per rank. On this machine, where there is no srun, our agent starts the ranks."""

from __future__ import annotations

from allranks.core.shell import Word
from allranks.job.launchers.base import SLURM, Groups, Launcher, Place, counts
from allranks.job.plan import Plan


class Srun(Launcher):
    """The training command itself, in every task."""

    name = "srun"
    survives_signals = True

    def words(self, plan: Plan, place: Place) -> Groups:
        if place is SLURM:
            return [[*(place.rank() if plan.agent else []), *plan.command]]
        _, ranks = counts(plan)
        options: list[Word] = ["--nprocs", ranks, "--mode", "exec"]
        return [[*place.agent, "ranks", *options], ["--", *plan.command]]

    def task_lines(self, plan: Plan) -> list[str]:
        lines = ["export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID"]
        if plan.job.head:
            # Rank 0 must be on the head node, since the others meet there.
            cyclic = (plan.job.distribution or "block").startswith("cyclic")
            first = "head_index" if cyclic else f"head_index * {plan.shape.tasks_per_node}"
            lines = [
                f"export RANK=$(((SLURM_PROCID - {first} + WORLD_SIZE) % WORLD_SIZE)) LOCAL_RANK=$SLURM_LOCALID"
            ]
        return lines
