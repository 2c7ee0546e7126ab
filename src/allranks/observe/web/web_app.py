"""The application: the page's files, the API, and the guard around both."""

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

STATIC = Path(__file__).parent / "static"


def make_app(catalogue: Catalogue, token: str) -> Starlette:
    """Everything that is served, for those who have the token."""
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
    """Asked for again at each visit, answered "not changed": an upgrade shows at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["Cache-Control"] = "no-cache"
        return answer
