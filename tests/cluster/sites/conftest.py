"""What scontrol prints, recorded from Slurm 22.05 and shortened, with the odd cases added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

CONFIG = """\
Configuration data as of 2026-11-15T02:52:55
AccountingStorageType   = accounting_storage/none
ClusterName             = lab
JobRequeue              = 1
KillWait                = 30 sec
PreemptMode             = REQUEUE
PreemptType             = preempt/partition_prio
SLURM_VERSION           = 22.05.8
SlurmctldParameters     = (null)

Slurmctld(primary) at vm is UP
"""

PARTITIONS = """\
PartitionName=main AllowGroups=ALL Default=YES QoS=N/A DefaultTime=00:10:00 ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=a[1-2],d1 PriorityTier=10 RootOnly=NO ReqResv=NO OverSubscribe=NO PreemptMode=REQUEUE State=UP TotalCPUs=32 TotalNodes=3 SelectTypeParameters=NONE DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED
PartitionName=low AllowGroups=ALL Default=NO Hidden=NO MaxNodes=2 MaxTime=1-12:00:00 MaxCPUsPerNode=16 Nodes=a[1-2] PriorityTier=1 RootOnly=NO OverSubscribe=EXCLUSIVE PreemptMode=REQUEUE State=DRAIN TotalNodes=2 MaxMemPerNode=8000
PartitionName=secret Default=NO Hidden=YES MaxNodes=UNLIMITED MaxTime=01:00:00 RootOnly=NO State=UP TotalNodes=1
PartitionName=admin Default=NO Hidden=NO MaxNodes=UNLIMITED MaxTime=01:00:00 RootOnly=YES State=UP TotalNodes=1
"""  # noqa: E501

_NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=8  CPUAlloc=0 CPUEfctv={effective} CPUTot={cpus} "
    "CPULoad=0.26 AvailableFeatures=(null) ActiveFeatures=(null) Gres={gres} NodeAddr={name} "
    "NodeHostName={name} Port=25001 Version=22.05.8 OS=Linux 6.1 #1 SMP Gres=no @0  "
    "RealMemory={memory} AllocMem=0 FreeMem=23128 Sockets=2 Boards=1 {reserved}State={state} "
    "ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions={partitions}  "
    "BootTime=2026-11-15T02:39:16 CfgTRES=cpu=8,mem=4000M,billing=8 AllocTRES= {reason}"
)


def _node(name: str, **values: object) -> str:
    """One line of ``scontrol show node -o``."""
    defaults: dict[str, object] = {
        "effective": 30, "cpus": 32, "gres": "gpu:a100:4(S:0-1)", "memory": 64000,
        "reserved": "CoreSpecCount=1 CPUSpecList=0-1 MemSpecLimit=2000 ", "state": "IDLE",
        "partitions": "main,low", "reason": "",
    }  # fmt: skip
    return _NODE.format(name=name, **{**defaults, **values}).rstrip()


NODES = "\n".join(
    [
        _node("a1"),
        _node("a2", state="DOWN*+DRAIN", reason="Reason=Gres=gpu:9 State=UP bad [root@2026-11-15]"),
        _node("d1", gres="(null)", reserved="", effective=32, partitions="main"),
        _node("f1", state="FUTURE", gres="gpu:h100:8", partitions="main"),
        _node("s1", partitions=""),
    ]
)


def _runner_of(
    config: str = CONFIG, partitions: str = PARTITIONS, nodes: str = NODES
) -> Callable[[Sequence[str]], str]:
    """A runner that answers from texts."""
    answers = {"config": config, "partition": partitions, "node": nodes}
    return lambda command: answers[command[2]]


@pytest.fixture
def node() -> Callable[..., str]:
    """Writes one line of ``scontrol show node -o``."""
    return _node


@pytest.fixture
def runner_of() -> Callable[..., Callable[[Sequence[str]], str]]:
    """Makes a runner that answers from texts."""
    return _runner_of


@pytest.fixture
def no_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without site files, on a machine without Slurm; returns the folder we are in."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for name in ("ALLRANKS_SITE", "ALLRANKS_SITES", "SLURM_CLUSTER_NAME"):
        monkeypatch.delenv(name, raising=False)
    return here
