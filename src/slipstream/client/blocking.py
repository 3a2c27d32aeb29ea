"""The blocking driver: a `Session` gets a plain socket and the callers' own threads; no event loop, no reader thread.

Invariants: one lock guards the session; one thread at a time, the pump, reads the socket, and it does so without the
lock. Whoever waits pumps, or waits for the pump to hand it its answer or the pumping. The keeper, a thread that wakes
once a second, pumps when nobody else did, sends PINGs and what was left unsent, and reconnects. A socket is closed by
the pump that reads it or, when there is none, by whoever gives it up.
"""

from __future__ import annotations

import os
import random
import secrets
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import NoReturn, Self, assert_never

from slipstream.client.base import (
    BaseClient,
    BaseMessage,
    HeadersLike,
    encode_headers,
    is_no_responders,
    timed_out,
)
from slipstream.client.events import BulkSink, ClientEvent, Drop, Effect, Ended, EventHandler, Ready, ReplySink, Report
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
from slipstream.errors import ConnectionLostError, Error, NoRespondersError, SlowConsumerError, UsageError
from slipstream.wire import Msg
from slipstream.wire.inbox import DEFAULT_PREFIX

__all__ = ["Client", "Message", "Subscription", "connect"]

READ_SIZE = 64 * 1024
WRITE_SIZE = 64 * 1024  # frames are sent when that much has come together,
IDLE = 0.001  # or at once when nothing was sent for that long, else by the keeper after that time
KEEPER_INTERVAL = 1.0
CLOSE_TIMEOUT = 0.5
FOREVER = 1e6  # seconds; what the operating system's waits take


class Message(BaseMessage["Client"]):
    """One message."""

    def respond(self, payload: bytes = b"", *, headers: HeadersLike | None = None) -> None:
        """Publish an answer to whoever asked."""
        self._client.publish(self._answer_to(), payload, headers=headers)


Callback = Callable[[Message], None]


class Subscription:
    """Messages of one subject: `for message in subscription`, `next`, or `next_chunk` for all that is there."""

    def __init__(self, client: Client, box: Mailbox) -> None:
        self._client = client
        self._box = box

    @property
    def subject(self) -> str:
        """The subject or filter."""
        return self._box.subject

    @property
    def pending(self) -> int:
        """Messages that arrived and were not taken yet."""
        return self._box.pending

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unsubscribe()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        box, client = self._box, self._client
        with client._lock:
            if box.items:
                return Message(box.take(), client)
        msgs = self._take(lambda: None if box.is_over else [box.take()], FOREVER)
        if msgs is None:
            raise StopIteration
        return Message(msgs[0], client)

    def next(self, *, timeout: float = 5.0) -> Message:
        """The next message. Raises RequestTimeoutError, or SlowConsumerError where messages had to be dropped."""
        msgs = self._take(lambda: [self._box.take()], timeout)
        assert msgs is not None
        return Message(msgs[0], self._client)

    def next_chunk(self, *, timeout: float = 5.0) -> list[Message]:
        """Every message that is there, at least one. Raises as `next` does."""
        msgs = self._take(self._box.take_all, timeout)
        assert msgs is not None
        return [Message(msg, self._client) for msg in msgs]

    def unsubscribe(self, max_msgs: int = 0) -> None:
        """End the subscription, at once or after `max_msgs` messages in all. What is there can still be taken."""
        self._client._unsubscribe(self._box, max_msgs)

    def _take(self, take: Callable[[], list[Msg] | None], timeout: float) -> list[Msg] | None:
        """Wait until there is something and take it, in one step under the lock: another thread may read as well."""
        taken: list[list[Msg] | None] = []

        def ready() -> bool:
            if self._box.is_ready:
                taken.append(take())
            return bool(taken)

        if not self._client._until(ready, timeout):
            raise timed_out(f"subscription of {self.subject!r}", timeout)
        return taken[0]


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


