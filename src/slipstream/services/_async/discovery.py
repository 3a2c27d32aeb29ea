"""The client's side of services, over the asyncio client: discovery, and requests whose errors are raised.

Discovery sends one request and gathers replies until none has arrived for `stall` seconds: there is no list of services
to compare with. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar, overload

from slipstream.client._async.client import Client, Message
from slipstream.client.base import HeadersLike, decode_reply
from slipstream.errors import NoRespondersError, RemoteProtocolError
from slipstream.services.protocol import PREFIX, Verb, control_subject
from slipstream.services.reports import ServiceIdentity, ServiceInfo, ServicePing, ServiceStats
from slipstream.wire.arguments import Duration, check_seconds
from slipstream.wire.service_errors import error_of

T = TypeVar("T")
R = TypeVar("R", bound=ServiceIdentity)

STALL = 0.3  # seconds


class Services:
    """The services that can be reached: `async for info in nc.services.list()`.

    Each method takes the `name` of a service and the id of an `instance`, or asks all of them. It ends when no further
    reply arrives for `stall` seconds, and after `timeout` seconds in any case; nothing is found if there are no
    services. A reply that is none is reported to `on_event` and left out. `prefix` is that of services of another
    account, where they are imported under one.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def __repr__(self) -> str:
        return f"<Services of {self._client!r}>"

    def list(
        self,
        name: str = "",
        *,
        timeout: Duration = 5.0,
        stall: Duration = STALL,
        prefix: str = PREFIX,
    ) -> AsyncIterator[ServiceInfo]:
        """What every instance offers: one ServiceInfo each."""
        return self.info(name, timeout=timeout, stall=stall, prefix=prefix)

    async def info(
        self,
        name: str = "",
        instance: str = "",
        *,
        timeout: Duration = 5.0,
        stall: Duration = STALL,
        prefix: str = PREFIX,
    ) -> AsyncIterator[ServiceInfo]:
        """The endpoints, description and metadata of instances."""
        subject = control_subject(Verb.INFO, name, instance, prefix=prefix)
        async for info, _ in self._gather(subject, ServiceInfo, is_one=bool(instance), timeout=timeout, stall=stall):
            yield info

    async def stats(
        self,
        name: str = "",
        instance: str = "",
        *,
        timeout: Duration = 5.0,
        stall: Duration = STALL,
        prefix: str = PREFIX,
    ) -> AsyncIterator[ServiceStats]:
        """The counters of instances."""
        subject = control_subject(Verb.STATS, name, instance, prefix=prefix)
        async for stats, _ in self._gather(subject, ServiceStats, is_one=bool(instance), timeout=timeout, stall=stall):
            yield stats

    async def ping(
        self,
        name: str = "",
        instance: str = "",
        *,
        timeout: Duration = 5.0,
        stall: Duration = STALL,
        prefix: str = PREFIX,
    ) -> AsyncIterator[ServicePing]:
        """The running instances; `rtt` is the round-trip time of each reply."""
        subject = control_subject(Verb.PING, name, instance, prefix=prefix)
        async for ping, took in self._gather(subject, ServicePing, is_one=bool(instance), timeout=timeout, stall=stall):
            yield replace(ping, rtt=timedelta(seconds=took))

    @overload
    async def request(
        self, subject: str, payload: object = b"", *, headers: HeadersLike | None = None, timeout: Duration = 5.0
    ) -> Message: ...
    @overload
    async def request(
        self,
        subject: str,
        payload: object = b"",
        *,
        reply: type[T],
        headers: HeadersLike | None = None,
        timeout: Duration = 5.0,
    ) -> T: ...
    @overload
    async def request(
        self,
        subject: str,
        payload: object = b"",
        *,
        reply: Any,
        headers: HeadersLike | None = None,
        timeout: Duration = 5.0,
    ) -> Any: ...
    async def request(
        self,
        subject: str,
        payload: object = b"",
        *,
        reply: Any = None,
        headers: HeadersLike | None = None,
        timeout: Duration = 5.0,
    ) -> Any:
        """As `nc.request`, to an endpoint: raises ServiceError if the reply is an error."""
        client = self._client
        message = await client.request(subject, payload, headers=headers, timeout=timeout)
        error = error_of(subject, message.headers, message.data)
        if error is not None:
            raise error
        return message if reply is None else decode_reply(client.codec, subject, message.raw, reply)

    async def _gather(
        self, subject: str, kind: type[R], *, is_one: bool, timeout: Duration, stall: Duration
    ) -> AsyncIterator[tuple[R, float]]:
        """Replies of one kind, and how long each took."""
        client = self._client
        stall = check_seconds(stall, "stall", is_zero_allowed=False)
        began = client.now()
        replies = client.request_many(subject, timeout=timeout, idle_timeout=stall, max_messages=1 if is_one else None)
        try:
            async for message in replies:
                took = client.now() - began
                try:
                    reply = kind.from_reply(message.data)
                except ValueError as exc:
                    client.report(RemoteProtocolError(f"a reply to {subject!r} is not a service reply: {exc}"))
                else:
                    yield reply, took
        except NoRespondersError:
            return
