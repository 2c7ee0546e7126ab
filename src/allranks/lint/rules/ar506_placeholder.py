"""Places that were meant to be filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.finding import ERROR, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import is_template

RULE = Rule(
    id="AR506",
    name="placeholder",
    title="A place is left to be filled in",
    why="""The script comes from a template, and this value was meant to be replaced: an account or a path
    that does not exist. sbatch refuses it, or the shell takes < and > for redirections.""",
    severity=ERROR,
    symptoms=("Invalid account or account/partition combination", "No such file or directory"),
    bad=example("srun python train.py", "--account=<your account>", "--nodes=1"),
    good=example("srun python train.py", "--account=p12345", "--nodes=1"),
    clean=(
        example(
            "srun python train.py --out /path/$USER", "--mail-user=me@example.org", "--nodes=1"
        ),
        "#!/bin/bash\n#SBATCH --account={{ account }}\nsrun python train.py\n",
        "#!/bin/bash\n# source /path/to/venv/bin/activate\ncd $HOME/path\nsrun python train.py\n",
    ),
)
_EMPTY = re.compile(
    r"<[^<>]*[A-Za-z][^<>]*>|\bYOUR[_-]\w+|\bCHANGE[_-]?ME\b|\bREPLACE[_-]?(ME|WITH)\w*|^/?path/to/|/path/to/|\bXXX+\b"
    r"|\byour[_-](account|project|partition|email|name|user\w*)\b|^\[[A-Z _]+\]$|\bFILL[_-]?IN\b",
)


def check(job: JobScript) -> Iterator[Finding]:
    """Values of directives, and arguments of launches."""
    if is_template(job):
        return
    for line in job.directives.lines:
        text = line.span.text[len("#SBATCH") :].partition(" #")[0]
        if (match := _EMPTY.search(text)) and "--comment" not in text:
            start = line.span.start + len("#SBATCH")
            yield RULE.at(
                job.source.span(start + match.start(), start + match.end())
                if line.span.source is job.source
                else line.span,
                f"'{match[0]}' is meant to be replaced by a value of yours.",
                help="Write your own value, or remove the line.",
                severity=ERROR if " " in match[0] else WARNING,
            )
    yield from _folders(job)
    for launch in job.launches:
        words = [word for word in launch.call.words if word.span.source is job.source]
        for word in words:
            if word.text is not None and (match := _EMPTY.search(word.text)):
                yield RULE.at(
                    word.span,
                    f"'{match[0]}' is meant to be replaced by a value of yours.",
                    help="Write your own value here.",
                    severity=WARNING,
                )
                break


def _folders(job: JobScript) -> Iterator[Finding]:
    """``source /path/to/venv/bin/activate`` and ``cd /path/to/project`` of a job."""
    if not job.is_batch:
        return
    for call in job.named("source", ".", "cd"):
        for word in call.args[:1]:
            if call.span.source is job.source and (match := _EMPTY.search(word.text or "")):
                yield RULE.at(
                    word.span,
                    f"'{match[0]}' is meant to be replaced by a value of yours.",
                    help="Write your own path here.",
                    severity=WARNING,
                )
                return
