"""Restores in the simulation: a deleted stream is made again from an archive of what it had.

The stream of a restore is in the store from its first chunk on, hidden: no request finds it. In the model it has a
key of its own (`hidden_key`) and a configuration without subjects or limits, so that its log is compared like any
other, and that a crash or a lost group takes it. When the last chunk is durable it becomes a stream, with all its
messages, or the restore fails and nothing is left. A restore whose chunks stop coming is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from slipstream.api.snapshot.archive import END, MAGIC, STATE, ArchiveReader, encode_entry
from slipstream.api.snapshot.archive import Entry as Part
from slipstream.api.snapshot.s2 import S2Reader, S2Writer
from slipstream.api.ttl import NEVER, time_to_live
from slipstream.wire import Msg, parse_status
from tests.server.simulation.loop import SECOND
from tests.server.simulation.model import Entry, ModelStream, RejectedError, hidden_key
from tests.server.simulation.world import Check, Client, Op, ViolationError, error_code

if TYPE_CHECKING:
    from tests.server.simulation.workload import Workload

STALLED = 5 * SECOND
UNTIMED = 1 << 62
FAILED = 10062  # the code of a restore that failed
WHOLE = "a restore is whole"


class Restore:
    """A restore that the server has begun."""

    def __init__(self, config: dict[str, Any], pieces: list[bytes], now: int, *, is_cut: bool) -> None:
        """`is_cut`: the archive ends too early."""
        self.config, self.pieces, self.is_cut = config, pieces, is_cut
        self.frames, self.archive = S2Reader(), ArchiveReader()
        self.hidden: ModelStream | None = None
        self.last = 0  # the last sequence of its state
        self.ends = now + STALLED  # when it is dropped unless a chunk comes
        self.finished = 0  # when its end came
        self.end: Op | None = None

    @property
    def name(self) -> str:
        return str(self.config["name"])

    @property
    def storage(self) -> str:
        return str(self.config["storage"])

    def take(self, data: bytes, now: int) -> None:
        """A chunk arrives. Raises RejectedError if a message is larger than the configuration allows by now."""
        most = self.config["max_msg_size"]
        for part in self.archive.feed(self.frames.feed(data)):
            if self.hidden is None:
                state = msgspec.json.decode(part.payload)
                self.hidden = ModelStream({"name": self.name, "storage": self.storage}, 0, now, is_hidden=True)
                self.hidden.last = max(state["first_seq"], 1) - 1
                self.last = state["last_seq"]
            elif part != END:
                if 0 < most < len(part.header) + len(part.payload):
                    raise RejectedError
                lifetime = time_to_live(part.header) if part.header else 0
                self.hidden.last = part.seq
                if lifetime in (0, NEVER) or part.time + lifetime * SECOND > now:
                    self.hidden.put(Entry(part.seq, part.time, part.name, part.header, part.payload))


class RestoreLoad:
    """The archives of deleted streams, and the restores that run."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.world = workload.world
        self.choices = workload.choices
        self.saved: dict[str, ModelStream] = {}
        self.completed = 0
        self._running: dict[str, Restore] = {}
        self._opened: dict[tuple[str, str], int] = {}  # storage and name -> the group that makes a restore durable
        self.world.before_reconcile.append(self._follow)
        self.world.after_restart.append(self._restarted)
        self.world.after_loss.append(self._group_lost)

    def _restarted(self) -> None:
        self._running.clear()
        self._opened.clear()

    def _group_lost(self, storage: str) -> None:
        """Its restores are dropped, and what they stored is deleted: see `GroupStates.revert`."""
        self._running = {name: each for name, each in self._running.items() if each.storage != storage}
        states = self.world.states(storage)
        for (kind, name), index in list(self._opened.items()):
            if kind == storage and index > states.synced_index:
                del self._opened[kind, name]
                states.show(self.world.event, {key: each for key, each in states.visible.items() if key != name})

    def is_running(self, name: str) -> bool:
        """Whether a restore has that name, which no other stream may get."""
        return name in self._running

    def _follow(self) -> None:
        """Bring the model in line with restores that ended by themselves: one is complete, or has stalled."""
        (account,) = self.world.engine.accounts
        for name, restore in list(self._running.items()):
            if name in account.restores:
                continue
            if restore.end is not None and name in account.streams:
                self._complete(restore)
            elif restore.ends > self.world.clock():
                raise ViolationError(WHOLE, f"that of {name} was dropped")
            else:
                self._drop(restore)
                self.world.say(f"the restore of {name} has stalled")

    def _drop(self, restore: Restore) -> None:
        del self._running[restore.name]
        self.world.states(restore.storage).writer.pop(hidden_key(restore.name), None)

    def _complete(self, restore: Restore) -> None:
        """The stream is there, as of the moment in which the end of the archive came."""
        hidden, op, states, world = restore.hidden, restore.end, self.world.states(restore.storage), self.world
        assert hidden is not None
        assert op is not None
        if op.needs > states.synced_index:
            raise ViolationError("no ack before its sync", f"{restore.name} is restored, and not all of it is durable")
        self._drop(restore)
        world.born += 1
        stream = hidden.revealed(restore.config, world.born, restore.finished)
        stream.is_copied = lambda subject: self.workload.copies.takes(restore.name, subject)
        states.writer[restore.name] = stream
        # Readers see it from now on, with all messages: what its limits remove is in the next group.
        seen = hidden.revealed(restore.config, world.born, restore.finished, trims=False)
        states.show(world.event, states.visible | {restore.name: seen})
        self._opened[restore.storage, restore.name] = states.sealed_index + 1
        # The answer waits for another group, in which the stream becomes visible.
        op.needs = world.catalog[restore.storage] = states.sealed_index + 1
        self.completed += 1
        world.say(f"{restore.name} is restored")

    def save(self, stream: ModelStream) -> None:
        """Keep what a stream has, unless there is more already."""
        known = self.saved.get(stream.name)
        if known is None or len(known.messages) <= len(stream.messages):
            self.saved[stream.name] = stream.copy()

    # Requests.

    def draw(self, client: Client, name: str) -> Op:
        """Begin to restore a stream that was deleted, as it was then or before a purge."""
        pick, saved = self.choices, self.saved[name]
        config = saved.config
        data = _archive(saved)
        count = 1 + pick.below(4)
        size = -(-len(data) // count)
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        is_cut = pick.chance(15)
        if is_cut:
            pieces[-1] = pieces[-1][:-2]

        def run(now: int) -> Check:
            op.is_absent = self.workload.stream(name) is None
            if not op.is_absent or self.is_running(name):
                return _fails
            restore = self._running[name] = Restore(config, pieces, now, is_cut=is_cut)
            return lambda message: self._begun(client, restore, message)

        body = msgspec.json.encode({"config": config, "state": {}})
        op = Op(f"restore {name} {saved.state()} {config}", f"$JS.API.STREAM.RESTORE.{name}", body, run)
        return op

    def _begun(self, client: Client, restore: Restore, message: Msg) -> str:
        if error_code(message) or message.header:
            return f"wrong answer: {message.header!r} {message.payload!r}"
        subject = msgspec.json.decode(message.payload)["deliver_subject"]
        self._send(client, restore, subject, 0)
        return ""

    def _send(self, client: Client, restore: Restore, subject: str, number: int) -> None:
        """Queue a chunk, or the end."""
        if number < len(restore.pieces):
            op = self._chunk(client, restore, subject, number)
        else:
            op = self._end(restore, subject)
        op.failure = FAILED
        self.world.request(client, op)

    def _is_current(self, restore: Restore) -> bool:
        return self._running.get(restore.name) is restore

    def _chunk(self, client: Client, restore: Restore, subject: str, number: int) -> Op:
        def run(now: int) -> Check:
            if not self._is_current(restore):
                return _no_responders
            restore.ends = now + STALLED
            try:
                restore.take(restore.pieces[number], now)
            except RejectedError:
                op.storage = restore.storage
                self._drop(restore)
                return _fails
            if restore.hidden is not None:
                op.storage = restore.storage
                self.world.states(restore.storage).writer[hidden_key(restore.name)] = restore.hidden
            op.is_absent = restore.hidden is None  # nothing is stored yet
            return taken

        def taken(message: Msg) -> str:
            if message.header or message.payload:
                return f"wrong answer: {message.header!r} {message.payload!r}"
            self._send(client, restore, subject, number + 1)
            return ""

        op = Op(f"chunk {number} of {restore.name}", subject, restore.pieces[number], run)
        return op

    def _end(self, restore: Restore, subject: str) -> Op:
        def run(now: int) -> Check:
            if not self._is_current(restore):
                return _no_responders
            op.storage = restore.storage if restore.hidden is not None else ""
            op.is_absent = restore.hidden is None
            if restore.is_cut:
                self._drop(restore)
                return _fails
            assert restore.hidden is not None
            restore.hidden.last = max(restore.hidden.last, restore.last)
            restore.ends, restore.finished, restore.end = UNTIMED, now, op
            return _completed

        op = Op(f"end of {restore.name}", subject, b"", run)
        return op


def _archive(stream: ModelStream) -> bytes:
    """What a snapshot of a stream would have."""
    count, size, first, last, _ = stream.state()
    state = {"messages": count, "bytes": size, "first_seq": first, "last_seq": last, "consumer_count": 0}
    parts = [Part(STATE, stream.last_time, payload=msgspec.json.encode(state))]
    parts += [Part(each.subject, each.time, each.seq, each.header, each.payload) for each in stream.messages.values()]
    writer = S2Writer()
    return b"".join(
        (writer.frames(MAGIC), *(writer.frames(encode_entry(part)) for part in (*parts, END))),
    )


def _fails(message: Msg) -> str:
    return "" if error_code(message) else f"wrong answer: {message.payload!r}"


def _completed(message: Msg) -> str:
    return f"wrong answer: {message.header!r} {message.payload!r}" if error_code(message) or message.header else ""


def _no_responders(message: Msg) -> str:
    status = parse_status(message.header)
    is_right = status is not None and status.code == 503
    return "" if is_right else f"wrong answer: expected 503, got {message.header!r} {message.payload!r}"
