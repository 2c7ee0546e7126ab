"""accelerate launch: one per node, which uses torchrun's machinery underneath."""

from __future__ import annotations

from allranks.job.plan import Plan
from allranks.launchers.base import Groups, Launcher, Place, tail
from allranks.shell import Word


class Accelerate(Launcher):
    """``accelerate launch --machine_rank …`` on every node."""

    name = "accelerate"
    module = "accelerate"

    def words(self, plan: Plan, place: Place) -> Groups:
        shape = plan.shape
        several: list[Word] = ["--multi_gpu"] if shape.world_size > 1 else []
        return [
            self._program(plan),
            [
                *several,
                "--num_processes",
                str(shape.world_size),
                "--num_machines",
                str(shape.nodes),
            ],
            ["--machine_rank", place.node_rank],
            ["--main_process_ip", place.address, "--main_process_port", place.port],
            self._rendezvous(plan),
            list(plan.job.launcher_args),
            tail(plan, self, place, "--no_python"),
        ]

    def _program(self, plan: Plan) -> list[Word]:
        if plan.python == "python":
            return ["accelerate", "launch"]
        return [plan.python, "-m", "accelerate.commands.launch"]

    def _rendezvous(self, plan: Plan) -> list[Word]:
        if plan.shape.nodes == 1:
            return []
        if plan.job.rendezvous == "static":
            # Only with --same_network does accelerate hand the machine rank and the address on.
            return ["--rdzv_backend", "static", "--same_network"]
        return ["--rdzv_backend", "c10d"]
