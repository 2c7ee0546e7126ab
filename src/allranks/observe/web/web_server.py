"""The web application and its server: files, API, authentication, the port, the browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from allranks.observe.web.api import Api
from allranks.observe.web.auth import TokenMiddleware

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Scope

    from allranks.observe.web.catalogue import Catalogue
import atexit
import contextlib
import html
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from allranks.errors import UsageError
from allranks.observe.web.auth import is_loopback, load_token, new_token
from allranks.observe.web.catalogue import Catalogue

STATIC = Path(__file__).parent / "static"


def make_app(catalogue: Catalogue, token: str) -> Starlette:
    """Return the application: everything that is served, behind the token."""
    return Starlette(
        routes=[
            Route("/", _page),
            Mount("/static", _Files(directory=STATIC)),
            *Api(catalogue).routes(),
        ],
        middleware=[
            Middleware(TokenMiddleware, token=token),
            Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5),
        ],
    )


async def _page(_: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


class _Files(StaticFiles):
    """Static files that are revalidated at each visit, so that an upgrade shows at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["Cache-Control"] = "no-cache"
        return answer


PORT = 8265
"""The default port; the next free one when it is taken."""
_TRIED = 50
_LONGEST = 1 << 20  # bytes of an address: a cursor in the logs of ten thousand ranks is 200 000
_OPENED = 60.0  # seconds after which a browser has read the page that leads it here


@dataclass(frozen=True)
class Address:
    """The address of the page."""

    host: str
    port: int
    token: str
    run: str = ""
    """The one that is shown at once; else the list is."""

    @property
    def url(self) -> str:
        """Return the URL with the token."""
        place = f"#/run/{quote(self.run, safe='')}" if self.run else ""
        return f"http://{self._host}:{self.port}/?token={self.token}{place}"

    @property
    def tunnel(self) -> str:
        """Return the ssh command to type on one's own machine."""
        user = os.environ.get("USER") or "you"
        return f"ssh -L {self.port}:{self._host}:{self.port} {user}@{socket.gethostname()}"

    @property
    def _host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def serve(
    catalogue: Catalogue,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token_file: Path | None = None,
    started: Callable[[Address], None],
) -> None:
    """Serve until Ctrl-C. ``started`` is called with the address once it answers.

    The token is a new one unless a file keeps it.
    """
    import uvicorn

    from allranks.observe.web.web_server import make_app

    token = load_token(token_file) if token_file else new_token()
    listening = listen(_loopback(host), port)
    number, found_port = listening.getsockname()[:2]
    address = Address(number, found_port, token, catalogue.only_run())
    config = uvicorn.Config(
        make_app(catalogue, address.token),
        log_level="critical",
        access_log=False,
        lifespan="off",
        server_header=False,
        h11_max_incomplete_event_size=_LONGEST,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    with contextlib.closing(listening), contextlib.suppress(KeyboardInterrupt):
        started(address)  # the socket listens already: early requests wait for a moment
        server.run(sockets=[listening])


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket on that port, or without one on the first that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ports = [port] if port is not None else [*range(PORT, PORT + _TRIED), 0]
    for each in ports:
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, each))
            found.listen(128)
        except OSError as error:
            found.close()
            if port is not None:
                raise _refused(host, port, error) from None
        else:
            return found
    raise UsageError(f"No port is free on {host}.")


def _refused(host: str, port: int, error: OSError) -> UsageError:
    return UsageError(
        f"Port {port} of {host} cannot be used: {error.strerror}.\n"
        "Choose another, or leave --port out to use the next free one."
    )


def _loopback(host: str) -> str:
    """Return the address if only this machine can reach it."""
    if is_loopback(host):
        return "127.0.0.1" if host == "localhost" else host
    raise UsageError(
        f"--host {host} would expose your runs to the network; the page is for this machine only.\n"
        "From another machine, use ssh: "
        f"ssh -L {PORT}:127.0.0.1:{PORT} {socket.gethostname()}"
    )


def is_remote_session() -> bool:
    """Return whether the user is connected by ssh."""
    return any(os.environ.get(name) for name in ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY"))


def open_browser(url: str) -> bool:
    """Open the page in a browser; False without a display.

    The words of a command are seen by every user of the machine, so the browser is not given the
    address with its token but a file that only we can read, which leads there.
    """
    if is_remote_session() or not _has_display():
        return False
    import webbrowser

    try:
        return webbrowser.open(_redirect_page(url).as_uri())
    except (OSError, webbrowser.Error):
        return False


def _redirect_page(url: str) -> Path:
    """Write a page that redirects there; removed after a minute, or with this process."""
    folder = Path(tempfile.mkdtemp(prefix="allranks-web-"))
    remove = partial(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(remove)
    timer = threading.Timer(_OPENED, remove)
    timer.daemon = True
    timer.start()
    page = folder / "open.html"
    page.touch(0o600)
    page.write_text(
        f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(url)}">'
        "<title>allranks</title>"
    )
    return page


def _has_display() -> bool:
    if os.uname().sysname == "Darwin":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_catalogue(references: tuple[str, ...], root: str | None) -> Catalogue:
    """Return the runs that the command line names."""
    return Catalogue(references, Path(root).expanduser() if root else None)
