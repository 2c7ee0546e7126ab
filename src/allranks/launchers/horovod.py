"""horovod: horovodrun on this machine; under Slurm one task per rank, meeting over gloo.

horovodrun reaches other nodes by ssh, which most clusters forbid. Under Slurm the tasks are started by
srun, and our agent gives each the variables that horovodrun would and serves their rendezvous.
"""

from __future__ import annotations

from allranks.job.plan import Plan
from allranks.launchers.base import SLURM, Groups, Place
from allranks.launchers.srun import Srun
from allranks.shell import Word, quote


class Horovod(Srun):
    """``horovodrun --gloo``, or srun with Horovod's own variables."""

    name = "horovod"
    module = "horovod"

    def words(self, plan: Plan, place: Place) -> Groups:
        if place is SLURM:
            return super().words(plan, place)
        size: list[Word] = ["--gloo", "-np", str(plan.shape.world_size)]
        return [["horovodrun", *size], list(plan.job.launcher_args), [*place.rank(), *plan.command]]

    def script_lines(self, plan: Plan) -> list[str]:
        inside = "inside " if plan.job.container and plan.job.container_runtime != "pyxis" else ""
        return [
            "# Horovod's ranks find each other through a small server on the first node.",
            "export HOROVOD_GLOO_RENDEZVOUS_ADDR=$MASTER_ADDR HOROVOD_GLOO_RENDEZVOUS_PORT=$((MASTER_PORT + 1))",
            f"{inside}{quote(plan.python)} -m allranks.agent horovod-server \\",
            '  --host "$MASTER_ADDR" --port "$HOROVOD_GLOO_RENDEZVOUS_PORT" &',
            "horovod_server=$!",
            "trap 'kill \"$horovod_server\"' EXIT",
        ]
