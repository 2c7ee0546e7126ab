"""torchrun: one agent of PyTorch per node starts the node's ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.shell import Raw, Word
from allranks.job.launchers.base import ElasticLauncher, Groups, LaunchNode

if TYPE_CHECKING:
    from allranks.job.plan import Plan


class TorchrunLauncher(ElasticLauncher):
    """``torchrun --nnodes … --nproc-per-node …`` on every node."""

    name = "torchrun"
    module = "torch"

    def words(self, plan: Plan, node: LaunchNode) -> Groups:
        nodes, ranks = str(plan.shape.nodes), str(plan.shape.ranks_per_node)
        return [
            [*self.prefix(plan, node), *self._program(plan)],
            ["--nnodes", nodes, "--nproc-per-node", ranks],
            *self._rendezvous(plan, node),
            list(plan.job.launcher_args),
            self.tail(plan, node),
        ]

    def _program(self, plan: Plan) -> list[Word]:
        # The module is the same program and belongs to the very interpreter that the job names.
        return (
            ["torchrun"]
            if plan.python == "python"
            else [plan.python, "-m", "torch.distributed.run"]
        )

    def _rendezvous(self, plan: Plan, node: LaunchNode) -> Groups:
        if plan.job.rendezvous == "static":
            return [
                ["--node-rank", node.node_rank],
                ["--master-addr", node.address, "--master-port", node.port],
            ]
        # torchrun compares host names to find out whether it is the host, and waits for ever when they
        # differ from the addresses; so it gets the answer.
        return [
            ["--rdzv-backend", "c10d", "--rdzv-id", node.id, "--rdzv-endpoint", node.endpoint],
            [Raw(f"--rdzv-conf=is_host={node.is_host}")],
        ]

    def task_lines(self, plan: Plan) -> list[str]:
        if plan.job.rendezvous == "static":
            return super().task_lines(plan)
        return ["local is_host=$((NODE_RANK == 0))", *super().task_lines(plan)]
