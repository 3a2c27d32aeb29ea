"""The asyncio driver: the user gets awaitables; `aio_connection` is what carries them out."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from slipstream.client._async.connection import Connection, expire
from slipstream.client._async.subscription import Callback, Message, Subscription
from slipstream.client._async.tasks import Worker
from slipstream.client._async.transport import CLOSE_TIMEOUT
from slipstream.client.auth import Path, Secret
from slipstream.client.base import (
    DRAIN_LOOK,
    DRAIN_TIMEOUT,
    HeadersLike,
    encode_headers,
    is_no_responders,
    not_taken,
)
from slipstream.client.events import BulkSink, EventHandler, ReplySink, WindowSink
from slipstream.client.layers.tls import tls_options
from slipstream.client.mailbox import Mailbox
from slipstream.client.options import (
    DEFAULT_SERVER,
    MAX_PENDING_BYTES,
    MAX_PENDING_MSGS,
    MAX_PENDING_OUT,
    PING_INTERVAL,
    RECONNECT_BUFFER,
    Options,
    Servers,
    parse_servers,
)
from slipstream.client.outgoing import Draft
from slipstream.client.request_many import RequestMany
from slipstream.errors import Error, NoRespondersError, RequestTimeoutError, SlowConsumerError
from slipstream.wire import Msg
from slipstream.wire.inbox import DEFAULT_PREFIX

__all__ = ["Client", "Message", "Subscription", "connect"]


class _Reply:
    """The sink of `request`: one reply, one future."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Msg]) -> None:
        self.future = future

    def deliver(self, msg: Msg) -> bool:
        if not self.future.done():
            self.future.set_result(msg)
        return True

    def fail(self, error: Error) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Client(Connection):
    """A connection to NATS. Made by `connect`."""

    @classmethod
    def connect(
        cls,
        servers: Servers = DEFAULT_SERVER,
        *,
        name: str = "",
        user: Secret = "",
        password: Secret = "",
        token: Secret = "",
        nkey: Secret = "",
        credentials: Secret | None = None,
        tls: bool | ssl.SSLContext = False,
        tls_ca: str | Path | None = None,
        tls_cert: str | Path | None = None,
        tls_key: str | Path | None = None,
        tls_hostname: str = "",
        tls_first: bool = False,
        echo: bool = True,
        timeout: float = 5.0,
        inbox_prefix: str = DEFAULT_PREFIX,
        max_pending_bytes: int = MAX_PENDING_OUT,
        ping_interval: float = PING_INTERVAL,
        max_pings_out: int = 2,
        reconnect: bool = True,
        reconnect_wait: float = 0.1,
        reconnect_max_wait: float = 5.0,
        max_reconnects: int | None = None,
        reconnect_buffer_bytes: int = RECONNECT_BUFFER,
        on_event: EventHandler | None = None,
    ) -> Connecting[Self]:
        """Connect to one of `servers`: `nc = await connect(...)`, or `async with connect(...) as nc`.

        One way to log in: `user` and `password`, a `token`, the seed of an `nkey`, or a `credentials` file with JWT
        and seed. Each may be a path that is read, or a function that is called (`from_env("NAME")` is one), before each
        connection; a `str` is the secret itself, but for `credentials`, where it is the path. User, password and token
        may be in the URL as well, and go first there.

        URLs begin with `nats://`, `tls://`, `ws://` or `wss://` (WebSocket). A server that requires TLS gets it; `tls`,
        any of the other TLS arguments and the schemes `tls` and `wss` make it a must. The certificate must come from
        `tls_ca` (a file; without it: from an authority the system trusts) and be for the host or `tls_hostname`;
        `tls_cert` and `tls_key` are ours. `tls` may be a context instead, which then decides all that. `tls_first` is
        for servers that begin with TLS, not with INFO.

        `timeout` is for each server tried. A PING goes out every `ping_interval` seconds; after `max_pings_out` of them
        without a sign of life the connection counts as lost. With `reconnect`, a lost connection is made again, with
        pauses from `reconnect_wait` up to `reconnect_max_wait` seconds, at most `max_reconnects` times in a row (None:
        forever); what is published meanwhile is kept, up to `reconnect_buffer_bytes`. `on_event` is told what no call
        can raise.
        """
        maker, is_tls = tls_options(tls, ca=tls_ca, cert=tls_cert, key=tls_key, hostname=tls_hostname)
        options = Options(
            servers=parse_servers(servers),
            name=name,
            user=user,
            password=password,
            token=token,
            nkey=nkey,
            credentials=credentials,
            tls=maker,
            tls_required=is_tls or tls_first,
            tls_first=tls_first,
            echo=echo,
            timeout=timeout,
            inbox_prefix=inbox_prefix,
            max_pending_bytes=max_pending_bytes,
            ping_interval=ping_interval,
            max_pings_out=max_pings_out,
            reconnect=reconnect,
            reconnect_wait=reconnect_wait,
            reconnect_max_wait=reconnect_max_wait,
            max_reconnects=max_reconnects,
            reconnect_buffer_bytes=reconnect_buffer_bytes,
        )
        return Connecting(cls, options, on_event)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # For users

    async def publish(
        self, subject: str, payload: bytes = b"", *, reply: str = "", headers: HeadersLike | None = None
    ) -> None:
        """Send a message to whoever listens. Waits only while more unsent bytes are pending than allowed."""
        core = self._core
        core.publish(subject, payload, reply, encode_headers(headers) if headers else b"")
        if not self._is_write_due:
            self._write_soon()
        if core.out_size > self._bound:
            await self.ready()

    async def subscribe(
        self,
        subject: str,
        *,
        queue: str = "",
        max_pending_msgs: int = MAX_PENDING_MSGS,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        callback: Callback | None = None,
    ) -> Subscription:
        """Ask for the messages of `subject`, as a member of the group `queue` if that is not empty.

        They are read from the subscription, or handed to `callback` (a function or a coroutine function) one after the
        other, in order. At most `max_pending_msgs` and `max_pending_bytes` wait to be taken.
        """
        box = self._core.subscribe(subject, queue=queue, max_msgs=max_pending_msgs, max_bytes=max_pending_bytes)
        self._write_soon()
        subscription = Subscription(self, box)
        if callback is not None:
            task = subscription._caller = self._loop.create_task(
                self._call_back(subscription, callback), name=f"callback of {subject}"
            )
            self._callbacks.add(task)
            task.add_done_callback(self._callbacks.discard)
        return subscription

    async def request(
        self, subject: str, payload: bytes = b"", *, headers: HeadersLike | None = None, timeout: float = 5.0
    ) -> Message:
        """Publish a request and wait for the first reply.

        Raises NoRespondersError if nobody listens, RequestTimeoutError if nobody answers in time, ConnectionLostError
        if the connection goes meanwhile.
        """
        future: asyncio.Future[Msg] = self._loop.create_future()
        token = self.start(subject, payload, _Reply(future), header=encode_headers(headers))
        expiry = self._loop.call_later(timeout, expire, future, f"request to {subject!r}", timeout)
        try:
            msg = await future
        finally:
            expiry.cancel()
            self._core.cancel(token)
        if is_no_responders(msg):
            raise NoRespondersError(subject)
        return Message(msg, self)

    async def request_many(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: HeadersLike | None = None,
        timeout: float = 5.0,
        max_messages: int | None = None,
        idle_timeout: float | None = None,
        sentinel: Callable[[Message], bool] | None = None,
    ) -> AsyncIterator[Message]:
        """Publish a request and iterate over all replies: `async for message in nc.request_many(...)`.

        It is sent by the first step of the iteration, which ends after `timeout` seconds in all, after `max_messages`,
        when no further reply comes for `idle_timeout` seconds, or at a reply for which `sentinel` is true (it is not
        handed over). Raises NoRespondersError if nobody listens, ConnectionLostError if the connection goes meanwhile.
        """
        many = RequestMany(
            subject, now=self.now(), timeout=timeout, idle_timeout=idle_timeout, max_messages=max_messages
        )
        replies = Subscription(self, many.box)
        token = self.start(subject, payload, many, header=encode_headers(headers))
        try:
            while not many.box.is_over:
                try:
                    message = await replies.next(timeout=many.patience(self.now()))
                except RequestTimeoutError:
                    return
                if is_no_responders(message.raw):
                    raise NoRespondersError(subject)
                if sentinel is not None and sentinel(message):
                    return
                yield message
        finally:
            self.cancel(token)

    async def flush(self, *, timeout: float = 5.0) -> None:
        """Wait until the server has processed everything sent so far."""
        answer = self._core.ping()
        self._write_soon()
        await self.wait(lambda: answer.is_here, timeout=timeout, what="flush")

    async def drain(self, *, timeout: float = DRAIN_TIMEOUT) -> None:
        """End all subscriptions, wait until what they hold is taken or handled, send everything, then close.

        Meanwhile nothing can be subscribed to, all else goes on. The client is closed in any case. Raises
        RequestTimeoutError if not all is taken in time, ConnectionLostError if the connection goes meanwhile.
        """
        deadline = self.now() + timeout
        current = asyncio.current_task()
        try:
            boxes = await self._drained(None, timeout)
            while any(box.items for box in boxes) or self._callbacks - {current}:
                if self.now() > deadline:
                    raise not_taken(boxes, timeout)
                await asyncio.sleep(DRAIN_LOOK)
            await self.flush(timeout=max(0.0, deadline - self.now()))
        finally:
            await self.close()

    async def close(self) -> None:
        """Send what is pending, end all subscriptions and close the connection. Can be called again."""
        link, self._link = self._link, None
        rest = self._core.take() if self._core.is_connected else b""
        self._carry_out(self._core.close())
        stopped = self._stop()
        try:
            if link is not None:
                await link.finish(rest)
            if stopped:
                await asyncio.wait(stopped, timeout=CLOSE_TIMEOUT)
        finally:
            if link is not None:
                link.cut()

    # For the rooms above

    def start(self, subject: str, payload: bytes, sink: ReplySink, *, header: bytes = b"") -> str:
        """Send a request; every reply goes to `sink` until it says that it is finished. The token is for `cancel`."""
        token = self._core.start(subject, payload, sink, header)
        if not self._is_write_due:
            self._write_soon()
        return token

    def start_bulk(self, subject: str, payload: bytes, sink: BulkSink) -> str:
        """The same for a sink that takes many replies at once."""
        token = self._core.start_bulk(subject, payload, sink)
        self._write_soon()
        return token

    def start_many(self, messages: Sequence[Draft], sink: WindowSink) -> None:
        """Send a block of requests with one answer each. It is not kept should there be no connection."""
        self._core.start_many(messages, sink)
        self._write_soon()

    def publish_many(self, messages: Sequence[Draft], replies: Sequence[bytes]) -> None:
        """Send a block of messages, each with its reply subject. It is not kept should there be no connection."""
        self._core.publish_many(messages, replies)
        self._write_soon()

    def cancel(self, token: str) -> None:
        """Forget a request; later replies are dropped."""
        self._core.cancel(token)

    def leave_server(self, reason: Error) -> bool:
        """Give this connection up for one to another server; False if no other is known. `reason` is what users hear.

        For a server that is connected to us and cut off from its cluster, which only requests without answers show.
        """
        effects = self._core.leave(reason)
        self._carry_out(effects)
        return bool(effects)

    def answer(self, subject: str, payload: bytes = b"") -> None:
        """Publish a few bytes to a reply subject that is used once: quicker than `publish`, and without a wait."""
        self._core.answer(subject, payload)
        if not self._is_write_due:
            self._write_soon()

    @property
    def is_full(self) -> bool:
        """Whether more bytes wait to be sent than allowed: `ready` waits until it is not so."""
        return self._core.out_size > self._bound

    def spawn(self, main: Callable[[], Coroutine[None, None, None]], name: str) -> Worker:
        """Let a coroutine function go on by itself, no longer than the client lives."""
        task = self._loop.create_task(main(), name=name)
        self._callbacks.add(task)
        task.add_done_callback(self._callbacks.discard)
        return Worker(task)

    def run_here(self, call: Callable[[], None]) -> None:
        """Call that now if this is the client's loop, and there if it is not: for finalizers, which run anywhere."""
        if asyncio._get_running_loop() is self._loop:
            call()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    # For subscriptions

    async def _drained(self, box: Mailbox | None, timeout: float) -> Sequence[Mailbox]:
        """End one subscription or all when everything the server has for them is here; returns their mailboxes."""
        answer = self._core.drain(box)
        self._write_soon()
        await self.wait(lambda: answer.is_here, timeout=timeout, what=f"drain of {box.subject!r}" if box else "drain")
        return answer.draining

    def _unsubscribe(self, box: Mailbox, max_msgs: int) -> None:
        self._core.unsubscribe(box, max_msgs)
        self._write_soon()

    async def _call_back(self, subscription: Subscription, callback: Callback) -> None:
        """Hand over the messages of a subscription, one by one."""
        while True:
            try:
                message = await subscription.__anext__()
            except SlowConsumerError:
                continue  # reported when the gap began
            except (StopAsyncIteration, Error):
                return  # the end; an error was reported by whatever ended it
            try:
                result = callback(message)
                if result is not None:
                    await result
            except Exception as exc:  # the top of the user's code
                self._callback_failed(subscription.subject, exc)


C = TypeVar("C", bound=Client)


class Connecting(Generic[C]):
    """A client on its way: `await` it, or enter it with `async with`, which closes the client at the end."""

    def __init__(self, kind: type[C], options: Options, on_event: EventHandler | None) -> None:
        self._kind = kind
        self._options = options
        self._on_event = on_event
        self._client: C | None = None

    async def _open(self) -> C:
        client = self._kind(self._options, self._on_event)
        try:
            await client._connect()
        except BaseException:
            await client.close()
            raise
        return client

    def __await__(self) -> Generator[None, None, C]:
        return self._open().__await__()

    async def __aenter__(self) -> C:
        self._client = await self._open()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._client is not None
        await self._client.close()


connect = Client.connect
