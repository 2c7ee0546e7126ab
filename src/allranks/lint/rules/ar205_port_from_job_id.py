"""Ports cut out of the job's id that are not always numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.shell.model import Arithmetic, Substitution, Variable, Word

RULE = Rule(
    id="AR205",
    name="port-from-job-id",
    title="The port is wrong for some job ids",
    why="""The last digits of a job id may begin with 0, and bash takes 0812 in $((…)) for an octal number:
    "value too great for base". A text that is cut from the id is empty, or too short, for small ids. The
    remainder of a division is right for all of them.""",
    symptoms=("value too great for base", "the port is 1"),
    bad=example(
        "export MASTER_PORT=$((10000 + $(echo -n $SLURM_JOBID | tail -c 4)))\nsrun python train.py"
    ),
    good=example("export MASTER_PORT=$((10000 + SLURM_JOBID % 10000))\nsrun python train.py"),
    clean=(
        example(
            "export MASTER_PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))\nsrun python train.py"
        ),
        example(
            "export MASTER_PORT=$((10000 + 10#$(echo -n $SLURM_JOBID | tail -c 4)))\nsrun python train.py"
        ),
    ),
)
_IDS = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID")


def check(job: JobScript) -> Iterator[Finding]:
    """Assignments to ports that read the job's id."""
    for call in job.calls:
        for item in call.assignments:
            if not re.search("port", item.name, re.I) or item.value is None:
                continue
            if "10#" in item.span.text:
                continue
            if _octal(item.value):
                yield RULE.at(
                    item.span,
                    "Digits that are cut from the job's id may begin with 0; bash then takes them for octal and "
                    "fails on 8 and 9.",
                    help=f"Write {item.name}=$((10000 + SLURM_JOB_ID % 10000)).",
                    severity=WARNING,
                )
            elif _whole(item.value):
                yield RULE.at(
                    item.span,
                    "The job's id grows without an end, and a port is at most 65535.",
                    help=f"Write {item.name}=$((10000 + SLURM_JOB_ID % 10000)).",
                    severity=WARNING,
                )
            elif any(part.operator == ":" for part in _ids(item.value)):
                yield RULE.at(
                    item.span,
                    "For job ids with few digits the cut gives nothing, and the port is too small.",
                    help=f"Write {item.name}=$((10000 + SLURM_JOB_ID % 10000)).",
                    severity=NOTE,
                )


def _ids(word: Word) -> list[Variable]:
    return [each for each in word.variables() if each.name in _IDS]


def _whole(word: Word) -> bool:
    """The id itself, or a sum with it that nothing cuts."""
    part = word.parts[0] if len(word.parts) == 1 else None
    if isinstance(part, Variable):
        return part.name in _IDS and not part.operator
    if isinstance(part, Arithmetic):
        cut = any(term in ("%", "&", "/") for term in part.terms if isinstance(term, str))
        ids = [
            t for t in part.terms if isinstance(t, Variable) and t.name in _IDS and not t.operator
        ]
        return bool(ids) and not cut
    return False


def _octal(word: Word) -> bool:
    for part in word.parts:
        if not isinstance(part, Arithmetic):
            continue
        for term in part.terms:
            if isinstance(term, Variable) and term.name in _IDS and term.operator == ":":
                return True
            if isinstance(term, Substitution) and "SLURM" in term.span.text and _cuts(term):
                return True
    return False


def _cuts(part: Substitution) -> bool:
    return any(call.name in ("tail", "cut", "sed", "awk", "grep", "head") for call in part.calls)
