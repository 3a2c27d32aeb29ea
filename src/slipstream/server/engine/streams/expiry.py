"""Expiry of messages by `max_age` and by their own time to live (`Nats-TTL`), with delete markers.

The cost is proportional to what expires. A stream without TTLs purges everything that is too old at once. Otherwise
each message is checked once: one with TTL `never` stays, however old, and is not checked again (until a restart).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from slipstream.api import format_duration
from slipstream.errors import CorruptRecordError
from slipstream.server.engine.ports import NEVER, Record, StreamLog, time_to_live
from slipstream.server.engine.services import Services
from slipstream.server.engine.streams.stream_time import StreamTime
from slipstream.server.engine.timers import Timer

SLICE = 4096  # sequences per turn: a stream that expires as a whole must not block the others
SCAN = 512
PAUSE = 1_000_000
RECHECK = 50_000_000  # while the next message is not committed yet
_SECOND = 1_000_000_000
_MARKS = re.compile(rb"\r\nNats-Marker-Reason:|\r\nKV-Operation: *PURGE *\r\n")  # of a subject that is gone already

Mark = Callable[[str, bytes, int], None]  # store an empty message on a subject


class Expiry:
    """The expiry timer of one stream."""

    def __init__(self, services: Services, log: StreamLog, mark: Mark, time: StreamTime) -> None:
        """`time` is the stream's: messages are as old as it says."""
        self._services, self._log, self._mark, self._time = services, log, mark, time
        self._max_age = 0
        self._lifetimes = False
        self._header = b""  # of a marker; empty: no markers
        self._next = 0  # older messages were checked, and stay
        self._timer: Timer | None = None

    def configure(self, max_age: int, *, lifetimes: bool, marker_ttl: int) -> None:
        """Times in nanoseconds; 0: off."""
        self._max_age = max_age
        self._lifetimes = lifetimes
        self._header = b""
        if marker_ttl:
            kept = format_duration(marker_ttl // _SECOND * _SECOND)
            text = f"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: {kept}\r\nNats-Rollup: sub\r\n\r\n"
            self._header = text.encode()

    @property
    def active(self) -> bool:
        """Whether messages can expire."""
        return bool(self._max_age or self._lifetimes)

    def begin(self, now: int) -> None:
        """Start over: nothing is known about the log yet."""
        self._next = 0
        self.arm(now)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def appended(self, ends: int) -> None:
        """A message was added; `ends` is when its own time to live expires, if it has one."""
        timer, now = self._timer, self._services.router.now
        if timer is None:
            if self._max_age or ends:
                self.arm(now)
        elif ends and self._time.until(ends, now) < timer.when:
            self.arm(now)

    def arm(self, now: int) -> None:
        """Set the timer to the next expiry; `now` is the server's time."""
        self.stop()
        moments = [moment for moment in (self._next_age(self._time.at(now)), self._next_lifetime()) if moment]
        if moments:
            when = self._time.until(min(moments), now)
            self._timer = self._services.timers.at(max(when, now + PAUSE), self._ring)

    def _next_age(self, now: int) -> int:
        state = self._log.state
        if not self._max_age or not state.messages or self._next > state.last_seq:
            return 0
        if self._next <= state.first_seq:
            return state.first_time + self._max_age
        try:
            records = self._log.scan("", self._next, limit=1)
        except CorruptRecordError:
            return now + RECHECK
        return records[0].time + self._max_age if records else now + RECHECK

    def _next_lifetime(self) -> int:
        return self._log.next_expiry() if self._lifetimes else 0

    def _ring(self, now: int) -> None:
        self._timer = None
        time = self._time.at(now)
        if self._max_age:
            if self._lifetimes:
                self._drop_old(time)
            else:
                self._cut(time)
        if self._lifetimes:
            for seq in self._log.take_expired(time, SLICE):
                self._drop(seq, self._read(seq), time)
        self.arm(now)

    def _cut(self, now: int) -> None:
        """Remove everything that is older than `max_age`."""
        state = self._log.state
        if state.messages and state.first_time + self._max_age <= now:
            below = min(self._log.time_to_seq(now - self._max_age + 1), state.first_seq + SLICE)
            if below > state.first_seq:
                self._log.purge(below=below)

    def _drop_old(self, now: int) -> None:
        """Check one message after the other. A damaged one counts as old as the next: it is removed with it."""
        log, damaged, seen = self._log, list[int](), 0
        at = max(self._next, log.committed.first_seq)
        while seen < SLICE:
            try:
                records = log.scan("", at, limit=SCAN)
            except CorruptRecordError as exc:
                if not exc.seq:
                    return
                damaged.append(exc.seq)
                at, seen = exc.seq + 1, seen + 1
                continue
            for record in records:
                if record.time + self._max_age > now:
                    return
                for seq in damaged:
                    log.remove(seq)
                damaged.clear()
                if not _stays(record):
                    self._drop(record.seq, record, now)
                self._next = at = record.seq + 1
            seen += len(records)
            if not records:
                return

    def _read(self, seq: int) -> Record | None:
        try:
            return self._log.get(seq)
        except CorruptRecordError:
            return None

    def _drop(self, seq: int, record: Record | None, now: int) -> None:
        """Remove a message; store a marker if it was the last one on its subject and the stream has markers."""
        log = self._log
        if self._header and record is not None and not _MARKS.search(record.header):
            subject = record.subject
            if log.count_of(subject) == 1 and log.last_seq_of(subject) == seq:
                self._mark(subject, self._header, now)
                return
        log.remove(seq)


def _stays(record: Record) -> bool:
    try:
        return bool(record.header) and time_to_live(record.header) == NEVER
    except ValueError:
        return False
