"""srun of Slurm 22.05 to 23.02 does not take over --cpus-per-task."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import launches_under, slurm_version

RULE = Rule(
    id="AR116",
    name="cpus-not-inherited",
    title="srun may give each task one CPU only",
    why="""From Slurm 22.05 to 23.02 srun does not take --cpus-per-task over from the job: all workers and
    threads of a process share one core, and the GPU waits for data. 23.11 took that back. To give srun
    the number again does no harm on any version.""",
    severity=WARNING,
    symptoms=("the training is many times slower than expected", "one CPU is busy, the others idle"),
    bad=example("srun python train.py", "--nodes=1", "--ntasks-per-node=4", "--cpus-per-task=8"),
    good=example(
        "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\nsrun python train.py",
        "--nodes=1", "--ntasks-per-node=4", "--cpus-per-task=8",
    ),
    clean=(
        example("srun -c 8 python train.py", "--ntasks=4", "--cpus-per-task=8"),
        example("srun --cpus-per-task=$SLURM_CPUS_PER_TASK python train.py", "--cpus-per-task=8"),
        example("srun python train.py", "--ntasks=4", "--cpus-per-task=1"),
    ),
)  # fmt: skip


def check(job: JobScript) -> Iterator[Finding]:
    """srun without the number, where the job has more than one CPU per task."""
    version = slurm_version(job)
    if (job.allocation.cpus_per_task or 1) < 2 or (
        version is not None and not (22, 5) <= version < (23, 11)
    ):
        return
    for launch in launches_under(job, "srun"):
        step = launch.step
        if step is None or step.options.has("cpus-per-task", "exact", "cpu-bind", "cpus-per-gpu"):
            continue
        if "SRUN_CPUS_PER_TASK" in launch.call.env:
            continue
        known = version is not None
        yield RULE.at(
            step.span,
            f"The job asks for {job.allocation.cpus_per_task} CPUs per task; srun of Slurm 22.05 to 23.02 "
            "gives 1"
            + (f", and this cluster has {job.site.slurm_version}." if known and job.site else "."),
            help="Before srun: export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
            severity=WARNING if known else NOTE,
        )
        return
