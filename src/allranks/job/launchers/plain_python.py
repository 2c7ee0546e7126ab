"""python: the script once per node, for scripts that start their own processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.job.launchers.base import Groups, Launcher, LocalNode

if TYPE_CHECKING:
    from allranks.job.plan import Plan


class PythonLauncher(Launcher):
    """``python train.py`` in one task per node, with MASTER_ADDR and MASTER_PORT."""

    name = "python"
    survives_signals = True
    wraps_ranks = False
    supervised = False

    def task_words(self, plan: Plan) -> Groups:
        return [plan.command]

    def local_words(self, plan: Plan, node: LocalNode) -> Groups:
        return [
            plan.agent_words("ranks", "--nprocs", "1", "--mode", "exec", "--plain"),
            ["--", *plan.command],
        ]
