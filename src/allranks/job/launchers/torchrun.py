"""torchrun: one agent of PyTorch per node starts the node's ranks."""

from __future__ import annotations

from allranks.core.shell import Raw, Word
from allranks.job.launchers.base import (
    SLURM,
    Groups,
    Launcher,
    Place,
    block_signals,
    counts,
    signals_comment,
    tail,
)
from allranks.job.plan import Plan


class Torchrun(Launcher):
    """``torchrun --nnodes … --nproc-per-node …`` on every node."""

    name = "torchrun"
    module = "torch"

    def words(self, plan: Plan, place: Place) -> Groups:
        nodes, ranks = counts(plan)
        return [
            [*block_signals(plan, place), *self._program(plan)],
            ["--nnodes", nodes, "--nproc-per-node", ranks],
            *self._rendezvous(plan, place),
            list(plan.job.launcher_args),
            tail(plan, self, place, "--no-python"),
        ]

    def _program(self, plan: Plan) -> list[Word]:
        # The module is the same program and belongs to the very interpreter that the job names.
        return (
            ["torchrun"]
            if plan.python == "python"
            else [plan.python, "-m", "torch.distributed.run"]
        )

    def _rendezvous(self, plan: Plan, place: Place) -> Groups:
        if plan.job.rendezvous == "static":
            return [
                ["--node-rank", place.node_rank],
                ["--master-addr", place.address, "--master-port", place.port],
            ]
        # torchrun finds out by comparing host names whether it is the host, and waits for ever when
        # they differ from the addresses; so it is told.
        host: Word = f"--rdzv-conf=is_host={place.is_host}"
        return [
            ["--rdzv-backend", "c10d", "--rdzv-id", place.id, "--rdzv-endpoint", place.endpoint],
            [Raw(host) if place is SLURM else host],
        ]

    def task_lines(self, plan: Plan) -> list[str]:
        if plan.job.rendezvous == "static":
            return signals_comment(plan)
        return ["local is_host=$((NODE_RANK == 0))", *signals_comment(plan)]
