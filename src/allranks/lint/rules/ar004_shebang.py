"""The first line must name the shell."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.finding import ERROR, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.source_text import Fragment

RULE = Rule(
    id="AR004",
    name="no-shebang",
    title="The script does not begin with #!",
    why="""sbatch takes a script only when its very first characters are #! and the program that reads it.
    A blank line, a comment or a mark of an editor before it is enough to be refused; a character in that
    line that is no plain letter makes the job end at once, because there is no such program.""",
    severity=ERROR,
    symptoms=(
        "sbatch: error: This does not look like a batch script",
        "execve(): No such file or directory",
    ),
    bad="\n#!/bin/bash\n#SBATCH --nodes=1\nsrun python train.py\n",
    good=example("srun python train.py", "--nodes=1"),
    clean=("echo hello\n", "#! /usr/bin/env bash\n#SBATCH -N 1\nsrun python train.py\n"),
)
_ODD = re.compile(r"[^\x20-\x7e\t\r]")


def check(job: JobScript) -> Iterator[Finding]:
    """Check the first line of scripts with directives."""
    if not job.is_batch or isinstance(job.source, Fragment):
        return
    first = job.source.line(1)
    if not first.startswith("#!"):
        yield from _missing(job)
    elif match := _ODD.search(first):
        yield RULE.at(
            job.source.span(match.start(), match.end()),
            f"The first line holds '{match[0]}', which is no plain character: the option it belongs to "
            "is not understood.",
            help="Type the line again: #!/bin/bash -l",
        )
    elif re.match(r"^#!\s*[$~]", first):
        yield RULE.at(
            job.source.span(0, len(first)),
            "Nothing replaces variables or ~ in the first line: there is no such program.",
            help="Write the whole path, as in #!/bin/bash, or #!/usr/bin/env NAME.",
        )


def _missing(job: JobScript) -> Iterator[Finding]:
    text = job.source.text
    at = text.find("#!/")
    before = text[:at] if at > 0 else ""
    movable = at > 0 and not before.strip("\ufeff \t\r\n")
    if at < 0 or movable:
        yield RULE.at(
            job.source.span(0, max(1, len(job.source.line(1)))),
            "The first line is not #!…: sbatch refuses the script.",
            help="Put #!/bin/bash on the first line."
            if at < 0
            else "Remove what stands before #!.",
            fix=[Edit(job.source.span(0, max(at, 0)), "" if at > 0 else "#!/bin/bash\n")],
        )
    else:
        yield RULE.at(
            job.source.span(0, max(1, len(job.source.line(1)))),
            "The script begins with something else than #!: sbatch refuses it.",
            help="Move the line with #! to the top.",
        )
