"""``#SBTACH`` and ``#sbatch`` are comments."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from allranks.lint.finding import WARNING, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR018",
    name="misspelled-mark",
    title="The line is a comment, as it does not say #SBATCH",
    why="""sbatch reads lines that begin with #SBATCH, in capitals, letter by letter. #sbatch, #SBTACH or
    #SBATH are comments: what they ask for is not given, and nothing says so.""",
    symptoms=("the job has other resources than it asked for", "no GPU is found"),
    bad="#!/bin/bash\n#SBATCH --nodes=1\n#SBTACH --gres=gpu:4\nsrun python train.py\n",
    good=example("srun python train.py", "--nodes=1", "--gres=gpu:4"),
    clean=(
        "#!/bin/bash\n#SBATCH --nodes=1\n##SBATCH --gres=gpu:4\n# SBATCH -n 2\n#BATCH of images\nsrun a.out\n",
        "#!/bin/bash\n#PBS -l nodes=2\nmpirun python train.py\n",
        "#!/bin/bash\n#SBATCH --nodes=1\ncat > job.sh <<'EOF'\n!#SBATCH --time=1\nEOF\nsrun a.out\n",
    ),
)
_MARK = re.compile(r"^#([A-Za-z]{4,8})[ \t]+-{1,2}[A-Za-z]", re.M)
_COMMAND = re.compile(r"^[!$%/.;:]{1,2}#SBATCH[ \t]+-{1,2}[A-Za-z]", re.M)


def check(job: JobScript) -> Iterator[Finding]:
    """Lines with options behind a word that is nearly the mark."""
    if not job.directives.lines:
        return
    for match in _MARK.finditer(job.source.text):
        word = match[1]
        near = difflib.SequenceMatcher(None, word.upper(), "SBATCH").ratio() > 0.8
        if word == "SBATCH" or not near or word.upper() == "BATCH":
            continue
        place = job.source.span(match.start() + 1, match.end(1))
        yield RULE.at(
            place,
            f"#{word} is not #SBATCH: sbatch takes the line for a comment.",
            help="Write #SBATCH.",
            fix=[Edit(place, "SBATCH")],
            severity=WARNING,
        )
    yield from _commands(job)


def _commands(job: JobScript) -> Iterator[Finding]:
    """``!#SBATCH`` is a command, and ends what sbatch reads."""
    starts = {call.span.start for call in job.calls if call.shell is job.shell}
    for match in _COMMAND.finditer(job.source.text):
        if match.start() not in starts:
            continue
        word = match[0].split()[0]
        yield RULE.at(
            job.source.span(match.start(), match.start() + len(word)),
            f"{word} is a command, which bash does not find; sbatch reads no directive from here on.",
            help="Write #SBATCH at the beginning of the line, or ##SBATCH to switch it off.",
            severity=WARNING,
        )