class Client(BaseClient):
    """A connection to NATS. Made by `connect`. All methods may be called from any thread."""

    def __init__(self, options: Options, on_event: EventHandler | None) -> None:
        self._core = Session(options, nonce=secrets.token_hex(11))
        self._on_event = on_event
        self._bound = options.max_pending_bytes
        self._lock: threading.RLock | _Forked = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._news: deque[ClientEvent] = deque()  # told when the lock is not held
        self._line = _Line()
        self._is_pumping = False
        self._is_write_due = False  # the keeper was told
        self._last_write = 0.0
        self._last_drain = 0.0
        self._kick = threading.Event()  # wakes the keeper
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._callbacks: dict[bytes, tuple[Subscription, Callback]] | None = None
        self._called: deque[bytes] = deque()  # the sids with something for their callback
        _clients.add(self)

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
    ) -> Self:
        """Connect to one of `servers`: `nc = connect(...)`, or `with connect(...) as nc`.

        `timeout` is for each server tried. A PING goes out every `ping_interval` seconds; after `max_pings_out` of them
        without a sign of life the connection counts as lost. With `reconnect`, a lost connection is made again, with
        pauses from `reconnect_wait` up to `reconnect_max_wait` seconds, at most `max_reconnects` times in a row (None:
        forever); what is published meanwhile is kept, up to `reconnect_buffer_bytes`. `on_event` is told what no call
        can raise, by whichever thread saw it.
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
        client = cls(options, on_event)
        try:
            client._connect()
        except BaseException:
            client.close()
            raise
        if client._core.error is not None:
            raise client._core.error
        ref: weakref.ref[Client] = weakref.ref(client)
        client._start_thread(partial(_keeper, ref, client._kick), "keeper")
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

    def flush(self, *, timeout: float = 5.0) -> None:
        """Wait until the server has processed everything sent so far."""
        with self._lock:
            answer, epoch = self._core.ping(), self._core.epoch
        if not self._until(lambda: answer.is_here, timeout, epoch=epoch):
            raise timed_out("flush", timeout)

    def close(self) -> None:
        """Send what is pending, end all subscriptions and close the connection. Can be called again."""
        if isinstance(self._lock, _Forked):
            return  # the parent's connection; our copy of its socket is closed already
        core, line = self._core, self._line
        with suppress(Error):  # closed already, or lost on the way
            self._until(lambda: not core.is_connected or not line.unsent + core.out_size, CLOSE_TIMEOUT)
        with self._changed:
            self._carry_out(core.close())
            self._line.finish(CLOSE_TIMEOUT, is_read=self._is_pumping)
            self._closing.set()
            self._kick.set()
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._is_pumping, CLOSE_TIMEOUT):
                self._line.hang_up()
                self._changed.wait_for(lambda: not self._is_pumping, CLOSE_TIMEOUT)
            self._line.discard()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(CLOSE_TIMEOUT)
        self._tell_news()

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

    def cancel(self, token: str) -> None:
        """Forget a request; later replies are dropped."""
        with self._lock:
            self._core.cancel(token)

    def wait(self, ready: Callable[[], bool], *, timeout: float, what: str) -> None:
        """Return once `ready()` is true; it is asked now and after each chunk that was received.

        Raises RequestTimeoutError, which names `what`, or ConnectionLostError if the connection goes meanwhile.
        """
        if not self._until(ready, timeout, epoch=self._core.epoch):
            raise timed_out(what, timeout)

    def ready(self) -> None:
        """Return when the bytes to be sent are under their bound."""
        core, line, bound = self._core, self._line, self._bound
        self._until(lambda: not core.is_connected or line.unsent + core.out_size <= bound, FOREVER)

    def now(self) -> float:
        """The clock of all timeouts, in seconds."""
        return time.monotonic()

    # The pump

    def _until(self, ready: Callable[[], bool], timeout: float, *, epoch: int | None = None) -> bool:
        """Pump, or wait for the pump, until `ready()`, which runs under the lock; False when the time is up.

        Raises if the client is closed, and if the connection counted as `epoch` is lost.
        """
        core = self._core
        deadline = time.monotonic() + timeout
        while True:
            with self._changed:
                self._write()
                if ready():
                    return True
                core.check()
                if epoch is not None and core.epoch != epoch:
                    raise ConnectionLostError(f"the connection to {core.server} was lost: {core.last_error}")
                now, due = time.monotonic(), core.timer if core.is_connected else FOREVER
                if now >= due:
                    self._carry_out(core.tick(now))
                    continue
                if now >= deadline:
                    return False
                left = min(deadline, due) - now
                if self._is_pumping or not self._line.is_open:
                    self._changed.wait(left)
                    continue
                self._is_pumping, line = True, self._line
            self._pump(line, left)

    def _pump(self, line: _Line, left: float) -> bool:
        """Read once, without the lock, and handle what came; whether anything did. The caller set `_is_pumping`."""
        data: bytes | None = None
        error: Error | None = None
        try:
            data = line.read(left)
            if data == b"":
                error = ConnectionLostError("the server closed the connection")
        except OSError as exc:
            error = ConnectionLostError(f"connection lost: {exc}")
            error.__cause__ = exc
        finally:
            with self._changed:
                self._is_pumping = False
                if line is not self._line:
                    line.discard()  # given up while we read it
                elif error is not None:
                    self._lost(error)
                elif data:
                    self._carry_out(self._core.received(data, time.monotonic()))
                    if self._core.out:
                        self._write()
                self._changed.notify_all()
        self._tell_news()
        return bool(data)

    def _write_soon(self) -> None:
        """At once when much has come together or the line was idle; in a burst the keeper sends what is left over."""
        if self._core.out_size > WRITE_SIZE or time.monotonic() - self._last_write > IDLE:
            self._write()
        else:
            self._is_write_due = True
            self._kick.set()

    def _write(self) -> None:
        """Give the socket what it takes; the rest stays with the line, and the pump looks out for room."""
        line, core = self._line, self._core
        self._is_write_due = False
        if not line.is_open or not (core.out or line.unsent):
            return
        was_full = bool(line.unsent)
        try:
            while core.out or line.unsent:
                if not line.unsent:
                    line.put(core.take())
                if not line.write():
                    if self._is_pumping:
                        line.nudge()
                    break
            else:
                if was_full:
                    self._changed.notify_all()  # others wait for room
        except OSError as exc:
            error = ConnectionLostError(f"connection lost: {exc}")
            error.__cause__ = exc
            self._lost(error)
        self._last_write = time.monotonic()

    # The connection

    def _connect(self) -> None:
        """Try servers until one accepts us or none is left."""
        core = self._core
        while core.state in (State.IDLE, State.WAITING):
            pause = core.timer - time.monotonic()
            if core.state is State.WAITING and pause > 0:
                self._closing.wait(pause)
            self._dial()
        self._tell_news()

    def _dial(self) -> None:
        """Try one server; how it ended is in the state."""
        core = self._core
        with self._lock:
            if self.is_closed:
                return
            server = core.dial(time.monotonic())
        try:
            sock = socket.create_connection((server.host, server.port), timeout=core.options.timeout)
        except TimeoutError:
            with self._lock:
                self._carry_out(core.tick(core.timer))
            return
        except OSError as exc:
            error = ConnectionLostError(f"{server}: {exc}")
            error.__cause__ = exc
            with self._changed:
                self._lost(error)
            return
        with self._lock:
            if self.is_closed:
                sock.close()
                return
            core.opened()
            self._line = _Line(sock)
        handshake = (State.GREETING, State.HANDSHAKE)
        if not self._until(lambda: core.state not in handshake, core.timer - time.monotonic()):
            with self._lock:
                self._carry_out(core.tick(core.timer))

    def _lost(self, error: Error) -> None:
        """The socket is of no use any more. The lock is held."""
        self._give_up_line()
        if not self.is_closed:
            self._carry_out(self._core.lost(error, now=time.monotonic(), random=random.random()))
        self._kick.set()
        self._changed.notify_all()

    def _give_up_line(self) -> None:
        line, self._line = self._line, _Line()
        if self._is_pumping:
            line.hang_up()  # wakes the pump, which discards it
        else:
            line.discard()

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Drop):
                self._lost(effect.error)
            elif isinstance(effect, Report):
                self._news.append(effect.event)
            elif isinstance(effect, Ready | Ended):
                self._changed.notify_all()
            else:
                assert_never(effect)

    def _tell_news(self) -> None:
        while self._news:
            try:
                event = self._news.popleft()
            except IndexError:  # another thread was quicker
                return
            self._tell(event)

    def _unsubscribe(self, box: Mailbox, max_msgs: int) -> None:
        with self._changed:
            self._core.unsubscribe(box, max_msgs)
            self._write()
            self._changed.notify_all()

    # The keeper

    def _keep(self) -> None:
        """What nobody else may be there to do: send, ping, read, reconnect."""
        with self._lock:
            self._write()
            self._carry_out(self._core.tick(time.monotonic()))
            self._write()
        if self._core.state is State.WAITING:
            with suppress(Error):  # closed meanwhile
                self._connect()
        elif time.monotonic() - self._last_drain >= KEEPER_INTERVAL:
            self._drain()
        self._tell_news()

    def _drain(self) -> None:
        """Read all there is, unless somebody pumps anyway."""
        while True:
            self._last_drain = time.monotonic()
            with self._lock:
                if self._is_pumping or not self._line.is_open:
                    return
                self._is_pumping, line = True, self._line
            if not self._pump(line, 0.0):
                return

    def _start_thread(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=f"slipstream {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    # Callbacks

    def _call_back(self, subscription: Subscription, callback: Callback) -> None:
        """From now on the dispatcher reads this subscription. The lock is held."""
        if self._callbacks is None:
            self._callbacks = {}
            self._start_thread(self._dispatch, "callbacks")
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
                try:
                    msgs = subscription._box.take_all()
                except SlowConsumerError:
                    msgs = []  # reported when the gap began
                except Error:
                    del self._callbacks[sid]  # the end
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


class _Line:
    """A socket that does not block, with a way to wake whoever waits for it. Without a socket: not connected."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        self._sock = sock
        self._rest = memoryview(b"")
        self._wants_room = False
        if sock is None:
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._waker, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    @property
    def is_open(self) -> bool:
        return self._sock is not None

    @property
    def unsent(self) -> int:
        return len(self._rest)

    def put(self, data: bytes) -> None:
        self._rest = memoryview(data)

    def write(self) -> bool:
        """Send the rest; False when the socket did not take all of it."""
        assert self._sock is not None
        try:
            while self._rest:
                self._rest = self._rest[self._sock.send(self._rest) :]
        except BlockingIOError:
            return False
        return True

    def read(self, timeout: float) -> bytes | None:
        """What has arrived, after waiting for it; None when nothing has, or when it is worth looking around again."""
        sock = self._sock
        assert sock is not None
        try:
            return sock.recv(READ_SIZE)
        except BlockingIOError:
            pass
        if self._wants_room != bool(self._rest):
            self._wants_room = not self._wants_room
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._wants_room else 0)
            self._selector.modify(sock, events)
        for key, events in self._selector.select(min(timeout, FOREVER)):
            if key.fileobj is self._woken:
                self._woken.recv(64)
            elif events & selectors.EVENT_READ:
                return sock.recv(READ_SIZE)
        return None

    def nudge(self) -> None:
        """Wake the thread in `read`."""
        with suppress(BlockingIOError):  # plenty of wake-ups wait already
            self._waker.send(b"!")

    def hang_up(self) -> None:
        """End the connection; the thread in `read` notices."""
        if self._sock is not None:
            with suppress(OSError):  # the peer was quicker
                self._sock.shutdown(socket.SHUT_RDWR)

    def finish(self, timeout: float, *, is_read: bool) -> None:
        """Wait until the server hangs up: closing with its bytes unread could take our last ones with them."""
        if self._sock is None:
            return
        with suppress(OSError):  # it hung up hard, or not in time
            self._sock.shutdown(socket.SHUT_WR)
            self._sock.settimeout(timeout)
            while not is_read and self._sock.recv(READ_SIZE):
                pass

    def discard(self) -> None:
        """Close everything; nobody reads any more."""
        if self._sock is not None:
            self._selector.close()
            self._waker.close()
            self._woken.close()
            self._sock.close()
            self._sock = None


class _Forked:
    """Takes the place of the lock in a forked child, where the connection is the parent's."""

    def __enter__(self) -> NoReturn:
        raise UsageError(
            "this client was made before the process forked: the connection is the parent's, connect again"
        )

    def __exit__(self, *_: object) -> None: ...


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for client in list(_clients):
        client._lock = _Forked()
        client._changed = client._lock  # type: ignore[assignment]
        client._line.discard()  # our copies of the descriptors; the connection itself goes on in the parent
    _clients.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def _keeper(ref: weakref.ref[Client], kick: threading.Event) -> None:
    """The keeper's thread. It holds the client only while it works, so a client that nobody has any more can go."""
    while True:
        if kick.wait(KEEPER_INTERVAL):
            kick.clear()
            time.sleep(IDLE)  # let a burst come together
        client = ref()
        if client is None or client._closing.is_set() or client.is_closed:
            return
        client._keep()
        del client


connect = Client.connect
