"""The whole server in virtual time, from one seed: engine, journals, driver, connections, and a store on LMDB.

Theory of operation. Nothing here runs by itself. A step delivers some bytes of a client, runs a callback of the
event loop, lets the disk finish a step of a commit, has a client read, moves the time, or breaks something; which
one is drawn from `Choices`. The same seed therefore gives the same run, to the byte.

The model (`model.py`) follows request by request: a client's bytes are cut so that each call of the server
completes one request at most, and the request is applied to the model right then. When the store seals a group, the
model is copied; when the group is synced, the copy becomes the durable state. That is what is compared:

* what the server writes to a client, at the moment it writes it, with the answer that the model expects (`Op.check`),
  and the group it depends on with what the disk has synced;
* the writer's view of every log with the model, after each request and before each seal;
* after a crash, the whole content of the reopened store with the copy that the disk must have kept.

Changes that no request made (expiry, schedules, sources) are found by comparing, and must have a reason.
"""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from slipstream.errors import Error
from slipstream.server.engine.engine import Engine
from slipstream.server.engine.ports import StreamLog
from slipstream.server.engine.reads import direct_get
from slipstream.server.engine.snapshots import writer as snapshots
from slipstream.server.loop.clock import Clock
from slipstream.server.loop.connection import Connection, ConnectionLimits
from slipstream.server.loop.driver import Driver
from slipstream.server.store.lmdb.segments import Tuning
from slipstream.wire import Msg, Parser, Side, pub
from tests.jetstream.reads.simulation.choices import Choices
from tests.server.simulation.disk import CrashError, Disk, Hooks, SimulatedMemory, SimulatedStore
from tests.server.simulation.loop import SECOND, Outbox, Time, VirtualLoop, VirtualWorker, Wire
from tests.server.simulation.model import Entry, GroupStates, ModelStream, State, headers_of
from tests.server.support import make_settings

START = 1_700_000_000 * SECOND
HELLO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
TUNINGS = (
    Tuning(segment=8, slice=6, dirty=4, journal=12, cache=3, probe=4, page=3),
    Tuning(segment=16, slice=20, dirty=10, journal=30, cache=10, probe=8, page=7),
    Tuning(),
)
STORE_FAILED = 10077
CLIENTS = 3
HISTORY = 60

Check = Callable[[Msg], str]  # what is wrong with an answer, in words


class ViolationError(BaseException):
    """The server broke a promise. The server must not catch it: some of it is found in the midst of its turns."""

    def __init__(self, promise: str, text: str) -> None:
        super().__init__(f"{promise}: {text}")
        self.promise = promise


class Op:
    """A request of a client."""

    def __init__(
        self,
        text: str,
        subject: str,
        payload: bytes,
        run: Callable[[int], Check | None],
        *,
        header: bytes = b"",
        storage: str = "",
    ) -> None:
        """`run` applies it to the model, at a time, and says how to check the answer (None: there is none)."""
        self.text, self.subject, self.payload, self.header = text, subject, payload, header
        self.storage = storage  # of the stream that it changes; empty: it changes nothing
        self.run = run
        self.reply = self.suffix = ""  # `suffix` is added to the reply subject
        self.check: Check | None = None
        self.needs = 0  # the group that must be durable before it is answered
        self.catalog: dict[str, int] = {}  # the groups that made the list of streams what it was
        self.is_deferred = False  # what it changes is written when the group is sealed, and not before
        self.is_report = False  # it tells of a state, and changes nothing
        self.is_catalog = False  # it creates, changes or deletes a stream
        self.is_absent = False  # the stream that it names does not exist: that must be durable too
        self.lost = False  # the group that it was in failed
        self.may_fail = False
        self.failure = STORE_FAILED  # the code of the error if it does; `STORE_FAILED` is always right
        self.optional = False  # it need not be answered
        self.many = False  # more than one answer; `check` says "more" until the last


