"""The blocking driver of a session: a plain socket, read by the threads that wait for it.

Theory of operation. There is no event loop and no reader thread: a round trip costs no thread switch, because the
thread that waits for a reply reads the socket itself.

- **The lock.** One re-entrant lock guards the session, the transport and all fields. `changed` is a condition on it,
  notified after every change that a waiting thread may be interested in. No callback of the user runs under the lock:
  events are queued in `_events` and reported after it was released.
- **The pump.** `until(ready, timeout)` is the only wait. A thread in it checks `ready()` under the lock; if that is
  false and no other thread reads, it becomes the pump: it sets `_is_pumping`, releases the lock, blocks in
  `transport.read`, takes the lock again and hands the bytes to the session. That may complete the wait of any thread,
  so it notifies all of them; the pump itself looks at its own `ready()` and either leaves, so that another waiting
  thread takes over, or reads on. All other waiting threads sleep on `changed`.
- **Writes** happen under the lock, by the thread that publishes: at once when the transport was idle or much is
  pending, else (in a burst) by the keeper a millisecond later, so that many small frames share a system call. What
  the socket does not take stays in the transport, and the pump looks for space as well as for bytes.
- **The keeper** is a daemon thread that wakes once a second, or when it is kicked. It sends what a burst left over,
  sends keep-alive PINGs, reads if no thread has read for a second (or the server's PINGs would go unanswered), and
  reconnects. It also looks after the alarms of silent subscriptions: with such alarms it wakes and reads more often,
  since what is not read yet seems not to have arrived. It holds the connection weakly, so that a client which was
  dropped without `close` can be collected.
- **Closing a transport** is up to the pump that reads it, since a file descriptor closed under a reader could be
  reused; the thread that gives it up only shuts it down. Without a pump it is closed at once.
- **After a fork** the child's copy is useless, as the socket is the parent's: its lock is replaced by one that raises.

Invariants: one thread at a time reads the socket, without the lock; the session is used with the lock only.
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
from slipstream.client.base import FOREVER, connection_lost
from slipstream.client.events import ClientEvent, Connected, Drop, Effect, Ended, Ready, Report, SendNow, StartTls
from slipstream.client.layers.stack import LayerStack, layers_for
from slipstream.client.layers.tls import Tls
from slipstream.client.mailbox import Mailbox
from slipstream.client.options import ClientOptions
from slipstream.client.reporter import Reporter
from slipstream.client.secrets import read_login
from slipstream.client.session import Session, State
from slipstream.client.silence import SilenceAlarm
from slipstream.errors import ConnectionLostError, CredentialsError, Error, UsageError

WRITE_SIZE = 64 * 1024  # frames are sent when that much is pending,
IDLE = 0.001  # or at once when nothing was sent for that long, else by the keeper after that time
KEEPER_INTERVAL = 1.0
READS_PER_ALARM = 6  # in the time of an alarm, if no thread waits; it may be late by the time between two of them
CLOSE_TIMEOUT = 0.5


class Connection:
    """Carries out what one session wants, with the threads that wait for it."""

    def __init__(self, options: ClientOptions) -> None:
        self.session: Session = Session(options, nonce=secrets.token_hex(11))
        self.reporter: Reporter = Reporter(options.on_event)
        self.max_pending: int = options.max_pending_bytes  # a publisher with more unsent bytes waits
        self.lock: threading.RLock | ForkedLock = threading.RLock()
        self.changed: threading.Condition = threading.Condition(self.lock)
        self.is_write_due: bool = False  # the keeper was kicked for it
        self.closing: CloseFlag = CloseFlag()
        self.transport: Transport = Transport()
        self._outgoing = self.session.outgoing
        self._tls = Tls.from_options(options)
        self._events: deque[ClientEvent | Connected] = deque()  # reported when the lock is not held
        self._is_pumping = False
        self._last_write = 0.0
        self._last_read = 0.0  # by the keeper
        self._kick = Wakeup()  # of the keeper
        self._threads: list[threading.Thread] = []
        self._alarms: set[SilenceAlarm] = set()
        self._deferred: deque[Callable[[], None]] = deque()  # calls of finalizers that ran under the lock
        _connections.add(self)

    @property
    def is_closed(self) -> bool:
        """Whether the client is closed for good."""
        return self.session.error is not None

    # Waiting

    def until(self, ready: Callable[[], bool], timeout: float, *, epoch: int | None = None) -> bool:
        """Wait until `ready()`, which runs under the lock, and pump meanwhile; False when the time is up.

        Raises if the client is closed, and if the connection of that `epoch` is lost.
        """
        session = self.session
        deadline = time.monotonic() + timeout
        while True:
            with self.changed:
                self.write()
                if ready():
                    return True
                self._outgoing.check()
                if epoch is not None and session.epoch != epoch:
                    raise connection_lost(session)
                now, due = time.monotonic(), session.timer if session.is_connected else math.inf
                if now >= due:
                    self._carry_out(session.tick(now))
                    continue
                if now >= deadline:
                    return False
                left = min(deadline, due, now + LONGEST) - now
                if self._is_pumping or not self.transport.is_open:
                    self.changed.wait(left)
                    continue
                self._is_pumping, transport = True, self.transport
            self._pump(transport, left)

    def _pump(self, transport: Transport, left: float) -> bool:
        """Read once, without the lock, and handle what arrived; whether anything did. The caller set `_is_pumping`."""
        data: bytes | None = None
        error: Error | None = None
        try:
            data = transport.read(left)
            if data == b"":
                error = ConnectionLostError("the server closed the connection")
        except OSError as exc:
            error = _lost(exc)
        finally:
            with self.changed:
                self._is_pumping = False
                if transport is not self.transport:
                    transport.discard()  # given up while we read it
                elif error is not None:
                    self._lost(error)
                elif data:
                    self._received(transport, data)
                self.changed.notify_all()
        self._report_events()
        return bool(data)

    def stir(self) -> None:
        """Let all waiting threads, the pump included, look again: a change did not come from the socket."""
        self.changed.notify_all()
        if self._is_pumping and self.transport.is_open:
            self.transport.wake()

    def ready(self) -> None:
        """Wait until the unsent bytes are within their bound."""
        self.until(
            lambda: not self._outgoing.is_open or self._outgoing.size + self.transport.unsent <= self.max_pending,
            FOREVER,
        )

    # Calls of the client

    def unsubscribe(self, box: Mailbox, max_msgs: int) -> None:
        """End a subscription, at once or after `max_msgs` messages in all."""
        with self.changed:
            self.session.subscriptions.unsubscribe(box, max_msgs)
            self.write()
            self.stir()

    def drain_soon(self, box: Mailbox) -> None:
        """End a subscription after what the server has sent, without waiting for it."""
        with self.changed:
            if not box.is_ended and not self.is_closed:
                self.session.drain(box)
                self.write()
                self.stir()

    def watch(self, alarm: SilenceAlarm) -> None:
        """Raise this alarm when it is due, until its subscription or the client ends."""
        with self.lock:
            self._alarms.add(alarm)
        self._kick.set()

    def leave(self, reason: Error) -> bool:
        """Drop this connection for one to another server; whether another is known."""
        with self.changed:
            effects = self.session.leave(reason, time.monotonic())
            self._carry_out(effects)
        self._report_events()
        return bool(effects)

    def close(self) -> None:
        """Send what is pending, end all subscriptions and close the socket. Can be called again."""
        if isinstance(self.lock, ForkedLock):
            return  # the parent's connection; our copy of its socket is closed already
        session, transport = self.session, self.transport
        with suppress(Error):  # closed already, or lost meanwhile
            self.until(lambda: not session.is_connected or not transport.unsent + self._outgoing.size, CLOSE_TIMEOUT)
        with self.changed:
            self._carry_out(session.close())
            self.transport.finish(CLOSE_TIMEOUT, is_read=self._is_pumping)
            self.closing.set()
            self._kick.set()
            self.changed.notify_all()
            if not self.changed.wait_for(lambda: not self._is_pumping, CLOSE_TIMEOUT):
                self.transport.hang_up()
                self.changed.wait_for(lambda: not self._is_pumping, CLOSE_TIMEOUT)
            self.transport.discard()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(CLOSE_TIMEOUT)
        self._report_events()

    # Writing

    def write_soon(self) -> None:
        """Write at once when much is pending or the transport was idle; in a burst the keeper writes what is left."""
        if self._outgoing.size > WRITE_SIZE or time.monotonic() - self._last_write > IDLE:
            self.write()
        else:
            self.is_write_due = True
            self._kick.set()

    def write(self) -> None:
        """Write as much as the socket takes. The lock is held."""
        transport, outgoing = self.transport, self._outgoing
        self.is_write_due = False
        if not transport.is_open or not (outgoing.frames or transport.unsent):
            return
        was_full = bool(transport.unsent)
        try:
            while outgoing.frames or transport.unsent:
                if not transport.unsent:
                    transport.put(outgoing.take())
                if not transport.write():
                    if self._is_pumping:
                        transport.wake()  # it must look for space from now on
                    break
            else:
                if was_full:
                    self.changed.notify_all()  # others wait for space
        except OSError as exc:
            self._lost(_lost(exc))
        self._last_write = time.monotonic()

    # Connecting

    def open(self) -> None:
        """Connect for the first time, or raise the reason why not."""
        try:
            self._connect()
        except BaseException:
            self.close()
            raise
        if self.session.error is not None:
            raise self.session.error
        self.start_thread(partial(_run_keeper, weakref.ref(self), self._kick), "keeper")

    def _connect(self) -> None:
        """Try servers until one accepts the connection or none is left."""
        session = self.session
        while session.state in (State.IDLE, State.WAITING):
            pause = session.timer - time.monotonic()
            if session.state is State.WAITING and pause > 0:
                self.closing.wait(pause)
            self._dial()
            self._report_events()

    def _dial(self) -> None:
        """Try one server; the outcome is in the state."""
        session = self.session
        with self.lock:
            if self.is_closed:
                return
            server = session.dial(time.monotonic())
        try:
            session.login = read_login(session.options)
            layers = layers_for(server, tls=self._tls, tls_first=session.options.tls_first, random=secrets.token_bytes)
            sock = socket.create_connection((server.host, server.port), timeout=session.time_allowed)
        except TimeoutError:
            with self.lock:
                self._carry_out(session.tick(session.timer))
            return
        except CredentialsError as exc:
            with self.changed:
                self._lost(exc)
            return
        except (OSError, ValueError, OverflowError) as exc:  # ValueError and OverflowError: impossible names and ports
            error = ConnectionLostError(f"{server}: {exc}")
            error.__cause__ = exc
            with self.changed:
                self._lost(error)
            return
        with self.lock:
            if self.is_closed:
                sock.close()
                return
            self.transport = Transport(sock, layers)
            if layers is None:
                session.opened()
            else:
                self.transport.put_layers()
        if not self.until(lambda: not session.is_trying, session.timer - time.monotonic()):
            with self.lock:
                self._carry_out(session.tick(session.timer))

    # What happens to the socket; the lock is held

    def _received(self, transport: Transport, data: bytes) -> None:
        """A chunk arrived."""
        if transport.layers is not None:
            data = self._unwrapped(transport, transport.layers, data)
        if data:
            self._carry_out(self.session.received(data, time.monotonic()))
        if self._outgoing.frames or self.transport.unsent:
            self.write()

    def _unwrapped(self, transport: Transport, layers: LayerStack, data: bytes) -> bytes:
        """The session's part of what arrived; empty while the layers shake hands."""
        was_ready = layers.is_ready
        try:
            data = layers.received(data)
            if layers.is_ready and not was_ready:
                self._carry_out(self.session.opened())
            transport.put_layers()
        except Error as exc:
            transport.put_layers()  # a TLS alert
            self.write()
            if transport is self.transport:
                self._lost(exc)
        return data if transport is self.transport else b""

    def _start_tls(self) -> None:
        """The server sent INFO in plain bytes and waits for TLS."""
        try:
            self.transport.layers = LayerStack([self._tls.layer(self.session.server)])
            self.transport.put_layers()
        except Error as exc:
            self._lost(exc)

    def _lost(self, error: Error) -> None:
        """The socket is of no use any more."""
        self._give_up_transport()
        if self.session.is_trying or self.session.is_connected:  # otherwise an effect before this one has lost it
            self._carry_out(self.session.lost(error, now=time.monotonic(), random=random.random()))
        self._kick.set()
        self.changed.notify_all()

    def _give_up_transport(self) -> None:
        transport, self.transport = self.transport, Transport()
        if self._is_pumping:
            transport.hang_up()  # wakes the pump, which discards it
        else:
            transport.discard()

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Drop):
                self._lost(effect.error)
            elif isinstance(effect, StartTls):
                self._start_tls()
            elif isinstance(effect, Report):
                self._events.append(effect.event)
            elif isinstance(effect, Connected):
                self._events.append(effect)
            elif isinstance(effect, Ready | Ended):
                self.changed.notify_all()
            elif isinstance(effect, SendNow):
                self.write()
            else:
                assert_never(effect)

    def _report_events(self) -> None:
        """Report what happened. The lock is not held."""
        while self._events:
            try:
                event = self._events.popleft()
            except IndexError:  # another thread was quicker
                return
            self.reporter.report(event)

    # Threads

    def keep(self) -> float:
        """One turn of the keeper: write, ping, read and reconnect, where no other thread does.

        Returns the seconds until its next turn.
        """
        while self._deferred:
            self._deferred.popleft()()
        with self.lock:
            self.write()
            self._carry_out(self.session.tick(time.monotonic()))
            self.write()
        if self.session.state is State.WAITING:
            with suppress(Error):  # closed meanwhile
                self._connect()
        else:
            self._read_and_look()
        self._report_events()
        with self.lock:
            now = time.monotonic()
            due = min((alarm.next for alarm in self._alarms), default=math.inf)
            return max(IDLE, min(due, self._last_read + self._read_interval()) - now)

    def _read_and_look(self) -> None:
        """Read if that is due, then raise the alarms that are."""
        with self.lock:
            now = time.monotonic()
            is_due = now - self._last_read >= self._read_interval() or any(alarm.next <= now for alarm in self._alarms)
        if is_due:
            self._read_all()
        with self.lock:
            now = time.monotonic()
            raised = [alarm for alarm in self._alarms if alarm.next <= now and alarm.look(now)]
            self._alarms = {alarm for alarm in self._alarms if alarm.next < math.inf}
        for alarm in raised:
            alarm.call()

    def _read_interval(self) -> float:
        return min([KEEPER_INTERVAL, *(alarm.timeout / READS_PER_ALARM for alarm in self._alarms)])

    def _read_all(self) -> None:
        """Read all that has arrived, unless another thread pumps."""
        while True:
            self._last_read = time.monotonic()
            with self.lock:
                if self._is_pumping or not self.transport.is_open:
                    return
                self._is_pumping, transport = True, self.transport
            if not self._pump(transport, 0.0):
                return

    def start_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Start a thread, which `close` joins."""
        thread = threading.Thread(target=target, name=f"slipstream {name}", daemon=True)
        with self.lock:
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]
        thread.start()
        return thread

    def run_here(self, call: Callable[[], None]) -> None:
        """Call a function now, or let the keeper do it if this thread holds the lock: finalizers run anywhere."""
        if isinstance(self.lock, ForkedLock):
            return  # the parent's connection
        if self._holds_lock():
            self._deferred.append(call)
            self._kick.set()
        else:
            call()

    def _holds_lock(self) -> bool:
        try:
            self.changed.notify(0)  # wakes no thread, and raises unless this one holds the lock
        except RuntimeError:
            return False
        return True

    def forget_after_fork(self) -> None:
        """In the child process: close our copies of the descriptors, and let every call raise."""
        self.lock = ForkedLock()
        self.changed = self.lock  # type: ignore[assignment]
        self.transport.discard()


class ForkedLock:
    """The lock of a connection in a forked child, where the connection is the parent's."""

    def __enter__(self) -> NoReturn:
        raise UsageError(
            "this client was made before the process forked: the connection is the parent's, connect again"
        )

    def __exit__(self, *_: object) -> None: ...


