"""``#!/bin/sh`` above what only bash understands."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.command_calls import Call
from allranks.lint.finding import NOTE, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR514",
    name="sh-is-not-bash",
    title="sh need not understand what bash does",
    why="""The first line gives the script to sh. That is bash on Red Hat and SUSE, but dash on Debian and Ubuntu,
    which knows no arrays, no [[ and no source: the line fails there, and the script goes on without it.""",
    severity=NOTE,
    symptoms=("Syntax error: \"(\" unexpected", "[[: not found", "source: not found"),
    bad=example('if [[ -n "$A" ]]; then module load cuda; fi\nsrun python train.py', "--nodes=1", shebang="#!/bin/sh"),
    good=example('if [[ -n "$A" ]]; then module load cuda; fi\nsrun python train.py', "--nodes=1"),
    clean=(
        example('. env/bin/activate\n[ -n "$A" ] && srun python train.py', "--nodes=1", shebang="#!/bin/sh"),
        example("srun bash -c '[[ -n $A ]] && source x; python train.py'", "--nodes=1", shebang="#!/bin/sh"),
        example("nodes=(a b)\nsource x\nsrun python train.py", "--nodes=1", shebang="#!/usr/bin/env bash"),
    ),
)  # fmt: skip
_SH = re.compile(r"^#!\s*(/usr)?/bin/(env\s+)?(sh|dash)\b")
_COMMANDS = frozenset({"source", "[[", "declare", "shopt", "pushd", "popd", "mapfile", "readarray"})


def check(job: JobScript) -> Iterator[Finding]:
    """The first thing of bash in a script of sh."""
    if not job.is_batch or not _SH.match(job.source.line(1)):
        return
    for call in job.calls:
        if call.shell is not job.shell or call.span.source is not job.source:
            continue
        what = _of_bash(call)
        if what:
            yield RULE.at(
                call.span,
                f"{what} is known to bash, not to every sh.",
                help="Begin the script with #!/bin/bash.",
            )
            return


def _of_bash(call: Call) -> str:
    if call.name in _COMMANDS:
        return call.name
    return "An array" if any(item.array is not None for item in call.assignments) else ""
