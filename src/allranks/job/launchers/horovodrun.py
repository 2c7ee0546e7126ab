"""horovod: horovodrun on this machine; under Slurm one task per rank, meeting over gloo.

horovodrun reaches other nodes by ssh, which most clusters forbid. Under Slurm the tasks are started by
srun, and our agent gives each the variables that horovodrun would. The table by which the ranks find
each other is then served from the job script, whichever launcher starts a script that uses Horovod.
"""

from __future__ import annotations

from allranks.core.shell import Word, join
from allranks.job.launchers.base import SLURM, Groups, Place
from allranks.job.launchers.srun import Srun
from allranks.job.plan import Plan


class Horovod(Srun):
    """``horovodrun --gloo``, or srun with Horovod's own variables."""

    name = "horovod"
    module = "horovod"
    install = "allranks frameworks install horovod"

    def words(self, plan: Plan, place: Place) -> Groups:
        if place is SLURM:
            return super().words(plan, place)
        # The module is the same program and belongs to the very interpreter that the job names.
        module: list[Word] = [plan.python, "-m", "horovod.runner.launch"]
        program: list[Word] = ["horovodrun"] if plan.python == "python" else module
        size: list[Word] = ["--gloo", "-np", str(plan.shape.world_size)]
        command: list[Word] = [*place.rank("--prefix", "never"), *plan.command]  # it has its own
        return [[*program, *size], list(plan.job.launcher_args), command]


def needs_table(plan: Plan) -> bool:
    """Whether ranks are to find each other by a table: not where MPI tells them, nor one alone."""
    uses = plan.launcher == "horovod" or plan.framework == "horovod"
    by_mpi = plan.launcher == "mpirun" or (plan.launcher == "srun" and bool(plan.job.mpi))
    return uses and plan.agent and not by_mpi and plan.launcher != "python"


def table_lines(plan: Plan, served_by: Word) -> list[str]:
    """Lines of a job script that serve the table as long as the script runs, by that Python."""
    if not needs_table(plan):
        return []
    inside = "inside " if plan.job.container and plan.job.container_runtime != "pyxis" else ""
    return [
        "# Horovod's ranks find each other through a small table that is served from here.",
        "if ! read -r HOROVOD_GLOO_RENDEZVOUS_ADDR HOROVOD_GLOO_RENDEZVOUS_PORT < <(",
        f"  {inside}{join([served_by])} -m allranks.runtime.agent horovod-server \\",
        '    --host "$MASTER_ADDR" --port "$((MASTER_PORT + 1))"',
        "); then",
        '  echo "Horovod\'s ranks could not meet: no Python on $HOSTNAME could serve their table." >&2',
        "  exit 1",
        "fi",
        "horovod_table=$!",
        "trap 'kill \"$horovod_table\" 2>/dev/null || true' EXIT",
        "export HOROVOD_GLOO_RENDEZVOUS_ADDR HOROVOD_GLOO_RENDEZVOUS_PORT",
    ]
