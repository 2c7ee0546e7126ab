"""accelerate launch: one per node, which uses torchrun's machinery underneath."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.shell import Word
from allranks.job.accelerate_config import MODES, OWN_ENGINES
from allranks.job.launchers.base import ElasticLauncher, Groups, LaunchNode

if TYPE_CHECKING:
    from allranks.job.plan import Plan


class AccelerateLauncher(ElasticLauncher):
    """``accelerate launch --machine_rank …`` on every node."""

    name = "accelerate"
    module = "accelerate"
    no_python = "--no_python"

    def words(self, plan: Plan, node: LaunchNode) -> Groups:
        shape = plan.shape
        return [
            [*self.prefix(plan, node), *self._program(plan)],
            [
                *self._mode(plan),
                "--num_processes",
                str(shape.world_size),
                "--num_machines",
                str(shape.nodes),
            ],
            ["--machine_rank", node.node_rank],
            ["--main_process_ip", node.address, "--main_process_port", node.port],
            self._rendezvous(plan),
            list(plan.job.launcher_args),
            self.tail(plan, node),
        ]

    def _program(self, plan: Plan) -> list[Word]:
        if plan.python == "python":
            return ["accelerate", "launch"]
        return [plan.python, "-m", "accelerate.commands.launch"]

    def _mode(self, plan: Plan) -> list[Word]:
        """Several processes, on GPUs or not, unless the user or the settings file names an engine."""
        file = plan.accelerate_file
        by_file = file is not None and file.kind in OWN_ENGINES
        by_words = any(word in MODES for word in plan.job.launcher_args)
        mode: list[Word] = []
        if plan.shape.world_size > 1 and not by_file and not by_words:
            mode.append("--multi_gpu")
        deepspeed = "--use_deepspeed" in plan.job.launcher_args
        if file is not None and file.kind == "DEEPSPEED":
            deepspeed = deepspeed or not by_words
        if deepspeed and plan.shape.nodes > 1:
            mode += ["--deepspeed_multinode_launcher", "standard"]  # the others go by ssh
        return mode

    def _rendezvous(self, plan: Plan) -> list[Word]:
        file = plan.accelerate_file
        if plan.shape.nodes == 1:
            # A file for several nodes may say c10d, which has no endpoint on one.
            return ["--rdzv_backend", "static"] if file and "rdzv_backend" in file.values else []
        if plan.job.rendezvous == "static" or (file and file.is_true("same_network")):
            # Only with --same_network does accelerate hand the machine rank and the address on.
            return ["--rdzv_backend", "static", "--same_network"]
        return ["--rdzv_backend", "c10d"]
