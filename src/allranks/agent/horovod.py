"""Where Horovod's ranks find each other over gloo: a small table of keys and values over HTTP.

horovodrun serves this from its own process and reaches the ranks by ssh. Under Slurm the ranks are
started by srun, so the table stands alone: PUT sets a key, GET reads it (404 until it is there),
DELETE says that a rank is done.
"""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_LIMIT = 16 << 20


class _Table(BaseHTTPRequestHandler):
    values: dict[str, bytes] = {}  # noqa: RUF012
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        value = self.values.get(self.path)
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if length > _LIMIT:
            self._answer(413, b"")
            return
        self.values[self.path] = self.rfile.read(length)
        self._answer(200, b"")

    def do_DELETE(self) -> None:
        self._answer(200, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Not a word: hundreds of requests would drown the job's own lines."""


def serve(host: str, port: int) -> None:
    """Serve until the job script ends us."""
    with ThreadingHTTPServer((host, port), _Table) as server:
        server.serve_forever()
