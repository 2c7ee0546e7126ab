"""The server through which Horovod's ranks find each other over gloo: keys and values over HTTP.

horovodrun runs such a server in its own process and starts the ranks by ssh. Here anything may start the
ranks, and the job script or rank 0 runs it. A rank puts its address under ``/<scope>/<its number>``,
reads those of the others (404 until they are there) and deletes its own key when it is connected to all
of them. A scope whose members have all deleted their keys is emptied: a second ``hvd.init()`` would
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
    """The values by scope and key, and the members that are finished."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, dict[str, bytes]] = {}
        self._finished: dict[str, set[str]] = {}

    def get(self, scope: str, key: str) -> bytes | None:
        with self._lock:
            return self._values.get(scope, {}).get(key)

    def put(self, scope: str, key: str, value: bytes) -> None:
        with self._lock:
            self._values.setdefault(scope, {})[key] = value

    def finish(self, scope: str, key: str) -> None:
        """Record that a member is connected. Horovod does this after a barrier, so all keys are there."""
        with self._lock:
            finished = self._finished.setdefault(scope, set())
            finished.add(key)
            members = {name for name in self._values.get(scope, {}) if name.isdigit()}
            if members <= finished:
                self._values.pop(scope, None)
                self._finished.pop(scope)


class _Handler(BaseHTTPRequestHandler):
    server: HorovodRendezvousServer
    timeout = _REQUEST_SECONDS

    def do_GET(self) -> None:
        if (found := self._scope_and_key()) is not None:
            value = self.server.scopes.get(*found)
            self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        length = self.headers.get("Content-Length") or "0"
        if not length.isdigit() or int(length) > _LIMIT:
            self._answer(413)
        elif (found := self._scope_and_key()) is not None:
            self.server.scopes.put(*found, self.rfile.read(int(length)))
            self._answer(200)

    def do_DELETE(self) -> None:
        if (found := self._scope_and_key()) is not None:
            self.server.scopes.finish(*found)
            self._answer(200)

    def _scope_and_key(self) -> tuple[str, str] | None:
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
        """Log nothing: hundreds of requests would hide the job's own lines."""


class HorovodRendezvousServer(ThreadingHTTPServer):
    """The server, bound to one address."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int]) -> None:
        self.scopes = Scopes()
        self._serving = False
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without looking up our own name, as the base class does: that may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a rank that ended in the middle of a request; its own log shows why."""

    def serve_in_background(self) -> tuple[str, int]:
        """Serve until this process ends; return address and port."""
        threading.Thread(target=self.serve_forever, name="horovod rendezvous", daemon=True).start()
        self._serving = True
        return self.server_name, self.server_port

    def server_close(self) -> None:
        """Close the server, also after `serve_in_background`."""
        if self._serving:
            self.shutdown()
        super().server_close()


def open_rendezvous_server(address: str, start: int | None = None) -> HorovodRendezvousServer:
    """Open a server at the first free candidate port, else at any port."""
    if ":" in address:
        raise WorldError(
            f"Horovod's gloo speaks IPv4 only, and rank 0's address is {address}. Name an interface "
            "that has an IPv4 address: --interface NAME, or MASTER_ADDR."
        )
    first = derived_port(f"horovod/{address}") if start is None else start
    return _open_first([*candidate_ports(first, 16), 0], address)


def _open_first(ports: Sequence[int], address: str) -> HorovodRendezvousServer:
    problem: OSError | None = None
    for port in ports:
        try:
            return HorovodRendezvousServer((address, port))
        except OSError as error:
            problem = error
    raise WorldError(f"Horovod's rendezvous server cannot listen at {address}: {problem}.")
