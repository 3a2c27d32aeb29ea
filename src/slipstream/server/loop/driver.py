"""Sockets and the clock around the engine: bytes of clients go in, once per turn of the loop output goes out.

A turn does what has come due, lets batch jobs send a chunk, starts a commit, and writes to each client once. Reading
from a client stops while the group it fills is full, so that a flood of publishes neither starves readers nor grows
memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor

from slipstream.server.engine.core.session import Session
from slipstream.server.engine.engine import Check, Engine
from slipstream.server.faults.network import Faults
from slipstream.server.loop.clock import Clock
from slipstream.server.loop.committer import Committer
from slipstream.server.loop.connection import Connection
from slipstream.server.loop.signatures import fits_hash, make_nonce
from slipstream.server.loop.tls import Tls
from slipstream.server.process.trace import Trace
from slipstream.wire import Event

log = logging.getLogger("slipstream.server")

GROUP_CHANGES = 4096
GROUP_BYTES = 8 * 1024 * 1024
HASHES = 2  # secrets that are compared with hashes at a time


class Driver:
    """Runs an engine on a loop."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock,
        max_connections: int = 65536,
        max_control_line: int = 4096,
        write_deadline: float = 0.0,
        tls: Tls | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.engine = engine
        self.write_deadline = write_deadline
        self.max_connections = max_connections
        self._trace = trace
        self._hashes: ThreadPoolExecutor | None = None
        self._hash_slots = asyncio.Semaphore(HASHES)
        self.max_control_line = max_control_line
        self.tls = tls
        self.faults: Faults | None = None  # by order of a test
        self.now = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsent: dict[int, Session] = {}  # output of clients that are agreeing on TLS
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._connections: dict[int, Connection] = {}
        self._committers: Sequence[Committer] = ()
        self._held: list[Connection] = []
        self._group_bytes = 0
        self._last_cid = 0
        self._scheduled = False
        self._quiet = False
        self._damage_met = 0
        self._damage_told: set[tuple[str, int]] = set()
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
        full = 0 <= self.max_connections <= len(self._connections)
        self._last_cid += 1
        connection.cid = self._last_cid
        self._connections[connection.cid] = connection
        peer = transport.get_extra_info("peername")
        address, port = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else ("", 0)
        nonce = make_nonce() if self.engine.wants_nonces else ""
        self.engine.connect(
            connection.cid, address, self._clock(), client_port=port, nonce=nonce, listener=connection.door
        )
        log.debug("%s - Client connection created", connection.label)
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
        if self._trace is not None:
            self._trace.received(connection, events)
        try:
            self.engine.receive(connection.cid, events, self._clock())
        except Exception:  # whatever one client sends, the others go on
            log.exception("an error in handling what client %d sent", connection.cid)
            self.engine.close(connection.cid, "Internal Server Error")
        for check in self.engine.take_checks():
            connection.wait(True)
            self.spawn(self._check(connection, check))
        after = self._pending()
        if after > before:
            self._group_bytes += size
            if (after >= GROUP_CHANGES or self._group_bytes >= GROUP_BYTES) and connection.hold():
                self._held.append(connection)
        self.wake()

    async def _check(self, connection: Connection, check: Check) -> None:
        """Compare a secret with its hash, on a thread: it takes a good part of a second."""
        async with self._hash_slots:
            if check.cid not in self._connections:  # it did not wait, or its time is over: no work for nobody
                return
            if self._hashes is None:
                self._hashes = ThreadPoolExecutor(HASHES, "slipstream-hash")
            right = await self._loop.run_in_executor(self._hashes, fits_hash, check.secret, check.hash)
        self.engine.checked(check.cid, right, self._clock())
        connection.wait(False)
        self.wake()

    def lost(self, connection: Connection) -> None:
        self._unsent.pop(connection.cid, None)
        if self.faults is not None:
            self.faults.forget(connection)
        if self._connections.pop(connection.cid, None) is not None:
            session = self.engine.sessions.get(connection.cid)
            self.engine.disconnect(connection.cid)
            if self._trace is not None:
                self._trace.forget(connection)
            if session is not None:
                self._log_end(connection, session)
            self.wake()

    def _log_end(self, connection: Connection, session: Session) -> None:
        if session.reason.startswith("Authentication"):
            log.error("%s - %s", connection.label, session.reason)
        elif session.reason == "Slow Consumer":
            log.warning("%s - Slow Consumer Detected", connection.label)
        log.debug("%s - Client connection closed: %s", connection.label, session.reason or "Client Closed")

    def quiet(self) -> None:
        """Take nothing more from anybody; what was taken is carried out and answered."""
        self._quiet = True
        self.engine.retire()
        for connection in self._connections.values():
            connection.hold()
        self._flush()  # nothing else may be left to do that would send what waiting clients are told

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
        self._tell_damage()
        self._flush()
        self._arm()

    def _tell_damage(self) -> None:
        """Messages that were found damaged since the last turn, for the log."""
        met = sum(committer.journal.store.corrupt_records for committer in self._committers)
        if met == self._damage_met:
            return
        self._damage_met = met
        for committer in self._committers:
            for stream, seq in committer.journal.store.damaged():
                if (stream, seq) not in self._damage_told:
                    self._damage_told.add((stream, seq))
                    log.error("message %d of stream %r is damaged: it is not served", seq, stream)

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
            if self._trace is not None:
                self._trace.sent(connection, data)
            session.out.clear()
            if self.faults is not None:
                data = self.faults.sent(connection, data)
            session.out_capacity = self.engine.settings.max_pending_bytes - connection.write(data)
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
        if self._hashes is not None:
            self._hashes.shutdown(wait=False, cancel_futures=True)
