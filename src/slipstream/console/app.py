"""The console's web application: a page without a build step, a JSON API, and live statistics as server-sent events.

Everything below `/api` reads; what changes something is a POST and is refused here unless the console was started with
`write`, whatever the page shows. Nothing of a payload is ever part of a page: the browser gets JSON and makes text
nodes of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from slipstream.console.access import Access
from slipstream.console.state import ConsoleState, Settings
from slipstream.console.views import buckets, consumers, messages, metrics, objects, overview, pipelines, streams, trust
from slipstream.console.web import Guard, answering

STATIC = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
VIEWS: tuple[Any, ...] = (overview, streams, messages, consumers, buckets, objects, trust, pipelines, metrics)


def application(settings: Settings, access: Access) -> ASGIApp:
    """The application of one console."""
    state = ConsoleState(settings)
    routes = [Route("/", _index, methods=["GET"]), Route("/static/{name}", _static, methods=["GET"])]
    for view in VIEWS:
        for endpoint in view.ENDPOINTS:
            answer = answering(endpoint, state, may_write=settings.write)
            routes.append(Route(endpoint.path, answer, methods=["POST" if endpoint.writes else "GET"]))

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with state.connected():
            yield
            pipelines.close(state)

    return Guard(Starlette(routes=routes, lifespan=lifespan), access)


async def _index(_: Request) -> Response:
    return FileResponse(STATIC / "index.html", media_type="text/html")


async def _static(request: Request) -> Response:
    path = STATIC / request.path_params["name"]
    if path.parent != STATIC or path.suffix not in TYPES or not path.is_file():
        return PlainTextResponse("no such file\n", 404)
    return FileResponse(path, media_type=TYPES[path.suffix])
