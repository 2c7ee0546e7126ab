"""Every node takes itself for the master."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.command_calls import TASK
from allranks.lint.finding import ERROR, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.rules.addresses import addresses
from allranks.lint.shell.model import Substitution, Word
from allranks.lint.word_values import OWN_ADDRESS, OWN_HOST, origin

RULE = Rule(
    id="AR208",
    name="own-host-as-master",
    title="Every node takes itself for the master",
    why="""hostname, $HOSTNAME and $SLURMD_NODENAME are another name on every node. Replaced inside the
    tasks, each node connects to itself. In the batch script they are right, as that runs on the
    first node.""",
    severity=ERROR,
    symptoms=("hangs at init", "several nodes claim to be the master"),
    bad=example("srun bash -c 'MASTER_ADDR=$(hostname) RANK=$SLURM_PROCID python train.py'",
                "--nodes=2", "--ntasks-per-node=4"),
    good=example("export MASTER_ADDR=$(hostname)\nsrun bash -c 'RANK=$SLURM_PROCID python train.py'",
                 "--nodes=2", "--ntasks-per-node=4"),
    clean=(
        example("srun bash -c 'MASTER_ADDR=$(hostname) python train.py'", "--nodes=1", "--ntasks-per-node=4"),
        example('srun bash -c "MASTER_ADDR=$(hostname) python train.py"', "--nodes=2"),
    ),
)  # fmt: skip


def check(job: JobScript) -> Iterator[Finding]:
    """Addresses that tasks of several nodes find out by themselves."""
    for rendezvous in addresses(job):
        launch = rendezvous.launch
        if launch.step is None or origin(rendezvous.word.parts) not in (OWN_HOST, OWN_ADDRESS):
            continue
        nodes = job.shape(launch).nodes
        if nodes == 1 or not _in_task(rendezvous.word):
            continue
        yield RULE.at(
            rendezvous.span,
            f"{rendezvous.name} is the name of the node itself, on every node another one.",
            help="Find the first node in the batch script and export it: "
            'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            severity=ERROR if nodes and launch.certain else WARNING,
        )


def _in_task(word: Word) -> bool:
    kinds = {each.shell.kind for each in word.variables() if each.shell is not None}
    for part in word.parts:
        if isinstance(part, Substitution):
            kinds |= {call.shell.kind for call in part.calls}
    return kinds == {TASK}
