"""The meeting of ranks that were told no port: srun and mpirun hand out ranks, but no free port.

Rank 0 listens on the first candidate port that is free. The others look at the same candidates and
accept a listener only when it shows this launch's token, so another job's store, or any other
program on the port, is never mistaken for ours.
"""

from __future__ import annotations

import hashlib
import socket
import time
from datetime import timedelta
from typing import Any

from allranks.errors import WorldError
from allranks.world.model import World
from allranks.world.rendezvous import candidate_ports, format_endpoint

_KNOCK_SECONDS = 2.0
_PAUSE_SECONDS = 0.2


def meet(world: World, launch: str, seconds: float) -> tuple[Any, int]:
    """The store all ranks share, and the port it was found at."""
    address, start = world.endpoint()
    ports = candidate_ports(start)
    token = _token(launch, world.size)
    if world.is_main:
        return _listen(address, ports, token, seconds)
    return _find(world, address, ports, token, seconds)


def _token(launch: str, size: int) -> str:
    return "allranks/" + hashlib.sha256(f"{launch}/{size}".encode()).hexdigest()[:16]


def _listen(address: str, ports: list[int], token: str, seconds: float) -> tuple[Any, int]:
    """Rank 0: the store on the first port that binds."""
    from torch.distributed import TCPStore

    problem: Exception | None = None
    for port in ports:
        if _knock("localhost", port) is None:
            continue  # someone listens, perhaps on one address only
        try:
            store = TCPStore(
                address,
                port,
                is_master=True,
                timeout=timedelta(seconds=seconds),
                wait_for_workers=False,
            )
        except RuntimeError as error:
            problem = error
            continue
        store.set(token, "here")
        store.add(f"{token}/0", 1)
        return store, port
    raise WorldError(
        f"Rank 0 found no free port at {address}: {_listed(ports)} are all taken"
        f"{f' (last: {problem})' if problem else ''}. Set MASTER_PORT to a port that is free there."
    )


def _find(
    world: World, address: str, ports: list[int], token: str, seconds: float
) -> tuple[Any, int]:
    """The other ranks: the port whose listener knows the token, looked for until the time is up."""
    deadline = time.monotonic() + seconds
    answers: dict[int, str] = {}
    while True:
        for port in ports:
            answers[port] = _knock(address, port) or "another program listens"
            if answers[port] == "another program listens":
                store = _join(address, port, f"{token}/{world.rank}", token, seconds)
                if store is not None:
                    return store, port
        if time.monotonic() > deadline:
            break
        time.sleep(_PAUSE_SECONDS)
    shown = "; ".join(f"{port}: {answer}" for port, answer in answers.items())
    raise WorldError(
        f"Rank {world.rank} on {world.host} did not find rank 0 at "
        f"{format_endpoint(address, ports[0])} "
        f"within {seconds:.0f} s. Ports tried: {shown}.\n"
        f"Did all {world.size} processes start, and can {world.host} reach {address}? "
        "MASTER_ADDR and MASTER_PORT name another place."
    )


def _knock(address: str, port: int) -> str | None:
    """None when something listens, else why not. torch's own client would wait for minutes."""
    try:
        socket.create_connection((address, port), timeout=_KNOCK_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return None


def _join(address: str, port: int, place: str, token: str, seconds: float) -> Any | None:
    """The store at this port if it is ours and nobody else has taken our rank in it."""
    from torch.distributed import TCPStore

    try:
        store = TCPStore(
            address, port, timeout=timedelta(seconds=_KNOCK_SECONDS * 2), wait_for_workers=False
        )
        if not store.check([token]) or store.add(place, 1) != 1:
            return None
    except RuntimeError:  # not a store, or one that is just ending
        return None
    store.set_timeout(timedelta(seconds=seconds))
    return store


def _listed(ports: list[int]) -> str:
    return ", ".join(str(port) for port in ports)
