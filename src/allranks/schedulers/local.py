"""This machine: start the launcher, watch it, and leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from allranks.cluster.slurm.submit_environment import RANK_VARIABLES
from allranks.core.shell import quote
from allranks.errors import JobError, MissingDependencyError
from allranks.job.launchers import LAUNCHERS, Launcher, Place
from allranks.job.launchers.horovodrun import needs_table
from allranks.job.layers import JobLayer
from allranks.job.plan import Plan
from allranks.job.sbatch.attempt_lines import requeue_policy
from allranks.runs.attempt import Attempt
from allranks.runs.run import Run
from allranks.runs.run_process import note_process
from allranks.runtime.agent.attempt_end import AttemptEnd, end_attempt
from allranks.runtime.agent.attempt_start import record_kill
from allranks.runtime.agent.first_error import summary
from allranks.runtime.agent.linux_processes import die_with
from allranks.runtime.agent.requeue_policy import RequeuePolicy
from allranks.runtime.agent.sweep import sweep
from allranks.runtime.world.endpoints import derived_port, free_port
from allranks.schedulers.activation import STRICT, inside, local_setup
from allranks.schedulers.launcher_watch import Watch
from allranks.schedulers.run_setup import (
    keep_allranks,
    keep_code,
    keep_strict_files,
    keep_versions,
    make_run,
    with_kept_code,
)


def machine_layer(gpus: int) -> JobLayer:
    """What this machine has, as values of a job: one rank per GPU unless the user says otherwise."""
    return JobLayer("this machine", {"gpus_per_node": str(gpus)} if gpus else {})


def start_here(
    plan: Plan, python: str, *, show: str = "all", again: Run | None = None
) -> tuple[Run, int]:
    """Start the plan on this machine and wait for its end: as a new run, or one attempt more of one."""
    setup = local_setup(plan)
    if setup and not plan.job.python:
        # The set-up may put another first; else it is the one that would be used without it.
        setup = [f'PATH={quote(str(Path(python).parent))}:"$PATH"', *setup]
        python = "python3"
    _require(LAUNCHERS[plan.launcher], python)
    if again is not None and (last := again.last_attempt) is not None:
        record_kill(last, then="stop")  # nothing followed it until now
    run = again or make_run(plan, "local")
    plan = keep_strict_files(plan, run)
    if (
        python != sys.executable and not again
    ):  # another environment's, where allranks may be missing
        keep_allranks(run)
    copied = plan.job.snapshot == "copy"
    if copied:
        plan = with_kept_code(plan, run) if again else keep_code(plan, run, "copy")[0]
    plan = replace(plan, job=replace(plan.job, python=python))
    if plan.launcher == "mpirun" and not plan.job.mpi:
        plan = replace(plan, job=replace(plan.job, mpi=_mpi_family(setup)))

    def meanwhile() -> None:
        """Describing the code takes git a while; the ranks import their frameworks in that time."""
        try:
            keep_versions(plan, run, None if setup else python)
            if not copied:
                keep_code(plan, run, "reference")
        except OSError as error:  # what is not described can still be trained
            print(f"allranks: the versions and the code were not noted: {error}", file=sys.stderr)

    beside = _nothing if again else meanwhile
    return run, _attempts(plan, run, setup, {"ALLRANKS_SHOW": show}, beside)


def _require(launcher: Launcher, python: str) -> None:
    """A launcher's package, as far as it can be looked for from here."""
    if launcher.module and python == sys.executable and find_spec(launcher.module) is None:
        raise MissingDependencyError(
            f"The {launcher.name} launcher needs the '{launcher.module}' package.\n"
            f"Install it with: {launcher.install or f'pip install {launcher.module}'}"
        )


def _attempts(
    plan: Plan,
    run: Run,
    setup: list[str],
    extra: dict[str, str],
    meanwhile: Callable[[], object],
) -> int:
    """One attempt, and another whenever crashed ranks may be started again."""
    while True:
        decision = end_attempt(_start(plan, run, setup, extra, meanwhile))
        if decision.next == "restart" or plan.job.restarts or decision.outcome == "interrupted":
            print(f"allranks: {decision.reason}", file=sys.stderr)
        if decision.next != "restart":
            return decision.code
        meanwhile = _nothing


def _nothing() -> None:
    """The code is described once."""


def local_policy(plan: Plan) -> RequeuePolicy:
    """On this machine there is no queue to go back to."""
    return requeue_policy(plan)._replace(requeue=False)


