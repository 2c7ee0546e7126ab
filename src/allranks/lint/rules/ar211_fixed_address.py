"""The name of one machine as the place to meet."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.rules.addresses import addresses
from allranks.lint.word_values import FIXED, origin

RULE = Rule(
    id="AR211",
    name="fixed-address",
    title="The ranks are to meet on one certain machine",
    why="""The name or address of a node is written into the script. Slurm gives the job other nodes the next
    time, and the ranks look for each other on a machine that is not theirs.""",
    symptoms=("hangs at init", "Connection timed out"),
    bad=example("export MASTER_ADDR=gpu001\nsrun python train.py", "--nodes=2", "--ntasks-per-node=4"),
    good=example("export MASTER_ADDR=$(scontrol show hostnames | head -n 1)\nsrun python train.py",
                 "--nodes=2", "--ntasks-per-node=4"),
    clean=(
        example("export MASTER_ADDR=gpu001\nsrun python train.py", "--nodes=2", "--nodelist=gpu[001-002]"),
        example("export MASTER_ADDR=localhost\nsrun python train.py", "--nodes=1"),
        example("export MASTER_ADDR=$HEAD\nsrun python train.py", "--nodes=2"),
    ),
)  # fmt: skip


def check(job: JobScript) -> Iterator[Finding]:
    """Addresses that are plain text, in jobs that do not choose their nodes."""
    if not job.is_batch or job.allocation.options.has("nodelist"):
        return
    reported: set[str] = set()
    for rendezvous in addresses(job):
        text = (rendezvous.word.text or "").strip()
        if (
            origin(rendezvous.word.parts) != FIXED
            or text in reported
            or text in ("0.0.0.0", "127.0.0.1")
        ):
            continue
        reported.add(text)
        several = job.allocation.several_nodes
        yield RULE.at(
            rendezvous.span,
            f"{text} is one certain machine; the job may run on others.",
            help='Use the first node of the job: $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            severity=WARNING if several else NOTE,
        )
