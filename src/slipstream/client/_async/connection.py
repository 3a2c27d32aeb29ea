"""A `Session` gets a transport, the loop's clock and randomness: what the asyncio client does behind its users' backs.

Invariants: one write per turn of the loop, one wake-up per chunk received; a wait always ends, by its timeout, its
answer or the end of the connection; a cancelled wait takes nothing with it. Works on any event loop, uvloop included.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import assert_never

from slipstream.client._async.transport import Transport
from slipstream.client.base import BaseClient, timed_out
from slipstream.client.events import Drop, Effect, Ended, EventHandler, Ready, Report, StartTls
from slipstream.client.layers.stack import LayerStack, channel_for, tls_layer
from slipstream.client.options import Options
from slipstream.client.secrets import read_login
from slipstream.client.session import Session, State
from slipstream.errors import ConnectionLostError, CredentialsError, Error
from slipstream.wire import Msg


class Connection(BaseClient):
    """The transport, the timers and the waits of one client."""

    def __init__(self, options: Options, on_event: EventHandler | None) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._core = Session(options, nonce=secrets.token_hex(11))
        self._on_event = on_event
        self._bound = options.max_pending_bytes
        self._link: Transport | None = None
        self._connected: asyncio.Future[None] | None = None  # while a server is being tried
        self._is_dialing = False
        self._dialer: asyncio.Task[None] | None = None
        self._callbacks: set[asyncio.Task[None]] = set()
        self._waiters: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._sleepers: set[asyncio.Future[None]] = set()
        self._writers: list[asyncio.Future[None]] = []  # wait until the transport takes bytes again
        self._is_write_due = False
        self._timer: asyncio.TimerHandle | None = None

    # Waiting

    async def wait(self, ready: Callable[[], bool], *, timeout: float, what: str) -> None:
        """Return once `ready()` is true; it is asked now and after each chunk that was received.

        Raises RequestTimeoutError, which names `what`, or ConnectionLostError if the connection goes meanwhile.
        """
        if ready():
            return
        self._core.check()
        future: asyncio.Future[None] = self._loop.create_future()
        expiry = self._loop.call_later(timeout, expire, future, what, timeout)
        self._waiters[future] = ready
        try:
            await future
        finally:
            expiry.cancel()
            self._waiters.pop(future, None)

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`; the connection is served meanwhile, and may be lost and made again.

        Raises ConnectionClosedError as soon as the client is closed.
        """
        self._core.check()
        future: asyncio.Future[None] = self._loop.create_future()
        alarm = self._loop.call_later(seconds, _release, future)
        self._sleepers.add(future)
        try:
            await future
        finally:
            alarm.cancel()
            self._sleepers.discard(future)

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
        link = self._link = Transport(self)
        connected = self._connected = self._loop.create_future()
        try:
            self._core.login = read_login(self._core.options)
            link.channel = channel_for(server, self._core.options, random=secrets.token_bytes)
            async with asyncio.timeout_at(self._core.timer):
                await self._loop.create_connection(lambda: link, server.host, server.port)
                await connected
        except TimeoutError:
            if link is self._link:
                self._carry_out(self._core.tick(self._core.timer))
        except CredentialsError as exc:
            self._lost(link, exc)
        except (OSError, ValueError, OverflowError) as exc:  # of names and ports that cannot be
            error = ConnectionLostError(f"{server}: {exc}")
            error.__cause__ = exc
            self._lost(link, error)
        except BaseException:
            link.cut()
            raise
        finally:
            self._connected = None

    def _opened(self, link: Transport) -> None:
        if link is not self._link:
            link.cut()
            return
        assert link.transport is not None
        link.transport.set_write_buffer_limits(high=self._bound)
        if link.channel is None:
            self._core.opened()
        else:
            link.speak()

    def _received(self, link: Transport, data: bytes) -> None:
        if link is not self._link:
            return
        if link.channel is not None and not (data := self._unwrapped(link, link.channel, data)):
            return
        core = self._core
        effects = core.received(data, self._loop.time())
        if effects:
            self._carry_out(effects)
        if core.out and not self._is_write_due:
            self._write_soon()
        if self._waiters:
            self._wake()

    def _unwrapped(self, link: Transport, channel: LayerStack, data: bytes) -> bytes:
        """What arrived as the session understands it; empty while the channel talks to its other end."""
        was_ready = channel.is_ready
        try:
            data = channel.received(data)
            if channel.is_ready and not was_ready:
                self._carry_out(self._core.opened())
                self._write_soon()
            link.speak()
        except Error as exc:
            link.speak()  # an alert
            self._lost(link, exc)
        return data if link is self._link else b""

    def _secure(self, link: Transport) -> None:
        """The server greeted in plain bytes and waits for TLS."""
        core = self._core
        try:
            link.channel = LayerStack([tls_layer(core.server, core.options)])
            link.speak()
        except Error as exc:
            self._lost(link, exc)

    def _lost(self, link: Transport, error: Error) -> None:
        """The transport is gone. Late news of a link that was given up already is no news."""
        if link is not self._link:
            return
        self._link = None
        link.cut()
        core, epoch = self._core, self._core.epoch
        effects = core.lost(error, now=self._loop.time(), random=random.random())
        self._carry_out(effects)
        self._release_writers()
        if core.epoch != epoch:  # a connection in use; whoever asked since then waits for the next one
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
            elif isinstance(effect, StartTls):
                if self._link is not None:
                    self._secure(self._link)
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
            try:
                link.send(self._core.take())
            except Error as exc:  # TLS came to its end
                self._lost(link, exc)

    def _resumed(self, link: Transport) -> None:
        if link is self._link:
            self._write()
            self._release_writers()

    def _release_writers(self) -> None:
        writers, self._writers = self._writers, []
        for future in writers:
            _release(future)

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
        for future in self._sleepers:
            if not future.done():
                future.set_exception(self._core.closed_error())
        return tasks


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def expire(future: asyncio.Future[Msg] | asyncio.Future[None], what: str, timeout: float) -> None:
    if not future.done():
        future.set_exception(timed_out(what, timeout))
