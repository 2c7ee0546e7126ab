"""Text that bash cannot read."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator

from allranks.lint.finding import ERROR, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import is_template
from allranks.lint.source_text import Fragment

RULE = Rule(
    id="AR501",
    name="syntax",
    title="bash cannot read the script",
    why="""A quote or bracket that is not closed, or a word in the wrong place. bash runs the lines before it
    and stops there, often after hours in the queue. bash itself was asked here, without running anything.""",
    severity=ERROR,
    symptoms=("syntax error near unexpected token", "unexpected EOF while looking for matching"),
    bad=example('echo "starting\nsrun python train.py', "--nodes=1"),
    good=example('echo "starting"\nsrun python train.py', "--nodes=1"),
    clean=(
        example("shopt -s extglob\nrm -f !(keep)\nsrun python train.py", "--nodes=1"),
        "#!/bin/bash\n#SBATCH --nodes={{ nodes }}\n{% if x %}\nsrun python train.py\n{% endif %}\n",
        "#!/usr/bin/env python3\n#SBATCH --nodes=1\nprint('hello')\nif x:\n    f(\n    )\n",
    ),
)
_LINE = re.compile(r"line (\d+): (.*)")
_SECONDS = 10


def check(job: JobScript) -> Iterator[Finding]:
    """What ``bash -n`` says; nothing where the parser and bash both are content."""
    source = job.source
    if (
        isinstance(source, Fragment)
        or is_template(job)
        or not job.is_shell
        or "\r\n" in source.text
    ):
        return
    for line, text in _errors(source.text):
        start = source.start_of(line)
        place = source.span(start, start + max(1, len(source.line(line))))
        yield RULE.at(
            place,
            f"bash stops here: {text}.",
            help="Look for a quote, bracket, then, do or fi that is missing; it may be further up.",
        )
        return


def _errors(text: str) -> Iterator[tuple[int, str]]:
    bash = shutil.which("bash")
    if bash is None:
        return
    try:
        done = subprocess.run(
            [bash, "-O", "extglob", "-n"],
            input=text.encode("utf-8", "replace"),
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
        )
    except (OSError, subprocess.SubprocessError):
        return
    if done.returncode == 0:
        return
    for line in done.stderr.decode("utf-8", "replace").splitlines():
        if match := _LINE.search(line):
            yield min(int(match[1]), text.count("\n") + 1), match[2].strip()
