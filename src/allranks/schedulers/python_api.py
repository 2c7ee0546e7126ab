"""Start a job from Python, as the commands do.

from allranks import Job, launch

job = Job("train.py", ["--lr", "0.1"], nodes=2, gpus_per_node=4, time="2h")
print(launch.script(job))          # the job script, without Slurm
run = launch.submit(job)           # to Slurm
code = launch.run(job).exit_code   # here
"""

from __future__ import annotations

import sys
from pathlib import Path

from allranks.core.shell import join
from allranks.job.fields import Job
from allranks.runs.run_folder import Run
from allranks.schedulers import get_scheduler
from allranks.schedulers.base import StartedRun

SOURCE = "Python"


def script(job: Job, *, run_dir: str | Path | None = None) -> str:
    """Return the job script as text."""
    from allranks.job.sbatch import render

    plan = get_scheduler("slurm").plan(job, source=SOURCE)
    return render(plan, made_by=_made_by(), run_dir=str(run_dir) if run_dir else None)


def submit(job: Job) -> Run:
    """Submit the job to Slurm. The run has its job id: ``run.job_ids[-1]``."""
    scheduler = get_scheduler("slurm")
    plan = scheduler.plan(job, source=SOURCE, detect=True)
    return scheduler.start(plan, made_by=_made_by(), python=job.python or sys.executable).run


def run(job: Job) -> StartedRun:
    """Run the job on this machine and wait for its end."""
    scheduler = get_scheduler("local")
    plan = scheduler.plan(job, source=SOURCE)
    return scheduler.start(plan, python=plan.job.python or sys.executable)


def _made_by() -> str:
    return join(["python", *sys.argv]) if sys.argv and sys.argv[0] else "python"
