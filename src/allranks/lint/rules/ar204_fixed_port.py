"""A port that every job of this script uses."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import ERROR, NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.rules.addresses import ports

RULE = Rule(
    id="AR204",
    name="fixed-port",
    title="Two jobs on one node want the same port",
    why="""A port can be used once on a node. Where nodes are shared, the second job that was made from the
    same script, or from the same tutorial, fails with "Address already in use", or worse: its ranks join
    the training of the other job. A port from the job's id differs.""",
    severity=ERROR,
    symptoms=("Address already in use", "EADDRINUSE", "ranks of another job join"),
    bad=example("export MASTER_PORT=29500\nexport MASTER_ADDR=$(hostname)\nsrun python train.py",
                "--nodes=1", "--ntasks-per-node=2", "--gres=gpu:2"),
    good=example(
        "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))\nexport MASTER_ADDR=$(hostname)\nsrun python train.py",
        "--nodes=1", "--ntasks-per-node=2", "--gres=gpu:2",
    ),
    clean=(
        example("torchrun --standalone --nproc_per_node=2 train.py", "--gres=gpu:2"),
        example("export MASTER_PORT=29500\necho hello", "--gres=gpu:2"),
        example("torchrun --rdzv_backend=c10d --rdzv_endpoint=localhost:0 train.py", "--gres=gpu:2"),
    ),
)  # fmt: skip


def check(job: JobScript) -> Iterator[Finding]:
    """Ports that are a number in the text."""
    reported: set[int] = set()
    for rendezvous in ports(job):
        text = (rendezvous.word.text or "").strip()
        if not text.isdecimal() or not text.isascii() or text == "0" or len(text) > 9:
            continue
        part = rendezvous.word.parts[0].span
        place = part if part.end > part.start else rendezvous.span
        if place.start in reported:
            continue
        reported.add(place.start)
        if int(text) > 65535 or int(text) < 1024:
            yield RULE.at(
                place,
                f"{text} is no port that a user can have: they go from 1024 to 65535.",
                help="Use one from 20000 to 30000.",
            )
            continue
        shared = _may_be_shared(job)
        yield RULE.at(
            place,
            f"Port {text} is the same for every job of this script"
            + (
                ": two of them on one node collide."
                if shared
                else "; whole nodes are not shared, so it mostly works."
            ),
            help="Derive it from the job: $((20000 + SLURM_JOB_ID % 10000))",
            severity=WARNING if shared and job.is_batch else NOTE,
        )


def _may_be_shared(job: JobScript) -> bool:
    gpus = job.allocation.gpus_per_node
    return not job.exclusive() and (gpus is None or gpus < 4)
