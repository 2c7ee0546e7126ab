"""``${X:-{}}`` ends at the first brace."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.finding import WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR511",
    name="brace-in-default",
    title="The default ends at the first closing brace",
    why="""In ${X:-{}} the first } ends the expansion: the default is {, and a } is added to every value,
    given or not. JSON that is passed so is broken exactly when a value is given.""",
    symptoms=("JSONDecodeError: Extra data",),
    bad=example('OPTIONS="${1:-{}}"\nsrun python train.py --options "$OPTIONS"', "--nodes=1"),
    good=example(
        'EMPTY="{}"\nOPTIONS="${1:-$EMPTY}"\nsrun python train.py --options "$OPTIONS"', "--nodes=1"
    ),
    clean=(example('OPTIONS="${1:-${2:-x}}"\nsrun python train.py', "--nodes=1"),),
)
_DEFAULT = re.compile(r"(?<!\\)\$\{\w+:?-\{[^${}]*\}\}")


def check(job: JobScript) -> Iterator[Finding]:
    """Such defaults outside of comments."""
    comments = [(span.start, span.end) for span in job.parsed.comments]
    for match in _DEFAULT.finditer(job.source.text):
        if any(start <= match.start() < end for start, end in comments):
            continue
        yield RULE.at(
            job.source.span(match.start(), match.end()),
            f"{match[0]} is the default {{ and then a }} behind every value.",
            help="Put the default into a variable of its own first.",
            severity=WARNING,
        )
