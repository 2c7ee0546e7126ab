"""A rendezvous endpoint without a port."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import NOTE, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.shell.model import Literal
from allranks.lint.word_values import FIRST_HOST, FIXED, LOCALHOST, OWN_HOST, origin

_RUN = (
    "head=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\n"
    "srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint={} train.py"
)
RULE = Rule(
    id="AR206",
    name="endpoint-without-port",
    title="The endpoint has no port",
    why="""torchrun takes 29400 where --rdzv_endpoint has a host only. All jobs without a port share that
    one, and two of them on the same node collide.""",
    severity=NOTE,
    symptoms=("Address already in use", "hangs at init"),
    bad=example(_RUN.format("$head"), "--nodes=2"),
    good=example(_RUN.format("$head:$((20000 + SLURM_JOB_ID % 10000))"), "--nodes=2"),
    clean=(example(_RUN.format("$ENDPOINT"), "--nodes=2"),),
)


def check(job: JobScript) -> Iterator[Finding]:
    """Endpoints that surely are a host and nothing more."""
    for launch in job.launches:
        option = launch.options.find("rdzv-endpoint")
        if option is None or option.value is None or not option.value.parts:
            continue
        if any(isinstance(part, Literal) and ":" in part.text for part in option.value.parts):
            continue
        if origin(option.value.parts) in (FIRST_HOST, FIXED, LOCALHOST, OWN_HOST):
            yield RULE.at(
                option.span,
                "There is no port after the host, so torchrun takes 29400, as all such jobs do.",
                help=f"Write {option.written}=HOST:$((20000 + SLURM_JOB_ID % 10000)).",
            )
