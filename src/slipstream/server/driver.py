"""Sockets and the clock around the engine: bytes of clients go in, once per turn of the loop output goes out.

A turn does what has come due, lets batch jobs send a chunk, starts a commit, and writes to each client once. Reading
from a client stops while the group it fills is full, so that a flood of publishes neither starves readers nor grows
memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import cast

from slipstream.server.clock import Clock
from slipstream.server.commits import Committer
from slipstream.server.engine.engine import Engine
from slipstream.server.engine.session import Session
from slipstream.server.faults import Faults
from slipstream.server.signatures import make_nonce
from slipstream.server.tls import Tls
from slipstream.wire import Event, Parser, Side

log = logging.getLogger("slipstream.server")

SLICE = 48 * 1024  # bytes of one client per turn: about a millisecond of publishes, then others get in
GROUP_CHANGES = 4096
GROUP_BYTES = 8 * 1024 * 1024
WRITE_HIGH = 512 * 1024  # bytes unsent at which batches for a client wait
LINGER = 2.0  # seconds a client that is cut off has to read why


class Connection(asyncio.Protocol):
    """One client's socket."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._parser = Parser(
            Side.CLIENT, max_payload=driver.engine.settings.max_payload, max_control_line=driver.max_control_line
        )
        self.cid = 0
        self.transport: asyncio.Transport | None = None  # None while TLS is being agreed on
        self._plain: asyncio.Transport | None = None  # what is below TLS
        self._flowing = True  # whether the transport reads; not all transports can be asked
        self._full = False  # the group that it fills is full
        self._rest = b""  # bytes that were read and wait for their turn
        self._at = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._use(cast(asyncio.Transport, transport))  # uvloop's is none by inheritance
        tls = self._driver.tls
        if tls is None or tls.first:
            self._driver.accept(self)
        else:
            self._driver.spawn(self._upgrade(tls))

    def _use(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._flowing = True
        high = min(WRITE_HIGH, self._driver.engine.settings.max_pending // 4)
        transport.set_write_buffer_limits(high=high, low=high // 4)

    async def _upgrade(self, tls: Tls) -> None:
        """INFO in plain text, everything else through TLS. No wait is between the two: whatever the client answers to
        INFO is read by TLS and not by us. (To stop reading in `connection_made` has no effect on uvloop.)"""
        if self.transport is None or self.transport.is_closing() or not self._driver.accept(self):
            return
        self._plain, self.transport = self.transport, None
        assert self._plain is not None
        try:
            upgraded = await asyncio.get_running_loop().start_tls(
                self._plain, self, tls.context, server_side=True, ssl_handshake_timeout=tls.timeout
            )
        except Exception as exc:  # no TLS, no certificate, too slow, gone: the client's affair, whatever it is
            log.info("client %d did not agree on TLS: %s", self.cid, exc)
            upgraded = None
        if upgraded is None:
            self._plain.abort()
            self._driver.lost(self)
            return
        self._use(upgraded)
        if self._full:
            self._reading(False)
        self._driver.upgraded(self)

    def data_received(self, data: bytes) -> None:
        if not self.cid:
            return
        if self._driver.faults is not None:
            data = self._driver.faults.received(self, data)
        if len(data) <= SLICE and not self._rest:
            self._driver.data(self, self._parser.feed(data), len(data))
            return
        self._rest = self._rest[self._at :] + data
        self._at = 0
        self._reading(False)
        self._go_on()

    def _go_on(self) -> None:
        """Handle the next slice of what was read."""
        if self._full or not self._rest:
            return
        piece = self._rest[self._at : self._at + SLICE]
        self._at += len(piece)
        self._driver.data(self, self._parser.feed(piece), len(piece))
        if self._at < len(self._rest):
            self._driver.soon(self._go_on)
        else:
            self._rest, self._at = b"", 0
            self._reading(not self._full)

    def hold(self) -> bool:
        """Take nothing more from the client until `resume`; False if that is so already."""
        if self._full:
            return False
        self._full = True
        self._reading(False)
        return True

    def resume(self) -> None:
        self._full = False
        if self._rest:
            self._driver.soon(self._go_on)
        else:
            self._reading(True)

    def _reading(self, yes: bool) -> None:
        transport = self.transport
        if transport is None or transport.is_closing() or self._flowing == yes:
            return
        self._flowing = yes
        if yes:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._rest = b""
        self._driver.lost(self)

    def pause_writing(self) -> None:
        self._driver.engine.congested(self.cid, True)

    def resume_writing(self) -> None:
        self._driver.engine.congested(self.cid, False)
        self._driver.wake()

    @property
    def name(self) -> str:
        """What the client calls itself."""
        return self._driver.engine.client_name(self.cid)

    def send(self, data: bytes) -> None:
        """Write, past the engine."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def abort(self) -> None:
        """End at once, without a word."""
        transport = self.transport if self.transport is not None else self._plain
        if transport is not None:
            transport.abort()

    def close(self) -> None:
        """Send what is queued, but do not wait for it for long."""
        transport = self.transport
        if transport is None and self._plain is not None:
            self._plain.abort()  # in plain text it can be told nothing
            return
        if transport is None or transport.is_closing():
            return
        transport.close()
        if transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(LINGER, transport.abort)


class Driver:
    """Runs an engine on a loop."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock,
        max_connections: int = 65536,
        max_control_line: int = 4096,
        tls: Tls | None = None,
    ) -> None:
        self.engine = engine
        self.max_control_line = max_control_line
        self.tls = tls
        self.faults: Faults | None = None  # by order of a test
        self.now = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsent: dict[int, Session] = {}  # output of clients that are agreeing on TLS
        self._clock = clock
        self._max_connections = max_connections
        self._loop = asyncio.get_running_loop()
        self._connections: dict[int, Connection] = {}
        self._committers: Sequence[Committer] = ()
        self._held: list[Connection] = []
        self._group_bytes = 0
        self._last_cid = 0
        self._scheduled = False
        self._quiet = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0

    def use(self, committers: Sequence[Committer]) -> None:
        """The carriers of the engine's journals."""
        self._committers = committers
        for committer in committers:
            committer.sealed = self._resume
        self.wake()

    # Connections.

    @property
    def connections(self) -> list[Connection]:
        return list(self._connections.values())

    def accept(self, connection: Connection) -> bool:
        """Greet a client; False if it is one too many."""
        transport = connection.transport
        assert transport is not None
        full = len(self._connections) >= self._max_connections
        self._last_cid += 1
        connection.cid = self._last_cid
        self._connections[connection.cid] = connection
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        nonce = make_nonce() if self.engine.wants_nonces else ""
        self.engine.connect(connection.cid, address, self._clock(), nonce=nonce)
        if full:
            self.engine.close(connection.cid, "maximum connections exceeded")
        if full or self.tls is not None:  # in plain text, before TLS takes over
            self._flush()
        self.wake()
        return not full

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def upgraded(self, connection: Connection) -> None:
        """A client speaks TLS now: it gets what was waiting for that."""
        session = self._unsent.pop(connection.cid, None)
        if session is not None:
            self._write(connection, session)

    def data(self, connection: Connection, events: Sequence[Event], size: int) -> None:
        before = self._pending()
        if self.faults is not None:
            events = self.faults.events(connection, events)
        try:
            self.engine.receive(connection.cid, events, self._clock())
        except Exception:  # whatever one client sends, the others go on
            log.exception("an error in handling what client %d sent", connection.cid)
            self.engine.close(connection.cid, "Internal Server Error")
        after = self._pending()
        if after > before:
            self._group_bytes += size
            if (after >= GROUP_CHANGES or self._group_bytes >= GROUP_BYTES) and connection.hold():
                self._held.append(connection)
        self.wake()

    def lost(self, connection: Connection) -> None:
        self._unsent.pop(connection.cid, None)
        if self.faults is not None:
            self.faults.forget(connection)
        if self._connections.pop(connection.cid, None) is not None:
            self.engine.disconnect(connection.cid)
            self.wake()

    def quiet(self) -> None:
        """Take nothing more from anybody; what was taken is carried out and answered."""
        self._quiet = True
        for connection in self._connections.values():
            connection.hold()

    def close_all(self) -> None:
        """Cut every client off."""
        for connection in list(self._connections.values()):
            connection.close()

    async def retire(self, *, grace: float, duration: float) -> None:
        """Tell clients to go elsewhere, give them time, then cut off those who stayed, one after the other."""
        self.engine.announce_end()
        self.wake()
        end = self._loop.time() + grace
        while self._connections and self._loop.time() < end:
            await asyncio.sleep(min(0.05, grace))
        stayed = list(self._connections.values())
        for connection in stayed:
            if connection.cid in self._connections:
                connection.close()
                await asyncio.sleep(max(0.0, duration - grace) / len(stayed))

    def _pending(self) -> int:
        return sum(committer.journal.store.pending for committer in self._committers)

    def _resume(self) -> None:
        """The open group is empty again."""
        self._group_bytes = 0
        if self._quiet:
            return
        held, self._held = self._held, []
        for connection in held:
            connection.resume()

    # Turns.

    def wake(self) -> None:
        """Have a turn soon."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back in the loop's next round."""
        self._loop.call_soon(callback)

    def _turn(self) -> None:
        self._scheduled = False
        now = self._clock()
        try:
            deadline = self.engine.next_deadline()
            if deadline is not None and deadline <= now:
                self.engine.tick(now)
            if self.engine.step(now):
                self.wake()
            for committer in self._committers:
                committer.turn()
        except Exception:  # the timer or job that failed is gone; everything else goes on
            log.exception("an error in the server's own work")
            self.wake()
        self._flush()
        self._arm()

    def _flush(self) -> None:
        for session in self.engine.take_output():
            connection = self._connections.get(session.cid)
            if connection is not None:
                self._write(connection, session)

    def _write(self, connection: Connection, session: Session) -> None:
        transport = connection.transport
        if transport is None:
            self._unsent[session.cid] = session
        elif session.out:
            data = b"".join(session.out)
            session.out.clear()
            if self.faults is not None:
                data = self.faults.sent(connection, data)
            transport.write(data)
            session.room = self.engine.settings.max_pending - transport.get_write_buffer_size()
        if session.closed:
            connection.close()

    def _arm(self) -> None:
        deadline = self.engine.next_deadline()
        if deadline is None or self._clock.is_virtual or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_later(max(0.0, (deadline - self._clock()) / 1e9), self._ring)

    async def settle(self, *, timeout: float = 10.0) -> None:
        """Wait until everything that was taken in is carried out, durable and handed to the sockets."""
        async with asyncio.timeout(timeout):
            await asyncio.sleep(0)
            while (
                self._scheduled
                or self.engine.has_new_jobs
                or any(committer.journal.unfinished for committer in self._committers)
            ):
                await asyncio.sleep(0 if self._scheduled else 0.0005)

    def _ring(self) -> None:
        self._timer = None
        self._turn()

    def stop(self) -> None:
        """No more turns by the clock, no more handshakes."""
        for task in self._tasks:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
