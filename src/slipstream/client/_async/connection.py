"""The asyncio driver of a session: its transport, its timer, its reconnects, and the futures that wait for it.

Invariants: one write per turn of the loop, one wake-up per chunk received; a wait always ends, by its timeout, its
answer or the end of the connection; a cancelled wait takes nothing with it. Works on any event loop, uvloop included.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import assert_never

from slipstream.client._async.tasks import is_own_end
from slipstream.client._async.transport import CLOSE_TIMEOUT, Transport
from slipstream.client.base import timed_out
from slipstream.client.events import Connected, Drop, Effect, Ended, Ready, Report, SendNow, StartTls
from slipstream.client.layers.stack import LayerStack, layers_for
from slipstream.client.layers.tls import Tls
from slipstream.client.mailbox import Mailbox
from slipstream.client.options import ClientOptions
from slipstream.client.reporter import Reporter
from slipstream.client.secrets import read_login
from slipstream.client.session import Session, State
from slipstream.client.silence import SilenceAlarm
from slipstream.errors import ConnectionLostError, CredentialsError, Error
from slipstream.wire import Msg


class Connection:
    """Carries out what one session wants, on one event loop."""

    def __init__(self, options: ClientOptions) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.session: Session = Session(options, nonce=secrets.token_hex(11))
        self.reporter: Reporter = Reporter(options.on_event)
        self.max_pending: int = options.max_pending_bytes  # a publisher with more unsent bytes waits
        self.is_write_due: bool = False  # by the end of this turn of the loop
        self.tasks: set[asyncio.Task[None]] = set()  # callbacks and workers; they end with the client
        self._sentinel: asyncio.Task[None] | None = None  # ends when all tasks do
        self._outgoing = self.session.outgoing
        self._tls = Tls.from_options(options)
        self._transport: Transport | None = None
        self._connected: asyncio.Future[None] | None = None  # while a server is being tried
        self._is_dialing = False
        self._dialer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: dict[asyncio.Future[None], tuple[Callable[[], bool], asyncio.TimerHandle]] = {}
        self._sleepers: set[asyncio.Future[None]] = set()
        self._writers: list[asyncio.Future[None]] = []  # wait until the transport takes bytes again
        self._alarms: dict[SilenceAlarm, asyncio.TimerHandle] = {}

    # Waiting

    def waiter(self, ready: Callable[[], bool], *, timeout: float, what: str) -> asyncio.Future[None]:
        """A future that is done once `ready()` is true, which is asked after each chunk received.

        It fails after `timeout`, which names `what`, and when the connection is lost. `release` it in any case.
        """
        future: asyncio.Future[None] = self.loop.create_future()
        expiry = self.loop.call_later(timeout, expire, future, what, timeout)
        self._waiters[future] = (ready, expiry)
        return future

    def release(self, waiter: asyncio.Future[None]) -> None:
        """Forget a waiter."""
        _, expiry = self._waiters.pop(waiter)
        expiry.cancel()

    def _wake(self, error: Error | None = None) -> None:
        """Ask every waiter whether it is ready; with `error`, those that are not fail."""
        for future, (ready, _) in list(self._waiters.items()):
            if future.done():
                continue
            if ready():
                future.set_result(None)
            elif error is not None:
                future.set_exception(error)

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`, over a lost connection too; raises as soon as the client is closed."""
        self._outgoing.check()
        future: asyncio.Future[None] = self.loop.create_future()
        alarm = self.loop.call_later(seconds, _release, future)
        self._sleepers.add(future)
        try:
            await future
        finally:
            alarm.cancel()
            self._sleepers.discard(future)

    async def ready(self) -> None:
        """Wait until the unsent bytes are within their bound."""
        outgoing = self._outgoing
        while outgoing.size > self.max_pending and outgoing.is_open:
            self._write()
            if outgoing.size <= self.max_pending:
                await asyncio.sleep(0)  # readers get their turn between two full buffers
                return
            future: asyncio.Future[None] = self.loop.create_future()
            self._writers.append(future)
            await future

    def _release_writers(self) -> None:
        writers, self._writers = self._writers, []
        for future in writers:
            _release(future)

    # Calls of the client

    def unsubscribe(self, box: Mailbox, max_msgs: int) -> None:
        """End a subscription, at once or after `max_msgs` messages in all."""
        self.session.subscriptions.unsubscribe(box, max_msgs)
        self.write_soon()

    def leave(self, reason: Error) -> bool:
        """Drop this connection for one to another server; whether another is known."""
        effects = self.session.leave(reason, self.loop.time())
        self._carry_out(effects)
        return bool(effects)

    def spawn(self, coroutine: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Run a task that ends with the client at the latest."""
        task = self.loop.create_task(coroutine, name=name)
        self.tasks.add(task)
        if self._sentinel is None:
            self._sentinel = self.loop.create_task(_never(self.loop), name="sentinel of the client")
        task.add_done_callback(self.tasks.discard)
        return task

    def is_own_end(self, error: BaseException) -> bool:
        """Whether an exception ends the running task, which is one of `spawn`: see `tasks.is_own_end`.

        All tasks end when the client is closed, or when the program cancels whatever runs on its loop, as `asyncio.run`
        does at its end. Then the sentinel, which no program knows, is cancelled, too.
        """
        is_cancelled = self._sentinel is not None and (self._sentinel.done() or self._sentinel.cancelling() > 0)
        return is_own_end(error, is_ending=is_cancelled or self.session.error is not None)

    def watch(self, alarm: SilenceAlarm) -> None:
        """Raise this alarm when it is due, until its subscription or the client ends."""
        self._alarms[alarm] = self.loop.call_at(alarm.next, self._look, alarm)

    def _look(self, alarm: SilenceAlarm) -> None:
        is_due = alarm.look(self.loop.time())
        if alarm.next < math.inf:
            self.watch(alarm)
        else:
            del self._alarms[alarm]
        if is_due:
            alarm.call()

    async def close(self) -> None:
        """Send what is pending, end all subscriptions and close the transport."""
        transport, self._transport = self._transport, None
        rest = self._outgoing.take() if self._outgoing.is_open else b""
        self._carry_out(self.session.close())
        stopped = self._stop()
        try:
            if transport is not None:
                await transport.finish(rest)
            if stopped:
                await asyncio.wait(stopped, timeout=CLOSE_TIMEOUT)
        finally:
            if transport is not None:
                transport.abort()

    # Connecting

    async def connect(self) -> None:
        """Try servers until one accepts the connection, or raise the reason when none is left."""
        session = self.session
        self._is_dialing = True
        try:
            while session.state in (State.IDLE, State.WAITING):
                if session.state is State.WAITING and (pause := session.timer - self.loop.time()) > 0:
                    await asyncio.sleep(pause)  # `close` cancels it
                await self._dial()
        finally:
            self._is_dialing = False
        if session.error is not None:
            raise session.error

    async def _dial(self) -> None:
        """Try one server; the outcome is in the state."""
        session = self.session
        server = session.dial(self.loop.time())
        transport = self._transport = Transport(self, self.loop.create_future())
        connected = self._connected = self.loop.create_future()
        try:
            session.login = read_login(session.options)
            transport.layers = layers_for(
                server, tls=self._tls, tls_first=session.options.tls_first, random=secrets.token_bytes
            )
            async with asyncio.timeout_at(session.timer):
                await self.loop.create_connection(lambda: transport, server.host, server.port)
                await connected
        except TimeoutError:
            if transport is self._transport:
                self._carry_out(session.tick(session.timer))
        except CredentialsError as exc:
            self.lost(transport, exc)
        except (OSError, ValueError, OverflowError) as exc:  # ValueError and OverflowError: impossible names and ports
            error = ConnectionLostError(f"{server}: {exc}")
            error.__cause__ = exc
            self.lost(transport, error)
        except BaseException:
            transport.abort()
            raise
        finally:
            self._connected = None

    async def _reconnect(self) -> None:
        with suppress(Error):  # the session is closed, and has reported it
            await self.connect()

    # Reports of the transport

    def opened(self, transport: Transport) -> None:
        """The transport is connected."""
        if transport is not self._transport:
            transport.abort()
            return
        transport.limit_buffer(self.max_pending)
        if transport.layers is None:
            self.session.opened()
        else:
            transport.send_layers()

    def received(self, transport: Transport, data: bytes) -> None:
        """A chunk arrived."""
        if transport is not self._transport:
            return
        if transport.layers is not None and not (data := self._unwrapped(transport, transport.layers, data)):
            return
        effects = self.session.received(data, self.loop.time())
        if effects:
            self._carry_out(effects)
        if self._outgoing.frames and not self.is_write_due:
            self.write_soon()
        if self._waiters:
            self._wake()

    def _unwrapped(self, transport: Transport, layers: LayerStack, data: bytes) -> bytes:
        """The session's part of what arrived; empty while the layers shake hands."""
        was_ready = layers.is_ready
        try:
            data = layers.received(data)
            if layers.is_ready and not was_ready:
                self._carry_out(self.session.opened())
                self.write_soon()
            transport.send_layers()
        except Error as exc:
            transport.send_layers()  # a TLS alert
            self.lost(transport, exc)
        return data if transport is self._transport else b""

    def resumed(self, transport: Transport) -> None:
        """The transport takes bytes again."""
        if transport is self._transport:
            self._write()
            self._release_writers()

    def lost(self, transport: Transport, error: Error) -> None:
        """The transport is gone. Late reports of a transport that was given up already are ignored."""
        if transport is not self._transport:
            return
        self._transport = None
        transport.abort()
        session, epoch = self.session, self.session.epoch
        effects = session.lost(error, now=self.loop.time(), random=random.random())
        self._carry_out(effects)
        self._release_writers()
        if session.epoch != epoch:  # it was in use; those who ask from now on wait for the next one
            self._wake(ConnectionLostError(f"the connection to {session.server} was lost: {error}"))
        if self._connected is not None and not self._connected.done():
            self._connected.set_result(None)
        elif session.state is State.WAITING and not self._is_dialing:
            self._dialer = self.loop.create_task(self._reconnect(), name="reconnect")

    # Effects of the session

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Ready):
                if self._connected is not None and not self._connected.done():
                    self._connected.set_result(None)
                self._tick()
            elif isinstance(effect, StartTls):
                if self._transport is not None:
                    self._start_tls(self._transport)
            elif isinstance(effect, Drop):
                if self._transport is not None:
                    self.lost(self._transport, effect.error)
            elif isinstance(effect, Ended):
                self._stop()
            elif isinstance(effect, Report):
                self.reporter.report(effect.event)
            elif isinstance(effect, SendNow):
                self._write()
            elif isinstance(effect, Connected):
                self.reporter.report(effect)
            else:
                assert_never(effect)

    def _start_tls(self, transport: Transport) -> None:
        """The server sent INFO in plain bytes and waits for TLS."""
        try:
            transport.layers = LayerStack([self._tls.layer(self.session.server)])
            transport.send_layers()
        except Error as exc:
            self.lost(transport, exc)

    def _tick(self) -> None:
        """The session's timer is due, or was set for the first time."""
        if self._timer is not None:
            self._timer.cancel()
        self._carry_out(self.session.tick(self.loop.time()))
        if self.session.is_connected:
            self._timer = self.loop.call_at(self.session.timer, self._tick)
            if self._outgoing.frames:
                self.write_soon()

    def write_soon(self) -> None:
        """Send what is pending at the end of this turn of the loop: frames of one turn share a system call."""
        if not self.is_write_due:
            self.is_write_due = True
            self.loop.call_soon(self._write)

    def _write(self) -> None:
        """Send what is pending, unless the transport is full."""
        self.is_write_due = False
        transport = self._transport
        if transport is not None and transport.is_writable and self._outgoing.frames:
            try:
                transport.send(self._outgoing.take())
            except Error as exc:  # TLS was closed
                self.lost(transport, exc)

    def _stop(self) -> list[asyncio.Task[None]]:
        """The session is closed: end the timer, the tasks and the waits. The tasks returned are ending."""
        if self._timer is not None:
            self._timer.cancel()
        if self._sentinel is not None:
            self._sentinel.cancel()
        for look in self._alarms.values():
            look.cancel()
        self._alarms.clear()
        current = asyncio.current_task(self.loop)
        tasks = [task for task in (self._dialer, *self.tasks) if task is not None and task is not current]
        for task in tasks:
            task.cancel()
        self._release_writers()
        self._wake(self._outgoing.closed_error())
        for future in self._sleepers:
            if not future.done():
                future.set_exception(self._outgoing.closed_error())
        return tasks


async def _never(loop: asyncio.AbstractEventLoop) -> None:
    await loop.create_future()


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def expire(future: asyncio.Future[Msg] | asyncio.Future[None], what: str, timeout: float) -> None:
    """Fail a future whose time is up."""
    if not future.done():
        future.set_exception(timed_out(what, timeout))
