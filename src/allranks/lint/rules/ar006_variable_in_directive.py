"""sbatch expands nothing in directives."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.directives import option_lines
from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import is_template
from allranks.lint.source_text import Fragment

RULE = Rule(
    id="AR006",
    name="variable-in-directive",
    title="Variables are not replaced in directives",
    why="""Directives are comments to the shell, and sbatch does not replace variables, ~ or $(…) in them.
    The log goes to a folder that is called $HOME, the name of the job is $NAME. Slurm has its own signs
    for file names: %j (job id), %x (job name), %u (user), %A and %a (array).""",
    symptoms=("the log is missing", "the job ends at once without a log"),
    bad=example("srun python train.py", "--output=$HOME/logs/%j.out"),
    good=example("srun python train.py", "--output=/home/%u/logs/%j.out"),
    clean=(
        example("srun python train.py", "--output=%x-%j.out", '--comment="costs 5$"'),
        "#!/bin/bash\nN=2\nsbatch <<EOF\n#!/bin/bash\n#SBATCH --nodes=$N\nsrun python train.py\nEOF\n",
    ),
)
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]|\$\(|`")


def check(job: JobScript) -> Iterator[Finding]:
    """Values with a ``$``, and paths with a ``~``."""
    if isinstance(job.source, Fragment) or is_template(job):
        return
    found = [
        (option, option.value)
        for _, option in option_lines(job.directives)
        if option.value is not None
        and (_VARIABLE.search(option.value.shown) or option.value.shown.startswith("~/"))
    ]
    template = len(found) > 3  # filled in by a program, most likely
    for option, value in found:
        what = "~" if value.shown.startswith("~/") else value.shown
        yield RULE.at(
            option.span,
            f"sbatch does not replace {what} here: it takes {value.shown} as it stands.",
            help=_help(option.name),
            severity=NOTE if template or option.name in ("job-name", "comment") else WARNING,
        )


def _help(name: str) -> str:
    if name in ("output", "error", "input"):
        return "Write the path itself, with %j, %x or %u in it, or give it to sbatch: sbatch -o …"
    return f"Write the value itself, or give it on the command line: sbatch --{name}=… job.sh"
