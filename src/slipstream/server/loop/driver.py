"""The driver: runs an engine on an asyncio loop, with sockets, a clock and a thread for the disk.

Theory of operation
===================

**Threads.** The engine, all connections and all callbacks below run on the loop's thread. Two kinds of work leave it:
the blocking steps of a commit (`committer.Worker`, one thread) and the comparison of a secret with a bcrypt hash (a
small pool). Both report back to the loop.

**Input.** A connection parses what its socket received and calls `data`, which feeds the engine at once and asks for a
turn (`wake`). Nothing is written and nothing is committed there: output and changes collect until the turn.

**A turn** (`_turn`) runs once per round of the loop, however many clients sent something:

    1. engine.tick        timers that are due
    2. engine.step        every job (a batch of a Direct Get, a consumer's delivery) sends a chunk
    3. committer.turn     seals the open group of each journal, unless one is being committed
    4. _flush             writes to each client once
    5. _arm               sets the timer for the engine's next deadline
    6. worker.give_way    lets a commit go on that has been under way for some time

**A commit** is what a `Committer` does with a sealed group, between two turns:

    committer.turn        journal.seal(); `group_sealed` lets paused connections read on: the next group is open
    (worker thread)       store.begin, store.write_some, store.commit
    committer._committed  engine.committed(): views move, acks are queued (its order is written down there); `wake`
    _turn, _flush         the acks go out

A group that cannot be stored goes `committer._fail` -> engine.failed() instead: the engine returns to its last commit,
and the errors go out with the next turn.

**Backpressure.** A client whose publishes fill the open group is paused until the group is sealed, so a flood neither
starves readers nor grows memory. A client that does not read is the business of its connection and of the engine, until
all clients together hold more than the server's budget: `loop.memory` says who is disconnected then. Output leaves the
engine at the end of a turn, or as soon as a few megabytes of it are queued (`core.output`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from operator import attrgetter

from slipstream.server.engine.core.session import Session
from slipstream.server.engine.engine import Check, Engine
from slipstream.server.faults.network import NetworkFaults
from slipstream.server.loop.clock import Clock
from slipstream.server.loop.committer import Committer, Worker
from slipstream.server.loop.connection import Connection, ConnectionLimits
from slipstream.server.loop.hash_checks import HashChecks
from slipstream.server.loop.memory import FRAME_TIME, RELEASED, FrameSlots, PendingBytes, give_back
from slipstream.server.loop.signatures import make_nonce
from slipstream.server.process.trace import Trace
from slipstream.wire import Event

log: logging.Logger = logging.getLogger("slipstream.server")

GROUP_CHANGES = 4096  # at which a group is full
GROUP_BYTES = 8 * 1024 * 1024
PARTS = 16 * 1024  # average size of queued parts from which on they are written without joining them
GIVE_BACK_DELAY = 1.0  # seconds after large buffers were freed
CLOCK_JITTER = 0.001  # seconds by which two clocks may differ that are read one after the other

_pending, _corrupt_records = attrgetter("pending"), attrgetter("corrupt_records")  # for sums without a generator


class Driver:
    """Runs an engine on a loop."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock,
        worker: Worker | None,
        max_connections: int,
        trace: Trace | None = None,
        faults: NetworkFaults | None = None,
    ) -> None:
        """`worker` commits the groups of its store; those of other stores are committed on the loop."""
        self.engine = engine
        self.clock = clock
        self.faults = faults
        self._max_connections = max_connections
        self._trace = trace
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._hash_checks = HashChecks()
        # Connections.
        self._connections: dict[int, Connection] = {}
        self._last_cid = 0
        self._in_handshake: dict[int, Session] = {}  # output that waits for the end of a TLS handshake
        self._paused: list[Connection] = []  # by a full group
        self._group_bytes = 0  # in the open groups
        # Memory.
        settings = engine.settings
        self.pending: PendingBytes = PendingBytes(settings.max_pending_total, lambda: engine.waiting_bytes)
        self.is_overloaded: bool = False
        self._deferred: list[Connection] = []  # paused while too much waits
        self._slots: FrameSlots[Connection] = FrameSlots(settings.max_pending_total, settings.max_payload)
        self._slot_timer: asyncio.TimerHandle | None = None
        self._give_back_timer: asyncio.TimerHandle | None = None
        self._released = 0  # bytes that lost connections held, since memory was given back
        engine.output.relieve = self._flush
        self._is_stopping = False
        # Turns.
        self._is_scheduled = False
        self._worker = worker
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0  # by the engine's clock
        self._timer_due = 0.0  # by the loop's
        self._damage_seen = 0
        self._damage_logged: set[tuple[str, int]] = set()
        self._losses_logged: set[tuple[str, int, int, int]] = set()
        self._faults_logged: set[str] = set()
        self._stores = [journal.store for journal in engine.journals]
        self.committers: Sequence[Committer] = [
            Committer(
                engine,
                journal,
                worker=worker if worker is not None and worker.store is journal.store else None,
                clock=clock,
                wake=self.wake,
                group_sealed=self._group_sealed,
            )
            for journal in engine.journals
        ]
        self.wake()

    def reload(self, *, max_connections: int, trace: bool, limits: ConnectionLimits) -> None:
        """Apply changed options. The newest clients beyond the new maximum are disconnected."""
        self._max_connections = max_connections
        if trace != (self._trace is not None):
            self._trace = Trace() if trace else None
        self._slots.resize(self.engine.settings.max_pending_total, self.engine.settings.max_payload)
        for connection in self._connections.values():
            connection.change(limits)
        if 0 <= max_connections < len(self._connections):
            for cid in sorted(self._connections)[max_connections:]:
                self.engine.close(cid, "maximum connections exceeded")
        self.wake()

    # Connections.

    @property
    def connections(self) -> list[Connection]:
        return list(self._connections.values())

    def accept(self, connection: Connection) -> bool:
        """Greet a client; False if there are too many."""
        transport = connection.transport
        assert transport is not None
        full = 0 <= self._max_connections <= len(self._connections)
        self._last_cid += 1
        connection.cid = self._last_cid
        self._connections[connection.cid] = connection
        peer = transport.get_extra_info("peername")
        address, port = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else ("", 0)
        nonce = make_nonce() if self.engine.wants_nonces else ""
        self.engine.connect(
            connection.cid, address, self.clock(), client_port=port, nonce=nonce, listener=connection.listener
        )
        log.debug("%s - Client connection created", connection.label)
        if full:
            self.engine.close(connection.cid, "maximum connections exceeded")
        if full or connection.upgrades_to_tls:
            self._flush()
        self.wake()
        return not full

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run a coroutine that ends with the server."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def upgraded(self, connection: Connection) -> None:
        """The TLS handshake is complete: write what waited for it."""
        session = self._in_handshake.pop(connection.cid, None)
        if session is not None:
            self._write(connection, session)

    def data(self, connection: Connection, events: Sequence[Event], size: int) -> None:
        """A client has sent `size` bytes with these events."""
        before = sum(map(_pending, self._stores))
        if self.faults is not None:
            events = self.faults.events(connection, events)
        if self._trace is not None:
            self._trace.received(connection, events)
        try:
            self.engine.receive(connection.cid, events, self.clock())
        except Exception:  # a defect that one client meets must not stop the others
            log.exception("%s - internal error", connection.label)
            self.engine.close(connection.cid, "Internal Server Error")
        while self.engine.checks:
            connection.authenticating(True)
            self.spawn(self._check_secret(connection, self.engine.checks.pop()))
        if self.engine.held_back and connection.cid in self.engine.held_back:
            connection.hold_back(True)
        after = sum(map(_pending, self._stores))
        if after > before:
            self._group_bytes += size
            if (after >= GROUP_CHANGES or self._group_bytes >= GROUP_BYTES) and connection.pause():
                self._paused.append(connection)
        if connection.held or connection.input_size:
            self._count_input(connection)
        self.wake()

    async def _check_secret(self, connection: Connection, check: Check) -> None:
        """Compare a secret with its hash, on a thread: it takes a good part of a second."""
        session = self.engine.sessions.get(check.cid)
        address = session.peer.host if session is not None else ""
        right = await self._hash_checks.check(address, check)
        if right is None:
            log.warning("%s - too many logins from %s are waiting to be checked", connection.label, address)
        self.engine.checked(check.cid, bool(right), self.clock())
        connection.authenticating(False)
        self.wake()

    def lost(self, connection: Connection) -> None:
        """A connection is closed."""
        self._in_handshake.pop(connection.cid, None)
        self._slots.release(connection, self._loop.time())
        self._released += self.pending.forget(connection)
        if self._released >= RELEASED:
            self._give_back_later()
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

    def _group_sealed(self) -> None:
        """A committer has sealed (or lost) its group: there is space in the open one."""
        self._group_bytes = 0
        if self._is_stopping:
            return
        paused, self._paused = self._paused, []
        for connection in paused:
            connection.resume()

    # Memory.

    def _count_input(self, connection: Connection) -> None:
        self.pending.read(connection, connection.input_size)
        self._slots.update(connection, connection.incomplete, self._loop.time())
        if self._slots.is_wanted and self._slot_timer is None:
            self._slot_timer = self._loop.call_later(FRAME_TIME, self._end_overdue_frames)
        self.is_overloaded = self.is_overloaded or self.pending.is_over

    def _end_overdue_frames(self) -> None:
        """Disconnect those that have been sending one large message for too long, while others wait to."""
        self._slot_timer = None
        now = self._loop.time()
        for connection in self._slots.overdue(now):
            self.engine.close(connection.cid, "Large Message Not Received In Time")
            self._slots.release(connection, now)
        if self._slots.is_wanted:
            self._slot_timer = self._loop.call_later(FRAME_TIME / 4, self._end_overdue_frames)
        self.wake()

    def defer(self, connection: Connection) -> None:
        """Pause a connection until the next turn."""
        if connection.pause():
            self._deferred.append(connection)
        self.wake()

    def _relieve_memory(self) -> None:
        """Disconnect the clients that hold most, if all together hold more than the budget; then read on."""
        for connection in self.pending.excess(list(self._connections.values())):
            session = self.engine.sessions.get(connection.cid)
            log.warning(
                "%s - disconnected: %d bytes pending, and %d for all clients exceed max_pending_total (%d)",
                connection.label, connection.unsent + connection.held, self.pending.total, self.pending.limit,
            )  # fmt: skip
            self.engine.close(connection.cid, "Slow Consumer")
            if session is not None:
                session.out.clear()
            connection.abort()
            self.pending.forget(connection)
            self._give_back_later()
        self.is_overloaded = False
        deferred, self._deferred = self._deferred, []
        if not self._is_stopping:
            for connection in deferred:
                connection.resume()

    def _give_back_later(self) -> None:
        if self._give_back_timer is None:
            self._give_back_timer = self._loop.call_later(GIVE_BACK_DELAY, self._give_back)

    def _give_back(self) -> None:
        self._give_back_timer, self._released = None, 0
        self._loop.run_in_executor(None, give_back)

    # Turns.

    def wake(self) -> None:
        """Have a turn soon."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        if self.is_overloaded:
            self._relieve_memory()
        now = self.clock()
        try:
            deadline = self.engine.next_deadline()
            if deadline is not None and deadline <= now:
                self.engine.tick(now)
            if self.engine.step(now):
                self.wake()
            while self.engine.resumed:
                waiting = self._connections.get(self.engine.resumed.pop())
                if waiting is not None:
                    waiting.hold_back(False)
            for committer in self.committers:
                committer.turn()
        except Exception:  # the timer or job that failed is gone; everything else goes on
            log.exception("internal error in a turn of the server")
            self.wake()
        self.note_damage()
        self._flush()
        self._arm(now)
        if self._worker is not None:
            self._worker.give_way()

    def note_damage(self) -> None:
        """Log damage that was found outside of a turn."""
        if sum(map(_corrupt_records, self._stores)) != self._damage_seen:
            self._log_damage()

    def _log_damage(self) -> None:
        """Log the damaged messages that were found since the last turn."""
        self._damage_seen = sum(map(_corrupt_records, self._stores))
        for store in self._stores:
            for stream, seq in store.damaged():
                if (stream, seq) not in self._damage_logged:
                    self._damage_logged.add((stream, seq))
                    log.error("message %d of stream %r is damaged and is not served", seq, stream)
            for loss in store.losses():
                if loss not in self._losses_logged:
                    self._losses_logged.add(loss)
                    stream, low, high, count = loss
                    if count:
                        log.error("%d messages from %d to %d of stream %r are missing", count, low, high, stream)
                    else:
                        log.error("messages from %d to %d of stream %r are damaged or missing", low, high, stream)
            for fault in store.faults():
                if fault not in self._faults_logged:
                    self._faults_logged.add(fault)
                    log.error("the store is damaged: %s", fault)

    def _flush(self) -> None:
        for session in self.engine.take_output():
            connection = self._connections.get(session.cid)
            if connection is not None:
                self._write(connection, session)
        if self.pending.is_over:
            self.is_overloaded = True
            self.wake()

    def _write(self, connection: Connection, session: Session) -> None:
        transport = connection.transport
        if transport is None:
            self._in_handshake[session.cid] = session
        elif session.out:
            parts, limit = session.out, self.engine.settings.max_pending_bytes
            size = limit - connection.unsent - session.capacity
            if size < PARTS * len(parts) or self._trace is not None or self.faults is not None:
                data = b"".join(parts)
                if self._trace is not None:
                    self._trace.sent(connection, data)
                if self.faults is not None:
                    data = self.faults.sent(connection, data)
                unsent = connection.write(data)
            else:
                unsent = connection.write_parts(parts)
            session.out.clear()
            session.set_capacity(limit - unsent)
            if unsent or connection.unsent:
                self.pending.wrote(connection, unsent)
        if session.closed:
            connection.close()

    def _arm(self, now: int) -> None:
        """Set the timer for the engine's next deadline; a virtual clock is moved by `FaultCommands` instead."""
        deadline = self.engine.next_deadline()
        if deadline is None or self.clock.is_virtual:
            return
        due = self._loop.time() + max(0.0, (deadline - now) / 1e9)
        if self._timer is not None:
            # The machine's clock may have been set forward since: a timer for an earlier deadline can then fire later.
            if self._timer_at <= deadline and self._timer_due <= due + CLOCK_JITTER:
                return
            self._timer.cancel()
        self._timer_at, self._timer_due = deadline, due
        self._timer = self._loop.call_later(max(0.0, (deadline - self.clock()) / 1e9), self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        if not self._is_scheduled:  # otherwise there would be two from now on, in every round of a busy loop
            self._turn()

    async def settle(self, *, timeout: float = 10.0) -> None:
        """Wait until everything that was received is carried out, durable and handed to the sockets."""
        async with asyncio.timeout(timeout):
            await asyncio.sleep(0)
            while (
                self._is_scheduled
                or self.engine.has_new_jobs
                or self.engine.held_back
                or any(committer.journal.unfinished for committer in self.committers)
            ):
                await asyncio.sleep(0 if self._is_scheduled else 0.0005)

    # The end.

    async def lame_duck(self, *, grace: float, duration: float) -> None:
        """Ask clients to reconnect elsewhere; after `grace` seconds disconnect those that stayed, one after the other,
        over the rest of `duration`."""
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

    def stop_reading(self) -> None:
        """Take nothing more from clients; what was received is still carried out and answered."""
        self._is_stopping = True
        self.engine.retire()
        for connection in self._connections.values():
            connection.pause()
        self._flush()  # the status replies to waiting pulls: there may be no later turn

    def close_all(self) -> None:
        """Disconnect every client."""
        for connection in list(self._connections.values()):
            connection.close()

    def stop(self) -> None:
        """No more turns by the clock, no more handshakes."""
        for task in self._tasks:
            task.cancel()
        for timer in (self._timer, self._slot_timer, self._give_back_timer):
            if timer is not None:
                timer.cancel()
        self._hash_checks.stop()
