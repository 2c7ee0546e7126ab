"""Dashes and quotes that a word processor has made pretty."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.finding import ERROR, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR507",
    name="odd-character",
    title="A dash or quote is not the one of the keyboard",
    why="""Text that went through a word processor, a PDF or a chat has long dashes and curved quotes. sbatch
    and the shell do not know them: the option is an argument, the quotes become part of the text. Blanks
    that do not break a line are not blanks to the shell either.""",
    severity=ERROR,
    symptoms=(
        "sbatch: error: Invalid directive found in batch script",
        "command not found",
        "unrecognized arguments",
    ),
    bad=example("srun python train.py \u2013\u2013epochs 10", "--nodes=1"),
    good=example("srun python train.py --epochs 10", "--nodes=1"),
    clean=(
        example(
            "# two nodes \u2013 eight GPUs\necho \u201cstart\u201d \u2014 now\nsrun python train.py",
            "--nodes=1",
        ),
    ),
)
_DASH = re.compile(r"(?<!\S)[\u2013\u2014\u2212\u2010\u2011]+(?=[A-Za-z])")
_QUOTE = re.compile(r"[=(\s][\u201c\u201d\u2018\u2019]")
_SPACE = re.compile(r"[\u00a0\u200b\u2003\u2009\u202f\ufeff]")


def check(job: JobScript) -> Iterator[Finding]:
    """Such characters outside of comments and of what is only printed."""
    for number in range(2, job.source.lines + 1):  # the first line has a rule of its own
        line = job.source.line(number)
        if line.isascii() or re.match(r"\s*(echo|printf|#(?!SBATCH|!))", line):
            continue
        code = line if line.startswith("#SBATCH") else line.partition(" #")[0]
        start = job.source.start_of(number)
        if match := _DASH.search(code):
            place = job.source.span(start + match.start(), start + match.end())
            yield RULE.at(
                place,
                f"'{match[0]}' is not a dash of the keyboard: what follows is no option.",
                help="Type the dashes again.",
                fix=[Edit(place, _dashes(match[0], code[match.end() :]))],
            )
        elif match := _QUOTE.search(code) or _SPACE.search(code):
            character = match[0][-1]
            place = job.source.span(start + match.end() - 1, start + match.end())
            blank = bool(_SPACE.match(character))
            yield RULE.at(
                place,
                "This blank is not the one of the keyboard: the shell takes it for a letter."
                if blank
                else f"{character} is not a quote to the shell: it becomes part of the text.",
                help="Type it again.",
                fix=[Edit(place, " ")] if blank else [],
            )


def _dashes(written: str, rest: str) -> str:
    word = re.match(r"[\w-]*", rest)
    return "--" if len(written) > 1 or (word is not None and len(word[0]) > 1) else "-"
