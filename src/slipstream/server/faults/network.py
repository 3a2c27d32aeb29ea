"""Network faults for tests: messages dropped, duplicated or delayed, connections cut at a byte.

Faults act on what a client sent (events) and on what it is sent (frames), never on the engine: to streams and consumers
a fault looks like a network that misbehaves. They are deterministic: a fault hits the messages that match it, in order,
after `skip` of them and `count` times. Delays are in the server's time, so that a virtual clock ends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from slipstream.errors import UsageError
from slipstream.server.engine.engine import Engine
from slipstream.server.loop.connection import Connection
from slipstream.wire import Event, Pub, is_valid_filter, matcher

DROP, DUPLICATE, DELAY = "drop", "duplicate", "delay"
TO_SERVER, TO_CLIENT = "to_server", "to_client"


@dataclass(slots=True)
class Fault:
    """What happens to the next messages that match."""

    action: str
    direction: str
    matches: Callable[[str], bool]
    count: int
    skip: int
    delay: int  # nanoseconds

    def hits(self, subject: str) -> bool:
        if not self.count or not self.matches(subject):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.count -= 1
        return True


@dataclass(slots=True)
class Cut:
    """A connection that ends after so many more bytes in one direction."""

    direction: str
    left: int


class NetworkFaults:
    """The network faults of one server. The driver passes what clients send and are sent through here."""

    def __init__(self, engine: Engine, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._clock = clock
        self._faults: list[Fault] = []
        self._cuts: dict[Connection, Cut] = {}

    # What a test asks for.

    def add(
        self, action: str, *, subject: str, direction: str, count: int = 1, skip: int = 0, seconds: float = 0.0
    ) -> None:
        """`subject` may have wildcards. `seconds` is for delays."""
        if action not in (DROP, DUPLICATE, DELAY):
            raise UsageError(f"action must be {DROP}, {DUPLICATE} or {DELAY}, got {action!r}")
        _check_direction(direction)
        if not is_valid_filter(subject):
            raise UsageError(f"subject must be a subject or a filter, got {subject!r}")
        for name, value, low in (("count", count, 1), ("skip", skip, 0), ("seconds", seconds, 0)):
            if value < low:
                raise UsageError(f"{name} must be at least {low}, got {value:g}")
        self._faults.append(Fault(action, direction, matcher(subject), count, skip, round(seconds * 1e9)))

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

    def clear(self) -> None:
        """Remove all faults; messages that are delayed still arrive when they are due."""
        self._faults.clear()
        for connection in list(self._cuts):
            self.forget(connection)

    def forget(self, connection: Connection) -> None:
        """Remove the cut of a connection."""
        self._cuts.pop(connection, None)
        connection.inbound_filter = None

    # What the driver passes through.

    def sent(self, connection: Connection, data: bytes) -> bytes:
        """What arrives of the frames for a client."""
        if any(fault.direction == TO_CLIENT and fault.count for fault in self._faults):
            data = b"".join(self._hit_frames(connection, data))
        return self._shorten(connection, TO_CLIENT, data)

    def events(self, connection: Connection, events: Sequence[Event]) -> Sequence[Event]:
        """What arrives of a client's messages."""
        if not any(fault.direction == TO_SERVER and fault.count for fault in self._faults):
            return events
        arriving: list[Event] = []
        for event in events:
            times = self._hit(event.subject, TO_SERVER) if isinstance(event, Pub) else 1
            if isinstance(times, int):
                arriving += [event] * times
            else:
                self._engine.timers.at(self._clock() + times.delay, partial(self._late_event, connection, event))
        return arriving

    def _hit(self, subject: str, direction: str) -> int | Fault:
        """How many times a message arrives, or the fault that delays it."""
        for fault in self._faults:
            if fault.direction == direction and fault.hits(subject):
                if fault.action == DELAY:
                    return fault
                return 0 if fault.action == DROP else 2
        return 1

    def _hit_frames(self, connection: Connection, data: bytes) -> Iterator[bytes]:
        for subject, frame in frames(data):
            times = self._hit(subject, TO_CLIENT) if subject else 1
            if isinstance(times, int):
                yield frame * times
            else:
                self._engine.timers.at(self._clock() + times.delay, partial(self._late_frame, connection, frame))

    def _late_event(self, connection: Connection, event: Event, now: int) -> None:
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
