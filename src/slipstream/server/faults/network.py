"""Faults of the network, by order: messages dropped, doubled or delayed, connections cut at a byte.

Works on what a client sent (events) and on what it is sent (frames), never on the engine: to streams and consumers a
fault looks like a network that misbehaves. Deterministic: a fault strikes the messages that match it, in order, after
`skip` of them and `count` times. Delays are in the server's time, so that a virtual clock ends them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from slipstream.errors import UsageError
from slipstream.wire import Event, Pub, is_valid_filter, matcher

if TYPE_CHECKING:
    from slipstream.server.loop.connection import Connection
    from slipstream.server.loop.driver import Driver

DROP, DUPLICATE, DELAY = "drop", "duplicate", "delay"
TO_SERVER, TO_CLIENT = "to_server", "to_client"


@dataclass(slots=True)
class Fault:
    """What is to happen to some messages."""

    action: str
    direction: str
    fits: Callable[[str], bool]
    count: int
    skip: int
    delay: int  # nanoseconds

    def strikes(self, subject: str) -> bool:
        if not self.count or not self.fits(subject):
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


class Faults:
    """All faults of one server."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._faults: list[Fault] = []
        self._cuts: dict[Connection, Cut] = {}

    # Orders.

    def add(
        self, action: str, *, subject: str, direction: str, count: int = 1, skip: int = 0, seconds: float = 0.0
    ) -> None:
        """`subject` may have wildcards. `seconds` is for delays."""
        if action not in (DROP, DUPLICATE, DELAY):
            raise UsageError(f"bad fault {action!r}: drop, duplicate and delay are allowed")
        _check_direction(direction)
        if not is_valid_filter(subject):
            raise UsageError(f"bad subject {subject!r}: a filter of subjects is allowed")
        if count < 1 or skip < 0 or seconds < 0:
            text = f"bad numbers count={count}, skip={skip}, seconds={seconds:g}"
            raise UsageError(f"{text}: at least 1, 0 and 0 are allowed")
        self._faults.append(Fault(action, direction, matcher(subject), count, skip, round(seconds * 1e9)))

    def cut(self, connections: Sequence[Connection], *, direction: str, after: int) -> None:
        """Each of the connections ends once `after` more bytes went that way: at once, if that is 0."""
        _check_direction(direction)
        if after < 0:
            raise UsageError(f"a cut after {after} bytes: at least 0 is allowed")
        for connection in connections:
            if after:
                self._cuts[connection] = Cut(direction, after)
            else:
                connection.abort()

    def clear(self) -> None:
        """No faults any more; what is delayed still comes when it is due."""
        self._faults.clear()
        self._cuts.clear()

    # What the driver asks.

    def received(self, connection: Connection, data: bytes) -> bytes:
        """What arrives of the bytes that a client sent."""
        return self._shorten(connection, data, TO_SERVER)

    def sent(self, connection: Connection, data: bytes) -> bytes:
        """What goes out of the frames for a client."""
        if any(fault.direction == TO_CLIENT and fault.count for fault in self._faults):
            data = b"".join(self._strike_frames(connection, data))
        return self._shorten(connection, data, TO_CLIENT)

    def events(self, connection: Connection, events: Sequence[Event]) -> Sequence[Event]:
        """What is left of a client's messages."""
        if not any(fault.direction == TO_SERVER and fault.count for fault in self._faults):
            return events
        kept: list[Event] = []
        for event in events:
            times = self._strike(event.subject, TO_SERVER) if isinstance(event, Pub) else 1
            if isinstance(times, int):
                kept += [event] * times
            else:
                when = self._driver.now() + times.delay
                self._driver.engine.timers.at(when, partial(self._late_event, connection, event))
        return kept

    def forget(self, connection: Connection) -> None:
        self._cuts.pop(connection, None)

    # How it is done.

    def _strike(self, subject: str, direction: str) -> int | Fault:
        """How often a message is to arrive, or the fault that delays it."""
        for fault in self._faults:
            if fault.direction == direction and fault.strikes(subject):
                if fault.action == DELAY:
                    return fault
                return 0 if fault.action == DROP else 2
        return 1

    def _strike_frames(self, connection: Connection, data: bytes) -> Iterator[bytes]:
        for subject, frame in frames(data):
            times = self._strike(subject, TO_CLIENT) if subject else 1
            if isinstance(times, int):
                yield frame * times
            else:
                when = self._driver.now() + times.delay
                self._driver.engine.timers.at(when, partial(self._late_frame, connection, frame))

    def _late_event(self, connection: Connection, event: Event, now: int) -> None:
        self._driver.engine.receive(connection.cid, [event], now)
        self._driver.wake()

    def _late_frame(self, connection: Connection, frame: bytes, _: int) -> None:
        connection.send(frame)

    def _shorten(self, connection: Connection, data: bytes, direction: str) -> bytes:
        cut = self._cuts.get(connection)
        if cut is None or cut.direction != direction:
            return data
        if len(data) < cut.left:
            cut.left -= len(data)
            return data
        del self._cuts[connection]
        self._driver.soon(connection.abort if direction == TO_SERVER else connection.close)
        return data[: cut.left]


def frames(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Whole frames to a client, one by one, with the subject of those that are messages."""
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
        raise UsageError(f"bad direction {direction!r}: {TO_SERVER} and {TO_CLIENT} are allowed")
