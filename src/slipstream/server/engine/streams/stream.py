"""A stream: stores or rejects published messages and enforces limits.

Checks use the writer's view of the log, so that each message is checked against all earlier ones; acks wait in the
journal until the message is durable. `receive` has a fast path for plain messages (no headers, nothing special in the
configuration), and `_store_checked` for all others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from itertools import islice

import msgspec

from slipstream.api import Discard, Retention, StreamConfig, encode_json, format_time
from slipstream.api.names import REQUIRED_API_LEVEL
from slipstream.api.times import nanoseconds
from slipstream.errors import (
    ApiError,
    CorruptRecordError,
    ErrorCode,
    StoreError,
    StreamNotFoundError,
    StreamStoreFailedError,
)
from slipstream.server.engine.api.requests import error_body
from slipstream.server.engine.consumers.registry import Consumers
from slipstream.server.engine.core.routing import AccountRouter
from slipstream.server.engine.journal import Answer, Journal
from slipstream.server.engine.ports import Record, StreamLog, expires_at, has_wildcard
from slipstream.server.engine.reads.replicas import Replicas
from slipstream.server.engine.replication.fidelity import Fidelity, sweeps
from slipstream.server.engine.services import Services, UpstreamState
from slipstream.server.engine.snapshots.writer import SnapshotWriter
from slipstream.server.engine.streams import fast_batches, publish_checks, schedules
from slipstream.server.engine.streams.atomic_batches import AtomicBatches, Staged
from slipstream.server.engine.streams.counters import Counters, Total
from slipstream.server.engine.streams.dedupe import DuplicateWindow, message_id
from slipstream.server.engine.streams.expiry import Expiry
from slipstream.server.engine.streams.publish_headers import (
    NO_HEADERS,
    PublishHeaders,
    parse_publish_headers,
    remove_header,
)
from slipstream.server.engine.streams.removals import (
    AT_ONCE,
    AT_ONCE_IN_BATCH,
    LOOKED,
    UNITS,
    Done,
    Removal,
    Rollup,
    is_long,
)
from slipstream.server.engine.streams.stored_stream import StoredStream
from slipstream.server.engine.streams.stream_time import StreamTime
from slipstream.server.engine.streams.subject_limits import LimitTrim, SubjectTrim
from slipstream.server.engine.streams.wildcard_checks import Known, WildcardSearch, takes_search, wildcards
from slipstream.wire import SubjectMapping, SubjectSet, is_valid_subject

NO_LIMIT = 1 << 62
TTL_UNITS = 2  # of work (`engine.jobs`) for a message with a time to live: the store keeps an index of them
MOST_FOR_ONE = 2048  # messages that rollups replaced and that go at once, for the place of one new message
_DUPLICATE = '"duplicate": true'


class Stream:
    """One stream."""

    def __init__(
        self, services: Services, journal: Journal, config: StreamConfig, *, key: str, created: int, now: int
    ) -> None:
        """`key` is its name in the store."""
        self.name: str = config.name
        self.key = key
        self.reply_port: AccountRouter = services.router
        self.created = created
        self.journal = journal
        self.log: StreamLog = journal.store.log(key)
        self._size_of = journal.store.size_of
        self.replicas: Replicas = Replicas(services, self.name, self.log, now=created)
        self._services = services
        self._load = services.jobs.load
        self.positions: dict[str, tuple[int, str]] = {}
        self.fidelity: Fidelity | None = None
        self.is_gone: bool = False  # it was deleted, and that is durable
        self.is_stopped: bool = False  # it was deleted, or lost with the group that made it
        self.ingests: tuple[UpstreamState, ...] = ()
        self.trimming: bool = False
        self._subject_trim: SubjectTrim | None = None
        self.downstream: dict[UpstreamState, None] = {}  # ingests of other streams from this one
        self.snapshots: dict[SnapshotWriter, None] = {}  # on their way
        self._removals: dict[Removal, None] = {}
        self._rollups: dict[str, Rollup] = {}  # under way, by subject
        self._begun: list[Rollup] = []  # by the message that is being stored
        self._at_once: int = AT_ONCE  # messages that may go at once for it, or for its whole batch
        self._ending: int = 0  # removals that are complete, in groups that are not durable yet
        self._limit_trim: LimitTrim | None = None
        self._known: Known = {}  # last sequences that were looked up for the message that is being stored
        quoted = encode_json(self.name).decode()
        domain = f',"domain":{encode_json(services.domain).decode()}' if services.domain else ""
        self._tail = f'"stream":{quoted},"seq":0}}'.encode()
        self._ack_head = f'{{"stream":{quoted}{domain},"seq":'
        self._ack_size = len(self._ack_head.encode()) + 1
        self.duplicates: DuplicateWindow = DuplicateWindow(0)
        self.time: StreamTime = StreamTime()
        self.expiry: Expiry = Expiry(services, journal, self.log, self._mark, self.time)
        self.schedules: schedules.Schedules = schedules.Schedules(services, self.log, self._publish_scheduled)
        self._counters = Counters(self.log)
        self._batches = AtomicBatches(services.timers, services.batch_usage, self._abandoned)
        self._fast = fast_batches.FastBatches(services.timers, services.batch_usage, self)
        self.consumers: Consumers = Consumers(services, self)
        self.configure(config)
        self.restore(now)

    # Configuration.

    def configure(self, config: StreamConfig) -> None:
        """Apply a configuration; `enforce` then removes the messages that it no longer allows."""
        self.config = config
        self._subjects: SubjectSet | None = None
        if not config.allow_batched:
            self._fast.stop()
        self.replicas.scale(config.num_replicas, mirrors=config.mirror is not None)
        self._max_size = config.max_msg_size if config.max_msg_size > 0 else NO_LIMIT
        self._max_msgs = config.max_msgs if config.max_msgs > 0 else NO_LIMIT
        self._max_bytes = config.max_bytes if config.max_bytes > 0 else NO_LIMIT
        self._per_subject = max(config.max_msgs_per_subject, 0)
        # With `discard: new`, messages that were accepted stay: what comes in is rejected. That holds beyond a limit
        # too, where a lowered limit or the server's own delete markers leave a stream.
        self._bounded = (config.max_msgs > 0 or config.max_bytes > 0) and config.discard != Discard.NEW
        self.expiry.configure(
            nanoseconds(config.max_age),
            lifetimes=config.allow_msg_ttl,
            marker_ttl=nanoseconds(config.subject_delete_marker_ttl),
        )
        self.schedules.on = config.allow_msg_schedules
        self._limited = bool(self._bounded or self._per_subject or self.expiry.active)
        transform, again = config.subject_transform, config.republish
        self._mapping = SubjectMapping(transform.src, transform.dest) if transform is not None else None
        self._republish = SubjectMapping(again.src, again.dest) if again is not None else None
        self._headers_only = again is not None and again.headers_only
        # Streams that may reject or change a message: every publish needs the checks.
        self._needs_checks = bool(
            config.sealed or config.discard == Discard.NEW or config.allow_msg_counter or transform or again
        ) or (config.allow_msg_schedules or self._services.is_bounded(config.storage))
        self.acks: bool = not config.no_ack
        self._by_interest = config.retention == Retention.INTEREST
        window = nanoseconds(config.duplicate_window)
        if self.duplicates.configure(window):
            self.journal.after.append(partial(self.duplicates.settle, window))

    def captures(self, subject: str) -> bool:
        """Whether messages on a subject belong to the stream."""
        if self._subjects is None:
            self._subjects = SubjectSet(self.config.subjects)
        return self._subjects.matches(subject)

    def stored(self) -> bytes:
        """The record for the store."""
        return encode_json(
            StoredStream(
                self.created,
                self.config.to_dict(),
                trimming=self.trimming,
                positions=self.positions,
                fidelity=self.fidelity,
                removals=self._recorded_removals(),
            )
        )

    def restore(self, now: int, *, lost: bool = False) -> None:
        """Rebuild the state that is derived from the log: after a start, and after a group was lost."""
        self._clock = self.log.state.last_time
        if self.config.mirror is None and not lost:  # a mirror has the times of its upstream
            self.time.begin(self._clock, now)
        self._clock = max(self._clock, self.time.caught_up)
        # The last message that removed others than the older ones of its subject; which one it was is not stored.
        self.last_sweep: int = self.log.state.last_seq if sweeps(self.config) else 0
        self._counters.forget()
        self._batches.stop()
        self._fast.stop()
        if lost:
            self._ending = 0
            self.duplicates.take_back(self.log.committed.last_seq)
        else:
            self.duplicates.rebuild(self.log, self.time.at(now))
        self._last_msg_id = ""
        with contextlib.suppress(CorruptRecordError):  # reads report it; the stream works without its id
            last = self.log.peek(self.log.state.last_seq)
            self._last_msg_id = message_id(last.header) if last is not None else ""
        self.consumers.restore(now)
        self.expiry.begin(now)
        self.schedules.begin(now)

    def enforce(self, now: int) -> None:
        """Remove messages that a changed configuration no longer allows."""
        self.last_sweep = self.log.state.last_seq
        self.trim_subjects()
        self._trim("")
        self.expiry.arm(now)
        self.schedules.begin(now)
        if self._by_interest and len(self.consumers):
            self.consumers.retention.sweep()

    def trim_subjects(self) -> None:
        """Enforce the limit per subject; with many subjects most of it later, as a job."""
        if self._subject_trim is not None:
            self._subject_trim.stop()
            self._subject_trim = None
        if self._per_subject:
            trim = SubjectTrim(self.journal, self.log, self._per_subject, self._trimmed)
            self.trimming = trim.work()
            if self.trimming and self._services.jobs.start(trim):
                self._subject_trim = trim
            self.journal.store.configure(self.key, self.stored())

    def _trimmed(self) -> None:
        if self._subject_trim is not None:
            self.trimming, self._subject_trim = False, None
            self.journal.store.configure(self.key, self.stored())

    @property
    def limit_trim(self) -> LimitTrim | None:
        """The job that enforces lowered limits; None if they hold."""
        return self._limit_trim

    # Purges in slices.

    def remove_matching(
        self, pattern: str, *, below: int, keep: int = 0, begins: Callable[[], None] | None, done: Done
    ) -> None:
        """Purge in slices. Everything before `below` must be committed. `begins`: see `Removal`."""
        removal = Removal(self, pattern, below=below, keep=keep, begins=begins, done=done)
        self._removals[removal] = None
        jobs = self._services.jobs
        jobs.go_on(removal, jobs.load.asker or self)

    def removal_changed(self, removal: Removal) -> None:
        """Store the removals that are under way: one began, or is over."""
        if removal.is_over:
            self._removals.pop(removal, None)
        self._record_removals(ended=removal.is_over)

    def rollup_ended(self, pattern: str) -> None:
        """All that a rollup replaced is gone, or nothing more can be removed."""
        self._rollups.pop(pattern, None)
        self._record_removals(ended=True)

    def _record_removals(self, *, ended: bool) -> None:
        if ended:
            self._ending += 1
            self.journal.after.append(self._removal_is_durable)
        self._save_later()

    def _save_later(self) -> None:
        """Store the record of the stream with the open group: once, however often it changes in it."""
        if not self.is_stopped:
            self.journal.unsaved[self] = None
            self.journal.seal_requested = True

    def _removal_is_durable(self) -> None:
        self._ending -= 1

    def _recorded_removals(self) -> list[tuple[str, int]]:
        found = [(removal.pattern, removal.below) for removal in self._removals if removal.is_recorded]
        return found + [(rollup.pattern, rollup.below) for rollup in self._rollups.values() if rollup.is_recorded]

    def resume_removals(self, stored: list[tuple[str, int]]) -> None:
        """Complete what the record of the stream names: after a start, and after a group was lost."""
        error = StreamStoreFailedError(self.journal.failure)
        for rollup in list(self._rollups.values()):
            ends = [below for pattern, below in stored if pattern == rollup.pattern and below <= rollup.below]
            rollup.start_over(max(ends, default=0), error)
            if rollup.is_over:
                del self._rollups[rollup.pattern]
        known = set(self._recorded_removals())
        for removal in self._removals:
            removal.start_over()
        for pattern, below in stored:
            if (pattern, below) not in known:
                # The client that asked left with the server that it asked. The record also says that a mirror is not
                # a whole copy any more: that was stored in the same group.
                done = partial(self._resumed_removal_ended, pattern)
                self.remove_matching(pattern, below=below, begins=None, done=done)
        if self._bounded:  # last: what is to go anyway goes first
            self._trim("")

    def _resumed_removal_ended(self, pattern: str, _: int, error: Exception | None) -> None:
        if error is None:
            self.consumers.purged(pattern)

    def stop(self) -> None:
        """The stream was deleted."""
        self.is_stopped = True
        for removal in self._removals:
            removal.stop()
        self._removals.clear()
        for rollup in list(self._rollups.values()):
            rollup.stop(StreamNotFoundError())
        self._rollups.clear()
        if self._limit_trim is not None:
            self._limit_trim.stop()
        self.journal.unsaved.pop(self, None)
        self.expiry.stop()
        self.schedules.stop()
        if self._subject_trim is not None:
            self._subject_trim.stop()
        self._batches.stop()
        self._fast.stop()
        self.consumers.stop()
        for snapshot in list(self.snapshots):
            snapshot.abandon("the stream was deleted")
        self.replicas.stop()

    # Publishing.

    @property
    def _now(self) -> int:
        """The server's time, for timers and schedules; that of messages (`now` below) may be ahead of it."""
        return self._services.router.now

    def _stamp(self, now: int) -> int:
        """The time of a message that is stored now: not before that of the last one, and the stream's if it is ahead.
        `_clock` is the moment from which on it is simply `now`."""
        stamp = max(self.log.state.last_time, self.time.at(now))
        self._clock = max(stamp, self.time.caught_up)
        return stamp

    def receive(self, subject: str, reply: str, header: bytes, payload: bytes, now: int) -> bool:
        """Store a message; its ack waits for the commit."""
        if now < self._clock:  # the log is ordered by time
            now = self._stamp(now)
        else:
            self._clock = now
        answer: bytes | None = b""
        if self._begun:
            self._begun = []
        try:
            if header or self._needs_checks or len(payload) > self._max_size or reply.endswith(fast_batches.SUFFIX):
                seq, answer = self._store_checked(subject, reply, header, payload, now)
            else:  # the fast path: nothing can speak against the message, so nothing is looked up
                seq = self.log.append(now, subject, header, payload)
                self._last_msg_id = ""
                if self._limited:
                    self._at_once = AT_ONCE
                    self._trim(subject)
                    self.expiry.appended(0)
                if self._by_interest:
                    self.consumers.retention.offered(seq, subject)
        except ApiError as exc:
            seq, answer = 0, self.failure(exc)
        except StoreError as exc:
            seq, answer = 0, self.failure(StreamStoreFailedError(str(exc)))
        # Not sent here: the ack waits until the group is durable. Errors wait as well, behind the acks before them.
        if reply and self.acks and answer is not None:
            if self._begun:
                self._answer_after_rollups((reply, seq, self, answer, self._load.client))
            else:
                self.journal.answers.append((reply, seq, self, answer, self._load.client))
        return True

    def _search_first(self, filters: list[str], reply: str, store: Callable[[int], tuple[int, bytes | None]]) -> None:
        """Find the newest messages of the filters that a message expects sequences of, in slices, and store it then."""
        asker = self._load.asker

        def found(result: Known | StoreError) -> None:
            now, answer = self._now, None
            seq = 0
            if self.is_stopped:
                answer = self.failure(StreamNotFoundError())
            elif isinstance(result, StoreError):
                answer = self.failure(StreamStoreFailedError(str(result)))
            else:
                now = self._stamp(now) if now < self._clock else now
                self._clock, self._known, self._begun = max(self._clock, now), result, []
                try:
                    seq, answer = store(now)
                except ApiError as exc:
                    seq, answer = 0, self.failure(exc)
                except StoreError as exc:
                    seq, answer = 0, self.failure(StreamStoreFailedError(str(exc)))
                finally:
                    self._known = {}
            if reply and self.acks and answer is not None:
                if self._begun:
                    self._answer_after_rollups((reply, seq, self, answer, asker))
                else:
                    self.journal.answers.append((reply, seq, self, answer, asker))

        WildcardSearch(self._services.jobs, self.log, filters, found).begin()

    def _must_search(self, filters: list[str]) -> bool:
        return bool(filters) and not self._known and takes_search(self._services.jobs, self.log, filters)

    def _answer_after_rollups(self, answer: Answer) -> None:
        """Acknowledge a message once the removals that it began are complete."""
        left = len(self._begun)

        def done(error: Exception | None) -> None:
            nonlocal left
            if error is not None and left > 0:
                left = 0
                failed = error if isinstance(error, ApiError) else StreamStoreFailedError(str(error))
                self.journal.answers.append((answer[0], 0, self, self.failure(failed), answer[4]))
            elif left > 0:
                left -= 1
                if not left:
                    self.journal.answers.append(answer)

        for rollup in self._begun:
            rollup.wait(done)

    # Mirrors and sources.

    def adopt(self, record: Record) -> None:
        """Store a message of the mirrored stream, with its sequence and time. Raises ApiError if the stream is full."""
        log, (seq, time, subject, header, payload) = self.log, record
        subject = self._mapped(subject)
        self._at_once = AT_ONCE
        if self.config.discard == Discard.NEW:
            message = (subject, header, payload)
            self._free_capacity(subject, self._size_of(*message))
            publish_checks.check_capacity(self.config, self.journal.store, log, message, rollup=False)
        before = log.last_seq_of(subject) if self._republish is not None else 0
        log.skip(seq)
        log.append(time, subject, header, payload)
        self._clock = time
        self._last_msg_id = message_id(header) if header else ""
        if (
            header
            and self.config.allow_rollup_hdrs
            and (rollup := parse_publish_headers(header).rollup) in ("sub", "all")
        ):
            self._roll_up(rollup, subject, seq)
            self._begun = []  # no ack waits for it
        if self._republish is not None:
            self._republish_later(subject, header, payload, seq=seq, now=time, before=before)
        if self._limited:
            self._trim(subject)
            self.expiry.appended(expires_at(time, header) if header else 0)
        if self._by_interest:
            self.consumers.retention.offered(seq, subject)

    def _find_duplicate(self, msg_id: str, now: int) -> int:
        """The sequence of an earlier message with that id; 0 if there is none, or if it is damaged: then the publisher,
        who has its content, mends the loss."""
        seq = self.duplicates.find(msg_id, now)
        if seq:
            try:
                self.log.peek(seq)
            except CorruptRecordError:
                return 0
        return seq

    def take_in(self, subject: str, header: bytes, payload: bytes, now: int) -> None:
        """Store a message of a source, unless it is a duplicate. Raises ApiError if it is rejected."""
        now = self._stamp(now)
        config, subject = self.config, self._mapped(subject)
        if config.sealed:
            raise ErrorCode.STREAM_SEALED.error()
        wanted = parse_publish_headers(header) if header else NO_HEADERS
        if wanted.msg_id and self._find_duplicate(wanted.msg_id, now):
            return
        total: Total | None = None
        if config.allow_msg_counter:
            total, header, payload = self._counters.add_message(subject, header, payload, wanted.source)
        publish_checks.check_size(self._max_size, header, payload)
        self._services.check_bytes(config.storage, self._size_of(subject, header, payload))
        header = publish_checks.check_lifetime(config, wanted, header)
        if config.discard == Discard.NEW:
            message = (subject, header, payload)
            publish_checks.check_capacity(config, self.journal.store, self.log, message, rollup=bool(wanted.rollup))
        seq = self._append(subject, header, payload, now, wanted)
        if total is not None:
            self._counters.stored(subject, total, seq)

    def gone(self) -> None:
        """Its deletion is durable."""
        self.is_gone = True

    def keep_fidelity(self, fidelity: Fidelity) -> None:
        """Store what a mirror's copy is worth, in the same group as its messages."""
        self.fidelity = fidelity
        self.journal.store.configure(self.key, self.stored())

    def removed_on_request(self) -> None:
        """Messages were deleted or purged: a mirror may then lack what its upstream has."""
        if self.fidelity is not None and self.fidelity.is_whole:
            self.replicas.distrust()
            self.keep_fidelity(msgspec.structs.replace(self.fidelity, is_whole=False))

    def promote(self) -> None:
        """No longer a mirror: from now on it speaks for itself."""
        self.fidelity = None
        self.time.begin(self._clock, self._now)
        self._clock = max(self._clock, self.time.caught_up)
        self.replicas.show(seen=0, gap_until=0, is_true_copy=False)

    def as_of(self) -> int:
        """The sequence as of which the leader's data is that of the stream."""
        return self.replicas.leader.as_of()

    def keep_position(self, source: str, seq: int, identity: str) -> None:
        """Store the position of a source, in the same group as its messages."""
        self.positions[source] = (seq, identity)
        self._save_later()  # once for all sources: the record has the positions of all of them

    def save(self) -> None:
        """Write the positions of the sources: deferred state of the journal."""
        self.journal.store.configure(self.key, self.stored())

    def ack(self, seq: int) -> tuple[str, int]:
        """The text of a positive ack, and its size."""
        digits = str(seq)
        return f"{self._ack_head}{digits}}}", self._ack_size + len(digits)

    def failure(self, error: ApiError) -> bytes:
        """The ack with an error."""
        return b'{"error":%b,%b' % (encode_json(error_body(error)), self._tail)

    def _extended(self, seq: int, more: str) -> bytes:
        """A positive ack with further fields."""
        return f"{self._ack_head}{seq},{more}}}".encode()

    def _store_checked(
        self, subject: str, reply: str, header: bytes, payload: bytes, now: int
    ) -> tuple[int, bytes | None]:
        """Store a message with all checks: the sequence and no text, or 0 and another answer (None: no answer)."""
        if len(header) > publish_checks.MAX_HEADER:  # before it is taken apart
            publish_checks.check_size(self._max_size, header, payload)
        wanted = parse_publish_headers(header) if header else NO_HEADERS
        if wanted.subject and not wanted.batch and self._must_search(filters := wildcards((wanted.subject,))):
            arrived = subject
            self._search_first(filters, reply, lambda now: self._store_checked(arrived, reply, header, payload, now))
            return 0, None
        subject = self._mapped(subject)
        if reply.endswith(fast_batches.SUFFIX):
            self._receive_fast(Staged(subject, header, payload, wanted), reply, now)
            return 0, None
        if wanted.batch:
            return 0, self._receive_staged(Staged(subject, header, payload, wanted), reply, now)
        if self.config.sealed:
            raise ErrorCode.STREAM_SEALED.error()
        seq, is_duplicate, total = self._check_and_append(Staged(subject, header, payload, wanted), now)
        if is_duplicate:
            return 0, self._extended(seq, _DUPLICATE)
        return (seq, b"") if total is None else (0, self._extended(seq, f'"val":"{total.value}"'))

    def _check_and_append(self, message: Staged, now: int) -> tuple[int, bool, Total | None]:
        """Store a message: its sequence, whether that is the one of an older message with its id, and its total."""
        config, log = self.config, self.log
        subject, header, payload, wanted = message
        amount, schedule = None, schedules.parse_schedule(header)
        if wanted is not NO_HEADERS or schedule is not schedules.NO_SCHEDULE:
            amount = publish_checks.increment(config, wanted, payload)
            publish_checks.check_target(config, wanted)
            publish_checks.check_expected(log, wanted, subject, self._known)
            if schedules.check(
                config, schedule, subject, self._now, is_plain=self.schedules.is_plain, captures=self.captures
            ):
                header, wanted = schedules.with_rollup(header, wanted)
            publish_checks.check_origin(wanted)
            if wanted.msg_id and (seq := self._find_duplicate(wanted.msg_id, now)):
                return seq, True, None
            if wanted.last_msg_id and wanted.last_msg_id != self._last_msg_id:
                raise ErrorCode.STREAM_WRONG_LAST_MSG_ID.error(id=self._last_msg_id)
            publish_checks.check_rollup(config, wanted.rollup)
        total: Total | None = None
        if config.allow_msg_counter:
            if amount is None:
                raise ErrorCode.MESSAGE_INCR_MISSING.error()
            total, header, payload = self._counters.add(self._counters.current(subject), amount, header)
        publish_checks.check_size(self._max_size, header, payload)
        self._services.check_bytes(config.storage, self._size_of(subject, header, payload))
        header = publish_checks.check_lifetime(config, wanted, header)
        if config.discard == Discard.NEW:
            stored = (subject, header, payload)
            self._free_capacity(subject, self._size_of(*stored))
            publish_checks.check_capacity(config, self.journal.store, log, stored, rollup=bool(wanted.rollup))
        seq = self._append(subject, header, payload, now, wanted)
        if total is not None:
            self._counters.stored(subject, total, seq)
        return seq, False, total

    def _mapped(self, subject: str) -> str:
        """The subject that a message is stored on. One that the mapping does not cover stays as it is."""
        if self._mapping is None:
            return subject
        return self._mapping.apply(subject) or subject

    def _append(self, subject: str, header: bytes, payload: bytes, now: int, wanted: PublishHeaders) -> int:
        """Append a checked message, and do what follows from it: rollup, schedules, republish, limits."""
        self._at_once = AT_ONCE
        return self._append_part(subject, header, payload, now, wanted)

    def _append_part(self, subject: str, header: bytes, payload: bytes, now: int, wanted: PublishHeaders) -> int:
        """The same for a message of a batch: what its rollups remove at once is bounded for all of them together."""
        log = self.log
        before = log.last_seq_of(subject) if self._republish is not None else 0
        seq = log.append(now, subject, header, payload)
        self._last_msg_id = wanted.msg_id
        if wanted.msg_id:
            self.duplicates.add(wanted.msg_id, seq, now)
        if wanted.rollup and self.config.allow_rollup_hdrs:
            self._roll_up(wanted.rollup, subject, seq)
        if wanted.schedule_next == schedules.PURGE and wanted.scheduler and self.config.allow_rollup_hdrs:
            self._replace(wanted.scheduler, seq, own=0)
            self.last_sweep = seq
        if self.schedules.on:
            self.schedules.stored(seq, subject, header, self._now)
        if self._republish is not None:
            self._republish_later(subject, header, payload, seq=seq, now=now, before=before)
        self._trim(subject)
        if wanted.ttl:
            self._load.units += TTL_UNITS
        self.expiry.appended(expires_at(now, header) if wanted.ttl else 0)
        if self._by_interest:
            self.consumers.retention.offered(seq, subject)
        return seq

    def _roll_up(self, rollup: str, subject: str, seq: int) -> None:
        if rollup != "sub":
            self.last_sweep = seq
        self._replace(subject if rollup == "sub" else ">", seq, own=1)

    def _replace(self, pattern: str, seq: int, *, own: int) -> None:
        """Remove what a message has replaced: all of a subject, or of all, that is older. `own` of it are the message
        itself."""
        log, most = self.log, self._at_once
        if has_wildcard(pattern):  # of all subjects, or of one that looks like a filter
            older, is_slow = log.state.messages - own, is_long(log, pattern, below=seq, keep=own)
        else:
            older = log.count_of(pattern) - own
            is_slow = older + own > most
        if not older:
            return
        if not is_slow and has_wildcard(pattern):
            self._removed_at_once(min(log.purge(pattern=pattern, below=seq), AT_ONCE))
            return
        if not is_slow:
            count, at = log.purge_some(pattern, 0, below=seq, limit=older)
            self._removed_at_once(count)
            if at >= seq or count == older:
                return
            self._at_once = 0  # it took more work than its messages tell
        removal = self._rollups.get(pattern)
        if removal is None:
            removal = self._rollups[pattern] = Rollup(self, pattern)
            self._services.jobs.go_on(removal, self._services.jobs.load.asker or self)
        removal.extend(seq)
        self._begun.append(removal)
        self._save_later()  # what is still to go is in the record of the stream

    def _removed_at_once(self, count: int) -> None:
        """So many messages were removed for the one that is being stored: its publisher is served in slices."""
        self._at_once -= count
        self._load.units += UNITS * count

    # Where new messages are rejected for want of capacity, a rollup has made it when it is stored: what is to go
    # leaves when its place is needed.

    def _free_capacity(self, subject: str, size: int, count: int = 1) -> None:
        """Remove messages that rollups replaced, as far as new ones take their place. Where very many small ones would
        have to go for a large one, the rest goes later."""
        left = MOST_FOR_ONE if self.is_removing else 0
        while (
            left > 0 and self._lacks_capacity(subject, size, count) and (removed := self.remove_replaced(min(left, 16)))
        ):
            left -= removed

    def _lacks_capacity(self, subject: str, size: int, count: int) -> bool:
        state = self.log.state
        if state.messages + count > self._max_msgs or state.bytes + size > self._max_bytes:
            return True
        return 0 < self._per_subject < self.log.count_of(subject) + count

    def remove_replaced(self, limit: int) -> int:
        """Remove so many messages at most that rollups have replaced, or that are being purged; returns how many."""
        if not self._rollups and not self._removals:
            return 0
        # A batch may have begun very many; mostly the first one has something to remove.
        removals: list[Rollup | Removal] = [*islice(self._rollups.values(), LOOKED), *self._removals]
        for removal in removals:
            with contextlib.suppress(CorruptRecordError):  # the removal itself ends with the error
                if not removal.is_over and (removed := removal.remove(limit)):
                    return removed
        return 0

    @property
    def is_removing(self) -> bool:
        """Whether readers may still see messages that a rollup has replaced, or that a purge is to remove."""
        return bool(self._rollups or self._removals or self._ending)

    def _publish_scheduled(self, subject: str, header: bytes, payload: bytes, now: int) -> None:
        """Publish the message of a schedule that is due. Raises ApiError if the stream rejects it."""
        now = self._stamp(now)
        config, subject, wanted = self.config, self._mapped(subject), parse_publish_headers(header)
        if config.sealed:
            raise ErrorCode.STREAM_SEALED.error()
        publish_checks.check_size(self._max_size, header, payload)
        self._services.check_bytes(config.storage, self._size_of(subject, header, payload))
        self._append(subject, publish_checks.check_lifetime(config, wanted, header), payload, now, wanted)

    def _mark(self, subject: str, header: bytes, now: int) -> None:
        """Store a delete marker for a subject, whatever the capacity: it takes the place of the last message there."""
        now = self._stamp(now)
        self._append(subject, header, b"", now, parse_publish_headers(header))

    def _republish_later(self, subject: str, header: bytes, payload: bytes, *, seq: int, now: int, before: int) -> None:
        """Republish the message once it is durable."""
        assert self._republish is not None
        target = self._republish.apply(subject)
        if target is None or not is_valid_subject(target):
            return
        lines = (
            f"Nats-Stream: {self.name}\r\nNats-Subject: {subject}\r\nNats-Sequence: {seq}\r\n"
            f"Nats-Time-Stamp: {format_time(now)}\r\nNats-Last-Sequence: {before}\r\n"
        )
        if self._headers_only:
            lines += f"Nats-Msg-Size: {len(payload)}\r\n"
        head = header[:-2] if header.endswith(b"\r\n\r\n") else b"NATS/1.0\r\n"
        block = b"%b%b\r\n" % (head, lines.encode())
        body = b"" if self._headers_only else payload
        self.journal.events.append((self.reply_port, target, block, body, self._load.asker))

    # Fast and atomic batches.

    def _receive_fast(self, message: Staged, reply: str, now: int) -> None:
        """Store a message of a fast batch, which acknowledges it."""
        self._check_part(message)
        if not self.config.allow_batched:
            raise ErrorCode.BATCH_PUBLISH_DISABLED.error()
        level = message.wanted.api_level

        def store() -> fast_batches.FastOutcome:
            bare = message._replace(header=remove_header(message.header, REQUIRED_API_LEVEL)) if level else message
            seq, is_duplicate, _ = self._check_and_append(bare, now)
            return fast_batches.FastOutcome(seq, is_duplicate)

        self._fast.receive(fast_batches.parse(reply), reply, level, store, self._now)

    def tell(self, reply: str, payload: bytes) -> None:
        """Send a response once everything up to here is durable."""
        self.journal.answers.append((reply, 0, self, payload, self._load.asker))

    def batch_ack(self, seq: int, batch: str, count: int, *, is_duplicate: bool = False) -> bytes:
        """The ack of a whole batch."""
        more = f'"batch":{encode_json(batch).decode()},"count":{count}'
        return self._extended(seq, f"{_DUPLICATE},{more}" if is_duplicate else more)

    def _check_part(self, message: Staged) -> None:
        """Checks of a message that do not depend on its batch."""
        if self.config.sealed:
            raise ErrorCode.STREAM_SEALED.error()
        subject, header, payload, _ = message
        self._services.check_bytes(self.config.storage, self._size_of(subject, header, payload))
        publish_checks.check_size(self._max_size, header, payload)

    def _receive_staged(self, message: Staged, reply: str, now: int) -> bytes | None:
        """Stage a message of an atomic batch: an empty answer at once, or the ack of the batch if it commits it."""
        self._check_part(message)
        if not self.config.allow_atomic:
            raise ErrorCode.ATOMIC_PUBLISH_DISABLED.error()
        messages = self._batches.stage(message, self._now)
        if messages is None:
            if reply and self.acks:
                self._services.router.send(reply, b"", b"")
            return None
        batch = message.wanted.batch
        if self._must_search(filters := wildcards([each.wanted.subject for each in messages])):
            self._search_first(filters, reply, lambda now: (0, self._commit(batch, messages, now)))
            return None
        return self._commit(batch, messages, now)

    def _commit(self, batch: str, messages: list[Staged], now: int) -> bytes:
        """Store all messages of a batch, in one group, or none."""
        checked = self._check_batch(messages, now)
        seq = 0
        self._at_once = AT_ONCE_IN_BATCH
        for (subject, header, payload, wanted), total in checked:
            seq = self._append_part(subject, header, payload, now, wanted)
            if total is not None:
                self._counters.stored(subject, total, seq)
        return self.batch_ack(seq, batch, len(messages))

    def _check_batch(self, messages: list[Staged], now: int) -> list[tuple[Staged, Total | None]]:
        """Check all messages of a batch; returns them as they are stored, with the totals of counters."""
        config = self.config
        if config.discard == Discard.NEW and self.is_removing:
            size = sum([self._size_of(*message[:3]) for message in messages])
            self._free_capacity(messages[0].subject, size, len(messages))
        rules = publish_checks.BatchChecks(config, self.journal.store, self.log, self.duplicates, self._known)
        totals: dict[str, Total] = {}
        scheduled: dict[str, bool] = {}  # subjects that the batch writes to -> whether they then have a schedule

        def is_plain(subject: str) -> bool:
            return not scheduled[subject] if subject in scheduled else self.schedules.is_plain(subject)

        checked: list[tuple[Staged, Total | None]] = []
        for subject, header, payload, wanted in messages:
            if wanted.last_msg_id:
                raise ErrorCode.ATOMIC_PUBLISH_UNSUPPORTED_HEADER_BATCH.error(header="Nats-Expected-Last-Msg-Id")
            amount = publish_checks.increment(config, wanted, payload)
            rules.headers(wanted, now)
            total: Total | None = None
            if config.allow_msg_counter:
                if amount is None:
                    raise ErrorCode.MESSAGE_INCR_MISSING.error()
                known = totals.get(subject) or self._counters.current(subject)
                total, header, payload = self._counters.add(known, amount, header)
                totals[subject] = total
                publish_checks.check_size(self._max_size, header, payload)
            rules.sequences(wanted, subject)
            schedule = schedules.parse_schedule(header)
            scheduled[subject] = schedules.check(
                config, schedule, subject, self._now, is_plain=is_plain, captures=self.captures
            )
            if scheduled[subject]:
                header, wanted = schedules.with_rollup(header, wanted)
            rules.rollup(wanted, subject)
            header = publish_checks.check_lifetime(config, wanted, header)
            rules.capacity(wanted, subject, header, payload)
            checked.append((Staged(subject, header, payload, wanted), total))
        return checked

    def _abandoned(self, batch: str, reason: str, now: int) -> None:
        subject, payload = self._services.advisories.batch_abandoned(self.name, batch, reason, now)
        self._services.router.send(subject, b"", payload)

    # Limits.

    def _trim(self, subject: str) -> None:
        """Remove the oldest messages until the limits hold again."""
        log = self.log
        if self._per_subject and subject and (excess := log.count_of(subject) - self._per_subject) > 0:
            # Mostly it is one; while a lowered limit is enforced, its job removes the rest.
            removed, most = 0, 1 if excess == 1 else max(1, min(excess, self._at_once))
            with contextlib.suppress(CorruptRecordError):  # an older message of the subject is lost or damaged: nothing
                while removed < most and log.remove(log.first_seq_of(subject)):  # newer goes for it
                    removed += 1
            if removed > 1:
                self._removed_at_once(removed)
        if not self._bounded:
            return
        state = log.state
        if state.messages <= self._max_msgs and state.bytes <= self._max_bytes:
            return
        is_one_more = state.messages <= self._max_msgs + 1 and not self._rollups and not self._removals
        if is_one_more and log.remove(state.first_seq) and not self._excess():  # mostly: the stream is full
            return
        self._trim_more()

    def _trim_more(self) -> None:
        """Remove a bounded number of messages; the rest is a job."""
        if self._limit_trim is not None:
            self._trim_oldest(2)  # the job has ever fewer left
            return
        self._trim_oldest(AT_ONCE)
        if self._excess():
            trim = LimitTrim(self.journal, self._trim_oldest)
            trim.after.append(self._limits_hold)
            if self._services.jobs.start(trim):
                self._limit_trim = trim

    def _excess(self) -> int:
        """How many messages there are too many, at least."""
        state = self.log.state
        return max(state.messages - self._max_msgs, int(bool(state.messages) and state.bytes > self._max_bytes))

    def _trim_oldest(self, most: int) -> int:
        """Remove the oldest messages until the limits hold, but so many at most; returns how many."""
        log, count = self.log, 0
        while count < most and (excess := self._excess()) > 0:
            # A message that was replaced, or is being purged, is not there for a limit.
            removed = self.remove_replaced(min(excess, most - count))
            if not removed:
                if excess > 1 and log.purges_at_once:
                    log.purge(keep=self._max_msgs)
                    removed = 1
                elif excess > 1:
                    state = log.state
                    removed, _ = log.purge_some(">", 0, below=state.last_seq + 1, limit=min(excess, most - count))
                else:
                    removed = int(log.remove(log.state.first_seq))
            count += removed
            if not removed:
                break
        return count

    def _limits_hold(self) -> None:
        self._limit_trim = None
