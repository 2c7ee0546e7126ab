"""``24:00`` is 24 minutes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.finding import NOTE, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR017",
    name="minutes-not-hours",
    title="This time is in minutes, not in hours",
    why="""With one colon Slurm reads minutes and seconds: --time=24:00 is 24 minutes, and the job is killed
    after them. Hours need two colons (24:00:00) or a day count (1-00:00).""",
    severity=NOTE,
    symptoms=("the job is killed before its time limit", "DUE TO TIME LIMIT"),
    bad=example("srun python train.py", "--time=48:00"),
    good=example("srun python train.py", "--time=48:00:00"),
    clean=(
        example("srun python train.py", "--time=30:00"),
        example("srun python train.py", "--time=1-00:00"),
        example("srun python train.py", "-t 24"),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """Whole days and half days, written with one colon."""
    option = job.allocation.options.find("time")
    match = re.fullmatch(r"(24|36|48|72|96|100|120|168):00", job.option("time") or "")
    if option is None or match is None:
        return
    yield RULE.at(
        option.span,
        f"{match[0]} is {match[1]} minutes.",
        help=f"For hours write {match[0]}:00.",
    )
