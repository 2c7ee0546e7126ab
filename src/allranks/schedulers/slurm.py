"""Slurm: write the script into the run folder, check it, submit it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace

from allranks.cluster.slurm.commands import run_slurm
from allranks.cluster.slurm.submission import submit
from allranks.cluster.slurm.submit_environment import clean_environment
from allranks.errors import JobError
from allranks.job.layers import JobLayer
from allranks.job.plan import Plan
from allranks.job.sbatch import body_lines, render
from allranks.runs.atomic_files import read_json, write_json, write_text
from allranks.runs.code_snapshot import CodeSnapshot
from allranks.runs.run import Run
from allranks.runs.run_process import note_process
from allranks.runtime.agent.linux_processes import die_with
from allranks.runtime.world.hostlist import expand_counts
from allranks.schedulers.launcher_watch import Watch
from allranks.schedulers.run_setup import (
    keep_allranks,
    keep_code,
    keep_strict_files,
    keep_versions,
    make_run,
)


@dataclass(frozen=True)
class Submitted:
    """A job that is in the queue."""

    run: Run
    job_id: str
    snapshot: CodeSnapshot


def submit_plan(plan: Plan, *, made_by: str, python: str | None) -> Submitted:
    """Run folder, script, checks, sbatch."""
    check_syntax(render(plan))
    run = make_run(plan, "slurm")
    plan, snapshot = keep_code(keep_strict_files(plan, run), run, "copy")
    if plan.agent:
        keep_allranks(run)
    keep_versions(plan, run, python)
    script = run.path / "job.sh"
    write_text(script, render(plan, made_by=made_by, run_dir=str(run.path)))
    if plan.job.array:
        write_json(
            run.path / "run.json", read_json(run.path / "run.json") | {"array": plan.job.array}
        )
    job_id = submit(script, cwd=plan.job.chdir, env={**os.environ, **plan.secrets})
    return Submitted(run.add_job_id(job_id), job_id, snapshot)


def check_syntax(text: str) -> None:
    """``bash -n``: a user's own set-up line may be broken; that is told before the queue."""
    checked = subprocess.run(
        ["bash", "-n"], input=text, capture_output=True, text=True, check=False
    )
    if checked.returncode:
        raise JobError(f"The job script is not valid bash:\n{checked.stderr.strip()}")


def expected_start(text: str, cwd: str | None) -> str | None:
    """What ``sbatch --test-only`` says of a script: when and where it would start, or None."""
    environment = clean_environment(os.environ)
    try:
        checked = subprocess.run(
            ["sbatch", "--test-only"], input=text, capture_output=True, text=True, check=False,
            env=environment, cwd=cwd, timeout=30,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "nothing within 30 s; its controller may be down (scontrol ping)"
    said = (checked.stderr or checked.stdout).strip()
    return said.removeprefix("sbatch: ").strip() or None


def allocation_layer(env: dict[str, str]) -> JobLayer | None:
    """The allocation that this process stands in (salloc, a batch script), as values of a job."""
    job_id = env.get("SLURM_JOB_ID")
    if not job_id or _inside_step(env):
        return None
    values: dict[str, object] = {}
    if nodes := env.get("SLURM_JOB_NUM_NODES", env.get("SLURM_NNODES")):
        values["nodes"] = int(nodes)
    if gpus := _gpus_on_node(env, job_id):
        values["gpus_per_node"] = gpus
    if cpus := env.get("SLURM_CPUS_PER_TASK"):
        values["cpus_per_task"] = int(cpus)
    return JobLayer(f"allocation {job_id}", values)


def _inside_step(env: dict[str, str]) -> bool:
    """In a task of a step the CPUs are taken: a step inside it would wait for them for ever."""
    step = env.get("SLURM_STEP_ID", "")
    return step.isdigit() and int(step) < 0xFFFFFFF0


def _gpus_on_node(env: dict[str, str], job_id: str) -> str | None:
    if count := env.get("SLURM_GPUS_ON_NODE"):
        return count
    if per_node := env.get("SLURM_GPUS_PER_NODE"):
        return per_node
    # salloc's shell has no variable for --gres; the job itself tells.
    for word in run_slurm(["scontrol", "show", "job", "-o", job_id]).split():
        if word.startswith("TresPerNode=") and "gpu" in word:
            return word.rpartition("gpu")[2].lstrip(":/=") or None
    return None


def _step(plan: Plan) -> list[str]:
    """The size of the step: the allocation may have been asked for with other numbers, which srun would
    take from its variables where they are not said again.
    """
    shape = plan.shape
    words = [
        f"--nodes={shape.nodes}",
        f"--ntasks={shape.nodes * shape.tasks_per_node}",
        f"--ntasks-per-node={shape.tasks_per_node}",
    ]
    cpus = min(expand_counts(os.environ.get("SLURM_JOB_CPUS_PER_NODE") or "1"))
    if cpus < shape.tasks_per_node * (shape.cpus_per_task or 1):
        words.append("--overcommit")  # fewer CPUs than tasks: slow, yet better than a refusal
    return words


def start_in_allocation(plan: Plan) -> tuple[Run, int]:
    """Run the job script's body by bash inside the allocation around us."""
    run = prepare_in_allocation(plan)
    return run, run_script(run, plan.secrets)


def prepare_in_allocation(plan: Plan) -> Run:
    """The run folder, with the script that spans the allocation around us."""
    plan = replace(
        plan, job=replace(plan.job, requeue=None)
    )  # the allocation is not ours to requeue
    run = make_run(plan, "local")  # it lives and ends with this process, not with the allocation
    plan, _ = keep_code(keep_strict_files(plan, run), run, "reference")
    if plan.agent:
        keep_allranks(run)
    script = run.path / "job.sh"
    write_text(
        script,
        "\n".join(["set -eo pipefail", *body_lines(plan, str(run.path), _step(plan))]) + "\n",
    )
    return run


def run_script(run: Run, secrets: Mapping[str, str]) -> int:
    """The run's script by bash, inside the allocation around us."""
    me = os.getpid()
    process = subprocess.Popen(
        ["bash", str(run.path / "job.sh")],
        env={**os.environ, **secrets},
        start_new_session=True,  # srun asks for a second Ctrl-C; so it gets TERM from us instead
        preexec_fn=lambda: die_with(me),
    )
    note_process(run)
    return Watch(process, group=True).wait()
