"""The sandbox: a real Slurm cluster on this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from allranks.cluster.sandbox import boot, daemons
from allranks.cluster.sandbox import sandbox_processes as processes
from allranks.cluster.sandbox import sandbox_status as status
from allranks.cluster.sandbox import slurm_programs as programs
from allranks.cluster.sandbox.directories import Layout
from allranks.cluster.sandbox.sandbox_config import SandboxConfig, SandboxRecord, load_record
from allranks.cluster.sandbox.sandbox_status import SandboxStatus
from allranks.errors import SandboxError


class Sandbox:
    """A running sandbox, or what is left of one. Made by ``up`` or ``open``.

    As a context manager it is stopped at the end.
    """

    def __init__(self, record: SandboxRecord, layout: Layout) -> None:
        self.record = record
        self.layout = layout

    @classmethod
    def up(
        cls,
        directory: Path | None = None,
        config: SandboxConfig | None = None,
        *,
        name: str = "default",
        replace: bool = False,
    ) -> Sandbox:
        """Start a cluster and wait until every node is idle. When that fails, nothing is left."""
        return cls(*boot.start(name, config or SandboxConfig(), directory, replace))

    @classmethod
    def open(cls, name_or_dir: str | Path = "default") -> Sandbox:
        """Open the sandbox of that name, or in that directory, whatever its state."""
        known = boot.registered()
        if str(name_or_dir) in known:
            layout = known[str(name_or_dir)]
            return cls(load_record(layout) or _broken(str(name_or_dir)), layout)
        path = Path(name_or_dir).resolve()
        if path.is_dir() and (record := load_record(Layout(path))):
            return cls(record, Layout(path))
        there = f"there are: {', '.join(known)}" if known else "there are none"
        raise SandboxError(
            f"No sandbox '{name_or_dir}' is up; {there}.\nStart one with: allranks sandbox up"
        )

    @property
    def name(self) -> str:
        """Its name."""
        return self.record.name

    @property
    def directory(self) -> Path:
        """The directory that holds all of it."""
        return self.layout.root

    @property
    def nodes(self) -> list[str]:
        """The names of its nodes."""
        return self.record.nodes

    @property
    def env(self) -> dict[str, str]:
        """The variables that make Slurm's programs use this cluster."""
        needed = {"SLURM_CONF": str(self.layout.slurm_conf)}
        folder = str(Path(programs.path_of("srun")).parent)
        have = os.environ.get("PATH", os.defpath).split(os.pathsep)
        if folder not in have:
            needed["PATH"] = os.pathsep.join([*have, folder])
        return needed

    def environ(self) -> dict[str, str]:
        """Return this process's environment with ``env``, without variables of another cluster."""
        ours = {k: v for k, v in os.environ.items() if not daemons.is_slurm_variable(k)}
        return {**ours, **self.env}

    def run(self, *argv: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command in ``environ()``: ``sandbox.run("srun", "-N2", "hostname")``."""
        return subprocess.run(
            argv, env=self.environ(), capture_output=True, text=True, timeout=timeout
        )

    def shell(self, command: Sequence[str] = ()) -> list[str]:
        """Return the command line of a shell to run in ``environ()``, or the command itself."""
        return list(command) or [os.environ.get("SHELL") or "/bin/sh"]

    def status(self) -> SandboxStatus:
        """Return the state of nodes, jobs and daemons."""
        return status.read(self.record, self.layout)

    def kill_node(self, node: str) -> bool:
        """Power a node off by killing all its processes. False when it was off already."""
        self.record.index(node)
        return processes.kill_all(self.layout, node) > 0

    def start_node(self, node: str) -> bool:
        """Power a node on and wait until it accepts jobs. False when it was on already."""
        index = self.record.index(node)
        if processes.find(self.layout, node):
            return False
        if not processes.find(self.layout, "slurmctld"):
            raise SandboxError(
                f"{node} cannot join sandbox '{self.name}': its controller does not run.\n"
                f"Start the sandbox afresh with: allranks sandbox up --name {self.name} --replace"
            )
        pid = daemons.start_node(self.record, self.layout, node)
        address = (self.record.block.address(index), self.record.block.node_port(index))
        boot.wait_for_nodes(self.layout, {node: pid}, [node], address)
        return True

    def down(self) -> None:
        """Stop everything and remove the directory. Safe to call twice, and after a crash."""
        with boot.alone(self.name):
            alive = {member.role for member in processes.find(self.layout)}
            if self.directory.exists() and "slurmctld" in alive:
                # A job on a dead node never ends, so there is no use in waiting for it.
                boot.cancel_jobs(self.layout, 5.0 if alive >= set(self.nodes) else 0.5)
            boot.remove(self.name, self.layout, self.record)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()


def list_sandboxes() -> list[Sandbox]:
    """Return every sandbox of this user, running or left over."""
    known = boot.registered()
    return [Sandbox(load_record(layout) or _broken(name), layout) for name, layout in known.items()]


def _broken(name: str) -> SandboxRecord:
    """Return the record of a sandbox that was interrupted before it wrote one."""
    return SandboxRecord(
        name, SandboxConfig(nodes=1), "plain", "its record is missing", 0, "unknown"
    )
