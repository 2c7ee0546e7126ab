"""Find a free block of ports for a sandbox; two that start at once never get the same.

A block is 128 ports; its number is also the second part of the nodes' addresses (127.B.0.K, or
10.B.0.K in network isolation). While a sandbox starts it holds an abstract Unix socket with the
block's name: binding one is atomic, works between users, is seen exactly where the ports are seen
(the network namespace), and vanishes with the process. Once it is up, its ports are in use.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from allranks.errors import SandboxError

_SIZE = 128
# Blocks that lie between the usual services and the ephemeral ports (20480 to 31999).
_NUMBERS = range(160, 250)


@dataclass(frozen=True)
class Block:
    """The ports and addresses of one sandbox."""

    port: int
    isolation: str

    @property
    def number(self) -> int:
        """Which block it is; also a part of the addresses."""
        return self.port // _SIZE % 256 or 1

    @property
    def database_port(self) -> int:
        return self.port + _SIZE - 1

    @property
    def controller(self) -> str:
        """The address of slurmctld and slurmdbd."""
        return f"10.{self.number}.0.254" if self.isolation == "network" else "127.0.0.1"

    def address(self, index: int) -> str:
        """Return the address of the node with that number, from 1."""
        if self.isolation == "plain":
            return "127.0.0.1"
        return f"{'10' if self.isolation == 'network' else '127'}.{self.number}.0.{index}"

    def node_port(self, index: int) -> int:
        """Return the port of that node's slurmd."""
        return self.port + index

    def ports(self, nodes: int) -> list[int]:
        """Return every port that a sandbox of that many nodes listens on."""
        return [*range(self.port, self.port + nodes + 1), self.database_port]


@contextlib.contextmanager
def guard(key: str, wait: float = 0.0) -> Iterator[bool]:
    """Hold a machine-wide lock by name; yields False when another process has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
        yield _bind_name(holder, f"\0allranks-sandbox/{key}", time.monotonic() + wait)


def _bind_name(holder: socket.socket, name: str, deadline: float) -> bool:
    while True:
        try:
            holder.bind(name)
            return True
        except OSError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)


@contextlib.contextmanager
def reserve(
    port: int | None,
    isolation: str,
    nodes: int,
    taken: set[int],
    obstacle: Callable[[Block], str],
) -> Iterator[Block]:
    """Reserve a free block until the ``with`` ends.

    ``taken`` are the blocks of this user's other sandboxes (a killed node frees its port but keeps
    its claim); ``obstacle`` returns why a block's addresses cannot be used, or nothing.
    """
    reason = ""
    for first in [port] if port is not None else [number * _SIZE for number in _NUMBERS]:
        block = Block(first, isolation)
        with guard(f"block/{block.number}") as held:
            reason = _why_not(block, held, nodes, taken) or obstacle(block)
            if not reason:
                yield block
                return
    asked = f"port {port}" if port is not None else "any free block of ports"
    raise SandboxError(
        f"The sandbox was asked to use {asked}, but {reason}.\n"
        "Leave the port out to have a free one chosen, or end what uses it."
    )


def _why_not(block: Block, held: bool, nodes: int, taken: set[int]) -> str:
    if not held:
        return f"another sandbox is starting on port {block.port}"
    if block.number in taken:
        return f"another sandbox of yours has the block of port {block.port}"
    busy = [port for port in block.ports(nodes) if not _is_free(port)]
    return f"port {busy[0]} is in use" if busy else ""


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
        return True
