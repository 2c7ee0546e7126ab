"""Where Horovod's ranks find each other over gloo: a small table of keys and values over HTTP.

horovodrun serves such a table from its own process and starts the ranks by ssh. Here anything may start
the ranks, and whoever starts or is rank 0 serves it. A rank puts its address under
``/<scope>/<its number>``, reads those of the others (404 until they are there) and deletes its own key
when it has met all of them. A scope that every member has left is emptied: a second ``hvd.init()`` would
otherwise find the addresses of the first.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from allranks.errors import WorldError
from allranks.runtime.world.endpoints import candidate_ports, derived_port

_LIMIT = 16 << 20
_REQUEST_SECONDS = 10.0


class Scopes:
    """The values by scope and key, and who has left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, dict[str, bytes]] = {}
        self._left: dict[str, set[str]] = {}

    def get(self, scope: str, key: str) -> bytes | None:
        with self._lock:
            return self._values.get(scope, {}).get(key)

    def put(self, scope: str, key: str, value: bytes) -> None:
        with self._lock:
            self._values.setdefault(scope, {})[key] = value

    def leave(self, scope: str, key: str) -> None:
        """A member is done. They leave after a barrier, so all members' keys are there by now."""
        with self._lock:
            left = self._left.setdefault(scope, set())
            left.add(key)
            members = {name for name in self._values.get(scope, {}) if name.isdigit()}
            if members <= left:
                self._values.pop(scope, None)
                self._left.pop(scope)


class _Handler(BaseHTTPRequestHandler):
    server: HorovodRendezvousServer
    timeout = _REQUEST_SECONDS

    def do_GET(self) -> None:
        if (place := self._place()) is not None:
            value = self.server.scopes.get(*place)
            self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        length = self.headers.get("Content-Length") or "0"
        if not length.isdigit() or int(length) > _LIMIT:
            self._answer(413)
        elif (place := self._place()) is not None:
            self.server.scopes.put(*place, self.rfile.read(int(length)))
            self._answer(200)

    def do_DELETE(self) -> None:
        if (place := self._place()) is not None:
            self.server.scopes.leave(*place)
            self._answer(200)

    def _place(self) -> tuple[str, str] | None:
        words = self.path.split("/")
        if len(words) == 3:
            return words[1], words[2]
        self._answer(400)
        return None

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Not a word: hundreds of requests would drown the job's own lines."""


class HorovodRendezvousServer(ThreadingHTTPServer):
    """The server, bound to one address and nowhere else."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int]) -> None:
        self.scopes = Scopes()
        self._serving = False
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without looking up our own name, as the base class does: that may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A rank that went away in the middle of a request; its own log says why."""

    def serve_in_background(self) -> tuple[str, int]:
        """Serve as long as this process lives; returns address and port."""
        threading.Thread(target=self.serve_forever, name="horovod table", daemon=True).start()
        self._serving = True
        return self.server_name, self.server_port

    def server_close(self) -> None:
        """Also ends `serve_in_background`."""
        if self._serving:
            self.shutdown()
        super().server_close()


def open_rendezvous_server(address: str, start: int | None = None) -> HorovodRendezvousServer:
    """A table at the first free port: tried by taking it. Any port in the end."""
    if ":" in address:
        raise WorldError(
            f"Horovod's gloo speaks IPv4 only, and the ranks meet at {address}. Name an interface "
            "that has an IPv4 address: --interface NAME, or MASTER_ADDR."
        )
    first = derived_port(f"horovod/{address}") if start is None else start
    return _first([*candidate_ports(first, 16), 0], address)


def _first(ports: Sequence[int], address: str) -> HorovodRendezvousServer:
    problem: OSError | None = None
    for port in ports:
        try:
            return HorovodRendezvousServer((address, port))
        except OSError as error:
            problem = error
    raise WorldError(f"Horovod's table cannot be served at {address}: {problem}.")
