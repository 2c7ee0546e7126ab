"""torch.distributed.launch: torchrun's older spelling, which hands each rank ``--local-rank``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.shell import Word
from allranks.job.launchers.base import ElasticLauncher, Groups, LaunchNode

if TYPE_CHECKING:
    from allranks.job.plan import Plan


class TorchDistributedLauncher(ElasticLauncher):
    """``python -m torch.distributed.launch`` on every node."""

    name = "launch"
    module = "torch"

    def words(self, plan: Plan, node: LaunchNode) -> Groups:
        nodes, ranks = str(plan.shape.nodes), str(plan.shape.ranks_per_node)
        return [
            [*self.prefix(plan, node), plan.python, "-m", "torch.distributed.launch"],
            ["--nnodes", nodes, "--nproc-per-node", ranks, "--node-rank", node.node_rank],
            ["--master-addr", node.address, "--master-port", node.port],
            list(plan.job.launcher_args),
            # It refuses --no-python without --use-env; the agent then passes the argument instead.
            [*(["--use-env"] if plan.agent or not plan.is_python else []),
             *self.tail(plan, node)],
        ]  # fmt: skip

    def agent_options(self, plan: Plan) -> list[Word]:
        # Scripts of the old style declare --local_rank; torch 2 passes --local-rank. A script that
        # was read and declares neither would stop at it, and has LOCAL_RANK.
        spelling = plan.local_rank_option or ("local-rank" if plan.imports is None else None)
        return ["--local-rank-arg", spelling] if spelling else []
