"""The configuration of a sandbox: what it was asked for, and how it was started (sandbox.json)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from allranks.cluster.sandbox.directories import Layout
from allranks.cluster.sandbox.ports import Block
from allranks.errors import SandboxError

ISOLATIONS = ("auto", "plain", "hosts", "network")
GPU_ENVS = ("nvidia", "amd")
MAX_NODES = 100
# Lines that the sandbox writes from its own fields: a second one would contradict the first.
_OWN_LINES = {
    "nodename": "nodes, cpus, memory and gpus",
    "partitionname": "grace",
    "include": "settings",
    "slurmctldport": "port",
}


@dataclass(frozen=True)
class SandboxConfig:
    """The shape of a sandbox. Every field has a value that suits a laptop."""

    nodes: int = 2
    """Nodes, named node1, node2, …"""
    cpus: int = 8
    """CPUs that each node claims; this machine may have fewer."""
    memory: int = 4000
    """MiB that each node claims."""
    gpus: int = 4
    """Pretended GPUs of each node; 0 for none."""
    gpu_type: str = "a100"
    """Their type, as in ``--gres=gpu:a100:2``; empty for GPUs without a type."""
    gpu_env: str = "nvidia"
    """Whose variables a job gets: ``nvidia`` (CUDA_VISIBLE_DEVICES) or ``amd`` (ROCR_…)."""
    isolation: str = "auto"
    """``plain``: processes of this machine. ``hosts``: each node has its own hostname, processes
    and /etc/hosts. ``network``: also its own network (root only). ``auto``: hosts if it works."""
    accounting: bool = False
    """Run MariaDB and slurmdbd too, so that ``sacct`` works."""
    grace: int = 0
    """Seconds that a preempted job of partition ``low`` keeps after its signal."""
    port: int | None = None
    """First of a block of 128 TCP ports; a free block is chosen when None."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Lines of slurm.conf to set or replace; an empty value leaves the line out."""

    def __post_init__(self) -> None:
        _in_range("nodes", self.nodes, 1, MAX_NODES)
        _in_range("cpus", self.cpus, 1, 4096)
        _in_range("memory", self.memory, 64, 1 << 30)
        _in_range("gpus", self.gpus, 0, 128)
        _in_range("grace", self.grace, 0, 86400)
        if self.port is not None:
            _in_range("port", self.port, 1024, 65535 - 128)
        _one_of("isolation", self.isolation, ISOLATIONS)
        _one_of("gpu_env", self.gpu_env, GPU_ENVS)
        if not re.fullmatch(r"[A-Za-z0-9_.-]*", self.gpu_type):
            raise SandboxError(
                f"The sandbox was asked for GPUs of type {self.gpu_type!r}, which Slurm cannot "
                "write down.\nUse letters, digits, '.', '_' and '-', as in a100."
            )
        for key, value in self.settings.items():
            _check_setting(key, value)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "settings": dict(self.settings)}

    def describe_node(self) -> str:
        """Describe one node: ``8 CPUs, 4000 MiB, 4 × a100``."""
        parts = [f"{self.cpus} CPU{'s' * (self.cpus != 1)}", f"{self.memory} MiB"]
        if self.gpus:
            parts.append(f"{self.gpus} × {self.gpu_type or 'GPU'}")
        return ", ".join(parts)


def _in_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise SandboxError(
            f"The sandbox was asked for {name}={value}; it takes {low} to {high}.\n"
            f"Give {name} a value in that range."
        )


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SandboxError(
            f"The sandbox was asked for {name}={value!r}, which it does not know.\n"
            f"Use one of: {', '.join(choices)}."
        )


def _check_setting(key: str, value: str) -> None:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", key) or "\n" in value:
        raise SandboxError(
            f"{key!r}={value!r} is not one line of slurm.conf.\nWrite it like SlurmdTimeout=5."
        )
    if field_names := _OWN_LINES.get(key.lower()):
        raise SandboxError(
            f"{key} cannot be set: the sandbox writes that line itself.\nUse {field_names} instead."
        )


@dataclass(frozen=True)
class SandboxRecord:
    """A sandbox as it was started."""

    name: str
    config: SandboxConfig
    isolation: str
    reason: str
    """Why this isolation."""
    port: int
    slurm_version: str

    @property
    def block(self) -> Block:
        return Block(self.port, self.isolation)

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes, in order."""
        return [f"node{index}" for index in range(1, self.config.nodes + 1)]

    def index(self, node: str) -> int:
        """Return the node's number, from 1."""
        if node not in self.nodes:
            raise SandboxError(
                f"Sandbox '{self.name}' has no node '{node}'; it has {', '.join(self.nodes)}.\n"
                "Use one of these names."
            )
        return self.nodes.index(node) + 1

    def save(self, layout: Layout) -> None:
        """Write ``sandbox.json``."""
        values = {**asdict(self), "config": self.config.as_dict()}
        layout.record.write_text(json.dumps(values, indent=2) + "\n")


def load_record(layout: Layout) -> SandboxRecord | None:
    """Read the record of the sandbox in that directory; None when there is none."""
    try:
        values = json.loads(layout.record.read_text())
        return SandboxRecord(**{**values, "config": SandboxConfig(**values["config"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
