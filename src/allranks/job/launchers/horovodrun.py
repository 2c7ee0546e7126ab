"""horovod: horovodrun on this machine; under Slurm one task per rank, connected by gloo.

horovodrun reaches other nodes by ssh, which most clusters forbid. Under Slurm the tasks are started by
srun, and our agent gives each the variables that horovodrun would. The table by which the ranks find
each other is then served from the job script, whichever launcher starts a script that uses Horovod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.shell import Word, join
from allranks.job.launchers.base import Groups, LocalNode
from allranks.job.launchers.srun import SrunLauncher

if TYPE_CHECKING:
    from allranks.job.fields import Job
    from allranks.job.plan import Plan


class HorovodLauncher(SrunLauncher):
    """``horovodrun --gloo``, or srun with Horovod's own variables."""

    name = "horovod"
    module = "horovod"
    install = "allranks frameworks install horovod"
    framework = "horovod"
    needs_agent = True
    reports_exit_code = False

    def local_words(self, plan: Plan, node: LocalNode) -> Groups:
        # The module is the same program and belongs to the very interpreter that the job names.
        module: list[Word] = [plan.python, "-m", "horovod.runner.launch"]
        program: list[Word] = ["horovodrun"] if plan.python == "python" else module
        size: list[Word] = ["--gloo", "-np", str(plan.shape.world_size)]
        command: list[Word] = [
            *node.rank_prefix(plan, "--prefix", "never"),
            *plan.command,
        ]  # it has its own
        return [[*program, *size], list(plan.job.launcher_args), command]

    def is_mpi(self, job: Job) -> bool:
        return False

    def srun_options(self, job: Job) -> list[Word]:
        return []


def needs_rendezvous_server(plan: Plan) -> bool:
    """Whether Horovod's ranks find each other by a server of allranks, not by MPI."""
    launcher = plan.launcher
    uses = "horovod" in (launcher.framework, plan.framework)
    return uses and plan.uses_agent and not launcher.is_mpi(plan.job)


def rendezvous_server_lines(plan: Plan, served_by: Word) -> list[str]:
    """Return the lines of a job script that run the server with that Python until the script ends."""
    if not needs_rendezvous_server(plan):
        return []
    exit_line = 'kill "$horovod_server" 2>/dev/null || true'
    if plan.requeues or plan.restarts_ranks:
        exit_line = f'code=$?; {exit_line}; on_exit "$code"'
    inside = "inside " if plan.job.container and plan.job.container_runtime != "pyxis" else ""
    return [
        "# The rendezvous server by which Horovod's ranks find each other.",
        "if ! read -r HOROVOD_GLOO_RENDEZVOUS_ADDR HOROVOD_GLOO_RENDEZVOUS_PORT < <(",
        f"  {inside}{join([served_by])} -m allranks.runtime.agent horovod-server \\",
        '    --host "$MASTER_ADDR" --port "$((MASTER_PORT + 1))"',
        "); then",
        '  echo "Horovod\'s rendezvous server did not start: no Python with allranks on $HOSTNAME." >&2',
        "  exit 1",
        "fi",
        "horovod_server=$!",
        f"trap '{exit_line}' EXIT",
        "export HOROVOD_GLOO_RENDEZVOUS_ADDR HOROVOD_GLOO_RENDEZVOUS_PORT",
    ]
