"""Network settings of another machine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.finding import ERROR, NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR306",
    name="foreign-network",
    title="The network settings belong to another machine",
    why="""NCCL_SOCKET_IFNAME, NCCL_IB_HCA and FI_PROVIDER name interfaces and providers of one machine. With
    lo or docker0 the nodes cannot reach each other at all; with EFA settings outside of Amazon's cloud
    NCCL finds no network, or takes a slow one.""",
    severity=ERROR,
    symptoms=(
        "hangs at init",
        "NCCL WARN Bootstrap : no socket interface found",
        "Connection refused",
    ),
    bad=example("export NCCL_SOCKET_IFNAME=lo\nsrun python train.py", "--nodes=2", "--gres=gpu:4"),
    good=example(
        "export NCCL_SOCKET_IFNAME=^lo,docker0\nsrun python train.py", "--nodes=2", "--gres=gpu:4"
    ),
    clean=(
        example("export NCCL_SOCKET_IFNAME=ib0\nsrun python train.py", "--nodes=2"),
        example("export GLOO_SOCKET_IFNAME=lo\nsrun python train.py", "--nodes=1"),
    ),
)
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_EFA = (
    "FI_EFA_USE_DEVICE_RDMA",
    "FI_EFA_FORK_SAFE",
    "FI_EFA_SET_CUDA_SYNC_MEMOPS",
    "RDMAV_FORK_SAFE",
)
_LOCAL = re.compile(r"^=?(lo|docker\d*|virbr\d*)$")


def check(job: JobScript) -> Iterator[Finding]:
    """Interfaces that end at the machine itself, and settings for EFA."""
    several = job.allocation.several_nodes
    for _, item in job.assigned(*_INTERFACES):
        names = ((item.value.text if item.value is not None else None) or "").split(",")
        if several and names and all(_LOCAL.match(name.strip()) for name in names):
            yield RULE.at(
                item.span,
                f"{item.name}={','.join(names)} does not leave the machine: the nodes cannot reach each other.",
                help="Name the interface between the nodes (ip addr), or remove the line.",
                severity=ERROR if item.name.startswith("NCCL") else WARNING,
            )
    efa = [each for _, each in job.assigned(*_EFA)]
    provider = [
        each for _, each in job.assigned("FI_PROVIDER") if each.value and each.value.text == "efa"
    ]
    for item in (provider or efa)[:1]:
        yield RULE.at(
            item.span,
            f"{item.name} is for Amazon's network (EFA); on another cluster it does nothing, or harm.",
            help="Remove the EFA lines where the cluster is not on Amazon's cloud.",
            severity=NOTE,
        )
