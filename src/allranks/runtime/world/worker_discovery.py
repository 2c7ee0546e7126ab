"""Every worker tells rank 0 its own address and port, and gets the list of all of them.

So no port is guessed on a machine that one cannot see, no list of hosts is needed, and what stands in
TF_CONFIG was free a moment ago. Rank 0 greets at the first free port of a row that all can work out;
a token keeps out the workers of another job and any other program.
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

from allranks.errors import WorldError
from allranks.runtime.world.endpoints import (
    candidate_ports,
    derived_port,
    format_endpoint,
    listen,
    route_address,
)
from allranks.runtime.world.model import World

_ANSWER_SECONDS = 3.0
_GREETING_SECONDS = 1.0
"""Shorter than what a visitor waits: one that says nothing must not use up the others' patience."""
_PAUSE_SECONDS = 0.1
_WELCOME = "welcome"
_HERE = "here"
_LONGEST = 1 << 20


def node_roll_call(world: World, launch: str, seconds: float) -> list[str]:
    """``host:port`` of every worker, asked by one process per node that speaks for its ranks."""
    node = replace(world, rank=world.node_rank, size=world.nodes, local_rank=0, local_size=1)
    return roll_call(node, f"{launch}/nodes", seconds, workers=world.local_size)


def roll_call(world: World, launch: str, seconds: float, *, workers: int = 1) -> list[str]:
    """``host:port`` of every worker, by rank; each process speaks for ``workers`` of them."""
    address, port = world.endpoint()
    # On one machine two launches may share all but the port that they meet on.
    seed = f"tensorflow/{launch}/{world.size}/{address}:{port}"
    token = hashlib.sha256(seed.encode()).hexdigest()[:24]
    ports = candidate_ports(derived_port(token))
    start, host = derived_port(f"{token}/{world.rank}"), own_host(world)
    with ExitStack() as held:
        free = [held.enter_context(reserved(start, world)) for _ in range(workers)]
        mine = ",".join(format_endpoint(host, each) for each in free)
        meet = _host if world.is_main else _visit
        listed = meet(world, token, ports, mine, seconds)
    return [endpoint for each in listed for endpoint in each.split(",")]


def own_host(world: World) -> str:
    """The address by which the other workers reach this node."""
    address = world.endpoint()[0]
    if world.nodes == 1:
        return "127.0.0.1"
    return address if world.node_rank == 0 else route_address(address)[0]


