"""``$@`` without quotes breaks arguments with blanks."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import NOTE, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.shell.model import Variable

RULE = Rule(
    id="AR512",
    name="unquoted-arguments",
    title="Arguments with blanks fall apart",
    why="""$@ and $* without quotes are split at every blank, and signs like * in them become file names. What
    was one argument of sbatch reaches the training as several. "$@" passes them on as they were given.""",
    severity=NOTE,
    symptoms=("unrecognized arguments", "an argument is cut at a blank"),
    bad=example("srun python train.py $@", "--nodes=1"),
    good=example('srun python train.py "$@"', "--nodes=1"),
    clean=(
        example('run() { srun python train.py "$@"; }\nrun a b', "--nodes=1"),
        example('echo $@\nCMD="python train.py $@"\nsrun $CMD', "--nodes=1"),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """Such words on the line of a launch itself."""
    reported: set[int] = set()
    for launch in job.launches:
        for word in launch.call.words:
            part = word.parts[0] if len(word.parts) == 1 else None
            if (
                not isinstance(part, Variable)
                or part.name not in ("@", "*")
                or part.quote
                or part.operator
            ):
                continue
            if part.span.text not in ("$@", "$*", "${@}", "${*}") or part.span.start in reported:
                continue
            if not launch.call.span.start <= part.span.start < launch.call.span.end:
                continue  # it comes out of a text, where quotes would not help
            reported.add(part.span.start)
            yield RULE.at(
                part.span,
                f"{part.span.text} without quotes splits arguments that hold a blank.",
                help='Write "$@".',
                fix=[Edit(part.span, '"$@"')],
            )
