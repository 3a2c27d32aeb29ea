"""The blocking driver: plain calls, by any thread; `blocking_connection` is what carries them out."""

from __future__ import annotations

import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from slipstream.client._sync.connection import WRITE_SIZE, Connection, Forked
from slipstream.client._sync.subscription import Callback, Message, Subscription
from slipstream.client._sync.tasks import Worker
from slipstream.client.auth import Path, Secret
from slipstream.client.base import (
    DRAIN_LOOK,
    DRAIN_TIMEOUT,
    FOREVER,
    HeadersLike,
    encode_headers,
    is_no_responders,
    not_taken,
    timed_out,
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
    """The sink of `request`: one reply or an error."""

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


class Client(Connection):
    """A connection to NATS. Made by `connect`. All methods may be called from any thread."""

    def __init__(self, options: Options, on_event: EventHandler | None) -> None:
        super().__init__(options, on_event)
        self._callbacks: dict[bytes, tuple[Subscription, Callback]] | None = None
        self._caller: threading.Thread | None = None  # the thread that runs them
        self._called: deque[bytes] = deque()  # the sids with something for their callback

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
    ) -> Self:
        """Connect to one of `servers`: `nc = connect(...)`, or `with connect(...) as nc`.

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
        can raise, by whichever thread saw it.
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
        client = cls(options, on_event)
        client._open()
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # For users

    def publish(
        self, subject: str, payload: bytes = b"", *, reply: str = "", headers: HeadersLike | None = None
    ) -> None:
        """Send a message to whoever listens. Waits only while more unsent bytes are pending than allowed."""
        core = self._core
        header = encode_headers(headers) if headers else b""
        with self._lock:
            core.publish(subject, payload, reply, header)
            if not self._is_write_due or core.out_size > WRITE_SIZE:
                self._write_soon()
        if core.out_size + self._line.unsent > self._bound:
            self.ready()

    def subscribe(
        self,
        subject: str,
        *,
        queue: str = "",
        max_pending_msgs: int = MAX_PENDING_MSGS,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        callback: Callback | None = None,
    ) -> Subscription:
        """Ask for the messages of `subject`, as a member of the group `queue` if that is not empty.

        They are read from the subscription, or handed to `callback` one after the other, in order, by the one thread
        that runs all callbacks of this client. At most `max_pending_msgs` and `max_pending_bytes` wait to be taken.
        """
        with self._lock:
            box = self._core.subscribe(subject, queue=queue, max_msgs=max_pending_msgs, max_bytes=max_pending_bytes)
            subscription = Subscription(self, box)
            if callback is not None:
                self._call_back(subscription, callback)
            self._write()
        return subscription

    def request(
        self, subject: str, payload: bytes = b"", *, headers: HeadersLike | None = None, timeout: float = 5.0
    ) -> Message:
        """Publish a request and wait for the first reply.

        Raises NoRespondersError if nobody listens, RequestTimeoutError if nobody answers in time, ConnectionLostError
        if the connection goes meanwhile.
        """
        reply = _Reply()
        with self._lock:
            token = self._core.start(subject, payload, reply, encode_headers(headers))
        try:
            if not self._until(reply.is_done, timeout):
                raise timed_out(f"request to {subject!r}", timeout)
        finally:
            self.cancel(token)
        if reply.error is not None:
            raise reply.error
        assert reply.msg is not None
        if is_no_responders(reply.msg):
            raise NoRespondersError(subject)
        return Message(reply.msg, self)

    def request_many(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: HeadersLike | None = None,
        timeout: float = 5.0,
        max_messages: int | None = None,
        idle_timeout: float | None = None,
        sentinel: Callable[[Message], bool] | None = None,
    ) -> Iterator[Message]:
        """Publish a request and iterate over all replies: `for message in nc.request_many(...)`.

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
                    message = replies.next(timeout=many.patience(self.now()))
                except RequestTimeoutError:
                    return
                if is_no_responders(message.raw):
                    raise NoRespondersError(subject)
                if sentinel is not None and sentinel(message):
                    return
                yield message
        finally:
            self.cancel(token)

    def flush(self, *, timeout: float = 5.0) -> None:
        """Wait until the server has processed everything sent so far."""
        with self._lock:
            answer, epoch = self._core.ping(), self._core.epoch
        if not self._until(lambda: answer.is_here, timeout, epoch=epoch):
            raise timed_out("flush", timeout)

    def drain(self, *, timeout: float = DRAIN_TIMEOUT) -> None:
        """End all subscriptions, wait until what they hold is taken or handled, send everything, then close.

        Meanwhile nothing can be subscribed to, all else goes on. The client is closed in any case. Raises
        RequestTimeoutError if not all is taken in time, ConnectionLostError if the connection goes meanwhile.
        """
        deadline = self.now() + timeout
        try:
            boxes = self._drained(None, timeout)
            while not self._until(lambda: all(not box.items and self._is_handled(box) for box in boxes), DRAIN_LOOK):
                if self.now() > deadline:
                    raise not_taken(boxes, timeout)
            self.flush(timeout=max(0.0, deadline - self.now()))
        finally:
            self.close()

    # For the rooms above

    def start(self, subject: str, payload: bytes, sink: ReplySink, *, header: bytes = b"") -> str:
        """Send a request; every reply goes to `sink` until it says that it is finished. The token is for `cancel`."""
        core = self._core
        with self._lock:
            token = core.start(subject, payload, sink, header)
            if not self._is_write_due or core.out_size > WRITE_SIZE:
                self._write_soon()
        return token

    def start_bulk(self, subject: str, payload: bytes, sink: BulkSink) -> str:
        """The same for a sink that takes many replies at once."""
        with self._lock:
            token = self._core.start_bulk(subject, payload, sink)
            self._write_soon()
        return token

    def start_many(self, messages: Sequence[Draft], sink: WindowSink) -> None:
        """Send a block of requests with one answer each. It is not kept should there be no connection."""
        with self._lock:
            self._core.start_many(messages, sink)
            self._write_soon()

    def publish_many(self, messages: Sequence[Draft], replies: Sequence[bytes]) -> None:
        """Send a block of messages, each with its reply subject. It is not kept should there be no connection."""
        with self._lock:
            self._core.publish_many(messages, replies)
            self._write_soon()

    def cancel(self, token: str) -> None:
        """Forget a request; later replies are dropped."""
        with self._lock:
            self._core.cancel(token)

    def leave_server(self, reason: Error) -> bool:
        """Give this connection up for one to another server; False if no other is known. `reason` is what users hear.

        For a server that is connected to us and cut off from its cluster, which only requests without answers show.
        """
        with self._changed:
            effects = self._core.leave(reason)
            self._carry_out(effects)
        self._tell_news()
        return bool(effects)

    def answer(self, subject: str, payload: bytes = b"") -> None:
        """Publish a few bytes to a reply subject that is used once: quicker than `publish`, and without a wait."""
        core = self._core
        with self._lock:
            core.answer(subject, payload)
            if not self._is_write_due or core.out_size > WRITE_SIZE:
                self._write_soon()

    @property
    def is_full(self) -> bool:
        """Whether more bytes wait to be sent than allowed: `ready` waits until it is not so."""
        return self._core.out_size + self._line.unsent > self._bound

    def spawn(self, main: Callable[[], None], name: str) -> Worker:
        """Let a function go on by itself, in a thread of its own, no longer than the client lives."""
        return Worker(self._start_thread(main, name))

    def run_here(self, call: Callable[[], None]) -> None:
        """Call that now, or soon if this thread is in the middle of something: for finalizers, which run anywhere."""
        if isinstance(self._lock, Forked):
            return  # the parent's connection
        if self._lock._is_owned():  # type: ignore[attr-defined]
            self._later.append(call)
            self._kick.set()
        else:
            call()

    # For subscriptions

    def _drained(self, box: Mailbox | None, timeout: float) -> Sequence[Mailbox]:
        """End one subscription or all when everything the server has for them is here; returns their mailboxes."""
        with self._lock:
            answer, epoch = self._core.drain(box), self._core.epoch
        if not self._until(lambda: answer.is_here, timeout, epoch=epoch):
            raise timed_out(f"drain of {box.subject!r}" if box else "drain", timeout)
        return answer.draining

    def _is_handled(self, box: Mailbox) -> bool:
        """Whether no callback has to do with a subscription that ended; its own thread cannot wait for itself."""
        return not self._callbacks or box.sid not in self._callbacks or threading.current_thread() is self._caller

    def _unsubscribe(self, box: Mailbox, max_msgs: int) -> None:
        with self._changed:
            self._core.unsubscribe(box, max_msgs)
            self._write()
            self._stir()

    # Callbacks

    def _call_back(self, subscription: Subscription, callback: Callback) -> None:
        """From now on the dispatcher reads this subscription. The lock is held."""
        if self._callbacks is None:
            self._callbacks = {}
            self._caller = self._start_thread(self._dispatch, "callbacks")
        self._callbacks[subscription._box.sid] = (subscription, callback)
        self._await_call(subscription._box)

    def _await_call(self, box: Mailbox) -> None:
        if box.is_ready:
            self._called.append(box.sid)
        else:
            box.wake_with(lambda: self._called.append(box.sid))

    def _dispatch(self) -> None:
        """The dispatcher: pumps until there is something to call back for."""
        while not self._closing.is_set():
            try:
                self._until(lambda: bool(self._called), FOREVER)
            except Error:
                return  # closed
            with self._lock:
                assert self._callbacks is not None
                sid = self._called.popleft()
                subscription, callback = self._callbacks[sid]
                if not subscription._box.is_ready:  # woken because the connection is gone: the next one brings more
                    self._await_call(subscription._box)
                    continue
                try:
                    msgs = subscription._box.take_all()
                except SlowConsumerError:
                    msgs = []  # reported when the gap began
                except Error:
                    del self._callbacks[sid]  # the end
                    self._stir()
                    continue
            for msg in msgs:
                if self._closing.is_set():
                    return
                try:
                    callback(Message(msg, self))
                except Exception as exc:  # the top of the user's code
                    self._callback_failed(subscription.subject, exc)
            with self._lock:
                self._await_call(subscription._box)


connect = Client.connect
