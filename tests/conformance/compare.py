"""The same words to two servers, their answers side by side: every field must be the same, but for times and names.

A scenario is an async function of a `Wire`. It is run on the real server and on ours; each request and its answer is
written down, and the two records are compared. nats-py carries the bytes: our own client is not part of the proof.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import nats
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

TIMES = frozenset(("created", "ts", "first_ts", "last_ts", "time", "timestamp", "Nats-Time-Stamp"))
NAMES = frozenset(("leader", "id", "server", "client"))
TIMEOUT = 10.0

Scenario = Callable[["Wire"], Awaitable[None]]


def scrub(value: Any) -> Any:
    """An answer without what no two servers have in common."""
    if isinstance(value, dict):
        return {
            key: "<time>" if key in TIMES else "<name>" if key in NAMES else scrub(item) for key, item in value.items()
        }
    return [scrub(item) for item in value] if isinstance(value, list) else value


def decode(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data


class Wire:
    """One server, and a record of what it said."""

    def __init__(self, nc: NatsClient, name: str) -> None:
        self.nc = nc
        self.name = name
        self.subject = name.lower()
        self.record: list[Any] = []

    async def ask(self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None) -> Any:
        """A request; its answer."""
        answer = await self.nc.request(subject, payload, timeout=TIMEOUT, headers=headers)
        body = decode(answer.data)
        self.record.append((subject, scrub(decode(payload)), headers, scrub(dict(answer.headers or {})), scrub(body)))
        return body

    async def api(self, call: str, body: Any = None) -> Any:
        """A request to the JetStream API."""
        return await self.ask(f"$JS.API.{call}", b"" if body is None else json.dumps(body).encode())

    async def create(self, **config: Any) -> Any:
        """A stream of the test's own name and subjects."""
        return await self.api(f"STREAM.CREATE.{self.name}", self.config(**config))

    async def update(self, **config: Any) -> Any:
        return await self.api(f"STREAM.UPDATE.{self.name}", self.config(**config))

    def config(self, **config: Any) -> dict[str, Any]:
        return {"name": self.name, "subjects": [f"{self.subject}.>"]} | config

    async def publish(self, token: str, payload: bytes = b"x", /, **headers: str) -> Any:
        """Publish below the test's subject; `Nats_TTL="1s"` is a header."""
        block = {name.replace("_", "-"): value for name, value in headers.items()} or None
        return await self.ask(f"{self.subject}.{token}", payload, block)

    async def get(self, seq: int) -> Any:
        return await self.api(f"STREAM.MSG.GET.{self.name}", {"seq": seq})

    async def info(self, **body: Any) -> Any:
        return await self.api(f"STREAM.INFO.{self.name}", body or None)

    async def delete(self) -> Any:
        return await self.api(f"STREAM.DELETE.{self.name}")

    async def listen(self, subject: str) -> asyncio.Queue[Msg]:
        """Whatever is published there from now on."""
        queue: asyncio.Queue[Msg] = asyncio.Queue()

        async def put(message: Msg) -> None:
            await queue.put(message)

        await self.nc.subscribe(subject, cb=put)
        await self.nc.flush()
        return queue

    async def heard(self, queue: asyncio.Queue[Msg]) -> Msg:
        """The next message there, for the record."""
        message = await asyncio.wait_for(queue.get(), TIMEOUT)
        self.record.append((message.subject, scrub(dict(message.headers or {})), scrub(decode(message.data))))
        return message


async def recorded(url: str, name: str, scenario: Scenario) -> list[Any]:
    nc = await nats.connect(url)
    try:
        wire = Wire(nc, name)
        await scenario(wire)
    finally:
        await nc.close()
    return wire.record


async def same_on(urls: tuple[str, str], name: str, scenario: Scenario) -> None:
    """Run a scenario on both servers; the answers are the same."""
    real, ours = await asyncio.gather(*(recorded(url, name, scenario) for url in urls))
    for one, other in zip(real, ours, strict=False):
        assert other == one, f"\nnats-server: {one}\nours:        {other}"
    assert len(real) == len(ours)
