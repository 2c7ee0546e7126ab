"""fork: ours. One parent per node imports the framework once and forks the node's ranks."""

from __future__ import annotations

from allranks.core.shell import Word
from allranks.job.launchers.base import Groups, Launcher, Place, counts
from allranks.job.plan import Plan


class Fork(Launcher):
    """``python -m allranks.runtime.agent ranks`` on every node."""

    name = "fork"
    survives_signals = True
    wraps_ranks = False

    def words(self, plan: Plan, place: Place) -> Groups:
        nodes, ranks = counts(plan)
        agent: list[Word] = list(place.agent) or [plan.python, "-m", "allranks.runtime.agent"]
        return [
            [*agent, "ranks"],
            ["--nprocs", ranks, "--nnodes", nodes, "--node-rank", place.node_rank],
            [*self._mode(plan), *plan.job.launcher_args],
            ["--", *(plan.training if plan.is_python else plan.command)],
        ]

    def _mode(self, plan: Plan) -> list[Word]:
        if not plan.is_python:
            return ["--mode", "exec"]
        preload = ",".join(plan.imports.preload) if plan.imports else "torch"
        return ["--mode", "fork", *(["--preload", preload] if preload else [])]
