"""Expiry of messages by `max_age` and by their own time to live (`Nats-TTL`), with delete markers.

The cost is proportional to what expires. A stream without TTLs purges everything that is too old, thousands of messages
at a time. Otherwise each message is checked once: one with TTL `never` stays, however old, and is not checked again
(until a restart).

The timer starts a job, since very many messages may expire at the same moment: a slice removes a few, and waits for a
commit while the open group has many changes. The timer is not set while the job runs.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

from slipstream.api import format_duration
from slipstream.errors import CorruptRecordError, StoreError
from slipstream.server.engine.jobs import Progress
from slipstream.server.engine.journal import Journal
from slipstream.server.engine.ports import MOST_UNFORESEEN, NEVER, Record, StreamLog, time_to_live
from slipstream.server.engine.services import Services
from slipstream.server.engine.streams.stream_time import StreamTime
from slipstream.server.engine.timers import Timer

SLICE = 128  # messages in one turn: a stream that expires as a whole must not block the others
RANGE = 512  # sequences in one turn, of a stream without TTLs
UNITS, MARK_UNITS = 4, 8  # of work (`engine.jobs`) for a message that is removed, or replaced by a marker
MAX_PENDING = 512  # changes in the open group at which it waits for a commit: so do the acks of all others
PAUSE = 1_000_000
RECHECK = 50_000_000  # while the next message is not committed yet, or what is over cannot be removed
RETRY = 1_000_000_000  # after damage that leaves a message in place
_SECOND = 1_000_000_000
_MARKS = re.compile(rb"\r\nNats-Marker-Reason:|\r\nKV-Operation: *PURGE *\r\n")  # of a subject that is gone already

Mark = Callable[[str, bytes, int], None]  # store an empty message on a subject


class Expiry:
    """The expiry timer of one stream, and the job that it starts."""

    def __init__(self, services: Services, journal: Journal, log: StreamLog, mark: Mark, time: StreamTime) -> None:
        """`time` is the stream's: messages are as old as it says."""
        self._services, self._journal, self._log, self._mark, self._time = services, journal, log, mark, time
        self._max_age = 0
        self._lifetimes = False
        self._header = b""  # of a marker; empty: no markers
        self._next = 0  # older messages were checked, and stay
        self._timer: Timer | None = None
        self._is_running = self._is_stopped = False
        self._old_below = 0  # all before it were too old when that was looked up
        self._marked: deque[Record] = (
            deque()
        )  # expired messages that markers are to replace, once all others are removed

    def configure(self, max_age: int, *, lifetimes: bool, marker_ttl: int) -> None:
        """Times in nanoseconds; 0: off."""
        self._max_age = max_age
        self._old_below = 0  # that was by another age
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
        self._next = self._old_below = 0
        self._marked.clear()
        self.arm(now)

    def stop(self) -> None:
        """The stream was deleted."""
        self._is_stopped = True
        self._cancel()

    def appended(self, ends: int) -> None:
        """A message was added; `ends` is when its own time to live expires, if it has one."""
        if self._is_running:
            return
        timer, now = self._timer, self._services.router.now
        if timer is None:
            if self._max_age or ends:
                self.arm(now)
        elif ends and (when := self._time.until(ends, now)) < timer.when:
            self._set(max(when, now + PAUSE))  # no search: the timer was set to the earliest of all others

    def arm(self, now: int, *, pause: int = PAUSE) -> None:
        """Set the timer to the next expiry, `pause` from now at the earliest; `now` is the server's time."""
        self._cancel()
        moment = 0 if self._is_running else self._next_moment(now)
        if moment:
            self._set(max(self._time.until(moment, now), now + pause))

    def _set(self, when: int) -> None:
        self._cancel()
        self._timer = self._services.timers.at(when, self._ring)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next_moment(self, now: int) -> int:
        """When the next message expires, in the stream's time; 0: never."""
        age, lifetime = self._next_age(self._time.at(now)), self._next_lifetime()
        return min(age, lifetime) if age and lifetime else age or lifetime

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
        if records:
            return records[0].time + self._max_age
        if self._log.committed.last_seq < state.last_seq:
            return now + RECHECK
        self._next = state.last_seq + 1  # the rest was removed
        return 0

    def _next_lifetime(self) -> int:
        return self._log.next_expiry() if self._lifetimes else 0

    def _ring(self, _: int) -> None:
        self._timer = None
        self._is_running = True
        self._services.jobs.go_on(self, self)

    def run(self) -> tuple[Progress, int]:
        """Remove some of what has expired."""
        if self._is_stopped:
            return Progress.DONE, 0
        if not self._journal.admits(MAX_PENDING):
            return Progress.BLOCKED, 0
        now = self._services.router.now
        time, units = self._time.at(now), 0
        try:
            if self._max_age:
                units = self._drop_old(time) if self._lifetimes else self._cut(time)
            if self._lifetimes:
                for seq in self._log.take_expired(time, SLICE):
                    units += self._drop(seq, self._read(seq))
            self._store_markers(time)
            if units and 0 < self._next_moment(now) <= time:
                return Progress.MORE, units
        except StoreError:  # the log says so where it is read; it is tried again
            self._is_running = False
            self._set(now + RETRY)
            return Progress.DONE, units
        self._is_running = False
        self.arm(now, pause=PAUSE if units else RECHECK)
        return Progress.DONE, units

    def _cut(self, now: int) -> int:
        """Remove some of what is older than `max_age`; the units of work."""
        log = self._log
        state = log.state
        if not state.messages or state.first_time + self._max_age > now:
            return 0
        below = min(self._old_end(state.first_seq, now), state.first_seq + RANGE)
        return UNITS * (1 + log.purge(below=below)) if below > state.first_seq else 0

    def _old_end(self, seq: int, now: int) -> int:
        """Where messages begin that are not too old, for one that may be: the same or less if that is not. A damaged
        one counts as old as the next, and without a next one as the last that was stored."""
        if seq >= self._old_below:  # that may take a look at all of them
            log = self._log
            state = log.committed
            self._old_below = log.time_to_seq(now - self._max_age + 1)
            if self._old_below <= seq and state.last_time + self._max_age <= now:
                self._old_below = state.last_seq + 1
        return self._old_below

    def _drop_old(self, now: int) -> int:
        """Check one message after the other; the units of work."""
        log, units, load = self._log, 0, self._services.jobs.load
        at = max(self._next, log.committed.first_seq)
        while units < SLICE * UNITS and load.units <= MOST_UNFORESEEN:
            try:
                records = log.scan("", at, limit=SLICE)
            except CorruptRecordError as exc:
                if not exc.seq or exc.seq >= self._old_end(exc.seq, now):
                    break
                log.remove(exc.seq)
                units += UNITS
                self._next = at = exc.seq + 1
                continue
            for record in records:
                if record.time + self._max_age > now:
                    return units
                units += 1 if _stays(record) else self._drop(record.seq, record)
                self._next = at = record.seq + 1
            if not records:
                break
        return units

    def _read(self, seq: int) -> Record | None:
        try:
            return self._log.get(seq)
        except CorruptRecordError:
            return None

    def _drop(self, seq: int, record: Record | None) -> int:
        """Remove a message, but for one that a marker is to replace: the last one on its subject, if the stream has
        markers. The units of work."""
        has_marker = self._header and record is not None and not _MARKS.search(record.header)
        if has_marker and record is not None and self._is_last(seq, record.subject):
            self._marked.append(record)
            return MARK_UNITS
        self._log.remove(seq)
        return UNITS

    def _store_markers(self, now: int) -> None:
        """Markers come last: what has expired must not count against a limit when one is stored, or an intact message
        would go for it."""
        while self._marked:
            record = self._marked.popleft()  # before an error: the others are tried again without it
            if self._is_last(record.seq, record.subject):
                self._mark(record.subject, self._header, now)
            else:  # a limit took it, for the marker of another one
                self._log.remove(record.seq)

    def _is_last(self, seq: int, subject: str) -> bool:
        return self._log.count_of(subject) == 1 and self._log.last_seq_of(subject) == seq


def _stays(record: Record) -> bool:
    try:
        return bool(record.header) and time_to_live(record.header) == NEVER
    except ValueError:
        return False
