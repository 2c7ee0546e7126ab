"""``-N=2`` is not ``-N 2``."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.directives import option_lines
from allranks.lint.finding import ERROR, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR009",
    name="equals-after-short-option",
    title="A short option takes no equals sign",
    why="""After a short option everything is the value, the equals sign too: -N=2 asks for "=2" nodes, and
    sbatch refuses it; -p=gpu asks for a partition called "=gpu", -o=log writes to "=log".""",
    severity=ERROR,
    symptoms=("sbatch: error: invalid number of nodes", "invalid partition specified"),
    bad=example("srun python train.py", "-N=2"),
    good=example("srun python train.py", "-N 2"),
    clean=(example("srun python train.py", "-N2", "-p gpu", "--nodes=2"),),
)


def check(job: JobScript) -> Iterator[Finding]:
    """Values of short options that begin with ``=``."""
    options = [option for _, option in option_lines(job.directives)]
    for call in job.calls:
        options += [o for layer in call.layers if layer.kind == "srun" for o in layer.options.items]
    for option in options:
        short = len(option.written) == 2 and option.written.startswith("-")
        if not short or option.value is None or not option.value.start.startswith("="):
            continue
        at = option.span.text.find("=")
        place = option.span.source.span(option.span.start + at, option.span.start + at + 1)
        yield RULE.at(
            option.span,
            f"Slurm reads the value as '{option.value.shown}'.",
            help=f"Write {option.written} {option.value.shown[1:]}, or --{option.name}={option.value.shown[1:]}.",
            fix=[Edit(place, " ")] if at >= 0 else [],
        )
