"""The state of a sandbox: its nodes, its jobs, its daemons."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from allranks.cluster.sandbox import sandbox_processes as processes
from allranks.cluster.sandbox.daemons import client
from allranks.cluster.sandbox.directories import Layout
from allranks.cluster.sandbox.sandbox_config import SandboxRecord


@dataclass(frozen=True)
class NodeStatus:
    """One node."""

    name: str
    state: str
    """As sinfo writes it (``idle``, ``mixed``, ``down*``), or ``unknown`` without a controller."""
    on: bool
    """Whether its slurmd runs."""


@dataclass(frozen=True)
class SandboxJob:
    """One job in the queue."""

    id: str
    name: str
    user: str
    partition: str
    state: str
    where: str
    """Its nodes, or in brackets why it waits."""


@dataclass(frozen=True)
class SandboxStatus:
    """The state of a sandbox."""

    name: str
    directory: str
    slurm_conf: str
    slurm_version: str
    isolation: str
    isolation_reason: str
    port: int
    running: bool
    """Whether the controller answers."""
    daemons: dict[str, bool]
    nodes: list[NodeStatus]
    jobs: list[SandboxJob]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def read(record: SandboxRecord, layout: Layout) -> SandboxStatus:
    """Read the state of a sandbox from /proc and the controller."""
    roles = {member.role for member in processes.find(layout)}
    states = node_states(layout) if "slurmctld" in roles else None
    return SandboxStatus(
        name=record.name,
        directory=str(layout.root),
        slurm_conf=str(layout.slurm_conf),
        slurm_version=record.slurm_version,
        isolation=record.isolation,
        isolation_reason=record.reason,
        port=record.port,
        running=states is not None,
        daemons={name: name in roles for name in daemon_names(record)},
        nodes=[
            NodeStatus(node, (states or {}).get(node, "unknown"), node in roles)
            for node in record.nodes
        ],
        jobs=_jobs(layout) if states is not None else [],
    )


def daemon_names(record: SandboxRecord) -> list[str]:
    """Return the daemons beside the nodes."""
    extra = ["mariadbd", "slurmdbd"] if record.config.accounting else []
    return ["munged", *extra, "slurmctld"]


def node_states(layout: Layout) -> dict[str, str] | None:
    """Return every node's state, or None when the controller does not answer."""
    text = client(layout, "sinfo", "-h", "-N", "-p", "main", "-o", "%N %T")
    if text is None:
        return None
    return dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line)


def _jobs(layout: Layout) -> list[SandboxJob]:
    fields = ["%i", "%j", "%u", "%P", "%T", "%R"]
    text = client(layout, "squeue", "-h", "-o", "\x1f".join(fields)) or ""
    rows = [line.split("\x1f") for line in text.splitlines()]
    return [SandboxJob(*row) for row in rows if len(row) == len(fields)]
