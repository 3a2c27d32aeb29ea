"""Overview: the server, live statistics of the account, its servers and connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

import slipstream
from slipstream import Error
from slipstream.console.state import ConsoleState
from slipstream.console.web import Endpoint, event

FAULTS = "$SLIPSTREAM.FAULTS."


async def _about(state: ConsoleState, _: Request) -> Any:
    settings = state.settings
    server = state.client.server_info
    try:
        answer = await state.client.request(f"{FAULTS}now", b"{}", timeout=1)
        faults = b"error" not in answer.data
    except Error:
        faults = False
    return {
        "server": server.server_name,
        "version": server.version,
        "write": settings.write,
        "faults": faults,
        "pipelines": bool(settings.pipelines),
        "console": slipstream.__version__,
    }


async def _live(state: ConsoleState, _: Request) -> Response:
    sampler = state.sampler

    async def events() -> AsyncIterator[bytes]:
        async for sample in sampler.watch():
            yield event(sample)

    return StreamingResponse(events(), media_type="text/event-stream")


async def _connections(state: ConsoleState, _: Request) -> Any:
    return await state.sampler.connections()


ENDPOINTS = (
    Endpoint("/api/about", _about),
    Endpoint("/api/live", _live, timeout=None),
    Endpoint("/api/connections", _connections),
)
