"""python: the script once per node, for scripts that start their own processes."""

from __future__ import annotations

from allranks.job.launchers.base import SLURM, Groups, Launcher, Place
from allranks.job.plan import Plan


class Python(Launcher):
    """``python train.py`` in one task per node, with the address and port to meet on."""

    name = "python"
    survives_signals = True
    wraps_ranks = False

    def words(self, plan: Plan, place: Place) -> Groups:
        if place is SLURM:
            return [plan.command]
        return [
            [*place.agent, "ranks", "--nprocs", "1", "--mode", "exec", "--plain"],
            ["--", *plan.command],
        ]