class Client:
    """A client and its connection."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.generation = 0
        self.wire: Wire | None = None
        self.connection: Connection | None = None
        self.outgoing: deque[tuple[bytes, Op | None]] = deque()  # what is left of each request
        self.incoming: deque[tuple[int, list[Msg]]] = deque()
        self.pending: dict[str, Op] = {}
        self.parser = Parser(Side.SERVER)
        self.is_slow = False
        self.asked = 0

    @property
    def inbox(self) -> str:
        return f"_INBOX.{self.number}x{self.generation}"

    @property
    def is_open(self) -> bool:
        return self.wire is not None and not self.wire.is_closing()


class _Errors(logging.Handler):
    """Defects that the server survives are still defects."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "internal error" in record.getMessage():
            self.found.append(record)


class World:
    """The machine, the server on it, and its clients."""

    def __init__(self, choices: Choices, directory: Path, *, history: int = HISTORY) -> None:
        """`history`: how many of its last steps it can tell."""
        self.choices = choices
        self.time = Time(START)
        self.history: deque[str] = deque(maxlen=history)
        self.steps = 0
        self.disk = Disk(directory, choices)
        self.tuning = choices.one_of(TUNINGS)
        self.chunk = choices.one_of((512, 1, 3))  # messages of a batched read that are sent in one turn
        self._usual_chunk = direct_get.CHUNK
        self.is_sliced = self.chunk != self._usual_chunk  # snapshots take many turns as well
        self._usual_snapshots = {name: getattr(snapshots, name) for name in ("SMALLEST", "MAX_FRAME", "SCAN")}
        self.file, self.memory = GroupStates(), GroupStates()
        self.clients = [Client(number) for number in range(CLIENTS)]
        self.received: Callable[[Client, Msg], None] = lambda client, message: None  # noqa: ARG005
        self.was_read: Callable[[Client, Msg], None] = lambda client, message: None  # noqa: ARG005
        self.was_lost: Callable[[Msg], None] = lambda message: None  # noqa: ARG005
        self.reasons: list[Callable[[ModelStream, Entry, int], bool]] = []  # why a message may be gone
        self.arrivals: list[Callable[[ModelStream, Entry], bool]] = []  # why a message may have come
        self.before_reconcile: list[Callable[[], None]] = []  # what the server may have done by itself
        self.after_restart: list[Callable[[], None]] = []
        self.after_finish: list[Callable[[], None]] = []  # readers see another state
        self.after_loss: list[Callable[[str], None]] = []  # of a group; of which storage
        self.catalog = {"file": 0, "memory": 0}  # the last group that changed the list of streams
        self.event = 0  # calls of the server so far
        self.kept: State | None = None  # what the disk has beyond what the server knows: the group under way
        self.crashes = self.failures = self.answered = self.executed = 0
        self.born = 0
        self.is_up = False
        self.is_checked = True
        self.has_consumers = False
        self.has_copies = False

    # The server.

    def start(self) -> None:
        """Open the store, as the last crash left it, and start the server."""
        self.loop = VirtualLoop(self.time)
        self.loop.enter()
        direct_get.CHUNK = self.chunk
        if self.is_sliced:
            _change_snapshots({"SMALLEST": 48, "MAX_FRAME": 96, "SCAN": self.chunk})
        try:
            self.store = SimulatedStore(self.disk, self.tuning)
        except Error as exc:
            raise ViolationError("state after restart", f"the store cannot be opened: {exc}") from exc
        self.memory_store = SimulatedMemory()
        self.clock = Clock(self.time.wall, self.time.tick)
        now = self.clock()
        durable = self.kept if self.kept is not None else self.file.synced
        self.kept = None
        try:
            compare(self.store, durable, "state after restart")
        except Error as exc:
            raise ViolationError("state after restart", str(exc)) from exc
        self.file.restart(durable, now)
        self.memory.restart({}, now)
        self.store.hooks = self._hooks(self.file, is_file=True)
        self.memory_store.hooks = self._hooks(self.memory, is_file=False)
        self.engine = Engine(
            make_settings(max_pending_bytes=1 << 16),
            file=self.store,
            memory=self.memory_store,
            rng=random.Random(self.choices.below(1 << 30)),
            now=now,
        )
        self.worker = VirtualWorker(self.loop, self.store)
        self.driver = Driver(self.engine, clock=self.clock, worker=self.worker, max_connections=100)
        self.is_up = True
        for call in self.after_restart:
            call()
        self.reconcile()

    def _hooks(self, states: GroupStates, *, is_file: bool) -> Hooks:
        def committed() -> None:
            if not is_file or self.disk.is_synced:
                states.sync()

        def abandoned(broken: bool) -> None:
            self.failures += 1
            self.say("the group is lost" + (", though it is on the disk" if broken else ""))
            if broken and self.kept is None:
                self.kept = states.sealed
            states.revert(self.clock())
            for name in (self.memory if is_file else self.file).writer:  # made while the deletion was on its way
                states.writer.pop(name, None)
            self._groups_lost("file" if is_file else "memory")

        def sealed() -> None:
            states.seal()
            if is_file and self.store.sweeping:
                for stream in states.sealed.values():
                    stream.is_rough = True

        def finished() -> None:
            states.finish(self.event)
            for call in self.after_finish:
                call()

        return Hooks(self.reconcile, sealed, committed, finished, abandoned)

    def _groups_lost(self, storage: str) -> None:
        """Requests whose change was dropped must be answered with an error."""
        states = self.states(storage)
        self.catalog[storage] = min(self.catalog[storage], states.synced_index)
        for call in self.after_loss:
            call(storage)
        for client in self.clients:
            for op in client.pending.values():
                if op.storage == storage or op.is_absent:
                    op.may_fail = True
                if op.storage == storage:
                    if op.is_report:  # it changes nothing: it may be answered from what is left
                        op.needs = min(op.needs, states.synced_index)
                    op.lost = op.lost or op.needs > states.synced_index

    def states(self, storage: str) -> GroupStates:
        return self.memory if storage == "memory" else self.file

    def crash(self) -> None:
        """The machine stops, and is started again."""
        self.crashes += 1
        self.stop()
        if self.disk.is_ahead and self.kept is None:  # the server did not learn of it
            self.kept = self.file.sealed
        if self.disk.survivors:
            if self.disk.survivors.startswith("all of"):
                self.kept = self.file.sealed
            self.say(f"crash in a commit: the disk has {self.disk.survivors}")
        else:
            self.say("crash")
        self.disk.crash()
        for client in self.clients:
            self._forget(client)
        self.start()

    def stop(self) -> None:
        """End the server without another word to the disk."""
        direct_get.CHUNK = self._usual_chunk
        _change_snapshots(self._usual_snapshots)
        if not self.is_up:
            self.loop.leave()
        else:
            nothing = Hooks(*[lambda *_: None] * 5)
            self.store.hooks = self.memory_store.hooks = nothing
            self.store.close()
            self.loop.leave()
            self.is_up = False

    # Clients.

    def connect(self, client: Client) -> None:
        client.generation += 1
        client.parser = Parser(Side.SERVER)
        wire = Wire(self.loop, client.number, lambda data: self._sent(client, data))
        limits = ConnectionLimits(max_control_line=4096, write_deadline=10.0)
        client.wire, client.connection = wire, Connection(self.driver, self.engine, self.engine.listener, limits)
        wire.protocol = client.connection
        client.connection.connection_made(wire)
        session = self.engine.sessions[client.connection.cid]
        session.out = wire.outbox = Outbox(session.out, self._never_sent)
        subscribe = b"SUB %b.> 1\r\nSUB _PUSH.%d 2\r\n" % (client.inbox.encode(), client.number)
        client.outgoing.append((HELLO + subscribe, None))
        self.say(f"client {client.number} connects")

    def _forget(self, client: Client) -> None:
        """The connection is gone, with everything on its way."""
        client.wire = client.connection = None
        client.outgoing.clear()
        client.incoming.clear()
        client.pending.clear()

    def cut(self, client: Client) -> None:
        """Lose a connection."""
        wire = client.wire
        if wire is not None:
            self.say(f"the connection of client {client.number} is cut")
            wire.abort()
            self._forget(client)

    def request(self, client: Client, op: Op) -> None:
        """Queue a request of a client."""
        client.asked += 1
        op.reply = f"{client.inbox}.{client.asked}{op.suffix}"
        frame = pub(op.subject, op.payload, op.reply, op.header)
        client.outgoing.append((frame, op))

    def deliver(self, client: Client, size: int) -> None:
        """So many bytes of a client arrive, at most one request at a time."""
        while size > 0 and client.outgoing and client.wire is not None:
            wire, connection = client.wire, client.connection
            assert connection is not None
            if wire.is_closing() or not wire.accepts:
                return
            data, op = client.outgoing.popleft()
            piece, rest = data[:size], data[size:]
            size -= len(piece)
            if rest:
                client.outgoing.appendleft((rest, op))
            if op is None or rest:
                connection.data_received(piece)
                continue
            self._execute(client, connection, piece, op)

    def _execute(self, client: Client, connection: Connection, piece: bytes, op: Op) -> None:
        """The last bytes of a request arrive: the server carries it out, and so does the model."""
        self.reconcile()
        session = self.engine.sessions.get(connection.cid)
        is_heard = session is not None and not session.closed
        now = self.clock()
        connection.data_received(piece)
        if not is_heard:
            return
        self.executed += 1
        self.event += 1
        op.check = op.run(now)
        op.catalog = dict(self.catalog)
        if op.storage:
            states, store = self.states(op.storage), self.memory_store if op.storage == "memory" else self.store
            op.needs = states.sealed_index + bool(store.pending or op.is_deferred)
            if op.is_catalog:
                self.catalog[op.storage] = op.needs
        self.say(f"{client.number}> {op.text}  [{op.reply.rpartition('.')[2]}]")
        if op.check is not None:
            client.pending[op.reply] = op
        self.reconcile()

    def _sent(self, client: Client, data: bytes) -> None:
        """The server writes to a client: the moment that counts for promises."""
        messages = [event for event in client.parser.feed(data) if isinstance(event, Msg)]
        for message in messages:
            op = client.pending.get(message.subject)
            if op is not None and op.check is not None:
                self._answered(client, op, message)
            else:
                self.received(client, message)
        client.incoming.append((len(data), messages))

    def _never_sent(self, data: bytes) -> None:
        """The server had this for a client whose connection is gone."""
        for event in Parser(Side.SERVER).feed(data):
            if isinstance(event, Msg):
                self.was_lost(event)

    def _answered(self, client: Client, op: Op, message: Msg) -> None:
        self.answered += 1
        number = op.reply.rpartition(".")[2]
        self.say(f"{client.number}<   [{number}] {message.header[8:60]!r} {message.payload[:100]!r}")
        if op.may_fail and error_code(message) in (STORE_FAILED, op.failure):
            del client.pending[op.reply]
            return
        if op.lost:
            raise ViolationError("acknowledged is kept", f"{op.text} was answered although its group was lost")
        assert op.check is not None
        wrong = op.check(message)
        if wrong == "more":
            return
        del client.pending[op.reply]
        if wrong:
            raise ViolationError(wrong.partition(": ")[0], f"{op.text}: {wrong.partition(': ')[2]}")
        if op.storage and op.needs > self.states(op.storage).synced_index:
            raise ViolationError("no ack before its sync", f"{op.text} is answered, and its group is not on the disk")
        if op.is_absent and any(index > self.states(kind).synced_index for kind, index in op.catalog.items()):
            raise ViolationError("no ack before its sync", f"{op.text}: the stream is gone, and that is not durable")

    def read(self, client: Client) -> None:
        """A client reads what was sent to it."""
        while client.incoming and client.wire is not None:
            size, messages = client.incoming.popleft()
            client.wire.take(size)
            for message in messages:
                self.was_read(client, message)

    # Steps.

    def run_loop(self, count: int) -> None:
        while count > 0:
            self.event += 1
            if not self.loop.run_one():
                return
            count -= 1

    def advance(self, nanoseconds: int) -> None:
        """Let time pass, with the timers on the way. With very many of them the process stands still for a while."""
        end = self.time.monotonic + nanoseconds
        for _ in range(100):
            if (due := self.loop.next_due()) is None or due > end:
                break
            self.time.monotonic = max(due, self.time.monotonic)
            self.run_loop(20)
        else:
            self.driver.wake()
        self.time.monotonic = end
        self.run_loop(5)

    def rest(self, seconds: int) -> None:
        """Let time pass without faults."""
        for _ in range(seconds):
            self.advance(SECOND)
            self.settle()

    def settle(self, *, turns: int = 400, waits: bool = True) -> None:
        """Let everything that was begun come to its end: no faults from here on. Time passes only if it `waits`."""
        self.disk.heal()
        for _ in range(turns):
            busy = False
            for client in self.clients:
                if client.wire is not None and client.wire.is_lost:
                    self._forget(client)
                if client.wire is None:
                    self.connect(client)
                if client.outgoing and client.wire is not None and client.wire.accepts:
                    busy = True
                    self.deliver(client, 1 << 20)
                if client.incoming:
                    busy = True
                    self.read(client)
            while self.loop.has_ready:
                busy = True
                self.run_loop(100)
                if self.worker.submitted:
                    break
            if self.worker.submitted:
                busy = True
                self.worker.run_one()
            if busy:
                continue
            if not any(journal.unfinished for journal in self.engine.journals) and not any(
                not op.optional for client in self.clients for op in client.pending.values()
            ):
                return
            if not waits:
                return
            due = self.loop.next_due()
            if due is None:
                break
            self.advance(max(due - self.time.monotonic, 0))
        waiting = [op.text for client in self.clients for op in client.pending.values() if not op.optional]
        if waiting:
            raise ViolationError("every request is answered", f"never: {waiting[:3]}")
        if any(journal.unfinished for journal in self.engine.journals):
            raise ViolationError("every request is answered", "the server does not come to rest")

    def say(self, text: str) -> None:
        seconds = self.time.monotonic / SECOND
        self.history.append(f"{self.steps:4} {seconds:10.3f} {self.file.sealed_index:3} {text}")

    # The model and the server.

    def reconcile(self) -> None:
        """Compare the writer's view of every log with the model; changes that no request made need a reason."""
        if not self.is_up or not self.is_checked:
            return
        for call in self.before_reconcile:
            call()
        for storage, store in (("file", self.store), ("memory", self.memory_store)):
            states = self.states(storage)
            names = sorted(name for name, _ in store.streams())
            if names != sorted(stream.name for stream in states.writer.values()):
                raise ViolationError("exact state", f"streams are {names}, expected {sorted(states.writer)}")
            # Copies first: a message may leave a work queue in the same turn in which it was copied.
            for stream in sorted(states.writer.values(), key=lambda each: not (each.mirror or each.sources)):
                log = store.log(stream.name)
                state = log.state
                if (state.messages, state.bytes, state.first_seq, state.last_seq, state.subjects) != stream.state():
                    self._explain(stream, log, is_sweeping=storage == "file" and self.store.sweeping)

    def _explain(self, stream: ModelStream, log: StreamLog, *, is_sweeping: bool) -> None:
        """Find reasons for what changed. What expired in the turn in which a schedule fired may have left before or
        after that: its place may be that of the message which the schedule published, or another one went for it."""
        before = stream.copy() if stream.due else None
        try:
            self._explain_in_order(stream, log, expired_first=True, is_sweeping=is_sweeping)
        except ViolationError:
            if before is None:
                raise
            stream.__dict__.update(before.__dict__)
            self._explain_in_order(stream, log, expired_first=False, is_sweeping=is_sweeping)

    def _explain_in_order(self, stream: ModelStream, log: StreamLog, *, expired_first: bool, is_sweeping: bool) -> None:
        now, state = self.clock(), log.state
        records = [log.peek(seq) for seq in range(stream.last + 1, state.last_seq + 1)]
        arrived = [Entry(*record) for record in records if record is not None]
        fleeting = stream.fleeting_markers(now)
        passed = state.last_seq - max([stream.last, *(entry.seq for entry in arrived)])
        is_passed = 0 < passed <= fleeting
        most = max(fleeting, stream.squeezed_markers(now))
        if state.last_seq - stream.last - len(arrived) > most and not stream.has_gaps:
            raise ViolationError(
                "exact state", f"stream {stream.name} passes over sequences: {state}, {stream.state()}"
            )
        marked = {entry.subject for entry in arrived}
        for entry in arrived:
            self._expire_before(stream, log, entry, marked, expired_first=expired_first)
            if not any(reason(stream, entry) for reason in self.arrivals):
                raise ViolationError("exact state", f"stream {stream.name} has {entry}, which nobody published")
            stream.extra += 1
            stream.append(entry)
            self.say(f"stream {stream.name} got {entry.seq} {entry.subject} by itself")
        for seq, entry in list(stream.messages.items()):
            if state.first_seq <= seq and log.peek(seq) is not None:
                continue
            if not self._may_go(stream, entry, now):
                raise ViolationError("acknowledged is kept", f"stream {stream.name} lost {entry} (now {now})")
            stream.drop(seq)
            self.say(f"stream {stream.name} dropped {seq} {entry.subject}")
        if is_passed:
            stream.last, stream.last_time = state.last_seq, state.last_time
        given = (state.messages, state.bytes, state.first_seq, state.last_seq, state.subjects)
        if given != stream.state() and not (is_sweeping and given[:4] == stream.state()[:4]):  # see LogState
            raise ViolationError("exact state", f"stream {stream.name} is {given}, expected {stream.state()}")

    def _expire_before(
        self, stream: ModelStream, log: StreamLog, entry: Entry, marked: set[str], *, expired_first: bool
    ) -> None:
        """What had expired when a marker was stored was removed first, which may have made room for the marker; those
        of the other `marked` subjects are still to come. With `expired_first`, the same holds for what had expired
        before a schedule was due."""
        _, due = stream.due.get(headers_of(entry.header).get("Nats-Scheduler", ""), (0, 0))
        if due:
            if not expired_first:
                return
            end = stream.time_at(due)
        elif not (last := stream.last_of(entry.subject)) or not stream.expires(stream.messages[last]):
            return
        else:
            end = entry.time
        if not stream.subject_delete_marker_ttl:
            marked = set()
        now = stream.time_at(self.clock())
        for seq, each in list(stream.messages.items()):
            is_first = 0 < stream.expires(each) <= min(now, end)
            if is_first and each.subject not in marked and (seq < log.state.first_seq or log.peek(seq) is None):
                stream.drop(seq)
                self.say(f"stream {stream.name} dropped {seq} {each.subject}")

    def _may_go(self, stream: ModelStream, entry: Entry, now: int) -> bool:
        expires = stream.expires(entry)
        return bool(expires and expires <= stream.time_at(now)) or any(
            reason(stream, entry, now) for reason in self.reasons
        )

    def check_expiry(self) -> None:
        """Nothing is there that should have expired a while ago."""
        now = self.clock()
        for states in (self.file, self.memory):
            for stream in states.writer.values():
                time = stream.time_at(now)
                for entry in stream.messages.values():
                    if 0 < stream.expires(entry) < time - 2 * SECOND:
                        late = (time - stream.expires(entry)) / SECOND
                        raise ViolationError("messages expire", f"{entry} of {stream.name} is {late} seconds late")


