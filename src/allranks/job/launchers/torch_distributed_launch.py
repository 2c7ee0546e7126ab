"""torch.distributed.launch: torchrun's older spelling, which hands each rank ``--local-rank``."""

from __future__ import annotations

from allranks.core.shell import Word
from allranks.job.launchers.base import (
    Groups,
    Launcher,
    Place,
    block_signals,
    counts,
    signals_comment,
    tail,
)
from allranks.job.plan import Plan


class TorchDistributedLaunch(Launcher):
    """``python -m torch.distributed.launch`` on every node."""

    name = "launch"
    module = "torch"

    def words(self, plan: Plan, place: Place) -> Groups:
        nodes, ranks = counts(plan)
        return [
            [*block_signals(plan, place), plan.python, "-m", "torch.distributed.launch"],
            ["--nnodes", nodes, "--nproc-per-node", ranks, "--node-rank", place.node_rank],
            ["--master-addr", place.address, "--master-port", place.port],
            list(plan.job.launcher_args),
            # It refuses --no-python without --use-env; the agent then passes the argument instead.
            [*(["--use-env"] if plan.agent or not plan.is_python else []),
             *tail(plan, self, place, "--no-python")],
        ]  # fmt: skip

    def task_lines(self, plan: Plan) -> list[str]:
        return signals_comment(plan)

    def agent_options(self, plan: Plan) -> list[Word]:
        # Scripts of the old style declare --local_rank; torch 2 passes --local-rank. A script that
        # was read and declares neither would stop at it, and has LOCAL_RANK.
        spelling = plan.local_rank_option or ("local-rank" if plan.imports is None else None)
        return ["--local-rank-arg", spelling] if spelling else []
