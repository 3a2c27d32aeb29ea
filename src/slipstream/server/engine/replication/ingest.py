"""Ingest: reads the messages of an upstream and stores them, for the mirrors and sources of a stream.

An upstream in the same account is read from its log, in chunks, after each commit. One on another server is read by the
driver (`server/loop/upstream.py`), which calls the methods of `RemoteIngest`. A group that is lost takes the messages
with it: reading resumes after the last sequence that the stream has durably.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from slipstream.api import StreamConfig, StreamSource, format_time
from slipstream.api.names import API_PREFIX
from slipstream.errors import (
    ApiError,
    CorruptRecordError,
    ErrorCode,
    StoreError,
    StreamNotFoundError,
    StreamStoreFailedError,
)
from slipstream.server.engine.api.ids import short_hash
from slipstream.server.engine.jobs import STEP_UNITS, Progress
from slipstream.server.engine.ports import Record
from slipstream.server.engine.reads.frozen_log import LogView
from slipstream.server.engine.services import Services
from slipstream.wire import SubjectMapping, SubjectSet

if TYPE_CHECKING:
    from slipstream.server.engine.streams.stream import Stream

CHUNK = 512
CHUNK_BYTES = 1024 * 1024
GROUP_CHANGES = 4096  # uncommitted changes at which an ingest pauses
WIDE_GAP = 65_536
HELD, CUT = "held", "cut"


class IngestServices(Services, Protocol):
    """The account, as an ingest sees it."""

    streams: dict[str, Stream]
    remote_ingests: RemoteIngests


class RemoteIngest(Hashable, Protocol):
    """An ingest from another server, as the driver sees it."""

    source: StreamSource
    account: str  # of the stream

    @property
    def next_seq(self) -> int:
        """The first sequence to read; 0: at `source.opt_start_time`."""

    @property
    def filters(self) -> tuple[str, ...]: ...

    @property
    def is_paused(self) -> bool:
        """Whether a fault command of a test holds it or cuts it off."""

    @property
    def is_open(self) -> bool:
        """Whether it takes messages now: not while it is held, or the disk does not keep up."""

    def offer(self, records: Sequence[Record], up_to: int, last: int, now: int) -> bool:
        """Take messages that match the filters, in order; the upstream was read up to `up_to` and ends at `last`. False
        if not all were taken: those from `next_seq` on must be offered again."""

    def meet(self, created: int, config: StreamConfig) -> None:
        """Called before the first `offer` after each time the upstream was found."""

    @property
    def needs_position(self) -> bool:
        """Whether messages were missing among those offered, and `confirm` has not been called since."""

    def confirm(self, config: StreamConfig, last: int, messages: int) -> None:
        """The upstream was asked after the last `offer`: it ended at `last`, and had so many messages (-1: unknown)."""

    def lost(self, last: int) -> None:
        """The upstream ends at `last` for certain. If more was taken from it, it has lost messages, and gives their
        sequences to others."""

    def fail(self, error: ApiError, now: int) -> None:
        """The upstream cannot be read; it will be tried again."""


class RemoteIngests:
    """The ingests from other servers; the driver feeds them, and is called when the set changes."""

    def __init__(self) -> None:
        self.ingests: dict[RemoteIngest, None] = {}
        self.changed: Callable[[], None] = lambda: None

    def add(self, ingest: RemoteIngest) -> None:
        self.ingests[ingest] = None
        self.changed()

    def discard(self, ingest: RemoteIngest) -> None:
        if ingest in self.ingests:
            del self.ingests[ingest]
            self.changed()


class Ingest:
    """One upstream of one stream. A job while there is something to read, and a follower of commits all the time."""

    def __init__(self, services: IngestServices, stream: Stream, source: StreamSource) -> None:
        self.source = source
        self.stream = stream
        self.account: str = services.name
        self.paused: str = ""  # by a fault command: `HELD` or `CUT`
        transforms = source.subject_transforms
        self.filters: tuple[str, ...] = tuple(t.src or ">" for t in transforms) or (source.filter_subject or ">",)
        self.is_filtered: bool = any(pattern != ">" for pattern in self.filters)
        self.mappings: dict[str, SubjectMapping] = {
            t.src or ">": SubjectMapping(t.src, t.dest) for t in transforms
        }  # by their filters
        self._set = SubjectSet(self.filters)
        self._order = {pattern: at for at, pattern in enumerate(self.filters)}
        own = f"$JS.{services.domain}.API" if services.domain else API_PREFIX
        self.is_remote: bool = source.external is not None and source.external.api != own
        self._services = services
        self._busy = self._stopped = False
        self._last = 0  # the upstream's last sequence, at the last contact
        self._contact = 0  # when that was; 0: never
        self._error: ApiError | None = None
        self.met: int = 0  # when the upstream was created that `next_seq` counts in; 0: it was not found yet
        self.next_seq: int = self.first_wanted()

    # What mirrors and sources implement.

    def first_wanted(self) -> int:
        """The sequence to read from, by what the stream has; 0: at the start time."""
        raise NotImplementedError

    def store(self, record: Record) -> None:
        """Store a message in the stream. Raises ApiError if that is not possible now."""
        raise NotImplementedError

    def looked(self, up_to: int) -> None:
        """The upstream was read up to a sequence."""

    def reading(self, upstream: Stream) -> None:
        """The next chunk is of an upstream in the same account, as it is now."""

    def meet(self, created: int, config: StreamConfig) -> None:  # noqa: ARG002
        """When the upstream was created, and how it is configured, before anything is read from it."""
        self.met = created

    # Lifecycle.

    def start(self) -> None:
        self._stopped = False
        self._services.commit_waiters.follow(self)
        if self.is_remote:
            self._services.remote_ingests.add(self)
        self.release()

    def stop(self) -> None:
        self._stopped = True
        self._services.commit_waiters.unfollow(self)
        self._services.remote_ingests.discard(self)

    def reset(self) -> None:
        """A group was lost: resume from what the stream has."""
        self.next_seq = self.first_wanted()

    def pause(self, how: str) -> None:
        """Take nothing more until `resume`."""
        self.paused = how
        if how == CUT:
            self._error = ErrorCode.SOURCE_CONSUMER_SETUP_FAILED.error(
                "the connection to the upstream is cut", status=503
            )

    def resume(self) -> None:
        if self.paused == CUT:
            self._error = None
        self.paused = ""
        self.release()

    def release(self) -> None:
        """A group was committed: here, or perhaps upstream."""
        if self.is_remote:
            return
        is_idle = self._stopped or self.paused
        # A recreated upstream is noticed before `lacks` is asked about its messages.
        upstream = self._services.streams.get(self.source.name) if is_idle else self._upstream()
        if upstream is not None:
            upstream.consumers.retention.remove_taken()
            if not is_idle and not self._busy and self._is_behind(upstream.log):
                self._busy = self._services.jobs.start(self)

    def _upstream(self) -> Stream | None:
        upstream = self._services.streams.get(self.source.name)
        self._error = StreamNotFoundError() if upstream is None else None
        if upstream is not None:
            self._contact = self._services.router.now
            self.meet(upstream.created, upstream.config)
        return upstream

    def _is_behind(self, log: LogView) -> bool:
        self._compare(log.committed.last_seq)
        return self.next_seq <= self._last

    def _compare(self, last: int) -> None:
        """The upstream ends at `last`. If more was read of it before, it is another stream of that name."""
        self._last = last
        if last + 1 < self.next_seq and self.next_seq > max(self.source.opt_start_seq, 1):
            seen = self.next_seq - 1
            text = f"stream {self.source.name} ends at {last}, and was read up to {seen} before: was it recreated?"
            self._error = ErrorCode.MIRROR_CONSUMER_SETUP_FAILED.error(err=text)

    # An upstream in the same account.

    def run(self) -> tuple[Progress, int]:
        """Fetch one chunk."""
        upstream = None if self._stopped or self.paused else self._upstream()
        if upstream is None:
            self._busy = False
            return Progress.DONE, 0
        if self._is_full:
            return Progress.BLOCKED, 0
        log = upstream.log
        if not self.next_seq:
            assert self.source.opt_start_time is not None
            self.next_seq = log.time_to_seq(self.source.opt_start_time)
        last = log.committed.last_seq
        self.reading(upstream)
        try:
            records = log.scan(self._pattern, self.next_seq, limit=CHUNK, max_bytes=CHUNK_BYTES)
        except CorruptRecordError as exc:  # in front of it, until it is removed upstream
            self._error, self._busy = ErrorCode.STREAM_GENERAL.error(err=exc), False
            return Progress.DONE, 0
        up_to = records[-1].seq if records else last
        before = self.next_seq
        self._busy = self._take(records, up_to, last, most=STEP_UNITS) and self.next_seq <= last
        if self._busy and self.next_seq == before:
            return Progress.BLOCKED, 0  # a wide gap waits for a group of its own
        return (Progress.MORE if self._busy else Progress.DONE), len(records)

    @property
    def _pattern(self) -> str:
        return self.filters[0] if len(self.filters) == 1 else ">"

    @property
    def _is_full(self) -> bool:
        return self.stream.journal.store.pending >= GROUP_CHANGES

    def _take(self, records: Sequence[Record], up_to: int, last: int, *, most: float = math.inf) -> bool:
        """Store a chunk, or what `most` units of work are enough for; False after an error."""
        self._last = last
        try:
            done = self._store_all(records, most)
        except ApiError as exc:  # e.g. a full stream with `discard: new`: retried after the next commit
            self._error, done = exc, False
        except StoreError as exc:
            self._error, done = StreamStoreFailedError(str(exc)), False
        else:
            if done:
                self.next_seq = max(self.next_seq, up_to + 1)
        if self.next_seq:
            self.looked(self.next_seq - 1)
        return self._error is None

    def _store_all(self, records: Sequence[Record], most: float) -> bool:
        """False if it stopped on the way. The work is what rollups remove."""
        load = self._services.jobs.load
        for record in records:
            if record.seq < self.next_seq:
                continue
            if len(self.filters) > 1 and not self._set.matches(record.subject):  # a scan applies one filter only
                continue
            if record.seq - self.next_seq > WIDE_GAP and self.stream.journal.store.pending:
                return False  # the gap is cheap as the first change of a group
            self.store(self._mapped(record))
            self.next_seq = record.seq + 1
            if load.units > most:
                return False
        return True

    def _mapped(self, record: Record) -> Record:
        if not self.mappings:
            return record
        # Several may match: the first one of the configuration counts.
        for pattern in sorted(self._set.matching(record.subject), key=self._order.__getitem__):
            subject = self.mappings[pattern].apply(record.subject)
            if subject is not None:
                return record if subject == record.subject else record._replace(subject=subject)
        return record

    # One on another server.

    @property
    def is_paused(self) -> bool:
        return bool(self.paused)

    @property
    def is_open(self) -> bool:
        return not (self.paused or self._is_full)

    def offer(self, records: Sequence[Record], up_to: int, last: int, now: int) -> bool:
        self._contact, self._error = now, None
        self._compare(last)
        self._take(records, up_to, last)
        return self.next_seq > up_to

    @property
    def needs_position(self) -> bool:
        return False

    def confirm(self, config: StreamConfig, last: int, messages: int) -> None:
        """Only a mirror wants to know."""

    def lost(self, last: int) -> None:
        """Only a mirror has the upstream's sequences."""

    def fail(self, error: ApiError, now: int) -> None:  # noqa: ARG002
        if not self.paused:
            self._error = error

    # Reports.

    def covers(self, subject: str) -> bool:
        return self._set.matches(subject)

    def lacks(self, seq: int) -> bool:
        upstream, journal = self._services.streams.get(self.source.name), self.stream.journal
        if self.next_seq <= seq or (upstream is not None and upstream.created != self.met):
            return True
        # Within one store, storing here and removing upstream become durable in that order.
        return upstream is not None and upstream.journal is not journal and journal.unfinished

    def info(self, now: int) -> dict[str, Any]:
        """`mirror`, or one of `sources`, of the stream's info."""
        upstream = None if self.is_remote else self._services.streams.get(self.source.name)
        connected = upstream is not None and self.paused != CUT
        if upstream is not None:
            self._contact = now if connected else self._contact
            lag = upstream.log.count(self._pattern, self.next_seq) if self.next_seq else 0
        else:
            lag = max(0, self._last - self.next_seq + 1)
        found: dict[str, Any] = {"name": self.source.name}
        if self.source.external is not None:
            found["external"] = self.source.external.to_dict()
        found |= {"lag": lag, "active": now - self._contact if self._contact else -1}
        if self._error is not None:
            error = self._error
            found["error"] = {"code": error.code, "err_code": error.err_code, "description": error.description}
        if self.source.filter_subject:
            found["filter_subject"] = self.source.filter_subject
        if self.source.subject_transforms:
            found["subject_transforms"] = [transform.to_dict() for transform in self.source.subject_transforms]
        return found


@lru_cache(1024)  # every source of a stream asks with every commit
def identity_of(created: int) -> str:
    """What distinguishes a stream from an earlier one of the same name, as on nats-server."""
    return short_hash(format_time(created))
