"""Authentication: a token made at the start, and checks against requests of other sites.

The server listens on this machine only, but so does every other user of a login node, and so does the
browser for every site that it has open. The token is against the former, the checks of the Host header
and of the method are against the latter.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
from pathlib import Path
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from allranks.errors import UsageError
from allranks.runs.atomic_files import read_bytes

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""What every answer carries: nothing from elsewhere, no inline script, no frame around it."""

_WHO = "Open the whole address that `allranks web` printed, with ?token=… at its end.\n"
_AGAIN = '<!doctype html><meta http-equiv="refresh" content="0; url=/"><title>allranks</title>'


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return secrets.token_urlsafe(24)


def load_token(path: Path) -> str:
    """Return the token in that file, which is created if missing, for programs that reconnect.

    A file that others can read is refused: they are the ones that the token is against.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read_token(path)
    except OSError as error:
        raise UsageError(f"--token-file {path} cannot be made: {error.strerror}.") from None
    token = new_token()
    with os.fdopen(handle, "w") as file:
        file.write(f"{token}\n")
    return token


def _read_token(path: Path) -> str:
    try:
        open_to_others = path.stat().st_mode & 0o077
        token = read_bytes(path).decode("utf-8", "replace").strip()
    except OSError as error:
        raise UsageError(f"--token-file {path} cannot be read: {error.strerror}.") from None
    if open_to_others:
        raise UsageError(f"{path} can be read by others. Restrict it first: chmod 600 {path}")
    if not re.fullmatch(r"[\w.~-]{16,}", token, re.ASCII):
        raise UsageError(
            f"{path} holds no token of at least 16 letters and digits.\n"
            "Remove the file, and a new token is created."
        )
    return token


class TokenMiddleware:
    """Middleware that refuses requests without the token, or of other sites."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token
        # Cookies ignore ports: a later server on another port receives ours. So it is valid for
        # this start only, also where the token is kept, and has a name that no other server's has.
        self._pass = new_token()
        self.cookie = f"allranks_{secrets.token_hex(4)}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            answer = self._refusal(Request(scope)) or self._app
            await answer(scope, receive, _with_headers(send))

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a refused request; None when it may pass."""
        if not is_loopback(_host_name(request.headers.get("host", ""))):
            text = "This page answers to 127.0.0.1 and localhost only.\n"
            return PlainTextResponse(text, 400)
        if request.method not in ("GET", "HEAD"):
            text = "This page is read-only: use GET or HEAD.\n"
            return PlainTextResponse(text, 405, {"Allow": "GET, HEAD"})
        if "token" in request.query_params:
            return self._first_visit(request)
        return None if self._known(request) else _unauthorized(request)

    def _first_visit(self, request: Request) -> Response:
        """Move the token from the address, which ends up in histories, into a cookie."""
        if not _same(request.query_params["token"], self._token):
            return PlainTextResponse(
                f"This token belongs to an earlier start of the server. {_WHO}", 401
            )
        others = [item for item in request.query_params.multi_items() if item[0] != "token"]
        path = "/" + request.url.path.lstrip("/")  # "//elsewhere" would lead to another host
        answer = RedirectResponse(path + (f"?{urlencode(others)}" if others else ""), 303)
        answer.set_cookie(self.cookie, self._pass, httponly=True, samesite="strict")
        return answer

    def _known(self, request: Request) -> bool:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(given.strip(), self._token):
            return True
        return _same(request.cookies.get(self.cookie, ""), self._pass)


def _same(given: str, right: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), right.encode())


def is_loopback(name: str) -> bool:
    """Return whether the name or address is this machine's loopback."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _unauthorized(request: Request) -> Response:
    # A link followed from another page leaves a strict cookie out of the first request, and out of
    # the redirection after it. A page that asks again itself gets it sent; that one is same-origin.
    if request.url.path == "/" and request.headers.get("sec-fetch-site") == "cross-site":
        return HTMLResponse(_AGAIN)
    return PlainTextResponse(_WHO, 401, {"WWW-Authenticate": "Bearer"})


def _host_name(host: str) -> str:
    """Return the host without the port: ``localhost`` of ``localhost:8000``, ``::1`` of ``[::1]:8000``.

    The port may be another than ours, at the far end of a tunnel; a page of another site has a name.
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return wrapped