def _start(
    plan: Plan,
    run: Run,
    setup: list[str],
    extra: dict[str, str],
    meanwhile: Callable[[], object],
) -> AttemptEnd:
    """One attempt. The exit code is the failing rank's."""
    launcher = LAUNCHERS[plan.launcher]
    words = [word for group in launcher.words(plan, _place(plan)) for word in group]
    words = inside(setup, plan, run.path / "lib", words)
    session = uuid.uuid4().hex
    attempt = run.new_attempt(launcher=plan.launcher, hosts=[os.uname().nodename])
    env = _environment(plan, run, attempt, session) | extra
    try:
        with _horovod_table(plan, env) as serve:

            def beside() -> None:
                note_process(run)
                serve()
                meanwhile()

            watch = _supervise(words, env, plan, beside)
    finally:
        sweep(session)
    code, failure = watch.code, attempt.first_failure()
    if code and failure and launcher.wraps_ranks and plan.launcher != "srun":
        code = failure.exit_code or code  # other launchers turn every failure into a 1
        print(summary(attempt.path), file=sys.stderr)
    return AttemptEnd(attempt, code, local_policy(plan), terminated=watch.asked)


@contextmanager
def _horovod_table(plan: Plan, env: dict[str, str]) -> Iterator[Callable[[], object]]:
    """The table by which Horovod's ranks find each other, where horovodrun does not serve one.

    Ranks may knock at once; they are answered when the launcher runs, as no thread may be there
    when it is forked.
    """
    if "HOROVOD_RANK" in env:  # we are inside another Horovod job
        for name in [each for each in RANK_VARIABLES if each.startswith("HOROVOD_")]:
            env.pop(name, None)
    if plan.launcher == "horovod" or not needs_table(plan):
        yield lambda: None
        return
    from allranks.runtime.world.horovod_rendezvous import open_rendezvous_server

    with open_rendezvous_server("127.0.0.1", derived_port(uuid.uuid4().hex)) as table:
        env["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = table.server_name
        env["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(table.server_port)
        yield table.serve_in_background


def _place(plan: Plan) -> Place:
    # Two runs that start at the same moment must not look for a port from the same start.
    port = plan.job.port or free_port("127.0.0.1", derived_port(uuid.uuid4().hex))
    return Place(
        node_rank="0",
        address="127.0.0.1",
        port=str(port),
        endpoint=f"127.0.0.1:{port}",
        is_host="1",
        id=uuid.uuid4().hex[:8],
        agent=(plan.python, "-m", "allranks.runtime.agent"),
    )


def _mpi_family(setup: list[str]) -> str:
    """Whose mpirun is on the PATH: they take different options."""
    asked = [
        "bash",
        "-c",
        "\n".join([STRICT, *setup, "type -P mpirun >/dev/null || exit 127", "mpirun --version"]),
    ]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 127):
        said = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise JobError(f"The set-up of the environment failed: {said}")
    if done.returncode:
        raise MissingDependencyError(
            "There is no mpirun on the PATH. Load its module, install Open MPI or MPICH, "
            "or choose another --launcher."
        )
    return "openmpi" if "Open MPI" in done.stdout else "mpich"


def _environment(plan: Plan, run: Run, attempt: Attempt, session: str) -> dict[str, str]:
    env = {**os.environ, **plan.job.env}
    lib = run.path / "lib"
    if lib.is_dir():
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(lib), env.get("PYTHONPATH"))))
    env |= {
        "ALLRANKS_RUN_DIR": str(run.path),
        "ALLRANKS_ATTEMPT_DIR": str(attempt.path),
        "ALLRANKS_LAUNCHER": plan.launcher,
        "ALLRANKS_SESSION": session,
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
) -> Watch:
    """Start the launcher and wait for it; what is done beside it holds no signal up."""
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
    watch = Watch(process)
    watch.wait(beside)
    return watch


def local_gpus(root: Path = Path("/")) -> int:
    """GPUs that a process here would see, without importing anything."""
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        visible = os.environ.get(variable)
        if visible is not None:
            return len(
                [device for device in visible.split(",") if device.strip() not in ("", "-1")]
            )
    nvidia = root / "proc/driver/nvidia/gpus"
    if nvidia.is_dir():
        return len(list(nvidia.iterdir()))
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    files = nodes.glob("*/properties") if nodes.is_dir() else ()
    return sum(1 for file in files if "simd_count 0\n" not in file.read_text())
