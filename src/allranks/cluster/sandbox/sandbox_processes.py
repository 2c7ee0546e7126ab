"""The processes of a sandbox: start them detached, find every one, kill them.

No pid files: each daemon carries the sandbox's directory and its own role in its environment, and
/proc is searched. Newer slurmstepds write their title over their environment; they are known by the
log that they hold open. A job's tasks have the environment of whoever submitted them, but Slurm
adds its configuration file and the node's name. What these have started belongs to them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from allranks.cluster.sandbox.directories import Layout
from allranks.errors import SandboxError

DIRECTORY = "ALLRANKS_SANDBOX"
ROLE = "ALLRANKS_SANDBOX_ROLE"
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")


@dataclass(frozen=True)
class Member:
    """A process of a sandbox."""

    pid: int
    role: str
    """The daemon it is, or the node it runs on."""


class _Detached(subprocess.Popen[bytes]):
    """A child that may outlive this process, so its Popen may be dropped without a warning."""

    def __del__(self) -> None:
        pass


_children: dict[int, _Detached] = {}


def spawn(argv: Sequence[str], layout: Layout, role: str, extra: Mapping[str, str]) -> int:
    """Start a daemon in its own session, without inherited files; return its pid."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    marks = {"SLURM_CONF": str(layout.slurm_conf), DIRECTORY: str(layout.root), ROLE: role}
    with open(layout.output(role), "ab") as output:
        child = _Detached(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**kept, **extra, **marks},
            cwd="/",
            umask=0o022,
            start_new_session=True,
        )
    _children[child.pid] = child
    return child.pid


def alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    if (child := _children.get(pid)) and child.poll() is not None:
        return False
    stat = _stat(pid)
    return stat is not None and stat[0] not in "ZX"


def find(layout: Layout, role: str | None = None) -> list[Member]:
    """Return every running process of the sandbox, or of one daemon or node; daemons before tasks."""
    table = {pid: stat for pid in _pids() if (stat := _stat(pid)) and stat[0] not in "ZX"}
    marked: dict[int, str] = {}
    tasks: dict[int, str] = {}
    for pid in table:
        environment = _environment(pid)
        if f"\0{DIRECTORY}={layout.root}\0".encode() in environment:
            marked[pid] = _value(environment, ROLE)
        elif f"\0SLURM_CONF={layout.slurm_conf}\0".encode() in environment:
            tasks[pid] = _value(environment, "SLURMD_NODENAME")
        elif role_by_log := _open_log(pid, layout):
            marked[pid] = role_by_log
    # A shell that merely uses the sandbox knows its file too, but is on no node.
    roles = {**marked, **{pid: node for pid, node in tasks.items() if node}}
    _adopt(roles, {pid: stat[1] for pid, stat in table.items()})
    for pid in _ourselves():
        roles.pop(pid, None)
    order = sorted(roles, key=lambda pid: (pid not in marked, pid))
    return [Member(pid, roles[pid]) for pid in order if role in (None, roles[pid])]


def kill_all(layout: Layout, role: str | None = None, patience: float = 15.0) -> int:
    """Kill every process of the sandbox, or of one role; return how many there were."""
    deadline = time.monotonic() + patience
    seen: set[int] = set()
    while members := find(layout, role):
        for member in members:
            seen.add(member.pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(member.pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            pids = " ".join(str(member.pid) for member in members)
            raise SandboxError(
                f"These processes of the sandbox in {layout.root} cannot be killed: {pids}\
"
                f"Look at them with: ps -fp {pids.replace(' ', ',')}"
            )
        time.sleep(0.02)
    for pid in seen & _children.keys():
        _children.pop(pid).wait()
    return len(seen)


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    return [other for other in _pids() if (stat := _stat(other)) and stat[1] == pid]


def _adopt(roles: dict[int, str], parents: Mapping[int, int]) -> None:
    """Give every descendant of a member that member's role."""
    grew = True
    while grew:
        new = {pid: roles[up] for pid, up in parents.items() if up in roles and pid not in roles}
        roles.update(new)
        grew = bool(new)


def _ourselves() -> Iterable[int]:
    pid = os.getpid()
    while pid > 0:
        yield pid
        stat = _stat(pid)
        pid = stat[1] if stat else 0


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _stat(pid: int) -> tuple[str, int] | None:
    """Return the state and the parent of a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, parent = text.rpartition(")")[2].split()[:2]
    return state, int(parent)


def _environment(pid: int) -> bytes:
    try:
        return b"\0" + Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
    except OSError:
        return b""


def _open_log(pid: int, layout: Layout) -> str:
    """Return the daemon whose log one of Slurm's processes has open."""
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}/comm").read_text().startswith("slurm"):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                folder, _, name = str(link.readlink()).rpartition("/")
                if folder == f"{layout.root}/log":
                    return name.partition(".")[0]
    return ""


def _value(environment: bytes, name: str) -> str:
    found = environment.partition(f"\0{name}=".encode())[2]
    return os.fsdecode(found.partition(b"\0")[0])
