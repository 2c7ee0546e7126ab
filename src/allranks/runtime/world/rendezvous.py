"""The rendezvous of all ranks: each gives rank 0 a short text and gets the texts of all of them.

Rank 0 serves at the first free port of a row that all ranks can work out, so no port has to be agreed on
before. torch's ranks learn the port of their store by it, TensorFlow's workers each other's addresses.

    client → server    TOKEN RANK VALUE
    server → client    welcome | other launch | rank taken
    client → server    ready
    server → client    ["value of rank 0", …]     once all ranks are there

The token keeps out the ranks of another launch and any other program. A client counts once it is ready:
one that gave up waiting before connects again.
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass

from allranks.errors import WorldError
from allranks.runtime.world.endpoints import candidate_ports, format_endpoint, listen

_WELCOME, _READY = "welcome", "ready"
_OTHER_LAUNCH, _RANK_TAKEN = "other launch", "rank taken"
_PAUSE_SECONDS = 0.1
_LONGEST = 1 << 20
_SHORT = 64

Clients = dict[int, tuple[socket.socket, str]]
"""The open connection and the value of each rank that is ready."""


@dataclass(frozen=True)
class Rendezvous:
    """Where and as whom this process meets the others."""

    rank: int
    size: int
    host: str
    """The name of this machine, for messages."""
    address: str
    """Where rank 0 serves; on a loopback address it listens to no other machine."""
    first_port: int
    token: str
    seconds: float
    member: str = "rank"
    """What to call a participant in messages: rank, worker or node."""
    advice: str = ""
    """What to check when somebody is missing."""
    answer_seconds: float = 3.0
    greeting_seconds: float = 1.0
    """Shorter than what a client waits: one that sends nothing must not use up the others' patience."""

    def exchange(self, value: str) -> list[str]:
        """Return the value of every rank, by rank; a value is one word. Collective."""
        return self._serve(value) if self.rank == 0 else self._connect(value)

    @property
    def ports(self) -> list[int]:
        """The ports that rank 0 tries, and the others try to reach, in this order."""
        return candidate_ports(self.first_port)

    # -- rank 0

    def _serve(self, value: str) -> list[str]:
        deadline = time.monotonic() + self.seconds
        with ExitStack() as connections:
            server = connections.enter_context(closing(self._listen()))
            clients = self._accept_all(server, deadline, connections)
            missing = [rank for rank in range(1, self.size) if rank not in clients]
            if missing:
                raise WorldError(
                    f"{self._name(0)} on {self.host} waited {self.seconds:.0f} s, and {len(missing)} "
                    f"of {self.size} {self.member}s did not connect to "
                    f"{format_endpoint(self.address, server.getsockname()[1])}: "
                    f"{shorten(missing)}.\n{self.advice}Did all processes start, and can they reach "
                    "this address?"
                )
            values = [value, *(clients[rank][1] for rank in range(1, self.size))]
            self._send_to_all(clients, values)
        return values

    def _listen(self) -> socket.socket:
        problem: OSError | None = None
        for port in self.ports:
            try:
                if self.address.startswith("127."):
                    return socket.create_server((self.address, port), backlog=1024)
                return listen(port)
            except OSError as error:
                problem = error
        raise WorldError(
            f"{self._name(0)} found no free port on {self.host}; tried {shorten(self.ports)} (last: "
            f"{problem}). Set MASTER_PORT to a port that is free there."
        )

    def _accept_all(
        self, server: socket.socket, deadline: float, connections: ExitStack
    ) -> Clients:
        clients: Clients = {}
        while len(clients) < self.size - 1 and (left := deadline - time.monotonic()) > 0:
            server.settimeout(left)
            try:
                connection, _ = server.accept()
            except TimeoutError:
                break
            except OSError:  # the client is gone again, or this process has too many files open
                time.sleep(_PAUSE_SECONDS)
                continue
            connections.callback(connection.close)
            if not self._greet(connection, clients):
                connection.close()
        return clients

    def _greet(self, connection: socket.socket, clients: Clients) -> bool:
        """Add a client that is ready; False for anybody else."""
        connection.settimeout(self.greeting_seconds)
        try:
            words = _read_line(connection, _LONGEST).split()
            if len(words) != 3 or words[0] != self.token or not words[1].isdigit():
                _send_line(connection, _OTHER_LAUNCH)
                return False
            rank = int(words[1])
            if not 0 < rank < self.size or (rank in clients and _is_open(clients[rank][0])):
                _send_line(connection, _RANK_TAKEN)
                return False
            _send_line(connection, _WELCOME)
            if _read_line(connection, _SHORT) != _READY:
                return False
        except OSError:
            return False
        clients[rank] = (connection, words[2])
        return True

    def _send_to_all(self, clients: Clients, values: list[str]) -> None:
        for rank, (connection, value) in clients.items():
            connection.settimeout(self.answer_seconds)
            try:
                _send_line(connection, json.dumps(values))
            except OSError as error:
                raise WorldError(
                    f"{self._name(rank)} ({value}) connected and ended before {self.member} 0 on "
                    f"{self.host} could answer: {error}.\nIts own output shows why it ended."
                ) from None
            connection.close()  # at once: torch's store needs a file for each rank, too

    # -- the other ranks

    def _connect(self, value: str) -> list[str]:
        deadline, answers = time.monotonic() + self.seconds, dict[int, str]()
        line = f"{self.token} {self.rank} {value}"
        while time.monotonic() < deadline:
            for port in self.ports:
                answers[port], values = self._ask(port, line, deadline)
                if values:
                    return [str(each) for each in json.loads(values)]
            time.sleep(_PAUSE_SECONDS)
        shown = "; ".join(f"{port}: {answer}" for port, answer in answers.items())
        raise WorldError(
            f"{self._name(self.rank)} on {self.host} did not find {self.member} 0 at "
            f"{self.address} within {self.seconds:.0f} s. Ports tried: {shown}.\n{self.advice}Did all "
            f"{self.size} {self.member}s start, and can {self.host} reach {self.address}? "
            "Set MASTER_ADDR and MASTER_PORT to use another address."
        )

    def _ask(self, port: int, line: str, deadline: float) -> tuple[str, str]:
        """Return what is at this port, in words, and the values when it is the server of this launch."""
        found = {
            _OTHER_LAUNCH: "another launch",
            _RANK_TAKEN: f"another process is {self.member} {self.rank}",
        }
        target = (self.address, port)
        try:
            with socket.create_connection(target, timeout=self.answer_seconds) as connection:
                _send_line(connection, line)
                answer = _read_line(connection, _SHORT)
                if answer != _WELCOME:
                    return found.get(answer, "another program"), ""
                _send_line(connection, _READY)
                connection.settimeout(max(deadline - time.monotonic(), 0.1))
                return "connected, but no answer", _read_line(connection, _LONGEST)
        except TimeoutError:
            return "no answer", ""
        except OSError as error:
            return error.strerror or type(error).__name__, ""

    def _name(self, rank: int) -> str:
        return f"{self.member.capitalize()} {rank}"


def make_token(*parts: object) -> str:
    """Return the token of a launch, from what all of its ranks know and others do not."""
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:24]


def shorten(numbers: list[int]) -> str:
    """Return the numbers as a list for people, at most 16 of them."""
    shown = ", ".join(str(number) for number in numbers[:16])
    return shown + (f" and {len(numbers) - 16} more" if len(numbers) > 16 else "")


def _send_line(peer: socket.socket, text: str) -> None:
    peer.sendall(f"{text}\n".encode())


def _read_line(peer: socket.socket, longest: int) -> str:
    """Return one line; nothing when the peer closed before its end, or sent something else."""
    text = b""
    while not text.endswith(b"\n") and len(text) < longest and (more := peer.recv(1)):
        text += more
    return text[:-1].decode(errors="replace") if text.endswith(b"\n") else ""


def _is_open(connection: socket.socket) -> bool:
    """Whether the client still waits: one that lost its connection may come again."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False
