"""The network of a sandbox whose nodes have their own: a bridge here, one cable to each node."""

from __future__ import annotations

import ipaddress
import subprocess

from allranks.cluster.sandbox import slurm_programs as programs
from allranks.cluster.sandbox.ports import Block
from allranks.errors import SandboxError


def bridge(block: Block) -> str:
    """The bridge's name; interfaces have at most 15 letters."""
    return f"arsb{block.number}"


def obstacle(block: Block) -> str:
    """Why this block's network cannot be used, or nothing."""
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


def create(block: Block) -> None:
    """Make the bridge, with the controller's address."""
    name = bridge(block)
    _ip("link", "add", name, "type", "bridge")
    _ip("addr", "add", f"{block.controller}/24", "dev", name)
    _ip("link", "set", name, "up")


def plug_in(block: Block, index: int, pid: int) -> None:
    """Lay a cable from the bridge to the node whose first process is ``pid``."""
    cable = _cable(block, index)
    _ip("link", "del", cable, check=False)  # of a node that was switched off a moment ago
    _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    _ip("link", "set", cable, "master", bridge(block), "up")


def remove(block: Block, nodes: int) -> None:
    """Take everything down; what is not there is no mistake."""
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
