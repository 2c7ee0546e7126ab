"""How separate the nodes are on this machine: namespaces, and where root allows it their own network."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
from pathlib import Path

from allranks.cluster.sandbox import slurm_programs as programs
from allranks.cluster.sandbox.ports import Block
from allranks.errors import SandboxError

_INIT = Path(__file__).with_name("node_init.py")


def choose(asked: str) -> tuple[str, str]:
    """Return the isolation to use, and why."""
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
    """Return the command line that runs ``command`` as a separate machine.

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
    """Return why a node cannot be a separate machine; empty when it can."""
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


def bridge(block: Block) -> str:
    """Return the bridge's name; interfaces have at most 15 characters."""
    return f"arsb{block.number}"


def network_conflict(block: Block) -> str:
    """Return why this block's network cannot be used; empty when it can."""
    if block.isolation != "network":
        return ""
    if _ip("link", "show", bridge(block), check=False).returncode == 0:
        return f"the interface {bridge(block)} exists already"
    ours = ipaddress.ip_network(f"10.{block.number}.0.0/24")
    for line in _ip("-4", "route", "show").stdout.splitlines():
        other = _destination(line)
        # A wide route (a VPN's 10.0.0.0/8) leaves room for a narrow one.
        if other and other.prefixlen >= 16 and other.overlaps(ours):
            return f"{other} is in use on this machine"
    return ""


def create_network(block: Block) -> None:
    """Make the bridge, with the controller's address."""
    name = bridge(block)
    _ip("link", "add", name, "type", "bridge")
    _ip("addr", "add", f"{block.controller}/24", "dev", name)
    _ip("link", "set", name, "up")


def connect_node(block: Block, index: int, pid: int) -> None:
    """Connect the bridge to the node whose first process is ``pid``."""
    cable = _cable(block, index)
    _ip("link", "del", cable, check=False)  # of a node that was switched off a moment ago
    _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    _ip("link", "set", cable, "master", bridge(block), "up")


def remove_network(block: Block, nodes: int) -> None:
    """Remove all interfaces; absent ones are skipped."""
    for index in range(1, nodes + 1):
        _ip("link", "del", _cable(block, index), check=False)
    _ip("link", "del", bridge(block), check=False)


def _cable(block: Block, index: int) -> str:
    return f"arsb{block.number}n{index}"


def _destination(route: str) -> ipaddress.IPv4Network | None:
    try:
        return ipaddress.IPv4Network(route.split()[0], strict=False)
    except (ValueError, IndexError):
        return None


def _ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [programs.path_of("ip"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if check and done.returncode != 0:
        raise SandboxError(
            f"The sandbox's network was not set up: `ip {' '.join(words)}` said "
            f"{done.stderr.strip()!r}.\nUse --isolation hosts where networks cannot be made."
        )
    return done
