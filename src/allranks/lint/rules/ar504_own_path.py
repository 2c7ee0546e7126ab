"""$0 in a batch script is Slurm's copy."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.command_calls import BATCH
from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR504",
    name="own-path",
    title="$0 is Slurm's copy of the script",
    why="""Slurm copies the batch script to a folder of its own on the first node and runs that copy. $0 and
    BASH_SOURCE are /var/spool/slurmd/job…/slurm_script: the folder of your script, with the files beside
    it, is somewhere else. $SLURM_SUBMIT_DIR is the folder that you called sbatch in.""",
    symptoms=(
        "No such file or directory: /var/spool/slurmd",
        "a file beside the script is not found",
    ),
    bad=example('cd "$(dirname "$0")"\nsrun python train.py', "--nodes=1"),
    good=example('cd "$SLURM_SUBMIT_DIR"\nsrun python train.py', "--nodes=1"),
    clean=(
        '#!/bin/bash\ncd "$(dirname "$0")"\npython train.py\n',
        example('echo "usage: $0"\nsrun python train.py', "--nodes=1"),
        example("cp $0 $OUT/job.sh\nsrun python train.py", "--nodes=1"),
        example(
            'here=$(dirname "$0")\nfile=$(scontrol show job "$SLURM_JOB_ID" | grep Command=)\n'
            'here=$(dirname "${file#*=}")\ncd "$here"',
            "--nodes=1",
        ),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """Paths made from ``$0`` in the batch shell."""
    if not job.is_batch or "scontrol show job" in job.source.text:
        return  # Slurm is asked where the file is
    for call, variable in job.reads():
        if variable.name not in ("0", "BASH_SOURCE") or variable.shell is None:
            continue
        if (
            variable.shell.kind != BATCH
            or variable.shell.source is not job.source
            or call.inside == "worker"
        ):
            continue
        folder = call.name in ("dirname", "readlink", "realpath", "cd", "source", ".") or bool(
            re.match(r"^\$\{(0|BASH_SOURCE\S*?)%", variable.span.text)
        )
        submits = call.name == "sbatch"
        if not folder and not submits:
            continue
        if "SLURM_SUBMIT_DIR:-" in job.source.line(variable.span.line):
            continue  # only where there is no Slurm
        yield RULE.at(
            variable.span,
            f"{variable.span.text} is Slurm's own copy of this script, not your file"
            + ("; its folder is Slurm's." if folder else "; it is gone when the job ends."),
            help="Use $SLURM_SUBMIT_DIR, or write the path." if folder else "Name the file itself.",
            severity=WARNING if folder and call.certain else NOTE,
        )
        return
