"""Arrays cannot be exported."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR503",
    name="array-exported",
    title="An array is not passed on by export",
    why="""The environment holds texts only. export NAME=(…) sets an array in this shell, and the programs it
    starts get nothing of it.""",
    symptoms=("a variable is empty in the tasks",),
    bad=example("export nodes=( $(scontrol show hostnames) )\nsrun bash worker.sh", "--nodes=2"),
    good=example('export nodes="$(scontrol show hostnames)"\nsrun bash worker.sh', "--nodes=2"),
    clean=(
        example(
            "nodes=( $(scontrol show hostnames) )\nsrun python train.py ${nodes[0]}", "--nodes=2"
        ),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """``export NAME=(…)``."""
    for call in job.named("export"):
        for item in call.assignments:
            if item.array is not None:
                yield RULE.at(
                    item.span,
                    f"{item.name} is an array: programs that this shell starts do not get it.",
                    help=f'Export a text: export {item.name}="…", or drop export.',
                    severity=WARNING,
                )
