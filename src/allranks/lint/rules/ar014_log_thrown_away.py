"""Slurm's log goes to /dev/null."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR014",
    name="log-thrown-away",
    title="What goes wrong before the training is not kept",
    why="""With --output=/dev/null everything is lost that Slurm, the shell and the first commands say: a
    missing module, a full disk, the reason why the job was killed. A redirection later in the script
    catches only what comes after it.""",
    symptoms=("the job fails without a message", "the log is missing"),
    bad=example(
        "exec > $HOME/job-$SLURM_JOB_ID.out 2>&1\nsrun python train.py",
        "--output=/dev/null",
        "--error=/dev/null",
    ),
    good=example("srun python train.py", "--output=job-%j.out"),
    clean=(example("srun python train.py", "--output=job-%j.out", "--error=/dev/null"),),
)


def check(job: JobScript) -> Iterator[Finding]:
    """``--output`` to the bin, and ``--error`` not somewhere else."""
    options = job.allocation.options
    option = options.find("output")
    if option is None or option.value is None or option.value.text != "/dev/null":
        return
    if (options.text("error") or "/dev/null") != "/dev/null":
        return
    redirected = any(call.first == "exec" and call.redirects for call in job.calls)
    later = " Only what comes after the exec line is kept." if redirected else ""
    yield RULE.at(
        option.span,
        f"Messages of Slurm and of the shell are thrown away.{later}",
        help="Remove the line, or keep a small log: --output=job-%j.out",
        severity=NOTE if redirected else WARNING,
    )
