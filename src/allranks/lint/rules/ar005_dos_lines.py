"""Line ends of Windows."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import ERROR, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR005",
    name="dos-line-ends",
    title="The lines end as on Windows",
    why="""sbatch refuses a script whose lines end with a carriage return ("Batch script contains DOS line
    breaks"). A worker script with such lines fails in the shell: every last word of a line has an
    invisible character more.""",
    severity=ERROR,
    symptoms=("sbatch: error: Batch script contains DOS line breaks", "$'\\r': command not found"),
    bad=example("srun python train.py", "--nodes=1").replace("\n", "\r\n"),
    good=example("srun python train.py", "--nodes=1"),
)


def check(job: JobScript) -> Iterator[Finding]:
    """Carriage returns before line ends."""
    text = job.source.text
    at = text.find("\r\n")
    if at < 0:
        return
    edits = []
    while at >= 0:
        edits.append(Edit(job.source.span(at, at + 1), ""))
        at = text.find("\r\n", at + 2)
    yield RULE.at(
        job.source.span(0, len(job.source.line(1))),
        f"{len(edits)} lines end with a carriage return: sbatch refuses the script.",
        help="Convert it: dos2unix, or sed -i 's/\\r$//'.",
        fix=edits,
    )
