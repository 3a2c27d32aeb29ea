"""A handler whose own task was cancelled fails like any other; its endpoint goes on."""

from __future__ import annotations

import asyncio

import pytest

from slipstream import ServiceRequest, connect
from slipstream.errors import ServiceError


async def test_handler_that_awaits_a_cancelled_task_is_a_500(our_url: str, fresh: str) -> None:
    async def fail(request: ServiceRequest) -> None:
        if request.data:
            task = asyncio.create_task(asyncio.sleep(60))
            task.cancel()
            await task
        await request.respond()

    async with connect(our_url) as nc, nc.add_service(fresh, "1.0.0") as service:
        await service.add_endpoint("fail", fail, subject=f"{fresh}.fail")
        with pytest.raises(ServiceError, match="500: RuntimeError: the handler was cancelled"):
            await nc.services.request(f"{fresh}.fail", b"x")
        assert (await nc.services.request(f"{fresh}.fail")).data == b""
