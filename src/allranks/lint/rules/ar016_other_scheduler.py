"""Directives of another scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import NOTE, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR016",
    name="other-scheduler",
    title="The directives are for another scheduler",
    why="""#PBS, #BSUB and #$ are lines for PBS, LSF and Grid Engine. This linter knows Slurm: it reads the
    commands of such a script, but not what it asks for, and most rules stay silent.""",
    severity=NOTE,
    symptoms=("the job has other resources than it asked for",),
    bad="#!/bin/bash\n#PBS -l select=2:ngpus=4\nmpirun -np 8 python train.py\n",
    good=example("srun python train.py", "--nodes=2", "--ntasks-per-node=4", "--gres=gpu:4"),
    clean=(
        example("srun python train.py", "--nodes=2") + "#PBS -l select=2\n",
        "#!/bin/bash\necho\n",
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """The first of them, where there is no directive for Slurm."""
    if job.directives or not job.directives.other:
        return
    span = job.directives.other[0]
    line = job.source.span(
        span.start, job.source.start_of(span.line) + len(job.source.line(span.line))
    )
    yield RULE.at(
        line,
        "Slurm is not asked for anything here; what these lines ask for is not checked.",
        help="For Slurm write #SBATCH lines: #SBATCH --nodes=2 --gpus-per-node=4",
    )
