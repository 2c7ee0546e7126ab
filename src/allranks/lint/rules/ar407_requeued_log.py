"""A requeued job empties its log."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR407",
    name="requeued-log",
    title="The log of the first run is lost when the job is requeued",
    why="""A requeued job keeps its id, so %j gives the same file, and Slurm empties it when the job starts
    again: the reason why it was interrupted is gone. --open-mode=append keeps it.""",
    symptoms=("the log of an earlier run is gone",),
    bad=example("srun python train.py", "--requeue", "--output=%x-%j.out"),
    good=example("srun python train.py", "--requeue", "--output=%x-%j.out", "--open-mode=append"),
    clean=(
        example("srun python train.py", "--output=%x-%j.out"),
        example("srun python train.py", "--requeue", "--output=/dev/null"),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """``--requeue``, or ``scontrol requeue``, without ``--open-mode=append``."""
    options = job.allocation.options
    asked = options.find("requeue")
    itself = next(
        (
            call
            for call in job.named("scontrol")
            if any((w.text or "").startswith("requeue") for w in call.args)
        ),
        None,
    )
    place = asked.span if asked is not None else itself.span if itself is not None else None
    if place is None or (options.text("open-mode") or "").startswith("a"):
        return
    if (options.text("output") or "").startswith("/dev/") or not job.is_batch:
        return
    yield RULE.at(
        place,
        "When the job starts again, Slurm empties its log.",
        help="Add #SBATCH --open-mode=append",
        severity=WARNING if itself is not None or asked is not None else NOTE,
    )
