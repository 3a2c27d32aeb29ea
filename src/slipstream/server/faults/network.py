"""Network faults for tests: messages dropped, duplicated or delayed, replies lost, connections cut.

Faults act on what a client sent (events) and on what it is sent (frames), never on the engine: to streams and consumers
a fault looks like a network that misbehaves. They are deterministic: a fault hits the messages that match it, in order,
after `skip` of them, each `every`-th, and `count` times. Delays are in the server's time, so that a virtual clock ends
them. A fault belongs to an account, and hits its clients only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from slipstream.errors import UsageError
from slipstream.server.engine.auth.users import DEFAULT_ACCOUNT
from slipstream.server.engine.engine import Engine
from slipstream.server.engine.timers import Timer
from slipstream.server.loop.connection import Connection
from slipstream.wire import Event, Pub, is_valid_filter, matcher

DROP, DUPLICATE, DELAY, CUT, LOSE_REPLY = "drop", "duplicate", "delay", "cut", "lose_reply"
ACTIONS = (DROP, DUPLICATE, DELAY, CUT, LOSE_REPLY)
MAX_LOST_REPLIES = 10_000  # reply subjects that are remembered
TO_SERVER, TO_CLIENT = "to_server", "to_client"


@dataclass(slots=True)
class Fault:
    """What happens to the next messages that match."""

    action: str
    direction: str
    matches: Callable[[str], bool]
    count: int  # that are left
    skip: int
    every: int
    delay: int  # nanoseconds
    account: str

    def hits(self, account: str, subject: str) -> bool:
        if not self.count or account != self.account or not self.matches(subject):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.skip = self.every - 1
        self.count -= 1
        return True


@dataclass(slots=True)
class Cut:
    """A connection that ends after so many more bytes in one direction."""

    direction: str
    left: int


# Subject, reply, header, payload and time of a message.
Recorder = Callable[[str, str, bytes, bytes, int], None]

# What a client says of a message: an empty ack counts as one.
_KINDS = {
    b"": "acked",
    b"+ACK": "acked",
    b"+NXT": "acked",
    b"-NAK": "naked",
    b"+TERM": "termed",
    b"+WPI": "in_progress",
}
_ACKS = "$JS.ACK."


class NetworkFaults:
    """The network faults of one server. The driver passes what clients send and are sent through here."""

    def __init__(self, engine: Engine, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._clock = clock
        self._faults: list[Fault] = []
        self._cuts: dict[Connection, Cut] = {}
        self._recorders: dict[int, tuple[str, Callable[[str], bool], Recorder]] = {}
        self._recorders_made = 0
        self._acks: dict[tuple[str, str, str, str], set[str]] = {}  # sequences, by account, stream, consumer and kind
        self._lost_replies: dict[tuple[str, str], None] = {}  # account and reply subject; the oldest first
        self._delayed: dict[Timer, str] = {}  # with the account

    def account_of(self, connection: Connection) -> str:
        """The account of a client; that of clients that are not authenticated yet is the default one."""
        session = self._engine.sessions.get(connection.cid)
        return (session.account if session is not None else "") or DEFAULT_ACCOUNT

    # What a test asks for.

    def add(
        self,
        action: str,
        *,
        subject: str,
        direction: str,
        count: int = 1,
        skip: int = 0,
        seconds: float = 0.0,
        every: int = 1,
        account: str = DEFAULT_ACCOUNT,
    ) -> None:
        """`subject` may have wildcards. `seconds` is for delays."""
        if action not in ACTIONS:
            raise UsageError(f"action must be {', '.join(ACTIONS[:-1])} or {ACTIONS[-1]}, got {action!r}")
        _check_direction(direction)
        if action == LOSE_REPLY and direction != TO_SERVER:
            raise UsageError(f"direction of {LOSE_REPLY} must be {TO_SERVER}: the subject is that of the request")
        if not is_valid_filter(subject):
            raise UsageError(f"subject must be a subject or a filter, got {subject!r}")
        for name, value, low in (("count", count, 1), ("skip", skip, 0), ("seconds", seconds, 0), ("every", every, 1)):
            if value < low:
                raise UsageError(f"{name} must be at least {low}, got {value:g}")
        self._faults.append(
            Fault(action, direction, matcher(subject), count, skip, every, round(seconds * 1e9), account)
        )

    def cut(self, connections: Sequence[Connection], *, direction: str, after: int) -> None:
        """Each of the connections ends once `after` more bytes went that way: at once, if that is 0."""
        _check_direction(direction)
        if after < 0:
            raise UsageError(f"after must be at least 0 bytes, got {after}")
        for connection in connections:
            if not after:
                connection.abort()
                continue
            self._cuts[connection] = Cut(direction, after)
            if direction == TO_SERVER:
                connection.inbound_filter = partial(self._shorten, connection, TO_SERVER)

    def clear(self, account: str) -> None:
        """Remove all faults of an account; messages that are delayed still arrive when they are due."""
        self._faults = [fault for fault in self._faults if fault.account != account]
        self._lost_replies = {key: None for key in self._lost_replies if key[0] != account}
        for connection in list(self._cuts):
            if self.account_of(connection) == account:
                self.forget(connection)

    def start_over(self, account: str = "") -> None:
        """Remove all faults of an account (without one: of all), with the messages that they delay, and forget the
        acks that were counted."""
        for one in {fault.account for fault in self._faults} | {self.account_of(c) for c in self._cuts}:
            if not account or one == account:
                self.clear(one)
        for timer in [timer for timer, owner in self._delayed.items() if not account or owner == account]:
            timer.cancel()
            del self._delayed[timer]
        self._acks = {key: seqs for key, seqs in self._acks.items() if account and key[0] != account}

    def record(self, account: str, subject: str, take: Recorder) -> Callable[[], None]:
        """Call `take` for each message that clients of an account publish; returns a function that ends it."""
        self._recorders_made += 1
        number = self._recorders_made
        self._recorders[number] = (account, matcher(subject), take)

        def end() -> None:
            self._recorders.pop(number, None)

        return end

    def acks_of(self, account: str, stream: str, consumer: str) -> dict[str, int]:
        """How many messages of a consumer were acknowledged, and in which way."""
        kinds = dict.fromkeys(_KINDS.values())
        return {kind: len(self._acks.get((account, stream, consumer, kind), ())) for kind in kinds}

    def forget(self, connection: Connection) -> None:
        """Remove the cut of a connection."""
        self._cuts.pop(connection, None)
        connection.inbound_filter = None

    # What the driver passes through.

    def sent(self, connection: Connection, data: bytes) -> bytes:
        """What arrives of the frames for a client."""
        if self._lost_replies or any(fault.direction == TO_CLIENT and fault.count for fault in self._faults):
            data = b"".join(self._hit_frames(connection, data))
        return self._shorten(connection, TO_CLIENT, data)

    def events(self, connection: Connection, events: Sequence[Event]) -> Sequence[Event]:
        """What arrives of a client's messages."""
        if any(fault.direction == TO_SERVER and fault.count for fault in self._faults):
            events = self._hit_events(connection, events)
        self._observe(connection, events)
        return events

    def _hit_events(self, connection: Connection, events: Sequence[Event]) -> list[Event]:
        arriving: list[Event] = []
        account = self.account_of(connection)
        for event in events:
            fault = self._hit(account, event.subject, TO_SERVER) if isinstance(event, Pub) else None
            if fault is None:
                arriving.append(event)
            elif fault.action == DUPLICATE:
                arriving += [event, event]
            elif fault.action == DELAY:
                self._later(fault, partial(self._late_event, connection, event))
            elif fault.action == CUT:  # the message and all behind it are lost with the connection
                asyncio.get_running_loop().call_soon(connection.abort)
                break
            elif fault.action == LOSE_REPLY:
                assert isinstance(event, Pub)
                self._lose_reply(account, event.reply)
                arriving.append(event)
        return arriving

    def _lose_reply(self, account: str, reply: str) -> None:
        if reply:
            self._lost_replies[account, reply] = None
            if len(self._lost_replies) > MAX_LOST_REPLIES:
                del self._lost_replies[next(iter(self._lost_replies))]

    def _observe(self, connection: Connection, events: Sequence[Event]) -> None:
        """Show recorders what arrives, and count acks."""
        account, now = self.account_of(connection), self._clock()
        for event in events:
            if not isinstance(event, Pub):
                continue
            if event.subject.startswith(_ACKS):
                self._count_ack(account, event.subject, event.payload)
            for owner, matches, take in list(self._recorders.values()):
                if owner == account and matches(event.subject):
                    take(event.subject, event.reply, event.header, event.payload, now)

    def _count_ack(self, account: str, subject: str, payload: bytes) -> None:
        """`$JS.ACK.<stream>.<consumer>.<delivery>.<stream sequence>.…`, or with domain and account in front."""
        tokens = subject.split(".")
        at = 2 if len(tokens) <= 9 else 4
        kind = _KINDS.get(payload.split(None, 1)[0] if payload.strip() else b"")
        if len(tokens) >= at + 4 and kind is not None:
            self._acks.setdefault((account, tokens[at], tokens[at + 1], kind), set()).add(tokens[at + 3])

    def _hit(self, account: str, subject: str, direction: str) -> Fault | None:
        """The fault that hits a message."""
        return next((f for f in self._faults if f.direction == direction and f.hits(account, subject)), None)

    def _hit_frames(self, connection: Connection, data: bytes) -> Iterator[bytes]:
        account = self.account_of(connection)
        for subject, frame in frames(data):
            if subject and (account, subject) in self._lost_replies:
                del self._lost_replies[account, subject]
                continue
            fault = self._hit(account, subject, TO_CLIENT) if subject else None
            if fault is None:
                yield frame
            elif fault.action == DUPLICATE:
                yield frame * 2
            elif fault.action == DELAY:
                self._later(fault, partial(self._late_frame, connection, frame))
            elif fault.action == CUT:
                asyncio.get_running_loop().call_soon(connection.abort)
                break

    def _later(self, fault: Fault, action: Callable[[int], None]) -> None:
        def run(now: int) -> None:
            self._delayed.pop(timer, None)
            action(now)

        timer = self._engine.timers.at(self._clock() + fault.delay, run)
        self._delayed[timer] = fault.account

    def _late_event(self, connection: Connection, event: Event, now: int) -> None:
        self._observe(connection, [event])
        self._engine.receive(connection.cid, [event], now)  # as a timer of the engine: the turn goes on after it

    def _late_frame(self, connection: Connection, frame: bytes, _: int) -> None:
        connection.send(frame)

    def _shorten(self, connection: Connection, direction: str, data: bytes) -> bytes:
        cut = self._cuts.get(connection)
        if cut is None or cut.direction != direction:
            return data
        if len(data) < cut.left:
            cut.left -= len(data)
            return data
        self.forget(connection)
        end = connection.abort if direction == TO_SERVER else connection.close
        asyncio.get_running_loop().call_soon(end)
        return data[: cut.left]


def frames(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Frames to a client one by one, with the subject of those that are messages."""
    at = 0
    while at < len(data):
        end = data.index(b"\r\n", at) + 2
        words = data[at:end].split()
        subject = ""
        if words[0] in (b"MSG", b"HMSG"):
            subject = words[1].decode(errors="replace")
            end += int(words[-1]) + 2
        yield subject, data[at:end]
        at = end


def _check_direction(direction: str) -> None:
    if direction not in (TO_SERVER, TO_CLIENT):
        raise UsageError(f"direction must be {TO_SERVER} or {TO_CLIENT}, got {direction!r}")
