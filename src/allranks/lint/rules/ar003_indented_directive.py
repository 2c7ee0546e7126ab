"""A directive that does not begin its line is a comment."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import WARNING, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR003",
    name="indented-directive",
    title="A directive with blanks before it is only a comment",
    why="""sbatch reads a directive only where #SBATCH stands at the very beginning of the line. With a
    blank or a tab before it the line is a comment, and what it asks for is not given.""",
    symptoms=("the job has other resources than it asked for",),
    bad="#!/bin/bash\n  #SBATCH --nodes=2\n#SBATCH --time=10\nsrun python train.py\n",
    good=example("srun python train.py", "--nodes=2", "--time=10"),
    clean=(
        example("# SBATCH --nodes=2 is how one asks for nodes\nsrun python train.py", "--time=10"),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """Lines that look like directives and are none."""
    for span in job.directives.indented:
        blanks = len(span.text) - len(span.text.lstrip())
        yield RULE.at(
            span,
            "sbatch takes this for a comment, as it does not begin with #SBATCH.",
            help="Remove the blanks before it.",
            fix=[Edit(job.source.span(span.start, span.start + blanks), "")],
            severity=WARNING,
        )