@contextmanager
def reserved(start: int, world: World) -> Iterator[int]:
    """A free port, held until the block ends, so that a neighbour does not find it free, too."""
    ports = candidate_ports(start, 64)
    for port in ports:
        try:
            door = listen(port)
        except OSError:
            continue
        with closing(door):
            yield port
        return
    raise WorldError(
        f"No free port for worker {world.rank} on {world.host}: {len(ports)} tried, from {start} on."
    )


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of all addresses."""
    try:
        listen(port).close()
    except OSError:
        return False
    return True


def _host(world: World, token: str, ports: list[int], mine: str, seconds: float) -> list[str]:
    """Rank 0: wait until all have come, then tell everyone.

    A visitor answers the welcome, and counts from then on: one that had given up waiting comes again.
    """
    deadline = time.monotonic() + seconds
    with ExitStack() as open_ones:
        door = open_ones.enter_context(closing(_first_door(ports, world)))
        guests = _greet(door, token, world.size, deadline, open_ones)
        missing = [rank for rank in range(1, world.size) if rank not in guests]
        if missing:
            raise WorldError(
                f"Worker 0 on {world.host} waited {seconds:.0f} s; of {world.size} workers, "
                f"{len(missing)} did not come: {', '.join(map(str, missing[:16]))}.\n"
                "Every process must call allranks.tensorflow.strategy(). Did all start?"
            )
        listed = [mine, *(guests[rank][1] for rank in range(1, world.size))]
        _tell(guests, listed, world)
    return listed


def _tell(guests: dict[int, tuple[socket.socket, str]], listed: list[str], world: World) -> None:
    text = f"{json.dumps(listed)}\n".encode()
    for rank, (guest, endpoint) in guests.items():
        guest.settimeout(_ANSWER_SECONDS)
        try:
            guest.sendall(text)
        except OSError as error:
            raise WorldError(
                f"Worker {rank} ({endpoint}) came and went before worker 0 on {world.host} could "
                f"tell it where the others are: {error}.\nIts own output says why it ended."
            ) from None


def _greet(
    door: socket.socket, token: str, size: int, deadline: float, open_ones: ExitStack
) -> dict[int, tuple[socket.socket, str]]:
    """Who has come, with the open connection; one that comes again has lost its first."""
    guests: dict[int, tuple[socket.socket, str]] = {}
    while len(guests) < size - 1 and (left := deadline - time.monotonic()) > 0:
        door.settimeout(left)
        try:
            guest, _ = door.accept()
            open_ones.callback(guest.close)
            if words := _greeted(guest, token):
                guests[int(words[0])] = (guest, words[1])
            else:
                guest.close()
        except OSError:  # nobody came, or the connection broke
            continue
    return guests


def _greeted(guest: socket.socket, token: str) -> list[str]:
    """Rank and endpoints of a worker that is there and listens; nothing for anybody else."""
    guest.settimeout(_GREETING_SECONDS)
    try:
        words = _line(guest, _LONGEST).split()
        if len(words) != 3 or words[0] != token or not words[1].isdigit():
            return []
        guest.sendall(f"{_WELCOME}\n".encode())
        return words[1:] if _line(guest, 20) == _HERE else []
    except OSError:
        return []


def _visit(world: World, token: str, ports: list[int], mine: str, seconds: float) -> list[str]:
    """The others: look at each port until the right greeter answers, then wait for the list."""
    address = "127.0.0.1" if world.nodes == 1 else world.endpoint()[0]
    deadline = time.monotonic() + seconds
    line = f"{token} {world.rank} {mine}\n".encode()
    while time.monotonic() < deadline:
        for port in ports:
            if text := _ask(address, port, line, deadline):
                return [str(endpoint) for endpoint in json.loads(text)]
        time.sleep(_PAUSE_SECONDS)
    raise WorldError(
        f"Worker {world.rank} on {world.host} did not find worker 0 on {address} (ports "
        f"{ports[0]} to {ports[-1]}) within {seconds:.0f} s.\n"
        f"Did all {world.size} processes start and call allranks.tensorflow.strategy(), and can "
        f"{world.host} reach {address}? MASTER_ADDR names another place."
    )


def _ask(address: str, port: int, line: bytes, deadline: float) -> str:
    """The list, when the greeter of this launch is at this port; else nothing."""
    try:
        with socket.create_connection((address, port), timeout=_ANSWER_SECONDS) as door:
            door.sendall(line)
            if _line(door, 20) != _WELCOME:
                return ""
            door.sendall(f"{_HERE}\n".encode())
            door.settimeout(max(deadline - time.monotonic(), 0.1))
            return _line(door, _LONGEST)
    except OSError:
        return ""


def _line(peer: socket.socket, longest: int) -> str:
    """One line; nothing when the peer went away before its end, or sent something else."""
    text = b""
    while not text.endswith(b"\n") and len(text) < longest and (more := peer.recv(1)):
        text += more
    return text[:-1].decode(errors="replace") if text.endswith(b"\n") else ""


def _first_door(ports: list[int], world: World) -> socket.socket:
    """Where rank 0 greets: on one node nobody outside of it has to come."""
    for port in ports:
        try:
            if world.nodes == 1:
                return socket.create_server(("127.0.0.1", port), backlog=1024)
            return listen(port)
        except OSError:
            continue
    raise WorldError(
        f"Worker 0 found no free port on {world.host} to greet the others; tried "
        f"{', '.join(map(str, ports))}."
    )
