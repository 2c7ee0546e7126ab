"""The same option twice: the last one wins."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.command_options import Option
from allranks.lint.directives import option_lines
from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.source_text import Span

RULE = Rule(
    id="AR010",
    name="given-twice",
    title="The option is given again with another value",
    why="""sbatch keeps the last value of an option, and silently ignores the first. The same holds for lists
    too: two lines of --gres do not add up, the second replaces the first. Only --mail-type adds up.""",
    symptoms=("the job has other resources than it asked for",),
    bad=example("srun python train.py", "--nodes=1", "--time=10", "--nodes=4"),
    good=example("srun python train.py", "--nodes=4", "--time=10"),
    clean=(
        example("srun python train.py", "-N 2", "--nodes=2", "##SBATCH --nodes=4"),
        example("srun python train.py", "--mail-type=BEGIN", "--mail-type=END", "--mail-type=FAIL"),
    ),
)
_ADD_UP = frozenset({"mail-type", "container-mounts", "container-env"})


def check(job: JobScript) -> Iterator[Finding]:
    """Options whose later value differs from the earlier one."""
    seen: dict[tuple[int, str], tuple[Option, str, Span]] = {}
    for line, option in option_lines(job.directives):
        value = option.value.shown.strip() if option.value is not None else ""
        key = (line.component, option.name)
        before = seen.get(key)
        seen[key] = (option, value, line.span)
        if before is None or before[1] == value or option.name in _ADD_UP:
            continue
        mild = option.name in ("mail-user", "constraint", "job-name", "comment")
        yield RULE.at(
            option.span,
            f"--{option.name} was {before[1] or 'given'} on line {before[2].line}; only {value or 'this one'} counts.",
            help="Remove the one that is not meant.",
            severity=NOTE if mild else WARNING,
            related=[before[2]],
        )
