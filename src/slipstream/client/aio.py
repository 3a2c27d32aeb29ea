"""The asyncio driver: a `Session` gets a transport, the loop's clock and randomness; the user gets awaitables.

Invariants: one write per turn of the loop, one wake-up per chunk received; a wait always ends, by its timeout, its
answer or the end of the connection; a cancelled wait takes nothing with it. Works on any event loop, uvloop included.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar, assert_never, cast

from slipstream.client.base import (
    BaseClient,
    BaseMessage,
    HeadersLike,
    encode_headers,
    is_no_responders,
    timed_out,
)
from slipstream.client.events import (
    BulkSink,
    Drop,
    Effect,
    Ended,
    EventHandler,
    Ready,
    ReplySink,
    Report,
)
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
from slipstream.client.protocol import Session, State
from slipstream.errors import ConnectionLostError, Error, NoRespondersError, SlowConsumerError
from slipstream.wire import Msg
from slipstream.wire.inbox import DEFAULT_PREFIX

__all__ = ["Client", "Message", "Subscription", "connect"]

READ_SIZE = 64 * 1024
CLOSE_TIMEOUT = 0.5  # for the last bytes to leave; a server that does not read is cut off then


class Message(BaseMessage["Client"]):
    """One message."""

    async def respond(self, payload: bytes = b"", *, headers: HeadersLike | None = None) -> None:
        """Publish an answer to whoever asked."""
        await self._client.publish(self._answer_to(), payload, headers=headers)


Callback = Callable[[Message], Awaitable[None] | None]


class Subscription:
    """Messages of one subject: `async for message in subscription`, `next`, or `next_chunk` for all that is there."""

    def __init__(self, client: Client, box: Mailbox) -> None:
        self._client = client
        self._box = box
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def subject(self) -> str:
        """The subject or filter."""
        return self._box.subject

    @property
    def pending(self) -> int:
        """Messages that arrived and were not taken yet."""
        return self._box.pending

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.unsubscribe()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        box = self._box
        while not box.items:
            if box.is_over:
                raise StopAsyncIteration
            if box.is_ended:
                raise box.ending()
            await self._more()
        return Message(box.take(), self._client)

    async def next(self, *, timeout: float = 5.0) -> Message:
        """The next message. Raises RequestTimeoutError, or SlowConsumerError where messages had to be dropped."""
        await self._ready(timeout)
        return Message(self._box.take(), self._client)

    async def next_chunk(self, *, timeout: float = 5.0) -> list[Message]:
        """Every message that is there, at least one. Raises as `next` does."""
        await self._ready(timeout)
        client = self._client
        return [Message(msg, client) for msg in self._box.take_all()]

    async def unsubscribe(self, max_msgs: int = 0) -> None:
        """End the subscription, at once or after `max_msgs` messages in all. What is there can still be taken."""
        self._client._unsubscribe(self._box, max_msgs)

    async def _ready(self, timeout: float) -> None:
        box = self._box
        if box.is_ready:
            return
        try:
            async with asyncio.timeout(timeout):
                while not box.is_ready:
                    await self._more()
        except TimeoutError:
            if not box.is_ready:
                raise timed_out(f"subscription of {box.subject!r}", timeout) from None

    async def _more(self) -> None:
        """Wait for one wake-up. Nothing is taken here, so a cancelled reader loses nothing."""
        future = self._client._loop.create_future()
        self._waiting.append(future)
        self._box.wake_with(self._wake)
        try:
            await future
        finally:
            if future in self._waiting:
                self._waiting.remove(future)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class _Link(asyncio.BufferedProtocol):
    """One transport; what happens on it is handed to the client, unless the client has moved on to another.

    The buffer is ours, and smaller than what loops read at once: its pages stay in the cache, which is a tenth of the
    time a subscriber takes for a message.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.transport: asyncio.Transport | None = None
        self.is_paused = False
        self._buffer = memoryview(bytearray(READ_SIZE))
        self.closed: asyncio.Future[None] = client._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._client._opened(self)

    def get_buffer(self, _: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        self._client._received(self, bytes(self._buffer[:size]))

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self._client._resumed(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        error = ConnectionLostError(f"connection lost: {exc}" if exc else "the server closed the connection")
        error.__cause__ = exc
        self._client._lost(self, error)

    async def finish(self, rest: bytes) -> None:
        """Send the rest and wait until the server hangs up: closing with its bytes unread could take ours with them."""
        if self.transport is None:
            return
        if rest:
            self.transport.write(rest)
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        else:
            self.transport.close()
        await asyncio.wait((self.closed,), timeout=CLOSE_TIMEOUT)

    def cut(self) -> None:
        """Close at once, without sending what is left."""
        if self.transport is not None:
            self.transport.abort()


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


class Client(BaseClient):
    """A connection to NATS. Made by `connect`."""

    def __init__(self, options: Options, on_event: EventHandler | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._core = Session(options, nonce=secrets.token_hex(11))
        self._on_event = on_event
        self._bound = options.max_pending_bytes
        self._link: _Link | None = None
        self._connected: asyncio.Future[None] | None = None  # while a server is being tried
        self._is_dialing = False
        self._dialer: asyncio.Task[None] | None = None
        self._callbacks: set[asyncio.Task[None]] = set()
        self._waiters: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._writers: list[asyncio.Future[None]] = []  # wait until the transport takes bytes again
        self._is_write_due = False
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def connect(
        cls,
        servers: Servers = DEFAULT_SERVER,
        *,
        name: str = "",
        user: str = "",
        password: str = "",
        token: str = "",
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

        `timeout` is for each server tried. A PING goes out every `ping_interval` seconds; after `max_pings_out` of them
        without a sign of life the connection counts as lost. With `reconnect`, a lost connection is made again, with
        pauses from `reconnect_wait` up to `reconnect_max_wait` seconds, at most `max_reconnects` times in a row (None:
        forever); what is published meanwhile is kept, up to `reconnect_buffer_bytes`. `on_event` is told what no call
        can raise.
        """
        options = Options(
            servers=parse_servers(servers),
            name=name,
            user=user,
            password=password,
            token=token,
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
            task = self._loop.create_task(self._call_back(subscription, callback), name=f"callback of {subject}")
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
        expiry = self._loop.call_later(timeout, _expire, future, f"request to {subject!r}", timeout)
        try:
            msg = await future
        finally:
            expiry.cancel()
            self._core.cancel(token)
        if is_no_responders(msg):
            raise NoRespondersError(subject)
        return Message(msg, self)

    async def flush(self, *, timeout: float = 5.0) -> None:
        """Wait until the server has processed everything sent so far."""
        answer = self._core.ping()
        self._write_soon()
        await self.wait(lambda: answer.is_here, timeout=timeout, what="flush")

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

    def cancel(self, token: str) -> None:
        """Forget a request; later replies are dropped."""
        self._core.cancel(token)

    async def wait(self, ready: Callable[[], bool], *, timeout: float, what: str) -> None:
        """Return once `ready()` is true; it is asked now and after each chunk that was received.

        Raises RequestTimeoutError, which names `what`, or ConnectionLostError if the connection goes meanwhile.
        """
        if ready():
            return
        self._core.check()
        future: asyncio.Future[None] = self._loop.create_future()
        expiry = self._loop.call_later(timeout, _expire, future, what, timeout)
        self._waiters[future] = ready
        try:
            await future
        finally:
            expiry.cancel()
            self._waiters.pop(future, None)

    async def ready(self) -> None:
        """Return when the bytes to be sent are under their bound."""
        core = self._core
        while core.out_size > self._bound and core.is_connected:
            self._write()
            if core.out_size <= self._bound:
                await asyncio.sleep(0)  # readers get their turn between two full buffers
                return
            future: asyncio.Future[None] = self._loop.create_future()
            self._writers.append(future)
            await future

    def now(self) -> float:
        """The clock of all timeouts, in seconds."""
        return self._loop.time()

    # The transport

    async def _connect(self) -> None:
        """Try servers until one accepts us or none is left."""
        core = self._core
        self._is_dialing = True
        try:
            while core.state in (State.IDLE, State.WAITING):
                if core.state is State.WAITING and (pause := core.timer - self._loop.time()) > 0:
                    await asyncio.sleep(pause)  # `close` cancels it
                await self._dial()
        finally:
            self._is_dialing = False
        if core.error is not None:
            raise core.error

    async def _dial(self) -> None:
        """Try one server; how it ended is in the state."""
        server = self._core.dial(self._loop.time())
        link = self._link = _Link(self)
        connected = self._connected = self._loop.create_future()
        try:
            async with asyncio.timeout_at(self._core.timer):
                await self._loop.create_connection(lambda: link, server.host, server.port)
                await connected
        except TimeoutError:
            if link is self._link:
                self._carry_out(self._core.tick(self._core.timer))
        except OSError as exc:
            error = ConnectionLostError(f"{server}: {exc}")
            error.__cause__ = exc
            self._lost(link, error)
        except BaseException:
            link.cut()
            raise
        finally:
            self._connected = None

    def _opened(self, link: _Link) -> None:
        if link is not self._link:
            link.cut()
            return
        assert link.transport is not None
        link.transport.set_write_buffer_limits(high=self._bound)
        self._core.opened()

    def _received(self, link: _Link, data: bytes) -> None:
        if link is not self._link:
            return
        core = self._core
        effects = core.received(data, self._loop.time())
        if effects:
            self._carry_out(effects)
        if core.out and not self._is_write_due:
            self._write_soon()
        if self._waiters:
            self._wake()

    def _lost(self, link: _Link, error: Error) -> None:
        """The transport is gone. Late news of a link that was given up already is no news."""
        if link is not self._link:
            return
        self._link = None
        link.cut()
        core = self._core
        effects = core.lost(error, now=self._loop.time(), random=random.random())
        self._carry_out(effects)
        self._release_writers()
        self._wake(ConnectionLostError(f"the connection to {core.server} was lost: {error}"))
        if self._connected is not None and not self._connected.done():
            self._connected.set_result(None)
        elif core.state is State.WAITING and not self._is_dialing:
            self._dialer = self._loop.create_task(self._reconnect(), name="reconnect")

    async def _reconnect(self) -> None:
        with suppress(Error):  # the session is closed, and has told so
            await self._connect()

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Ready):
                if self._connected is not None and not self._connected.done():
                    self._connected.set_result(None)
                self._tick()
            elif isinstance(effect, Drop):
                if self._link is not None:
                    self._lost(self._link, effect.error)
            elif isinstance(effect, Ended):
                self._stop()
            elif isinstance(effect, Report):
                self._tell(effect.event)
            else:
                assert_never(effect)

    def _tick(self) -> None:
        """The protocol's timer is due, or was set for the first time."""
        if self._timer is not None:
            self._timer.cancel()
        self._carry_out(self._core.tick(self._loop.time()))
        if self._core.is_connected:
            self._timer = self._loop.call_at(self._core.timer, self._tick)
            if self._core.out:
                self._write_soon()

    def _write_soon(self) -> None:
        if not self._is_write_due:
            self._is_write_due = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        """Send what has come together, unless the transport has enough already."""
        self._is_write_due = False
        link = self._link
        if link is not None and link.transport is not None and not link.is_paused and self._core.out:
            link.transport.write(self._core.take())

    def _resumed(self, link: _Link) -> None:
        if link is self._link:
            self._write()
            self._release_writers()

    def _release_writers(self) -> None:
        writers, self._writers = self._writers, []
        for future in writers:
            if not future.done():
                future.set_result(None)

    def _wake(self, error: Error | None = None) -> None:
        """Ask every waiter; with `error`, nobody who is not ready goes on waiting."""
        for future, ready in list(self._waiters.items()):
            if future.done():
                continue
            if ready():
                future.set_result(None)
            elif error is not None:
                future.set_exception(error)

    def _stop(self) -> list[asyncio.Task[None]]:
        """The session is closed: nothing may go on behind it. The tasks returned are ending."""
        if self._timer is not None:
            self._timer.cancel()
        current = asyncio.current_task(self._loop)
        tasks = [task for task in (self._dialer, *self._callbacks) if task is not None and task is not current]
        for task in tasks:
            task.cancel()
        self._release_writers()
        self._wake(self._core.closed_error())
        return tasks

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


def _expire(future: asyncio.Future[Msg] | asyncio.Future[None], what: str, timeout: float) -> None:
    if not future.done():
        future.set_exception(timed_out(what, timeout))


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
