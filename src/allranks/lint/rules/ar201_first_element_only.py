"""An array made from another array's name holds its first element only."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import NOTE, WARNING, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule
from allranks.lint.shell.model import Assignment, Variable

RULE = Rule(
    id="AR201",
    name="first-element-only",
    title="The array keeps only the first node",
    why="""In bash $nodes is the first element of an array called nodes, not all of it. An array that is
    made from it has one element: right by luck for the head node, empty for every other node.""",
    severity=WARNING,
    symptoms=("a node's name is empty", "only one node is used"),
    bad="#!/bin/bash\n#SBATCH --nodes=2\nnodes=( $(scontrol show hostnames $SLURM_JOB_NODELIST) )\n"
    "nodes_array=($nodes)\nsrun -w ${nodes_array[1]} hostname\n",
    good="#!/bin/bash\n#SBATCH --nodes=2\nnodes=( $(scontrol show hostnames $SLURM_JOB_NODELIST) )\n"
    'nodes_array=("${nodes[@]}")\nsrun -w ${nodes_array[1]} hostname\n',
    clean=(
        "#!/bin/bash\n#SBATCH --nodes=2\nnodes=$(scontrol show hostnames $SLURM_JOB_NODELIST)\n"
        "nodes_array=($nodes)\necho ${nodes_array[1]}\n",
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """``b=($a)`` where ``a`` is an array."""
    for call in job.calls:
        for item in call.assignments:
            variable = _copied(item)
            if variable is None:
                continue
            binding = call.env.get(variable.name)
            if binding is None or binding.array is None:
                continue
            others = _uses_others(job, item.name)
            yield RULE.at(
                item.span,
                f"${variable.name} is only the first element of the array {variable.name}, so "
                f"{item.name} has one element, however many nodes there are."
                + ("" if others else " The first one is right, the others would be empty."),
                help=f'Write {item.name}=("${{{variable.name}[@]}}").',
                fix=[Edit(variable.span, f'"${{{variable.name}[@]}}"')],
                severity=WARNING if others else NOTE,
            )


def _copied(item: Assignment) -> Variable | None:
    """The variable in ``NAME=($OTHER)``, as it is written."""
    import re

    match = re.search(r'=\(\s*"?\$\{?(\w+)\}?"?\s*\)$', item.span.text)
    if item.array is None or match is None:
        return None
    start = item.span.start + item.span.text.index("(") + 1
    start += len(item.span.source.text[start:]) - len(item.span.source.text[start:].lstrip())
    end = item.span.start + item.span.text.rindex(")")
    text = item.span.source.text[start:end].rstrip()
    return Variable(match[1], item.span.source.span(start, start + len(text)))


def _uses_others(job: JobScript, name: str) -> bool:
    return any(
        variable.name == name and variable.index not in ("", "0") for _, variable in job.reads()
    )
