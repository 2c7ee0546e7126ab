"""Several nodes cannot meet on localhost."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.finding import ERROR, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.rules.addresses import addresses
from allranks.lint.word_values import LOCALHOST, origin

RULE = Rule(
    id="AR203",
    name="localhost-with-several-nodes",
    title="The ranks of several nodes are to meet on localhost",
    why="""localhost is another machine on every node. The processes of the second node look for the first
    one on their own machine, find nobody and wait until the time limit.""",
    severity=ERROR,
    symptoms=("hangs at init", "Connection refused"),
    bad=example("export MASTER_ADDR=localhost MASTER_PORT=29500\nsrun python train.py",
                "--nodes=2", "--ntasks-per-node=4", "--gres=gpu:4"),
    good=example(
        "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\nsrun python train.py",
        "--nodes=2", "--ntasks-per-node=4", "--gres=gpu:4",
    ),
    clean=(
        example("export MASTER_ADDR=localhost\nsrun python train.py", "--nodes=1", "--ntasks-per-node=4"),
        example("torchrun --rdzv_endpoint=localhost:0 --nproc_per_node=4 train.py", "--gres=gpu:4"),
    ),
)  # fmt: skip


_URL = re.compile(r"tcp://(localhost|127\.0\.0\.1)\b")


def check(job: JobScript) -> Iterator[Finding]:
    """Addresses of steps over several nodes."""
    yield from _urls(job)
    for rendezvous in addresses(job):
        launch = rendezvous.launch
        nodes = job.shape(launch).nodes if launch.step is not None else None
        if nodes is None or nodes < 2 or origin(rendezvous.word.parts) != LOCALHOST:
            continue
        yield RULE.at(
            rendezvous.span,
            f"{rendezvous.name} is this machine, but the step runs on {nodes} nodes: only the first finds it.",
            help='Use the first node\'s name: $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            severity=ERROR if launch.certain else WARNING,
        )


def _urls(job: JobScript) -> Iterator[Finding]:
    """``--dist-url tcp://localhost:1234`` among the script's own arguments."""
    for launch in job.launches:
        nodes = job.shape(launch).nodes if launch.step is not None else None
        for word in launch.args:
            if (nodes or 1) > 1 and _URL.search(word.start):
                yield RULE.at(
                    word.span,
                    f"{word.shown} is this machine, but the step runs on {nodes} nodes: only the first finds it.",
                    help="Use the first node's name: tcp://$MASTER_ADDR:$MASTER_PORT",
                    severity=ERROR if launch.certain else WARNING,
                )
