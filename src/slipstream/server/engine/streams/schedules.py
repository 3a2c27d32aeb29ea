"""Message schedules: a message whose headers say when to publish its payload, once or repeatedly.

A stream with `allow_msg_schedules` has one schedule per subject, in its last message there. When it is due, the payload
of that message (or of the last one on another subject) is published on its target; a one-time schedule is then removed.
The next due time is stored beside the messages, in the same group: no schedule fires twice for one moment, and one that
was due while the server was down fires once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import tzinfo
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from slipstream.api import StreamConfig, names
from slipstream.api.times import parse_time
from slipstream.errors import ApiError, CorruptRecordError, ErrorCode
from slipstream.server.engine.jobs import Progress
from slipstream.server.engine.ports import Record, StreamLog, parse_ttl
from slipstream.server.engine.reads.frozen_log import damaged_at
from slipstream.server.engine.services import Services
from slipstream.server.engine.streams.cron import Moment, next_moment, time_zone
from slipstream.server.engine.streams.publish_headers import PublishHeaders, remove_lines, set_header
from slipstream.server.engine.timers import Timer
from slipstream.wire import is_valid_subject

PURGE = "purge"
SLICE = 256  # schedules that fire in one turn
CHUNK = 512
PAUSE = 1_000_000
RECHECK = 50_000_000  # while a schedule is not committed yet
RETRY = 1_000_000_000  # after a publish that failed
_LEAD = b"\r\nNats-Schedule"
_RECORD = "\0schedule\0"  # + sequence; the name of no consumer begins like that
_COMPLETE = "\0schedules"  # if present, every schedule of the log is indexed
_NOT_FOR_TARGETS = (
    "Nats-Schedule", "Nats-Expected-", f"{names.MSG_ID}:", f"{names.TTL}:", f"{names.ROLLUP}:",
)  # fmt: skip


class Schedule(NamedTuple):
    """The schedule in the headers of a message; empty fields are not set."""

    pattern: str = ""
    zone: str | None = None  # None: not set
    ttl: str = ""
    target: str = ""
    source: str = ""
    rollup: str = ""
    next: str = ""
    scheduler: str = ""

    def time_zone(self) -> tzinfo | None:
        return None if self.zone is None else time_zone(self.zone)

    def moment(self, after: int, now: int) -> Moment:
        """When it is due next; raises ValueError."""
        return next_moment(self.pattern, self.time_zone(), after, now)


NO_SCHEDULE = Schedule()
_FIELDS = {
    names.SCHEDULE: "pattern", names.SCHEDULE_ZONE: "zone", names.SCHEDULE_TTL: "ttl", names.SCHEDULE_TARGET: "target",
    names.SCHEDULE_SOURCE: "source", names.SCHEDULE_ROLLUP: "rollup", names.SCHEDULE_NEXT: "next",
    names.SCHEDULER: "scheduler",
}  # fmt: skip


def parse_schedule(header: bytes) -> Schedule:
    if _LEAD not in header:
        return NO_SCHEDULE
    found: dict[str, str] = {}
    for line in header.decode(errors="replace").split("\r\n")[1:]:
        name, _, value = line.partition(":")
        if name in _FIELDS:
            found.setdefault(_FIELDS[name], value.strip())
    return Schedule(**found)


# Checks of a publish.


def check(
    config: StreamConfig,
    schedule: Schedule,
    subject: str,
    now: int,
    *,
    is_plain: Callable[[str], bool],
    captures: Callable[[str], bool],
) -> bool:
    """Whether a message is a schedule; raises ApiError if it is invalid or the stream does not allow it.

    `is_plain` says whether a subject has messages, but no schedule; `captures`, whether it belongs to the stream.
    """
    if schedule is NO_SCHEDULE:
        return False
    is_schedule = _check_pattern(config, schedule, now)
    if is_schedule:
        _check_fields(config, schedule, subject, captures)
    if schedule.next:
        if schedule.next != PURGE or schedule.scheduler in ("", subject) or not is_valid_subject(schedule.scheduler):
            raise ErrorCode.MESSAGE_SCHEDULES_SCHEDULER_INVALID.error()
        if not config.allow_msg_schedules:
            raise ErrorCode.MESSAGE_SCHEDULES_DISABLED.error()
        if is_plain(schedule.scheduler):
            raise ErrorCode.MESSAGE_SCHEDULES_SCHEDULER_INVALID.error()
    elif schedule.scheduler:
        raise ErrorCode.MESSAGE_SCHEDULES_SCHEDULER_INVALID.error()
    return is_schedule


def _check_pattern(config: StreamConfig, schedule: Schedule, now: int) -> bool:
    reason = None
    try:
        schedule.time_zone()
    except ValueError:
        reason = ErrorCode.MESSAGE_SCHEDULES_TIME_ZONE_INVALID
    if reason is None and schedule.pattern:
        try:
            schedule.moment(now, now)
        except ValueError:
            reason = ErrorCode.MESSAGE_SCHEDULES_PATTERN_INVALID
    if (reason or schedule.pattern) and not config.allow_msg_schedules:
        raise ErrorCode.MESSAGE_SCHEDULES_DISABLED.error()
    if reason:
        raise reason.error()
    return bool(schedule.pattern)


def _check_fields(config: StreamConfig, schedule: Schedule, subject: str, captures: Callable[[str], bool]) -> None:
    try:
        parse_ttl(schedule.ttl)
    except ValueError as exc:
        raise ErrorCode.MESSAGE_SCHEDULES_TTL_INVALID.error() from exc
    if schedule.rollup not in ("", names.ROLLUP_SUBJECT):
        raise ErrorCode.MESSAGE_SCHEDULES_ROLLUP_INVALID.error()
    if schedule.ttl and not config.allow_msg_ttl:
        raise ErrorCode.MESSAGE_TTL_DISABLED.error()
    if schedule.target == subject or not _belongs(schedule.target, captures):
        raise ErrorCode.MESSAGE_SCHEDULES_TARGET_INVALID.error()
    if schedule.source and (schedule.source in (schedule.target, subject) or not _belongs(schedule.source, captures)):
        raise ErrorCode.MESSAGE_SCHEDULES_SOURCE_INVALID.error()


def _belongs(subject: str, captures: Callable[[str], bool]) -> bool:
    return is_valid_subject(subject) and captures(subject)


def with_rollup(header: bytes, wanted: PublishHeaders) -> tuple[bytes, PublishHeaders]:
    """A schedule replaces all other messages on its subject: add the rollup header."""
    if wanted.rollup not in ("", names.ROLLUP_SUBJECT):
        raise ErrorCode.MESSAGE_SCHEDULES_ROLLUP_INVALID.error()
    if not wanted.rollup:
        header = set_header(header, names.ROLLUP, names.ROLLUP_SUBJECT)
    return header, wanted._replace(rollup=names.ROLLUP_SUBJECT)


# Execution.

Publish = Callable[[str, bytes, bytes, int], None]  # subject, header, payload, now; raises ApiError


class StoredSchedule(msgspec.Struct, array_like=True):
    """The record of a schedule in the store."""

    when: int
    subject: str


class Schedules:
    """The schedules of one stream, with their timer."""

    def __init__(self, services: Services, log: StreamLog, publish: Publish) -> None:
        self._services, self._log, self._publish = services, log, publish
        self.on = False
        self._due: dict[str, tuple[int, int]] = {}  # subject -> sequence, when
        self._heap: list[tuple[int, int, str]] = []  # when, sequence, subject; entries that are not in `_due` are stale
        self._timer: Timer | None = None
        self._search: _Search | None = None

    @property
    def now(self) -> int:
        return self._services.router.now

    def is_plain(self, subject: str) -> bool:
        """Whether a subject has messages, but no schedule."""
        return subject not in self._due and self._log.count_of(subject) > 0

    def begin(self, now: int) -> None:
        """Load the stored index; a log that has none yet is searched."""
        self.stop()
        self._due.clear()
        self._heap.clear()
        if not self.on:
            return
        kept = self._log.kept()
        for key, value in kept.items():
            if key.startswith(_RECORD):
                entry = msgspec.json.decode(value, type=StoredSchedule)
                self._set(entry.subject, int(key[len(_RECORD) :]), entry.when)
        if _COMPLETE not in kept and not self._log.state.last_seq:
            self.complete()
        elif _COMPLETE not in kept:
            self._search = _Search(self, self._log)
            if not self._services.jobs.start(self._search):
                self._search = None
                self._timer = self._services.timers.at(now + RECHECK, self.begin)
                return
        self._arm(now)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._search is not None:
            self._search.stopped = True
            self._search = None

    def found(self, records: list[Record], now: int) -> None:
        """Schedules found in a log without index."""
        for record in records:
            schedule = parse_schedule(record.header)
            if schedule.pattern and record.subject not in self._due and self._is_there(record.subject, record.seq):
                self._set_due(record.subject, record.seq, schedule, record.time, now)
        self._arm(now)

    def complete(self) -> None:
        self._log.keep(_COMPLETE, b"1")
        self._search = None

    def stored(self, seq: int, subject: str, header: bytes, now: int) -> None:
        """The stream has a new message."""
        schedule = parse_schedule(header)
        if not (schedule.pattern and self._set_due(subject, seq, schedule, now, now)) and not schedule.scheduler:
            self._forget(subject)
        if schedule.next == PURGE:
            self._forget(schedule.scheduler)
        elif schedule.next and schedule.scheduler in self._due:
            self._store(schedule.scheduler, self._due[schedule.scheduler][0], parse_time(schedule.next))
        self._arm(now)

    def _set_due(self, subject: str, seq: int, schedule: Schedule, after: int, now: int) -> bool:
        try:
            moment = schedule.moment(after, now)
        except ValueError:
            return False
        self._store(subject, seq, moment.when)
        return True

    def _store(self, subject: str, seq: int, when: int) -> None:
        self._forget(subject, but=seq)
        self._set(subject, seq, when)
        self._log.keep(f"{_RECORD}{seq}", msgspec.json.encode(StoredSchedule(when, subject)))

    def _set(self, subject: str, seq: int, when: int) -> None:
        self._due[subject] = (seq, when)
        heappush(self._heap, (when, seq, subject))

    def _forget(self, subject: str, *, but: int = 0) -> None:
        known = self._due.pop(subject, None)
        if known is not None and known[0] != but:
            self._log.keep(f"{_RECORD}{known[0]}", None)

    # The timer.

    def _first(self) -> tuple[int, int, str] | None:
        heap = self._heap
        while heap and self._due.get(heap[0][2]) != (heap[0][1], heap[0][0]):
            heappop(heap)
        return heap[0] if heap else None

    def _arm(self, now: int) -> None:
        first = self._first()
        when = max(first[0], now + PAUSE) if first is not None else 0
        if self._timer is not None:
            if self._timer.when == when:
                return
            self._timer.cancel()
            self._timer = None
        if when:
            self._timer = self._services.timers.at(when, self._ring)

    def _ring(self, now: int) -> None:
        self._timer = None
        due: list[tuple[int, int, str]] = []
        while len(due) < SLICE and (first := self._first()) is not None and first[0] <= now:
            due.append(heappop(self._heap))
        for when, seq, subject in sorted(due, key=lambda entry: entry[1]):  # in the order of their messages
            if self._due.get(subject) == (seq, when):
                self._fire(subject, seq, when, now)
        self._arm(now)

    def _is_there(self, subject: str, seq: int) -> bool:
        return self._log.first_seq_of(subject) == seq  # a schedule replaces all earlier messages on its subject

    def _fire(self, subject: str, seq: int, when: int, now: int) -> None:
        if not _exists(self._log, seq):
            self._forget(subject)
            return
        if seq > self._log.committed.last_seq:  # a schedule must not fire before it is durable
            self._set(subject, seq, now + RECHECK)
            return
        try:
            record = self._log.get(seq)
            schedule = parse_schedule(record.header) if record is not None else NO_SCHEDULE
            moment = schedule.moment(when, now)
            content = (self._log.last(schedule.source) if schedule.source else None) or record
        except (CorruptRecordError, ValueError):
            self._forget(subject)
            return
        assert content is not None
        try:
            # The headers name the schedule and its next time: when the stream has stored the message, it calls
            # `stored`, which sets the next due time (or removes the schedule) in the same group.
            header = _target_header(content.header, schedule, subject, moment)
            self._publish(schedule.target, header, content.payload, now)
        except ApiError:  # e.g. a full stream: skip to the next time, or retry
            self._store(subject, seq, moment.when if moment.repeats else now + RETRY)


def _exists(log: StreamLog, seq: int) -> bool:
    """Whether a message is there. Older ones of its subject may be as well, if what it replaced is being removed."""
    try:
        return log.peek(seq) is not None
    except CorruptRecordError:
        return False


def _target_header(header: bytes, schedule: Schedule, subject: str, moment: Moment) -> bytes:
    """The headers of the published message, made from those of the schedule (or of its source)."""
    header = remove_lines(header, _NOT_FOR_TARGETS)
    lines: Mapping[str, str] = {
        names.SCHEDULER: subject,
        names.SCHEDULE_NEXT: moment.text if moment.repeats else PURGE,
        names.TTL: schedule.ttl,
        names.ROLLUP: schedule.rollup,
    }
    for name, value in lines.items():
        if value:
            header = set_header(header, name, value)
    return header


class _Search:
    """Searches a log without index for schedules; a job."""

    def __init__(self, schedules: Schedules, log: StreamLog) -> None:
        self._schedules, self._log = schedules, log
        self._next, self._last = 1, log.state.last_seq
        self.stopped = False

    def run(self) -> tuple[Progress, int]:
        if self.stopped:
            return Progress.DONE, 0
        log = self._log
        if log.committed.last_seq < self._last:
            return Progress.BLOCKED, 0
        try:
            records = log.scan("", self._next, limit=CHUNK)
            self._next = records[-1].seq + 1 if records else self._last + 1
        except CorruptRecordError as exc:  # reads report it; if it was a schedule, it is lost
            records, self._next = [], damaged_at(exc, log, self._next) + 1
        self._schedules.found([record for record in records if record.seq <= self._last], self._schedules.now)
        if self._next <= self._last:
            return Progress.MORE, len(records)
        self._schedules.complete()
        return Progress.DONE, len(records)
