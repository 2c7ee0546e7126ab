"""deepspeed: its launcher on every node, without its ssh."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from allranks.core.shell import Raw, Word, quote
from allranks.job.launchers.base import ElasticLauncher, Groups, LaunchNode

if TYPE_CHECKING:
    from allranks.job.plan import Plan

RUNNER = "deepspeed.launcher.runner"


class DeepSpeedLauncher(ElasticLauncher):
    """``deepspeed`` on one node, its per-node program on several."""

    name = "deepspeed"
    module = "deepspeed"
    no_python = "--no_python"

    def words(self, plan: Plan, node: LaunchNode) -> Groups:
        start, *rest = self._start(plan, node)
        return [
            [*self.prefix(plan, node), *start],
            *rest,
            ["--master_addr", node.address, "--master_port", node.port],
            list(plan.job.launcher_args),
            [*(["--no_local_rank"] if plan.agent else []), *self.tail(plan, node)],
        ]

    def _start(self, plan: Plan, node: LaunchNode) -> Groups:
        shape = plan.shape
        if shape.nodes == 1:
            program = ["deepspeed"] if plan.python == "python" else [plan.python, "-m", RUNNER]
            return [[*program, "--num_gpus", str(shape.ranks_per_node)]]
        # Between nodes the deepspeed command goes by ssh. This is the program that it would start
        # there; the names of the nodes do not matter to it, only their order and their ranks.
        return [
            [plan.python, "-m", "deepspeed.launcher.launch", "--node_rank", node.node_rank],
            [Raw(f'--world_info="$(base64 --wrap=0 <<<{quote(_world(plan))})"')],
        ]

    def agent_options(self, plan: Plan) -> list[Word]:
        """DeepSpeed hands every script ``--local_rank``; a script that does not know it would stop."""
        spelling = plan.local_rank_option
        return ["--local-rank-arg", spelling] if spelling else []


def _world(plan: Plan) -> str:
    ranks = list(range(plan.shape.ranks_per_node))
    return json.dumps({f"node{number}": ranks for number in range(plan.shape.nodes)})
