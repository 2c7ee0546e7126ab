"""Starting a job from Python: the same three ways as the command.

from allranks import Job, launch

job = Job("train.py", ["--lr", "0.1"], nodes=2, gpus_per_node=4, time="2h")
print(launch.script(job))          # the job script, without Slurm
run = launch.submit(job)           # to Slurm
code = launch.run(job).exit_code   # here
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from allranks.core.shell import join
from allranks.job.fields import Job
from allranks.job.resolve import resolve
from allranks.runs.run import Run

SOURCE = "Python"


@dataclass(frozen=True)
class Finished:
    """A run on this machine that has ended."""

    run: Run
    exit_code: int


def script(job: Job, *, run_dir: str | Path | None = None) -> str:
    """The job script as text."""
    from allranks.job.sbatch import render

    plan = resolve(job, "slurm", source=SOURCE)
    return render(plan, made_by=_made_by(), run_dir=str(run_dir) if run_dir else None)


def submit(job: Job) -> Run:
    """Hand the job to Slurm. The run knows its job id: ``run.job_ids[-1]``."""
    from allranks.schedulers.slurm import submit_plan

    plan = resolve(job, "slurm", source=SOURCE, detect=True)
    return submit_plan(plan, made_by=_made_by(), python=job.python or sys.executable).run


def run(job: Job) -> Finished:
    """Run the job on this machine and wait for its end."""
    from allranks.schedulers.local import local_gpus, machine_layer, start_here

    plan = resolve(job, "local", source=SOURCE, between=(machine_layer(local_gpus()),))
    return Finished(*start_here(plan, plan.job.python or sys.executable))


def _made_by() -> str:
    return join(["python", *sys.argv]) if sys.argv and sys.argv[0] else "python"
