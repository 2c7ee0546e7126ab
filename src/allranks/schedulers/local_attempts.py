"""The attempts of a run on this machine: start the launcher, wait for it, end what it left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from allranks.cluster.slurm.submit_environment import RANK_VARIABLES
from allranks.errors import MissingDependencyError
from allranks.job.launchers import LocalNode
from allranks.job.launchers.horovodrun import needs_rendezvous_server
from allranks.job.plan import Plan
from allranks.runs.attempt import Attempt
from allranks.runs.run_folder import Run
from allranks.runs.run_process import record_process
from allranks.runtime.agent.agent_options import RequeuePolicy
from allranks.runtime.agent.attempt_end import AttemptEnd, end_attempt
from allranks.runtime.agent.failures import summary
from allranks.runtime.agent.linux_processes import die_with
from allranks.runtime.agent.orphans import sweep
from allranks.runtime.world.endpoints import derived_port, free_port
from allranks.schedulers.launcher_watch import LauncherWatch
from allranks.schedulers.local_setup import wrap_command


def run_attempts(
    plan: Plan,
    run: Run,
    setup: list[str],
    *,
    show: str = "all",
    meanwhile: Callable[[], object] = lambda: None,
) -> int:
    """Run one attempt, and another whenever crashed ranks may be restarted; return the exit code.

    ``meanwhile`` is called once, while the ranks of the first attempt start.
    """
    while True:
        decision = end_attempt(_run_attempt(plan, run, setup, show, meanwhile))
        if decision.next == "restart" or plan.job.restarts or decision.outcome == "interrupted":
            print(f"allranks: {decision.reason}", file=sys.stderr)
        if decision.next != "restart":
            return decision.code
        meanwhile = lambda: None  # noqa: E731


def local_policy(plan: Plan) -> RequeuePolicy:
    """Return the limits of a run on this machine, which has no queue to go back to."""
    return plan.requeue_policy._replace(requeue=False)


def _run_attempt(
    plan: Plan, run: Run, setup: list[str], show: str, meanwhile: Callable[[], object]
) -> AttemptEnd:
    """Run one attempt. The exit code is the failing rank's."""
    launcher = plan.launcher
    words = [word for group in launcher.local_words(plan, _node(plan)) for word in group]
    words = wrap_command(setup, plan, run.path / "lib", words)
    session = uuid.uuid4().hex
    attempt = run.new_attempt(launcher=plan.launcher.name, hosts=[os.uname().nodename])
    env = _environment(plan, run, attempt, session) | {"ALLRANKS_SHOW": show}
    try:
        with _horovod_server(plan, env) as serve:

            def beside() -> None:
                record_process(run)
                serve()
                meanwhile()

            watch = _supervise(words, env, plan, beside)
    finally:
        sweep(session)
    code, failure = watch.code, attempt.first_failure()
    if code and failure and launcher.wraps_ranks and not launcher.reports_exit_code:
        code = failure.exit_code or code  # other launchers turn every failure into a 1
        print(summary(attempt.path), file=sys.stderr)
    return AttemptEnd(attempt, code, local_policy(plan), terminated=watch.is_stopped)


@contextmanager
def _horovod_server(plan: Plan, env: dict[str, str]) -> Iterator[Callable[[], object]]:
    """Open the rendezvous server of Horovod's ranks, where horovodrun does not serve one.

    Ranks may connect at once; they are answered when the launcher runs, as no thread may be there
    when it is forked.
    """
    if "HOROVOD_RANK" in env:  # we are inside another Horovod job
        for name in [each for each in RANK_VARIABLES if each.startswith("HOROVOD_")]:
            env.pop(name, None)
    if plan.launcher.framework == "horovod" or not needs_rendezvous_server(plan):
        yield lambda: None
        return
    from allranks.runtime.world.horovod_rendezvous import open_rendezvous_server

    with open_rendezvous_server("127.0.0.1", derived_port(uuid.uuid4().hex)) as server:
        env["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = server.server_name
        env["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(server.server_port)
        yield server.serve_in_background


def _node(plan: Plan) -> LocalNode:
    # Two runs that start at the same moment must not look for a port from the same start.
    port = plan.job.port or free_port("127.0.0.1", derived_port(uuid.uuid4().hex))
    return LocalNode(
        node_rank="0",
        address="127.0.0.1",
        port=str(port),
        endpoint=f"127.0.0.1:{port}",
        is_host="1",
        id=uuid.uuid4().hex[:8],
    )


def _environment(plan: Plan, run: Run, attempt: Attempt, launch_id: str) -> dict[str, str]:
    env = {**os.environ, **plan.job.env}
    lib = run.path / "lib"
    if lib.is_dir():
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(lib), env.get("PYTHONPATH"))))
    env |= {
        "ALLRANKS_RUN_DIR": str(run.path),
        "ALLRANKS_ATTEMPT_DIR": str(attempt.path),
        "ALLRANKS_LAUNCHER": plan.launcher.name,
        "ALLRANKS_LAUNCH_ID": launch_id,
        "ALLRANKS_BIND": plan.job.bind or "auto",
    }
    if plan.accelerate_needs_cpu:
        env.setdefault("ACCELERATE_USE_CPU", "true")
    if "OMP_NUM_THREADS" not in env:
        cpus = len(os.sched_getaffinity(0))
        env["OMP_NUM_THREADS"] = str(max(1, cpus // plan.shape.ranks_per_node))
    if plan.framework not in (None, "torch"):
        env["ALLRANKS_FRAMEWORK"] = str(plan.framework)
    return env


def _supervise(
    words: list[str], env: dict[str, str], plan: Plan, beside: Callable[[], object]
) -> LauncherWatch:
    """Start the launcher and wait for it; signals are passed on while ``beside`` runs."""
    me = os.getpid()
    try:
        process = subprocess.Popen(
            words, env=env, cwd=plan.job.chdir, preexec_fn=lambda: die_with(me)
        )
    except FileNotFoundError:
        raise MissingDependencyError(
            f"{words[0]} is not on the PATH. Install it, activate its environment, "
            "or choose another --launcher."
        ) from None
    watch = LauncherWatch(process)
    watch.wait(beside)
    return watch