_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for connection in list(_connections):
        connection.forget_after_fork()
    _connections.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


class Wakeup:
    """Wakes one thread, once for any number of calls before it waits.

    Not a `threading.Event`: that takes an inner lock in Python code, so an interrupt (Ctrl-C) can end the call and
    leave it locked; the next call of the interrupted thread, on its way out, would wait for ever.
    """

    __slots__ = ("_gate",)

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()

    def set(self) -> None:
        """Wake the thread that waits, or the next one that does."""
        with suppress(RuntimeError):  # it is open already
            self._gate.release()

    def wait(self, timeout: float) -> bool:
        """Wait until `set` was called; False on timeout."""
        return self._gate.acquire(timeout=min(timeout, threading.TIMEOUT_MAX))


class CloseFlag:
    """Set once, when the connection is closed. Not a `threading.Event`, for the reason given at `Wakeup`."""

    __slots__ = ("_is_set", "_wakeup")

    def __init__(self) -> None:
        self._is_set = False
        self._wakeup = Wakeup()

    def is_set(self) -> bool:
        """Whether the connection is closed."""
        return self._is_set

    def set(self) -> None:
        """Wake all threads that wait."""
        self._is_set = True
        self._wakeup.set()

    def wait(self, timeout: float) -> None:
        """Wait until it is set, or for `timeout` seconds."""
        if not self._is_set and self._wakeup.wait(timeout):
            self._wakeup.set()  # others may wait as well


def _run_keeper(ref: weakref.ref[Connection], kick: Wakeup) -> None:
    """The keeper's thread. It holds the connection only while it works, so that a dropped client can be collected."""
    pause = KEEPER_INTERVAL
    while True:
        if kick.wait(pause):
            time.sleep(IDLE)  # more of a burst may be pending then
        connection = ref()
        if connection is None or connection.closing.is_set() or connection.is_closed:
            return
        pause = connection.keep()
        del connection


def _lost(exc: OSError) -> ConnectionLostError:
    error = ConnectionLostError(f"connection lost: {exc}")
    error.__cause__ = exc
    return error
