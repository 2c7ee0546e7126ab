"""The meeting of ranks that were told no port: srun and mpirun hand out ranks, but no free port.

Rank 0 greets at the first candidate port that is free and tells each comer where the store is. The
others look at the same candidates and accept a greeter only when it knows this launch's token, so
another job on the port, or any other program, is never mistaken for ours. Plain sockets do this,
since torch's store client waits for ever on a listener that says nothing.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any, TypeVar

from allranks.errors import WorldError
from allranks.runtime.world.endpoints import candidate_ports, derived_port, format_endpoint, listen
from allranks.runtime.world.model import World

_ANSWER_SECONDS = 3.0
_PAUSE_SECONDS = 0.1
_NO, _TAKEN, _THANKS = "no", "taken", "thanks"

T = TypeVar("T")


def meet(world: World, launch: str, seconds: float) -> tuple[Any, int]:
    """The store all ranks share, and the port it is at."""
    token = hashlib.sha256(f"{launch}/{world.size}".encode()).hexdigest()[:24]
    if world.is_main:
        return _host(world, token, seconds)
    return _visit(world, token, seconds)


def _host(world: World, token: str, seconds: float) -> tuple[Any, int]:
    """Rank 0: open the store, then greet until every rank has come exactly once."""
    address, start = world.endpoint()
    with closing(_first(candidate_ports(start), address, listen)) as door:
        store, port = _store(address, candidate_ports(derived_port(f"store/{token}")), seconds)
        came = _greet(door, token, world.size, port, time.monotonic() + seconds)
    missing = [rank for rank in range(1, world.size) if rank not in came]
    if missing:
        raise WorldError(
            f"Rank 0 on {world.host} waited {seconds:.0f} s; of {world.size} ranks, {len(missing)} "
            f"did not come: {_listed(missing)}. Did all start, and can they reach "
            f"{format_endpoint(address, candidate_ports(start)[0])}?"
        )
    return store, port


def _greet(door: socket.socket, token: str, size: int, port: int, deadline: float) -> set[int]:
    """Answer every comer; a rank has come when it confirms, so a lost answer may be asked again."""
    came: set[int] = set()
    while len(came) < size - 1 and (left := deadline - time.monotonic()) > 0:
        door.settimeout(left)
        try:
            guest, _ = door.accept()
            with guest:
                guest.settimeout(_ANSWER_SECONDS)
                rank, refusal = _examine(_line(guest), token, size, came)
                guest.sendall(f"{refusal or port}\n".encode())
                if not refusal and _line(guest) == _THANKS:
                    came.add(rank)
        except OSError:
            continue
    return came


def _examine(line: str, token: str, size: int, came: set[int]) -> tuple[int, str]:
    """The comer's rank, and why it is refused: a stranger, or a second process of one rank."""
    words = line.split()
    if len(words) != 2 or words[0] != token or not words[1].isdigit():
        return 0, _NO
    rank = int(words[1])
    return rank, "" if 0 < rank < size and rank not in came else _TAKEN


def _visit(world: World, token: str, seconds: float) -> tuple[Any, int]:
    """The other ranks: ask at each candidate until the right greeter answers or time is up."""
    from torch.distributed import TCPStore

    address, start = world.endpoint()
    line = f"{token} {world.rank}\n".encode()
    deadline, answers = time.monotonic() + seconds, dict[int, str]()
    while time.monotonic() < deadline:
        for port in candidate_ports(start):
            answers[port] = _ask(address, port, line)
            if answers[port].isdigit():
                found, span = int(answers[port]), timedelta(seconds=seconds)
                return TCPStore(address, found, timeout=span, wait_for_workers=False), found
        time.sleep(_PAUSE_SECONDS)
    meanings = {_NO: "another launch", _TAKEN: f"another process is rank {world.rank}"}
    shown = "; ".join(f"{port}: {meanings.get(text, text)}" for port, text in answers.items())
    raise WorldError(
        f"Rank {world.rank} on {world.host} did not find rank 0 at "
        f"{format_endpoint(address, candidate_ports(start)[0])} within {seconds:.0f} s. "
        f"Ports tried: {shown}.\n"
        f"Did all {world.size} processes start, and can {world.host} reach {address}? "
        "MASTER_ADDR and MASTER_PORT name another place."
    )


def _ask(address: str, port: int, line: bytes) -> str:
    """The greeter's answer at this port, or what went wrong there, in words."""
    try:
        with socket.create_connection((address, port), timeout=_ANSWER_SECONDS) as door:
            door.sendall(line)
            answer = _line(door)
            if answer.isdigit():
                door.sendall(f"{_THANKS}\n".encode())
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return error.strerror or type(error).__name__
    return answer if answer.isdigit() or answer in (_NO, _TAKEN) else "another program"


def _line(peer: socket.socket) -> str:
    """One short line; a stranger may send anything, or nothing (the socket's timeout ends that)."""
    text = b""
    while b"\n" not in text and len(text) < 200 and (more := peer.recv(200)):
        text += more
    return text.partition(b"\n")[0].decode(errors="replace")


def _store(address: str, ports: list[int], seconds: float) -> tuple[Any, int]:
    from torch.distributed import TCPStore

    span = timedelta(seconds=seconds)

    def opened(port: int) -> Any:
        options = {"is_master": True, "timeout": span, "wait_for_workers": False}
        return TCPStore(address, port, **options)

    store = _first(ports, address, opened)
    return store, int(store.port)


def _first(ports: list[int], address: str, opened: Callable[[int], T]) -> T:
    """What the first port that is free gives."""
    problem: Exception | None = None
    for port in ports:
        try:
            return opened(port)
        except (OSError, RuntimeError) as error:
            problem = error
    raise WorldError(
        f"Rank 0 found no free port at {address}; tried {_listed(ports)} (last: {problem}). "
        "Set MASTER_PORT to a port that is free there."
    )


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:16])
    return shown + (f" and {len(numbers) - 16} more" if len(numbers) > 16 else "")
