"""The asyncio client: publish, subscribe, request; `Connection` carries them out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from slipstream.client._async.clock import uptime
from slipstream.client._async.connection import Connection, expire
from slipstream.client._async.opening import opens
from slipstream.client._async.subscription import Callback, Message, Subscription
from slipstream.client._async.tasks import Worker, check_handler
from slipstream.client.base import (
    DRAIN_POLL,
    DRAIN_TIMEOUT,
    BaseClient,
    HeadersLike,
    decode_reply,
    drain_timeout,
    encode_headers,
    is_no_responders,
)
from slipstream.client.events import AwaitedSink, BlockWindowSink, BulkSink, ReplySink, SingleWindowSink
from slipstream.client.options import MAX_PENDING_BYTES, MAX_PENDING_MSGS, ClientOptions, takes
from slipstream.client.outgoing import Draft
from slipstream.client.reporter import check_callback
from slipstream.client.request_many import RequestMany
from slipstream.client.requests import ExpectedReplies
from slipstream.codecs.payloads import encode_payload
from slipstream.errors import Error, NoRespondersError, RequestTimeoutError
from slipstream.wire import Msg
from slipstream.wire.arguments import Duration, check_seconds

__all__ = ["Client", "Message", "Subscription", "connect"]

T = TypeVar("T")


class _Reply:
    """The sink of `exchange`: one reply, one future."""

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


class Client(BaseClient):
    """A connection to NATS. Made by `connect`."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.session, connection.reporter)
        self._connection = connection
        self._loop = connection.loop

    @classmethod
    @takes(ClientOptions)
    @opens
    async def connect(cls, options: ClientOptions) -> Self:
        """Connect to one of `servers`: `nc = await connect(...)`, or `async with connect(...) as nc`."""
        connection = Connection(options)
        try:
            await connection.connect()
        except BaseException:
            await connection.close()
            raise
        return cls(connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # For users

    async def publish(
        self, subject: str, payload: object = b"", *, reply: str = "", headers: HeadersLike | None = None
    ) -> None:
        """Send a message to the subscribers of `subject`. Waits only while too many unsent bytes are pending.

        The payload is bytes, or an object, which the codec encodes.
        """
        connection, outgoing = self._connection, self._outgoing
        size = 0 if reply or headers else outgoing.try_publish(subject, payload)
        if not size:
            if not isinstance(payload, bytes):
                payload, headers = encode_payload(self._codec, subject, payload, headers)
            outgoing.publish(subject, payload, reply, encode_headers(headers) if headers else b"")
            size = outgoing.size
        if not connection.is_write_due:
            connection.write_soon()
        if size > connection.max_pending:
            await connection.ready()

    @opens
    async def subscribe(
        self,
        subject: str,
        *,
        queue: str = "",
        max_pending_msgs: int = MAX_PENDING_MSGS,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        callback: Callback | None = None,
    ) -> Subscription:
        """Subscribe to `subject`, in the queue group `queue` if that is not empty.

        Messages are read from the subscription, or handed to `callback` (a function or a coroutine function) one after
        the other, in order. At most `max_pending_msgs` messages and `max_pending_bytes` bytes wait to be taken.
        """
        if callback is not None:
            check_handler(callback)
        box = self._session.subscriptions.subscribe(
            subject, queue=queue, max_msgs=max_pending_msgs, max_bytes=max_pending_bytes
        )
        self._connection.write_soon()
        return Subscription(self, self._connection, box, callback)

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
        """Publish a request and wait for the first reply: a Message, or with `reply` its payload as that type.

        Raises NoRespondersError if the subject has no subscribers, RequestTimeoutError if there is no reply in time,
        ConnectionLostError if the connection is lost meanwhile; with `reply` also MessageDecodeError, and ServiceError
        if a service answers with an error.
        """
        if not isinstance(payload, bytes):
            payload, headers = encode_payload(self._codec, subject, payload, headers)
        msg = await self.exchange(
            subject,
            payload,
            header=encode_headers(headers),
            timeout=check_seconds(timeout),
            what=f"a reply on {subject!r}",
        )
        if is_no_responders(msg):
            raise NoRespondersError(subject)
        return Message(msg, self) if reply is None else decode_reply(self._codec, subject, msg, reply)

    async def request_many(
        self,
        subject: str,
        payload: object = b"",
        *,
        headers: HeadersLike | None = None,
        timeout: Duration = 5.0,
        max_messages: int | None = None,
        idle_timeout: Duration | None = None,
        sentinel: Callable[[Message], bool] | None = None,
    ) -> AsyncIterator[Message]:
        """Publish a request and iterate over all replies: `async for message in nc.request_many(...)`.

        It is sent by the first step of the iteration, which ends after `timeout` seconds in all, after `max_messages`,
        when no further reply arrives for `idle_timeout` seconds, or at a reply for which `sentinel` is true (that one
        is not yielded). Raises NoRespondersError if the subject has no subscribers, ConnectionLostError if the
        connection is lost meanwhile.
        """
        if not isinstance(payload, bytes):
            payload, headers = encode_payload(self._codec, subject, payload, headers)
        if sentinel is not None:
            check_callback(sentinel, "sentinel", may_be_async=False)
        many = RequestMany(
            subject, now=self.now(), timeout=timeout, idle_timeout=idle_timeout, max_messages=max_messages
        )
        replies = Subscription(self, self._connection, many.box)
        token = self.start(subject, payload, many, header=encode_headers(headers))
        try:
            while not many.box.is_over:
                try:
                    message = await replies.next(timeout=many.time_left(self.now()))
                except RequestTimeoutError:
                    return
                if is_no_responders(message.raw):
                    raise NoRespondersError(subject)
                if sentinel is not None and sentinel(message):
                    return
                yield message
        finally:
            self.cancel(token)

    async def flush(self, *, timeout: Duration = 5.0) -> None:
        """Wait until the server has processed everything sent so far."""
        timeout = check_seconds(timeout)
        ping = self._session.ping()
        self._connection.write_soon()
        await self.wait(lambda: ping.is_answered, timeout=timeout, what="the server's PONG (flush)")

    async def drain(self, *, timeout: Duration = DRAIN_TIMEOUT) -> None:
        """End all subscriptions, wait until their messages are taken or handled, send everything, then close.

        Meanwhile no new subscription is possible; everything else is. The client is closed in any case. Raises
        RequestTimeoutError if not all messages are taken in time, ConnectionLostError if the connection is lost.
        """
        timeout = check_seconds(timeout)
        deadline = self.now() + timeout
        connection, current = self._connection, asyncio.current_task()
        try:
            ping = self._session.drain()
            connection.write_soon()
            await self.wait(lambda: ping.is_answered, timeout=timeout, what="the server's PONG (drain)")
            while any(box.items for box in ping.draining) or connection.tasks - {current}:
                if self.now() > deadline:
                    raise drain_timeout(ping.draining, timeout)
                await asyncio.sleep(DRAIN_POLL)
            await self.flush(timeout=max(0.0, deadline - self.now()))
        finally:
            await self.close()

    async def close(self) -> None:
        """Send what is pending, end all subscriptions and close the connection. Can be called again."""
        await self._connection.close()

    async def sleep(self, seconds: Duration) -> None:
        """Wait for `seconds`; the connection is served meanwhile, and may be lost and restored.

        Raises ConnectionClosedError as soon as the client is closed.
        """
        seconds = check_seconds(seconds, "seconds")
        await self._connection.sleep(seconds)

    # For the layers above

    async def exchange(self, subject: str, payload: bytes, *, header: bytes = b"", timeout: float, what: str) -> Msg:
        """Send a request and return its one reply, as it arrived: it may be the status "no responders".

        Raises RequestTimeoutError, which names `what`, or ConnectionLostError if the connection is lost meanwhile.
        """
        future: asyncio.Future[Msg] = self._loop.create_future()
        token = self._requests.start(subject, payload, _Reply(future), header)
        self._connection.write_soon()
        expiry = self._loop.call_later(timeout, expire, future, what, timeout)
        try:
            return await future
        finally:
            expiry.cancel()
            self._requests.cancel(token)

    def start(self, subject: str, payload: bytes, sink: ReplySink, *, header: bytes = b"") -> str:
        """Send a request; every reply goes to `sink` until it returns True. The token is for `cancel`."""
        token = self._requests.start(subject, payload, sink, header)
        if not self._connection.is_write_due:
            self._connection.write_soon()
        return token

    def expect(self, sink: ReplySink) -> ExpectedReplies:
        """A subject of the inbox whose messages go to `sink`: for what another request brings about."""
        return self._requests.expect(sink)

    def start_bulk(self, subject: str, payload: bytes, sink: BulkSink, *, header: bytes = b"") -> str:
        """As `start`, for a sink that takes many replies at once."""
        token = self._requests.start_bulk(subject, payload, sink, header)
        self._connection.write_soon()
        return token

    def start_one(
        self, subject: str, payload: bytes, sink: SingleWindowSink[T], entry: T, *, header: bytes = b""
    ) -> int:
        """Send a request with one answer, for which `sink` gets `entry`; the token, as text, is for `cancel`."""
        token = self._requests.start_one(subject, payload, sink, entry, header)
        if not self._connection.is_write_due:
            self._connection.write_soon()
        return token

    def start_many(self, messages: Sequence[Draft], sink: BlockWindowSink) -> None:
        """Send a block of requests with one answer each, over the current connection only."""
        self._requests.start_many(messages, sink)
        self._connection.write_soon()

    def publish_many(self, messages: Sequence[Draft], replies: Sequence[bytes]) -> None:
        """Send a block of messages, each with its reply subject, over the current connection only."""
        self._outgoing.publish_block(messages, replies)
        self._connection.write_soon()

    def cancel(self, token: str) -> None:
        """Forget a request; later replies are dropped."""
        self._requests.cancel(token)

    def answer(self, subject: str, payload: bytes = b"") -> bool:
        """Publish a few bytes to a reply subject that is used once: quicker than `publish`, and never waits.

        Returns `is_full`.
        """
        size, connection = self._outgoing.answer(subject, payload), self._connection
        if not connection.is_write_due:
            connection.write_soon()
        return size > connection.max_pending

    async def wait(self, ready: Callable[[], bool], *, timeout: float, what: str) -> None:
        """Return once `ready()` is true; it is asked now and after each chunk received.

        Raises RequestTimeoutError, which names `what`, or ConnectionLostError if the connection is lost meanwhile.
        """
        if ready():
            return
        self._outgoing.check()
        waiter = self._connection.waiter(ready, timeout=timeout, what=what)
        try:
            await waiter
        finally:
            self._connection.release(waiter)

    async def wait_for_reply(self, sink: AwaitedSink, *, timeout: float, what: str) -> None:
        """Return once a sink that was passed to `start` is ready. Raises RequestTimeoutError, which names `what`."""
        if sink.is_ready():
            return
        future: asyncio.Future[None] = self._loop.create_future()

        def notify() -> None:
            if not future.done():
                future.set_result(None)

        sink.notify = notify
        expiry = self._loop.call_later(timeout, expire, future, what, timeout)
        try:
            await future
        finally:
            expiry.cancel()
            sink.notify = None

    @property
    def is_full(self) -> bool:
        """Whether too many unsent bytes are pending: `ready` waits for that to end."""
        return self._outgoing.size > self._connection.max_pending

    async def ready(self) -> None:
        """Wait until the unsent bytes are within their bound."""
        await self._connection.ready()

    def now(self) -> float:
        """The clock of all timeouts, in seconds."""
        return self._loop.time()

    def mark(self, *, interval: float) -> None:
        """Have `sent_after` moved by a PING, unless one was sent less than `interval` seconds ago."""
        self._session.mark(uptime(), interval=interval, at=self.now())
        if self._outgoing.frames and not self._connection.is_write_due:
            self._connection.write_soon()

    async def let_run(self) -> None:
        """Let the event loop send and read, in a task that may not have waited for anything for a while."""
        await asyncio.sleep(0)

    def leave_server(self, reason: Error) -> bool:
        """Drop this connection for one to another server; False if no other is known. `reason` is reported.

        For a server that is connected to us and cut off from its cluster, which only unanswered requests show.
        """
        return self._connection.leave(reason)

    def spawn(self, main: Callable[[], Coroutine[None, None, None]], name: str) -> Worker:
        """Run a coroutine function in the background, until the client is closed at the latest."""
        return Worker(self._connection.spawn(main(), name))

    def is_own_end(self, error: BaseException) -> bool:
        """Whether an exception ends the running task, which is one of `spawn`; see `Connection.is_own_end`."""
        return self._connection.is_own_end(error)

    def run_here(self, call: Callable[[], None]) -> None:
        """Call a function on the client's loop, now if that is the running one: for finalizers, which run anywhere."""
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:  # no loop runs in this thread
            is_here = False
        if is_here:
            call()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)


connect = Client.connect
