"""Directives below the first command are comments."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import WARNING, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule

RULE = Rule(
    id="AR001",
    name="late-directive",
    title="sbatch does not read this directive",
    why="""sbatch stops reading directives at the first line that is neither blank nor a comment. What
    comes later is a comment, and Slurm prints nothing: the job gets the defaults instead.""",
    severity=WARNING,
    symptoms=("the job has other resources than it asked for", "no GPU is found"),
    bad="#!/bin/bash\n#SBATCH --nodes=1\nmodule load cuda\n#SBATCH --gres=gpu:4\nsrun python train.py\n",
    good="#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:4\nmodule load cuda\nsrun python train.py\n",
    clean=(
        "#!/bin/bash\n#SBATCH --nodes=1\n\n# a comment\n#SBATCH --time=10\nsrun python train.py\n",
        "#!/bin/bash\nfor n in 1 2; do\nsbatch <<EOF\n#!/bin/bash\n#SBATCH --nodes=$n\nsrun a.out\nEOF\ndone\n",
        "#!/bin/bash\n#SBATCH --nodes=1\nsrun python train.py\n##SBATCH --time=10\n",
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """Directive lines after the commands have begun."""
    first = job.directives.first_command
    if first is None:
        return
    line = job.source.line_of(first)
    late = job.directives.late
    if late:
        more = f" So are the {len(late) - 1} directives below it." if len(late) > 1 else ""
        yield RULE.at(
            late[0],
            f"The commands begin on line {line}, so this is a comment to sbatch: the job does not get what "
            f"it asks for here.{more}",
            help=f"Move {'it' if len(late) == 1 else 'them'} above line {line}.",
            fix=_move_up(job),
            related=late[1:],
        )


def _move_up(job: JobScript) -> tuple[Edit, ...]:
    """All late directives, to below the last one that is read."""
    source = job.source
    read = job.directives.lines
    after = read[-1].span.end if read else len(source.line(1))
    texts = "".join("\n" + span.text.strip() for span in job.directives.late)
    edits = [Edit(source.span(after, after), texts)]
    for span in job.directives.late:
        start = source.start_of(span.line)
        edits.append(Edit(source.span(start, min(span.end + 1, len(source.text))), ""))
    return tuple(edits)
