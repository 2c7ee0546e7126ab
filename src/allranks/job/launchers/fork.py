"""fork: ours. One parent per node imports the framework once and forks the node's ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.shell import Word
from allranks.job.launchers.base import Groups, LaunchNode, NodeLauncher

if TYPE_CHECKING:
    from allranks.job.plan import Plan


class ForkLauncher(NodeLauncher):
    """``python -m allranks.runtime.agent ranks`` on every node."""

    name = "fork"
    survives_signals = True
    wraps_ranks = False
    needs_agent = True

    def words(self, plan: Plan, node: LaunchNode) -> Groups:
        nodes, ranks = str(plan.shape.nodes), str(plan.shape.ranks_per_node)
        return [
            plan.agent_words("ranks"),
            ["--nprocs", ranks, "--nnodes", nodes, "--node-rank", node.node_rank],
            [*self._mode(plan), *plan.job.launcher_args],
            ["--", *(plan.training if plan.is_python else plan.command)],
        ]

    def _mode(self, plan: Plan) -> list[Word]:
        if not plan.is_python:
            return ["--mode", "exec"]
        preload = ",".join(plan.imports.preload) if plan.imports else "torch"
        return ["--mode", "fork", *(["--preload", preload] if preload else [])]
