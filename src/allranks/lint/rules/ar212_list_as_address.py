"""The list of nodes where one address is wanted."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import ERROR, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import OTHER
from allranks.lint.rule import Rule, example
from allranks.lint.rules.addresses import addresses
from allranks.lint.shell.model import Variable, Word

RULE = Rule(
    id="AR212",
    name="list-as-address",
    title="The address is a list of nodes",
    why="""SLURM_NODELIST and SLURM_JOB_NODELIST hold all nodes of the job in Slurm's short form, such as
    node[01-02]. With one node that is its name; with several no machine is called so, and no rank finds
    the first one.""",
    severity=ERROR,
    symptoms=("Name or service not known", "hangs at init"),
    bad=example("export MASTER_ADDR=$SLURM_NODELIST\nsrun python train.py", "--nodes=2", "--ntasks-per-node=4"),
    good=example('export MASTER_ADDR=$(scontrol show hostnames "$SLURM_NODELIST" | head -n 1)\nsrun python train.py',
                 "--nodes=2", "--ntasks-per-node=4"),
    clean=(
        example("export MASTER_ADDR=$SLURM_NODELIST\nsrun python train.py", "--nodes=1", "--ntasks-per-node=4"),
        example("export MASTER_ADDR=${SLURM_NODELIST%%,*}\nsrun python train.py", "--nodes=2"),
        "#!/bin/bash\nexport MASTER_ADDR=$SLURM_NODELIST\npython train.py\n",
    ),
)  # fmt: skip
_LISTS = ("SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST")


def check(job: JobScript) -> Iterator[Finding]:
    """Addresses that are the variable, and nothing cuts a name out of it."""
    if not job.allocation.several_nodes:
        return
    reported: set[tuple[int, int]] = set()
    for rendezvous in addresses(job):
        name = _list(rendezvous.word)
        key = (rendezvous.span.start, rendezvous.span.end)
        if not name or key in reported:
            continue
        reported.add(key)
        yield RULE.at(
            rendezvous.span,
            f"${name} names all nodes of the job, as in node[01-02]: {rendezvous.name} is no address.",
            help=f'Use the first node: $(scontrol show hostnames "${name}" | head -n 1)',
            severity=ERROR
            if rendezvous.launch.certain and rendezvous.launch.kind != OTHER
            else WARNING,
        )


def _list(word: Word) -> str:
    """The name of the variable that the whole word is."""
    part = word.parts[0] if len(word.parts) == 1 else None
    while isinstance(part, Variable) and part.choices and not part.operator:
        inner = part.choices[0] if len(part.choices) == 1 else ()
        part = inner[0] if len(inner) == 1 else None
    if not isinstance(part, Variable) or part.operator or part.index:
        return ""
    return part.name if part.name in _LISTS else ""