def _change_snapshots(sizes: dict[str, int]) -> None:
    """How much of a snapshot is read and sent at a time."""
    for name, size in sizes.items():
        setattr(snapshots, name, size)


def error_code(message: Msg) -> int:
    """The code of an error in a JSON answer; 0 if it is none."""
    if b'"error"' not in message.payload:
        return 0
    body: dict[str, Any] = msgspec.json.decode(message.payload)
    error = body.get("error")  # a mirror may report one of its own
    return int(error.get("err_code", 0)) or 1 if error is not None else 0


def compare(store: SimulatedStore | SimulatedMemory, expected: State, promise: str) -> None:
    """Compare all that a store has, by all its ways to say it, with a state."""
    names = sorted(name for name, _ in store.streams())
    if names != sorted(stream.name for stream in expected.values()):
        raise ViolationError(promise, f"streams are {names}, expected {sorted(expected)}")
    is_sweeping = isinstance(store, SimulatedStore) and store.sweeping
    for stream in expected.values():
        compare_log(store.log(stream.name), stream, promise, is_sweeping=is_sweeping)


def compare_log(log: StreamLog, stream: ModelStream, promise: str, *, is_sweeping: bool) -> None:
    """The reader's view of a log: content, statistics, subjects and indexes."""
    name = stream.name
    found = {record.seq: Entry(*record) for record in log.scan("", 0, limit=1 << 30)}
    if found != stream.messages:
        missing = [entry for seq, entry in stream.messages.items() if found.get(seq) != entry]
        unknown = [entry for seq, entry in found.items() if stream.messages.get(seq) != entry]
        raise ViolationError(promise, f"stream {name} lacks {missing[:3]} and has {unknown[:3]}")
    state = log.committed
    subjects = len(stream.counts) if is_sweeping else state.subjects  # see LogState
    given = (state.messages, state.bytes, state.first_seq, state.last_seq, subjects)
    if given != stream.state() or (stream.last and state.last_time != stream.last_time):
        raise ViolationError(promise, f"stream {name} says {state}, and has {stream.state()}, {stream.last_time}")
    counts = dict(log.subjects(""))
    if counts != stream.counts:
        raise ViolationError(promise, f"stream {name} counts {counts}, expected {stream.counts}")
    middle = (state.first_seq + state.last_seq) // 2
    for subject in stream.counts:
        seqs = stream.of(subject)
        ours = (seqs[0], seqs[-1], seqs, sum(1 for seq in seqs if seq >= middle))
        by_index = [record.seq for record in log.scan(subject, 0, limit=1 << 30)]
        theirs = (log.first_seq_of(subject), log.last_seq_of(subject), by_index, log.count(subject, middle))
        if ours != theirs:
            raise ViolationError(promise, f"subject {subject} of {name} is {theirs}, expected {ours}")


@contextmanager
def workspace() -> Iterator[Path]:
    """A directory in memory, where there is one."""
    memory = Path("/dev/shm")
    path = tempfile.mkdtemp(prefix="slipstream-simulation-", dir=memory if memory.is_dir() else None)
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path)


@contextmanager
def quiet() -> Iterator[_Errors]:
    """No log while the simulation runs, but for defects."""
    logger = logging.getLogger("slipstream.server")
    errors = _Errors()
    propagates, level = logger.propagate, logger.level
    logger.propagate = False
    logger.setLevel(logging.ERROR)
    logger.addHandler(errors)
    try:
        yield errors
    finally:
        logger.removeHandler(errors)
        logger.propagate = propagates
        logger.setLevel(level)


__all__ = ["CLIENTS", "CrashError", "Op", "ViolationError", "World", "error_code", "quiet", "workspace"]
