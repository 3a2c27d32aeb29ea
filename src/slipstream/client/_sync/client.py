"""The blocking client: publish, subscribe, request, by any thread; `Connection` carries them out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from slipstream.client._sync.clock import uptime
from slipstream.client._sync.connection import WRITE_SIZE, Connection
from slipstream.client._sync.subscription import Callback, Dispatcher, Message, Subscription
from slipstream.client._sync.tasks import Worker, check_handler
from slipstream.client.base import (
    DRAIN_POLL,
    DRAIN_TIMEOUT,
    BaseClient,
    HeadersLike,
    decode_reply,
    drain_timeout,
    encode_headers,
    is_no_responders,
    timed_out,
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
    """The sink of `exchange`: one reply or an error."""

    __slots__ = ("error", "msg")

    def __init__(self) -> None:
        self.msg: Msg | None = None
        self.error: Error | None = None

    def deliver(self, msg: Msg) -> bool:
        self.msg = msg
        return True

    def fail(self, error: Error) -> None:
        self.error = error

    def is_done(self) -> bool:
        return self.msg is not None or self.error is not None


class Client(BaseClient):
    """A connection to NATS. Made by `connect`. All methods may be called from any thread."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.session, connection.reporter)
        self._connection = connection
        self._dispatcher: Dispatcher | None = None  # of all callbacks
        self._workers: list[Worker] = []  # of the layers above

    @classmethod
    @takes(ClientOptions)
    def connect(cls, options: ClientOptions) -> Self:
        """Connect to one of `servers`: `nc = connect(...)`, or `with connect(...) as nc`.

        `on_event` is called by the thread that sees the event.
        """
        connection = Connection(options)
        connection.open()
        return cls(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # For users

    def publish(
        self, subject: str, payload: object = b"", *, reply: str = "", headers: HeadersLike | None = None
    ) -> None:
        """Send a message to the subscribers of `subject`. Waits only while too many unsent bytes are pending.

        The payload is bytes, or an object, which the codec encodes.
        """
        if not isinstance(payload, bytes):
            payload, headers = encode_payload(self._codec, subject, payload, headers)
        connection, outgoing = self._connection, self._outgoing
        header = encode_headers(headers) if headers else b""
        with connection.lock:
            outgoing.publish(subject, payload, reply, header)
            if not connection.is_write_due or outgoing.size > WRITE_SIZE:
                connection.write_soon()
        if outgoing.size + connection.transport.unsent > connection.max_pending:
            connection.ready()

    def subscribe(
        self,
        subject: str,
        *,
        queue: str = "",
        max_pending_msgs: int = MAX_PENDING_MSGS,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        callback: Callback | None = None,
    ) -> Subscription:
        """Subscribe to `subject`, in the queue group `queue` if that is not empty.

        Messages are read from the subscription, or handed to `callback` one after the other, in order, by the one
        thread that runs all callbacks of this client. At most `max_pending_msgs` messages and `max_pending_bytes` bytes
        wait to be taken.
        """
        connection = self._connection
        if callback is not None:
            check_handler(callback)
        with connection.lock:
            box = self._session.subscriptions.subscribe(
                subject, queue=queue, max_msgs=max_pending_msgs, max_bytes=max_pending_bytes
            )
            dispatcher = None
            if callback is not None:
                dispatcher = self._dispatcher = self._dispatcher or Dispatcher(self, connection)
                dispatcher.add(box, callback)
            connection.write()
        return Subscription(self, connection, box, dispatcher)

    @overload
    def request(
        self, subject: str, payload: object = b"", *, headers: HeadersLike | None = None, timeout: Duration = 5.0
    ) -> Message: ...
    @overload
    def request(
        self,
        subject: str,
        payload: object = b"",
        *,
        reply: type[T],
        headers: HeadersLike | None = None,
        timeout: Duration = 5.0,
    ) -> T: ...
    @overload
    def request(
        self,
        subject: str,
        payload: object = b"",
        *,
        reply: Any,
        headers: HeadersLike | None = None,
        timeout: Duration = 5.0,
    ) -> Any: ...
    def request(
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
        msg = self.exchange(
            subject,
            payload,
            header=encode_headers(headers),
            timeout=check_seconds(timeout),
            what=f"a reply on {subject!r}",
        )
        if is_no_responders(msg):
            raise NoRespondersError(subject)
        return Message(msg, self) if reply is None else decode_reply(self._codec, subject, msg, reply)

    def request_many(
        self,
        subject: str,
        payload: object = b"",
        *,
        headers: HeadersLike | None = None,
        timeout: Duration = 5.0,
        max_messages: int | None = None,
        idle_timeout: Duration | None = None,
        sentinel: Callable[[Message], bool] | None = None,
    ) -> Iterator[Message]:
        """Publish a request and iterate over all replies: `for message in nc.request_many(...)`.

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
                    message = replies.next(timeout=many.time_left(self.now()))
                except RequestTimeoutError:
                    return
                if is_no_responders(message.raw):
                    raise NoRespondersError(subject)
                if sentinel is not None and sentinel(message):
                    return
                yield message
        finally:
            self.cancel(token)

    def flush(self, *, timeout: Duration = 5.0) -> None:
        """Wait until the server has processed everything sent so far."""
        timeout = check_seconds(timeout)
        with self._connection.lock:
            ping, epoch = self._session.ping(), self._session.epoch
        if not self._connection.until(lambda: ping.is_answered, timeout, epoch=epoch):
            raise timed_out("the server's PONG (flush)", timeout)

    def drain(self, *, timeout: Duration = DRAIN_TIMEOUT) -> None:
        """End all subscriptions, wait until their messages are taken or handled, send everything, then close.

        Meanwhile no new subscription is possible; everything else is. The client is closed in any case. Raises
        RequestTimeoutError if not all messages are taken in time, ConnectionLostError if the connection is lost.
        """
        timeout = check_seconds(timeout)
        deadline = self.now() + timeout
        connection, dispatcher = self._connection, self._dispatcher
        try:
            with connection.lock:
                ping, epoch = self._session.drain(), self._session.epoch
            if not connection.until(lambda: ping.is_answered, timeout, epoch=epoch):
                raise timed_out("the server's PONG (drain)", timeout)

            def is_done() -> bool:
                boxes = ping.draining
                if not all(not box.items and (dispatcher is None or dispatcher.has_handled(box)) for box in boxes):
                    return False
                return all(worker.is_done or worker.is_own for worker in self._workers)

            while not connection.until(is_done, DRAIN_POLL):
                if self.now() > deadline:
                    raise drain_timeout(ping.draining, timeout)
            self.flush(timeout=max(0.0, deadline - self.now()))
        finally:
            self.close()

    def close(self) -> None:
        """Send what is pending, end all subscriptions and close the connection. Can be called again."""
        self._connection.close()

    def sleep(self, seconds: Duration) -> None:
        """Wait for `seconds`; the connection is served meanwhile, and may be lost and made again.

        Raises ConnectionClosedError as soon as the client is closed.
        """
        seconds = check_seconds(seconds, "seconds")
        self._connection.until(lambda: False, seconds)

    # For the layers above

    def exchange(self, subject: str, payload: bytes, *, header: bytes = b"", timeout: float, what: str) -> Msg:
        """Send a request and return its one reply, as it arrived: it may be the status "no responders".

        Raises RequestTimeoutError, which names `what`, or ConnectionLostError if the connection is lost meanwhile.
        """
        reply = _Reply()
        with self._connection.lock:
            token = self._requests.start(subject, payload, reply, header)
        try:
            if not self._connection.until(reply.is_done, timeout):
                raise timed_out(what, timeout)
        finally:
            self.cancel(token)
        if reply.error is not None:
            raise reply.error
        assert reply.msg is not None
        return reply.msg

    def start(self, subject: str, payload: bytes, sink: ReplySink, *, header: bytes = b"") -> str:
        """Send a request; every reply goes to `sink` until it returns True. The token is for `cancel`."""
        connection = self._connection
        with connection.lock:
            token = self._requests.start(subject, payload, sink, header)
            if not connection.is_write_due or self._outgoing.size > WRITE_SIZE:
                connection.write_soon()
        return token

    def expect(self, sink: ReplySink) -> ExpectedReplies:
        """A subject of the inbox whose messages go to `sink`: for what another request brings about."""
        with self._connection.lock:
            return self._requests.expect(sink)

    def start_bulk(self, subject: str, payload: bytes, sink: BulkSink, *, header: bytes = b"") -> str:
        """As `start`, for a sink that takes many replies at once."""
        with self._connection.lock:
            token = self._requests.start_bulk(subject, payload, sink, header)
            self._connection.write_soon()
        return token

    def start_one(
        self, subject: str, payload: bytes, sink: SingleWindowSink[T], entry: T, *, header: bytes = b""
    ) -> int:
        """Send a request with one answer, for which `sink` gets `entry`; the token, as text, is for `cancel`."""
        connection = self._connection
        with connection.lock:
            token = self._requests.start_one(subject, payload, sink, entry, header)
            if not connection.is_write_due or self._outgoing.size > WRITE_SIZE:
                connection.write_soon()
        return token

    def start_many(self, messages: Sequence[Draft], sink: BlockWindowSink) -> None:
        """Send a block of requests with one answer each, over the current connection only."""
        with self._connection.lock:
            self._requests.start_many(messages, sink)
            self._connection.write_soon()

    def publish_many(self, messages: Sequence[Draft], replies: Sequence[bytes]) -> None:
        """Send a block of messages, each with its reply subject, over the current connection only."""
        with self._connection.lock:
            self._outgoing.publish_block(messages, replies)
            self._connection.write_soon()

    def cancel(self, token: str) -> None:
        """Forget a request; later replies are dropped."""
        with self._connection.lock:
            self._requests.cancel(token)

    def answer(self, subject: str, payload: bytes = b"") -> bool:
        """Publish a few bytes to a reply subject that is used once: quicker than `publish`, and never waits.

        Returns `is_full`.
        """
        connection, outgoing = self._connection, self._outgoing
        with connection.lock:
            outgoing.answer(subject, payload)
            if not connection.is_write_due or outgoing.size > WRITE_SIZE:
                connection.write_soon()
        return self.is_full

    def wait(self, ready: Callable[[], bool], *, timeout: float, what: str) -> None:
        """Return once `ready()` is true; it is asked now and after each chunk received.

        Raises RequestTimeoutError, which names `what`, or ConnectionLostError if the connection is lost meanwhile.
        """
        if not self._connection.until(ready, timeout, epoch=self._session.epoch):
            raise timed_out(what, timeout)

    def wait_for_reply(self, sink: AwaitedSink, *, timeout: float, what: str) -> None:
        """Return once a sink that was passed to `start` is ready. Raises RequestTimeoutError, which names `what`."""
        if not self._connection.until(sink.is_ready, timeout):
            raise timed_out(what, timeout)

    @property
    def is_full(self) -> bool:
        """Whether too many unsent bytes are pending: `ready` waits for that to end."""
        connection = self._connection
        return self._outgoing.size + connection.transport.unsent > connection.max_pending

    def ready(self) -> None:
        """Wait until the unsent bytes are within their bound."""
        self._connection.ready()

    def now(self) -> float:
        """The clock of all timeouts, in seconds."""
        return time.monotonic()

    def mark(self, *, interval: float) -> None:
        """Have `sent_after` moved by a PING, unless one was sent less than `interval` seconds ago."""
        with self._connection.lock:
            self._session.mark(uptime(), interval=interval, at=self.now())
            if self._outgoing.frames:
                self._connection.write_soon()

    def let_run(self) -> None:
        """Send what is due, in a thread that may not have waited for anything for a while."""
        with self._connection.lock:
            self._connection.write()

    def leave_server(self, reason: Error) -> bool:
        """Drop this connection for one to another server; False if no other is known. `reason` is reported.

        For a server that is connected to us and cut off from its cluster, which only unanswered requests show.
        """
        return self._connection.leave(reason)

    def spawn(self, main: Callable[[], None], name: str) -> Worker:
        """Run a function in a thread of its own; what it waits for fails when the client is closed."""
        worker = Worker(self._connection.start_thread(main, name))
        with self._connection.lock:
            self._workers = [*(one for one in self._workers if not one.is_done), worker]
        return worker

    def is_own_end(self, error: BaseException) -> bool:
        """Whether an exception ends the running thread from outside: none does."""
        return isinstance(error, GeneratorExit)

    def run_here(self, call: Callable[[], None]) -> None:
        """Call a function now, or soon if this thread holds the lock: for finalizers, which run anywhere."""
        self._connection.run_here(call)


connect = Client.connect
