"""How far the nodes can be apart on this machine, found by trying it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from allranks.cluster.sandbox import slurm_programs as programs
from allranks.errors import SandboxError

_INIT = Path(__file__).with_name("node_init.py")


def choose(asked: str) -> tuple[str, str]:
    """The isolation to use, and why."""
    if asked == "plain":
        return asked, "asked for"
    if asked == "network" and os.geteuid() != 0:
        raise SandboxError(
            "The sandbox was asked for isolation 'network', which only root can set up; "
            f"you are uid {os.geteuid()}.\nUse --isolation hosts, or run it with sudo."
        )
    if asked != "auto":
        programs.require(asked)
    obstacle = _obstacle()
    if not obstacle:
        return ("hosts", "namespaces work here") if asked == "auto" else (asked, "asked for")
    if asked == "auto":
        return "plain", obstacle
    raise SandboxError(
        f"The sandbox was asked for isolation '{asked}', but {obstacle}.\n"
        "Use --isolation plain, or allow namespaces to this user."
    )


def enter(name: str, hosts: str, address: str, command: list[str], network: bool) -> list[str]:
    """The command line that runs ``command`` as a machine of its own.

    An ordinary user is root in an outer user namespace, to set the hostname and mount; slurmd runs
    in an inner one that maps back to the real user, so that munge and SlurmUser agree.
    """
    unshare = programs.path_of("unshare")
    flags = ["--pid", "--fork", "--kill-child=KILL", "--mount", "--mount-proc", "--uts"]
    if network:
        flags.append("--net")
    if os.geteuid() != 0:
        flags = ["--user", "--map-root-user", *flags]
        back = [f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}"]
        command = [unshare, "--user", *back, *command]
    init = [sys.executable, "-I", "-S", str(_INIT), name, hosts, address if network else ""]
    return [unshare, *flags, *init, *command]


def _obstacle() -> str:
    """What keeps a node from being a machine of its own; empty when nothing does."""
    absent = [name for name in programs.NAMESPACES if programs.find(name) is None]
    if absent:
        return f"{absent[0]} is not installed"
    if not Path("/etc/hosts").exists():
        return "there is no /etc/hosts to put the nodes' names over"
    probe = enter("probe", "/etc/hosts", "", ["true"], network=False)
    done = subprocess.run(
        probe, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60
    )
    if done.returncode == 0:
        return ""
    words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"namespaces are not allowed here ({words[-1]})"
