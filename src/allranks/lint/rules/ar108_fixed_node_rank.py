"""The same node rank is written for all nodes."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import ERROR, NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import RANK_OPTIONS, alone, launches_under, meets_by_c10d

_RUN = "srun torchrun --nnodes=2 --nproc_per_node=4 --node_rank=0 --master_addr=$head train.py"
RULE = Rule(
    id="AR108",
    name="fixed-node-rank",
    title="All nodes are given the same rank",
    why="""srun gives every task the same words. A node rank that is a number is then the same on every
    node, and with a static rendezvous all of them wait for the ranks that are missing.""",
    severity=ERROR,
    symptoms=("hangs at init", "all ranks are rank 0", "several nodes claim to be the master"),
    bad=example(_RUN, "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:4"),
    good=example(
        "export head\n"
        "srun bash -c 'torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$SLURM_NODEID "
        "--master_addr=$head train.py'",
        "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:4",
    ),
    clean=(
        example(_RUN.replace("srun", "srun -N1 -n1"), "--nodes=2", "--ntasks-per-node=1"),
        example(_RUN, "--nodes=1"),
        example(
            "srun -N1 -w $a torchrun --nnodes=2 --node_rank=0 train.py &\n"
            "srun -N1 -w $b torchrun --nnodes=2 --node_rank=1 train.py &\nwait",
            "--nodes=2",
        ),
    ),
)  # fmt: skip


def check(job: JobScript) -> Iterator[Finding]:
    """A number as the rank, in a step over several nodes."""
    for launch in launches_under(job, "srun"):
        option = launch.options.find(RANK_OPTIONS.get(launch.kind, ""))
        nodes = job.shape(launch).nodes
        if (
            option is None
            or option.value is None
            or not nodes
            or nodes < 2
            or not alone(job, launch)
        ):
            continue
        text = option.value.text or ""
        if not text.isdecimal():
            continue
        hidden = meets_by_c10d(launch)
        yield RULE.at(
            option.span,
            f"{option.written} is {text} on all {nodes} nodes"
            + (
                "; the c10d rendezvous ignores it."
                if hidden
                else ": they wait for the missing ranks."
            ),
            help=f"Let each task replace it: srun bash -c '… {option.written}=$SLURM_NODEID …'."
            if not hidden
            else "Leave it out.",
            severity=NOTE if hidden else ERROR if launch.certain else WARNING,
        )
