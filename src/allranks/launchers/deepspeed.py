"""deepspeed: its launcher on every node, told not to use ssh."""

from __future__ import annotations

from allranks.job.plan import Plan
from allranks.launchers.base import Groups, Launcher, Place, tail
from allranks.shell import Raw, Word


class DeepSpeed(Launcher):
    """``deepspeed --no_ssh --node_rank …`` on every node."""

    name = "deepspeed"
    module = "deepspeed"
    package = "deepspeed"

    def words(self, plan: Plan, place: Place) -> Groups:
        return [
            self._program(plan),
            self._nodes(plan, place),
            ["--master_addr", place.address, "--master_port", place.port],
            list(plan.job.launcher_args),
            [*(["--no_local_rank"] if plan.agent else []), *tail(plan, self, place, "--no_python")],
        ]

    def _program(self, plan: Plan) -> list[Word]:
        if plan.python == "python":
            return ["deepspeed"]
        return [plan.python, "-m", "deepspeed.launcher.runner"]

    def _nodes(self, plan: Plan, place: Place) -> list[Word]:
        shape = plan.shape
        if shape.nodes == 1:
            return ["--num_gpus", str(shape.ranks_per_node)]
        # Without ssh the names in the host file are never contacted; they only say how many ranks
        # each machine has, in the order of the node ranks.
        hosts = f"for ((i = 0; i < {shape.nodes}; i++)); do echo \"node$i slots={shape.ranks_per_node}\"; done"
        return ["--hostfile", Raw(f"<({hosts})"), "--no_ssh", "--node_rank", place.node_rank]

    def agent_options(self, plan: Plan) -> list[Word]:
        """DeepSpeed hands every script ``--local_rank``; a script that does not know it would stop."""
        spelling = plan.local_rank_option
        return ["--local-rank-arg", spelling] if spelling else []
