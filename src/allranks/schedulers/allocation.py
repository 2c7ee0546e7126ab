"""The allocation around this process (salloc, a batch script): the job runs across its nodes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from allranks.cluster.slurm.commands import run_slurm
from allranks.errors import UsageError
from allranks.job.config_sources import JobLayer
from allranks.job.plan import Plan
from allranks.job.sbatch import body_lines
from allranks.runs.atomic_files import write_text
from allranks.runs.run_folder import Run
from allranks.runs.run_process import record_process
from allranks.runtime.agent.linux_processes import die_with
from allranks.runtime.world.env_variables import step_id
from allranks.runtime.world.hostlist import expand_counts
from allranks.schedulers.base import StartedRun
from allranks.schedulers.foreground import ForegroundScheduler
from allranks.schedulers.launcher_watch import LauncherWatch
from allranks.schedulers.run_setup import (
    copy_allranks,
    copy_strict_configs,
    make_run,
    snapshot_code,
)


class AllocationScheduler(ForegroundScheduler):
    """Runs the body of the job script by bash; the run ends with this process, not with the allocation."""

    name: ClassVar[str] = "allocation"

    def base_layer(self) -> JobLayer | None:
        return allocation_layer(os.environ)

    def prepare(self, plan: Plan, python: str = "") -> Run:
        # Whoever made the allocation requeues it, not this run.
        plan = replace(plan, job=replace(plan.job, requeue=None))
        run = make_run(plan, self.name)
        plan, _ = snapshot_code(copy_strict_configs(plan, run), run, "reference")
        if plan.agent:
            copy_allranks(run)
        lines = ["set -eo pipefail", *body_lines(plan, str(run.path), _step_options(plan))]
        write_text(run.path / "job.sh", "\n".join(lines) + "\n")
        return run

    def execute(self, plan: Plan, run: Run, *, python: str = "", show: str = "all") -> int:
        return _run_script(run, plan.secrets)

    def resume(
        self, run: Run, changes: Mapping[str, int | None], *, python: str | None
    ) -> StartedRun:
        if "SLURM_JOB_ID" not in os.environ:
            raise UsageError(
                f"{run.id} ran inside an allocation. Get one with salloc, and resume there."
            )
        return StartedRun(run, exit_code=_run_script(run, {}))


def in_allocation(env: Mapping[str, str]) -> bool:
    """Return whether this process is in an allocation that can hold steps of ours.

    In a task of a step the CPUs are taken: a step inside it would wait for them for ever.
    """
    return bool(env.get("SLURM_JOB_ID")) and step_id(env) is None


def allocation_layer(env: Mapping[str, str]) -> JobLayer | None:
    """Return the size of the allocation that this process is in, as values of a job."""
    if not in_allocation(env):
        return None
    job_id = env["SLURM_JOB_ID"]
    values: dict[str, object] = {}
    if nodes := env.get("SLURM_JOB_NUM_NODES", env.get("SLURM_NNODES")):
        values["nodes"] = int(nodes)
    if gpus := _gpus_on_node(env, job_id):
        values["gpus_per_node"] = gpus
    if cpus := env.get("SLURM_CPUS_PER_TASK"):
        values["cpus_per_task"] = int(cpus)
    return JobLayer(f"allocation {job_id}", values)


def _gpus_on_node(env: Mapping[str, str], job_id: str) -> str | None:
    if count := env.get("SLURM_GPUS_ON_NODE"):
        return count
    if per_node := env.get("SLURM_GPUS_PER_NODE"):
        return per_node
    # salloc's shell has no variable for --gres; only the job's record has it.
    for word in run_slurm(["scontrol", "show", "job", "-o", job_id]).split():
        if word.startswith("TresPerNode=") and "gpu" in word:
            return word.rpartition("gpu")[2].lstrip(":/=") or None
    return None


def _step_options(plan: Plan) -> list[str]:
    """Return srun's options for the size of the step.

    The allocation may have been made with other numbers, which srun takes from its variables otherwise.
    """
    shape = plan.shape
    words = [
        f"--nodes={shape.nodes}",
        f"--ntasks={shape.nodes * shape.tasks_per_node}",
        f"--ntasks-per-node={shape.tasks_per_node}",
    ]
    cpus = min(expand_counts(os.environ.get("SLURM_JOB_CPUS_PER_NODE") or "1"))
    if cpus < shape.tasks_per_node * (shape.cpus_per_task or 1):
        words.append("--overcommit")  # fewer CPUs than tasks: slow, yet better than an error
    return words


def _run_script(run: Run, secrets: Mapping[str, str]) -> int:
    me = os.getpid()
    process = subprocess.Popen(
        ["bash", str(run.path / "job.sh")],
        env={**os.environ, **secrets},
        start_new_session=True,  # srun asks for a second Ctrl-C; so it gets TERM from us instead
        preexec_fn=lambda: die_with(me),
    )
    record_process(run)
    return LauncherWatch(process, own_session=True).wait()
