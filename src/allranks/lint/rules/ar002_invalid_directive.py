"""A directive line that sbatch refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.finding import ERROR, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import is_template

RULE = Rule(
    id="AR002",
    name="invalid-directive",
    title="sbatch refuses this directive",
    why="""On a directive line every word must belong to an option, and every quote must be closed. sbatch
    refuses the whole script otherwise ("Invalid directive found in batch script"). A # ends the line, in
    the middle of a word too; blanks in a value need quotes.""",
    severity=ERROR,
    symptoms=(
        "sbatch: error: Invalid directive found in batch script",
        "sbatch refuses the script",
    ),
    bad=example("srun python train.py", "-J my training", "--nodes=1"),
    good=example("srun python train.py", '-J "my training"', "--nodes=1"),
    clean=(
        example("srun python train.py", "--nodes=2 # two nodes", "--time=10# minutes"),
        example("srun python train.py", "-N 2 -n 4 --exclusive", "-C gpu -c 10"),
        example(
            "srun python train.py", '--comment="with blanks # and a sign"', "--hint nomultithread"
        ),
        example(
            "srun python train.py", "--switches=1@10:00:00", "-L SCRATCH,cfs", "--exclusive=user"
        ),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """Words without an option, and quotes that stay open."""
    if is_template(job):
        return
    for line in job.directives.lines:
        if line.unclosed:
            yield RULE.at(
                line.span,
                "A quote is opened on this line and not closed: sbatch refuses the script.",
                help="Close the quote, or remove it.",
            )
        for word in line.stray[:1]:
            if (word.text or "").startswith("$") or re.search(r"<[^>]*>", line.span.text):
                continue  # a place to be filled in is another rule's affair
            yield RULE.at(
                word.span,
                f"'{word.shown}' belongs to no option, so sbatch refuses the script. {_reason(word.shown)}",
                help=_help(word.shown),
            )


def _reason(text: str) -> str:
    if text == "=":
        return "No blanks may stand around the = of an option."
    if text[:1] in "\u2013\u2014\u2212":
        return "The dash is not the one of the keyboard: it was changed by a word processor."
    if text.startswith(("//", "%", ";")):
        return "A comment begins with #."
    return "Only # begins a comment, and a value with blanks needs quotes."


def _help(text: str) -> str:
    if text[:1] in "\u2013\u2014\u2212":
        return "Type the dashes again: --nodes=2."
    return "Remove it, put a # before it, or quote the whole value."
