"""Switches that were set to find a fault, and slow the training down."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.shell.model import Assignment

RULE = Rule(
    id="AR304",
    name="slow-switch",
    title="A switch for finding faults is left on",
    why="""NCCL_IB_DISABLE=1 sends all traffic between nodes over plain Ethernet, NCCL_P2P_DISABLE=1 the
    traffic between GPUs through the CPU's memory, CUDA_LAUNCH_BLOCKING=1 waits after every kernel, and
    TORCH_DISTRIBUTED_DEBUG=DETAIL compares every collective. Each can make a training many times slower.""",
    symptoms=("the training is many times slower than expected", "adding nodes makes it slower"),
    bad=example("export NCCL_IB_DISABLE=1\nsrun python train.py", "--nodes=2", "--gres=gpu:4"),
    good=example("srun python train.py", "--nodes=2", "--gres=gpu:4"),
    clean=(example("export NCCL_IB_DISABLE=0 NCCL_DEBUG=INFO\nsrun python train.py", "--nodes=2"),),
)
_SWITCHES = {
    "NCCL_IB_DISABLE": "InfiniBand is not used between the nodes",
    "NCCL_P2P_DISABLE": "GPUs of a node do not talk to each other directly",
    "NCCL_SHM_DISABLE": "processes of a node do not use shared memory",
    "NCCL_NET_GDR_DISABLE": "the network does not reach the GPUs directly",
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for",
    "TORCH_DISTRIBUTED_DEBUG": "every collective is compared between the ranks",
    "TORCH_SHOW_CPP_STACKTRACES": "",
    "NCCL_BLOCKING_WAIT": "every collective blocks its process",
}


def check(job: JobScript) -> Iterator[Finding]:
    """Those that are on."""
    several = job.allocation.several_nodes
    reported: set[str] = set()
    for _, item in job.assigned(*_SWITCHES):
        if item.name in reported or not _on(item) or not _SWITCHES[item.name]:
            continue
        reported.add(item.name)
        network = item.name.startswith("NCCL_IB")
        if network and not several and job.is_batch:
            continue
        yield RULE.at(
            item.span,
            f"{item.name} is on: {_SWITCHES[item.name]}.",
            help="Remove the line once the fault is found.",
            severity=WARNING if item.name in ("NCCL_IB_DISABLE", "CUDA_LAUNCH_BLOCKING") else NOTE,
        )


def _on(item: Assignment) -> bool:
    text = (item.value.text or "").strip().upper() if item.value is not None else ""
    return text in (("DETAIL",) if item.name == "TORCH_DISTRIBUTED_DEBUG" else ("1", "TRUE", "YES"))
