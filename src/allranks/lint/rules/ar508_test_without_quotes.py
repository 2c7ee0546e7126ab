"""``[ -n $X ]`` is true for an empty variable."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import NOTE, WARNING, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.shell.model import Variable

RULE = Rule(
    id="AR508",
    name="test-without-quotes",
    title="The test is wrong for an empty variable",
    why="""An empty variable without quotes vanishes from the command. [ -n $X ] becomes [ -n ], which is
    true; [ $X = a ] becomes [ = a ], which stops with an error. Quotes keep the empty word, and [[ … ]]
    needs none.""",
    symptoms=("unary operator expected", "a branch is taken that should not be"),
    bad=example(
        "if [ -n $CHECKPOINT ]; then ARGS=--resume; fi\nsrun python train.py $ARGS", "--nodes=1"
    ),
    good=example(
        'if [ -n "$CHECKPOINT" ]; then ARGS=--resume; fi\nsrun python train.py $ARGS', "--nodes=1"
    ),
    clean=(
        example("if [[ -n $CHECKPOINT ]]; then echo; fi\nsrun python train.py", "--nodes=1"),
        example(
            'if [ "$X" = 1 ] && [ $SLURM_PROCID -eq 0 ]; then echo; fi\nsrun python train.py',
            "--nodes=1",
        ),
        example("X=1\nif [ -z $X ]; then echo; fi\nsrun python train.py", "--nodes=1"),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """Unquoted variables, of unknown value, after ``-n`` and ``-z`` of a plain test."""
    for call in job.calls:
        if call.first not in ("[", "test") or call.span.source is not job.source:
            continue
        for flag, word in zip(call.words[1:], call.words[2:], strict=False):
            if flag.text not in ("-n", "-z") or len(word.parts) != 1:
                continue
            part = word.parts[0]
            if (
                not isinstance(part, Variable)
                or part.quote
                or part.operator in ("+", ":+")
                or part.span.text[:1] != "$"
            ):
                continue
            always = flag.text == "-n"
            yield RULE.at(
                part.span,
                f"Without quotes [ {flag.text} {part.span.text} ] "
                + (
                    "is true also when it is empty."
                    if always
                    else "stops with an error when it holds a blank."
                ),
                help=f'Write [ {flag.text} "{part.span.text}" ].',
                fix=[Edit(part.span, f'"{part.span.text}"')],
                severity=WARNING if always else NOTE,
            )
