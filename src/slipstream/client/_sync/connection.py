"""A `Session` gets a plain socket and the callers' own threads; no event loop, no reader thread.

Invariants: one lock guards the session; one thread at a time, the pump, reads the socket, and it does so without the
lock. Whoever waits pumps, or waits for the pump to hand it its answer or the pumping. The keeper, a thread that wakes
once a second, pumps when nobody else did, sends PINGs and what was left unsent, and reconnects. A socket is closed by
the pump that reads it or, when there is none, by whoever gives it up.
"""

from __future__ import annotations

import math
import os
import random
import secrets
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NoReturn, assert_never

from slipstream.client._sync.transport import LONGEST, Transport
from slipstream.client.base import FOREVER, BaseClient, lost_meanwhile, timed_out
from slipstream.client.events import ClientEvent, Drop, Effect, Ended, EventHandler, Ready, Report, StartTls
from slipstream.client.layers.stack import LayerStack, channel_for, tls_layer
from slipstream.client.options import Options
from slipstream.client.secrets import read_login
from slipstream.client.session import Session, State
from slipstream.errors import ConnectionLostError, CredentialsError, Error, UsageError

WRITE_SIZE = 64 * 1024  # frames are sent when that much has come together,
IDLE = 0.001  # or at once when nothing was sent for that long, else by the keeper after that time
KEEPER_INTERVAL = 1.0
CLOSE_TIMEOUT = 0.5


class Connection(BaseClient):
    """The socket, the threads and the waits of one client."""

    def __init__(self, options: Options, on_event: EventHandler | None) -> None:
        super().__init__()
        self._core = Session(options, nonce=secrets.token_hex(11))
        self._on_event = on_event
        self._bound = options.max_pending_bytes
        self._lock: threading.RLock | Forked = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._news: deque[ClientEvent] = deque()  # told when the lock is not held
        self._line = Transport()
        self._is_pumping = False
        self._is_write_due = False  # the keeper was told
        self._last_write = 0.0
        self._last_drain = 0.0
        self._kick = threading.Event()  # wakes the keeper
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._later: deque[Callable[[], None]] = deque()  # what finalizers had to put off
        _clients.add(self)

    def close(self) -> None:
        """Send what is pending, end all subscriptions and close the connection. Can be called again."""
        if isinstance(self._lock, Forked):
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

    # Waiting

    def wait(self, ready: Callable[[], bool], *, timeout: float, what: str) -> None:
        """Return once `ready()` is true; it is asked now and after each chunk that was received.

        Raises RequestTimeoutError, which names `what`, or ConnectionLostError if the connection goes meanwhile.
        """
        if not self._until(ready, timeout, epoch=self._core.epoch):
            raise timed_out(what, timeout)

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`; the connection is served meanwhile, and may be lost and made again.

        Raises ConnectionClosedError as soon as the client is closed.
        """
        self._until(lambda: False, seconds)

    def ready(self) -> None:
        """Return when the bytes to be sent are under their bound."""
        core, bound = self._core, self._bound
        self._until(lambda: not core.is_connected or self._line.unsent + core.out_size <= bound, FOREVER)

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
                    raise lost_meanwhile(core)
                now, due = time.monotonic(), core.timer if core.is_connected else math.inf
                if now >= due:
                    self._carry_out(core.tick(now))
                    continue
                if now >= deadline:
                    return False
                left = min(deadline, due, now + LONGEST) - now
                if self._is_pumping or not self._line.is_open:
                    self._changed.wait(left)
                    continue
                self._is_pumping, line = True, self._line
            self._pump(line, left)

    def _pump(self, line: Transport, left: float) -> bool:
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
                    self._received(line, data)
                self._changed.notify_all()
        self._tell_news()
        return bool(data)

    def _stir(self) -> None:
        """Something changed that did not come from the socket: whoever waits looks again, the pump included."""
        self._changed.notify_all()
        if self._is_pumping and self._line.is_open:
            self._line.nudge()

    def _received(self, line: Transport, data: bytes) -> None:
        """Handle what arrived. The lock is held."""
        if line.channel is not None:
            data = self._unwrapped(line, line.channel, data)
        if data:
            self._carry_out(self._core.received(data, time.monotonic()))
        if self._core.out or self._line.unsent:
            self._write()

    def _unwrapped(self, line: Transport, channel: LayerStack, data: bytes) -> bytes:
        """What arrived as the session understands it; empty while the channel talks to its other end."""
        was_ready = channel.is_ready
        try:
            data = channel.received(data)
            if channel.is_ready and not was_ready:
                self._carry_out(self._core.opened())
            line.speak()
        except Error as exc:
            line.speak()  # an alert
            self._write()
            if line is self._line:
                self._lost(exc)
        return data if line is self._line else b""

    def _secure(self) -> None:
        """The server greeted in plain bytes and waits for TLS."""
        core = self._core
        try:
            self._line.channel = LayerStack([tls_layer(core.server, core.options)])
            self._line.speak()
        except Error as exc:
            self._lost(exc)

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

    def _open(self) -> None:
        """Connect for the first time, or raise the reason why not."""
        try:
            self._connect()
        except BaseException:
            self.close()
            raise
        if self._core.error is not None:
            raise self._core.error
        self._start_thread(partial(keeper, weakref.ref(self), self._kick), "keeper")

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
            core.login = read_login(core.options)
            channel = channel_for(server, core.options, random=secrets.token_bytes)
            sock = socket.create_connection((server.host, server.port), timeout=core.options.timeout)
        except TimeoutError:
            with self._lock:
                self._carry_out(core.tick(core.timer))
            return
        except CredentialsError as exc:
            with self._changed:
                self._lost(exc)
            return
        except (OSError, ValueError, OverflowError) as exc:  # of names and ports that cannot be
            error = ConnectionLostError(f"{server}: {exc}")
            error.__cause__ = exc
            with self._changed:
                self._lost(error)
            return
        with self._lock:
            if self.is_closed:
                sock.close()
                return
            self._line = Transport(sock, channel)
            if channel is None:
                core.opened()
            else:
                self._line.speak()
        if not self._until(lambda: not core.is_trying, core.timer - time.monotonic()):
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
        line, self._line = self._line, Transport()
        if self._is_pumping:
            line.hang_up()  # wakes the pump, which discards it
        else:
            line.discard()

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Drop):
                self._lost(effect.error)
            elif isinstance(effect, StartTls):
                self._secure()
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

    # The keeper

    def _keep(self) -> None:
        """What nobody else may be there to do: send, ping, read, reconnect."""
        while self._later:
            self._later.popleft()()
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

    def _start_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"slipstream {name}", daemon=True)
        with self._lock:
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]
        thread.start()
        return thread


class Forked:
    """Takes the place of the lock in a forked child, where the connection is the parent's."""

    def __enter__(self) -> NoReturn:
        raise UsageError(
            "this client was made before the process forked: the connection is the parent's, connect again"
        )

    def __exit__(self, *_: object) -> None: ...


_clients: weakref.WeakSet[Connection] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for client in list(_clients):
        client._lock = Forked()
        client._changed = client._lock  # type: ignore[assignment]
        client._line.discard()  # our copies of the descriptors; the connection itself goes on in the parent
    _clients.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def keeper(ref: weakref.ref[Connection], kick: threading.Event) -> None:
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
