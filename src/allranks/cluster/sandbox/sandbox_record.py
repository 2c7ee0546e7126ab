"""What is remembered of a sandbox: the file sandbox.json in its directory."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from allranks.cluster.sandbox.directories import Layout
from allranks.cluster.sandbox.ports import Block
from allranks.cluster.sandbox.sandbox_config import SandboxConfig
from allranks.errors import SandboxError


@dataclass(frozen=True)
class Record:
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
        """The node's number, from 1."""
        if node not in self.nodes:
            raise SandboxError(
                f"Sandbox '{self.name}' has no node '{node}'; it has {', '.join(self.nodes)}.\n"
                "Use one of these names."
            )
        return self.nodes.index(node) + 1

    def save(self, layout: Layout) -> None:
        """Write it down."""
        values = {**asdict(self), "config": self.config.as_dict()}
        layout.record.write_text(json.dumps(values, indent=2) + "\n")


def load(layout: Layout) -> Record | None:
    """The record of the sandbox in that directory, or None when there is none to read."""
    try:
        values = json.loads(layout.record.read_text())
        return Record(**{**values, "config": SandboxConfig(**values["config"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
