"""Detect the site of the current cluster, by three calls of ``scontrol``."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from allranks.cluster.sites import scontrol_nodes as records
from allranks.cluster.sites.model import Match, NodeShape, Partition, Site
from allranks.cluster.sites.scontrol_nodes import Record
from allranks.cluster.slurm.commands import check_configuration
from allranks.errors import MissingDependencyError, SlurmError

Runner = Callable[[Sequence[str]], str]

_CONFIG = ("scontrol", "show", "config")
_PARTITIONS = ("scontrol", "show", "partition", "-o")
_NODES = ("scontrol", "show", "node", "-o")
# A busy controller answers within seconds.
_TIMEOUT = 20.0


def slurm_runner(env: Mapping[str, str] | None = None, timeout: float = _TIMEOUT) -> Runner:
    """Run a Slurm command and return its output."""

    def run(command: Sequence[str]) -> str:
        variables = _plain(env)
        check_configuration(variables)
        try:
            done = subprocess.run(
                command, env=variables, timeout=timeout, capture_output=True, text=True,
                errors="replace", stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        except (FileNotFoundError, PermissionError):
            raise MissingDependencyError(
                f"This machine has no Slurm: '{command[0]}' is not on the PATH.\n"
                "Run this on a login node of the cluster, or write the site file by hand."
            ) from None
        except subprocess.TimeoutExpired:
            raise SlurmError(
                f"Slurm did not answer '{' '.join(command)}' within {timeout:.0f} s.\n"
                "The controller may be down: try 'scontrol ping', and this again later."
            ) from None
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
            raise SlurmError(
                f"'{' '.join(command)}' failed: {lines[-1]}\n"
                "See whether the controller answers with: scontrol ping"
            )
        return done.stdout

    return run


def _plain(env: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment without variables that change what scontrol prints."""
    env = dict(os.environ if env is None else env)
    for name in ("SCONTROL_ALL", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN"):
        env.pop(name, None)
    return env | {"LC_ALL": "C"}


def cluster_name(runner: Runner) -> str:
    """Return Slurm's name of this cluster."""
    name = records.settings(runner(_CONFIG)).get("ClusterName", "")
    if not name or name == "(null)":
        raise SlurmError("Slurm did not say the name of its cluster (scontrol show config).")
    return name


def detect_site(runner: Runner | None = None, name: str | None = None) -> Site:
    """Return the current cluster as a site. Its name is Slurm's ClusterName unless given."""
    runner = runner or slurm_runner()
    config = records.settings(runner(_CONFIG))
    cluster = config.get("ClusterName", "").strip() or "cluster"
    version = config.get("SLURM_VERSION")
    return Site(
        name=name or cluster,
        description=f"Slurm cluster '{cluster}'" + (f", Slurm {version}" if version else ""),
        partitions=_partitions(runner, config),
        match=Match(clusters=(cluster,)),
        slurm_version=version,
        requeue_allowed=_requeue(config),
        kill_wait=records.number(config.get("KillWait")),
        source=f"detected on {cluster}",
    )


def _requeue(config: Record) -> bool | None:
    value = config.get("JobRequeue")
    return None if value is None else value not in ("0", "NO")


def _partitions(runner: Runner, config: Record) -> tuple[Partition, ...]:
    shapes = _shapes_by_partition(records.nodes(runner(_NODES)))
    listed = records.partitions(runner(_PARTITIONS))
    highest = max((_tier(each) for each in listed), default=0)
    found = []
    for record in listed:
        # Hidden and root's partitions are shown to administrators; jobs of users cannot go there.
        if record.get("Hidden") == "YES" or record.get("RootOnly") == "YES":
            continue
        stopped = _preemptible(record, config.get("PreemptType", ""), highest)
        found.append(_partition(record, shapes.get(record["PartitionName"], {}), stopped))
    return tuple(found)


def _tier(record: Record) -> int:
    return records.number(record.get("PriorityTier")) or 0


def _preemptible(record: Record, how: str, highest: int) -> bool:
    """Return whether jobs of the partition may be preempted: by its tier, or by QOS anywhere."""
    if record.get("PreemptMode", "OFF") in ("OFF", "WITHIN", "GANG"):
        return False
    return how == "preempt/qos" or (how == "preempt/partition_prio" and _tier(record) < highest)


def _partition(record: Record, shapes: Mapping[NodeShape, int], stopped: bool) -> Partition:
    state = record.get("State", "UP")
    return Partition(
        name=record["PartitionName"],
        shapes=tuple(replace(shape, nodes=count) for shape, count in shapes.items()),
        nodes=records.number(record.get("TotalNodes")),
        max_time=records.seconds(record.get("MaxTime")),
        max_nodes=records.number(record.get("MaxNodes")) or None,
        max_cpus_per_node=records.number(record.get("MaxCPUsPerNode")) or None,
        max_memory_per_node=records.number(record.get("MaxMemPerNode")) or None,
        default=record.get("Default") == "YES",
        exclusive=record.get("OverSubscribe", "").startswith("EXCLUSIVE"),
        preemptible=stopped,
        note="" if state == "UP" else f"Was {state} when it was detected.",
    )


def _shapes_by_partition(nodes: list[Record]) -> dict[str, Counter[NodeShape]]:
    """Return the kinds of nodes in each partition, with their counts, in one pass over the nodes.

    Nodes that are down or drained count: they come back, and a job may wait for them. FUTURE nodes
    do not exist yet.
    """
    known: dict[tuple[str | None, ...], tuple[NodeShape, ...]] = {}
    found: dict[str, Counter[NodeShape]] = {}
    for record in nodes:
        if "FUTURE" in record.get("State", ""):
            continue
        key = tuple(record.get(each) for each in _SHAPE_KEYS)
        if key not in known:
            known[key] = _shapes(record)
        for partition in record.get("Partitions", "").split(","):
            if partition:
                found.setdefault(partition, Counter()).update(known[key])
    return found


_SHAPE_KEYS = (
    "Gres", "CPUTot", "CPUEfctv", "CoreSpecCount", "ThreadsPerCore", "RealMemory", "MemSpecLimit",
)  # fmt: skip


def _shapes(record: Record) -> tuple[NodeShape, ...]:
    """Return the shape of a node; one for each GPU type where it has several."""
    number = {key: records.number(record.get(key)) for key in _SHAPE_KEYS}
    cpus, threads = number["CPUTot"], number["ThreadsPerCore"] or 1
    if cpus is not None and number["CPUEfctv"] is not None:
        reserved = cpus - number["CPUEfctv"]
    else:
        reserved = (number["CoreSpecCount"] or 0) * threads
    return tuple(
        NodeShape(
            gpus=count,
            gpu_type=gpu_type,
            gpu_vendor=records.vendor(gpu_type),
            cpus=cpus,
            memory=number["RealMemory"],
            threads_per_core=threads,
            reserved_cpus=reserved,
            reserved_memory=number["MemSpecLimit"] or 0,
        )
        for gpu_type, count in records.gpus(record.get("Gres")) or [(None, 0)]
    )
