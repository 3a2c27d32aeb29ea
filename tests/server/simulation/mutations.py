"""Planted faults: ways to break the server, each with the promise that the simulation must find broken.

A simulation that accepts any failure proves nothing: each fault names its promise, and another one does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import lmdb
import msgspec
import pytest

from slipstream.server.engine import journal as journals
from slipstream.server.engine.account import Account
from slipstream.server.engine.consumers.persistence import StateWriter
from slipstream.server.engine.consumers.push import PushDelivery
from slipstream.server.engine.engine import Engine
from slipstream.server.engine.ports import LogState, Record, StreamLog
from slipstream.server.engine.reads.direct_get import DirectBatch, ReplicaPeer
from slipstream.server.engine.reads.frozen_log import FrozenLog
from slipstream.server.engine.replication.ingest import Ingest
from slipstream.server.engine.replication.mirror import Mirror
from slipstream.server.engine.replication.source import SourceIngest
from slipstream.server.engine.snapshots.reader import SnapshotReader
from slipstream.server.engine.snapshots.writer import SnapshotWriter
from slipstream.server.engine.streams import schedules
from slipstream.server.engine.streams.dedupe import DuplicateWindow
from slipstream.server.engine.streams.expiry import Expiry
from slipstream.server.engine.streams.fast_batches import FastBatches
from slipstream.server.engine.streams.schedules import Schedules
from slipstream.server.engine.streams.stored_stream import StoredStream
from slipstream.server.engine.streams.stream import Stream
from slipstream.server.store.lmdb import env, records
from slipstream.server.store.lmdb import store as stores
from slipstream.server.store.lmdb.env import SEGMENT
from slipstream.server.store.lmdb.log import LmdbLog
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.wire import SubjectSet

Patch = pytest.MonkeyPatch


class Mutation(NamedTuple):
    """A fault, and the promises it breaks."""

    name: str
    promise: str | tuple[str, ...]  # several: the one that is broken first depends on who looks first
    plant: Callable[[Patch], None]


def ack_before_sync(patch: Patch) -> None:
    original = Stream.receive

    def receive(self: Stream, *args: Any) -> bool:
        result = original(self, *args)
        if self.journal.answers and self.journal.answers[-1][1]:
            self.reply_port.answer_all([self.journal.answers.pop()])
        return result

    patch.setattr(Stream, "receive", receive)


def sync_skipped(patch: Patch) -> None:
    original = lmdb.open

    def unsynced(*args: Any, **options: Any) -> Any:
        return original(*args, **(options | {"sync": False, "metasync": False}))

    patch.setattr(lmdb, "open", unsynced)


def subject_rows_not_journaled(patch: Patch) -> None:
    def nothing(rows: object) -> tuple[bytes, ...]:  # noqa: ARG001
        return ()

    patch.setattr(stores, "pack_journal", nothing)


def purge_mark_not_stored(patch: Patch) -> None:
    original = records.pack_state

    def packed(state: LogState, swept: int) -> bytes:
        return original(state._replace(first_seq=min(state.first_seq, 2)), swept)

    patch.setattr(stores, "pack_state", packed)


def control_record_lost(patch: Patch, kind: bytes) -> None:
    original = env.control_key

    def key(of: bytes, sid: int, number: int | None = None) -> bytes:
        return original(b"?" if of == kind and number is not None else of, sid, number)

    patch.setattr(stores, "control_key", key)


def segment_not_stored(patch: Patch) -> None:
    control_record_lost(patch, SEGMENT)


def deleted_stream_stays(patch: Patch) -> None:
    original = LmdbStore._work

    def work(self: LmdbStore, group: Any) -> Iterator[int]:
        retired, group.retired = group.retired, []
        yield from original(self, group)
        group.retired = retired

    patch.setattr(LmdbStore, "_work", work)


def expiries_not_stored(patch: Patch) -> None:
    original = LmdbStore._write_messages

    def write(self: LmdbStore, delta: Any) -> Iterator[int]:
        delta.moments.clear()
        yield from original(self, delta)

    patch.setattr(LmdbStore, "_write_messages", write)


def duplicate_window_not_rebuilt(patch: Patch) -> None:
    patch.setattr(DuplicateWindow, "rebuild", lambda *_: None)


def lost_ids_remembered(patch: Patch) -> None:
    patch.setattr(DuplicateWindow, "take_back", lambda *_: None)


def min_last_seq_one_early(patch: Patch) -> None:
    original = ReplicaPeer.as_of
    patch.setattr(ReplicaPeer, "as_of", lambda self: original(self) + 1)


def min_last_seq_refused(patch: Patch) -> None:
    patch.setattr(ReplicaPeer, "release", lambda self: None)  # noqa: ARG005


def reads_of_uncommitted_messages(patch: Patch) -> None:
    patch.setattr(LmdbLog, "get", LmdbLog.peek)


def rollup_in_the_next_group(patch: Patch) -> None:
    original = Stream._roll_up

    def later(self: Stream, *args: Any) -> None:
        self.journal.after.append(lambda: original(self, *args))

    patch.setattr(Stream, "_roll_up", later)


def half_a_batch(patch: Patch) -> None:
    original = Stream._check_batch
    patch.setattr(Stream, "_check_batch", lambda self, messages, now: original(self, messages, now)[:-1])


def lost_group_acknowledged(patch: Patch) -> None:
    original, failure = Engine.failed, Stream.failure

    def failed(self: Engine, *args: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Stream, "failure", lambda stream, _: stream.ack(1)[0].encode())
            original(self, *args)
        assert Stream.failure is failure

    patch.setattr(Engine, "failed", failed)


def smaller_limits_delete_although_new_messages_are_discarded(patch: Patch) -> None:
    original = Stream.enforce

    def enforce(self: Stream, now: int) -> None:
        self._bounded = self.config.max_msgs > 0 or self.config.max_bytes > 0
        original(self, now)

    patch.setattr(Stream, "enforce", enforce)


def expiry_forgotten_after_a_restart(patch: Patch) -> None:
    def begin(self: Expiry, now: int) -> None:  # noqa: ARG001
        self._next = 0

    patch.setattr(Expiry, "begin", begin)


def an_answer_forgotten(patch: Patch) -> None:
    original = journals.Journal.finish
    patch.setattr(journals.Journal, "finish", lambda self, batch: original(self, batch)[:8])


def delivery_state_not_stored(patch: Patch) -> None:
    patch.setattr(StateWriter, "save", lambda self: None)  # noqa: ARG005


def pushes_end_with_their_connection(patch: Patch) -> None:
    """Those of consumers that give up messages at all are not continued for the next subscriber."""
    original = PushDelivery.interest_changed

    def interest_changed(self: PushDelivery, now: int) -> None:
        original(self, now)
        self.bound = self.bound and self._config.max_deliver <= 0

    patch.setattr(PushDelivery, "interest_changed", interest_changed)


def position_of_a_source_forgotten(patch: Patch) -> None:
    original = SourceIngest.first_wanted
    patch.setattr(SourceIngest, "first_wanted", lambda self: min(original(self), 1))


def message_skipped_by_copies(patch: Patch) -> None:
    original = Ingest._store_all

    def store_all(self: Ingest, records: Sequence[Record], most: float) -> bool:
        return original(self, [record for record in records if record.seq % 3], most)

    patch.setattr(Ingest, "_store_all", store_all)


def mirror_resumes_late(patch: Patch) -> None:
    original = Mirror.first_wanted

    def first_wanted(self: Mirror) -> int:
        wanted = original(self)
        return wanted + 1 if wanted > 1 else wanted

    patch.setattr(Mirror, "first_wanted", first_wanted)


def overwritten_subjects_are_left_out(patch: Patch) -> None:
    def forget(self: DirectBatch) -> None:
        self._has_lost = False

    patch.setattr(DirectBatch, "_look_again", forget)


def held_replica_answers_what_it_lacks(patch: Patch) -> None:
    original = ReplicaPeer.wait_for

    def wait_for(self: ReplicaPeer, request: Any, reply: str, now: int) -> None:
        if isinstance(self.log, FrozenLog):
            self.answer(request, reply, self.stamp(request))
        else:
            original(self, request, reply, now)

    patch.setattr(ReplicaPeer, "wait_for", wait_for)


def subjects_are_not_transformed(patch: Patch) -> None:
    patch.setattr(Ingest, "_mapped", lambda self, record: record)  # noqa: ARG005


def filters_are_ignored(patch: Patch) -> None:
    original = Ingest.__init__

    def init(self: Ingest, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        if not self.mappings:
            self.filters = (">",)
            self._set = SubjectSet(self.filters)

    patch.setattr(Ingest, "__init__", init)


def schedules_fire_twice(patch: Patch) -> None:
    original = Schedules._fire

    def fire(self: Schedules, *args: Any) -> None:
        original(self, *args)
        original(self, *args)

    patch.setattr(Schedules, "_fire", fire)


def due_times_not_stored(patch: Patch) -> None:
    def store(self: Schedules, subject: str, seq: int, when: int) -> None:
        self._forget(subject, but=seq)
        self._set(subject, seq, when)

    patch.setattr(Schedules, "_store", store)


def without_field(field: str) -> Callable[[Patch], None]:
    """What a schedule publishes lacks one of its fields."""

    def plant(patch: Patch) -> None:
        original = schedules._target_header

        def target_header(header: bytes, schedule: schedules.Schedule, *args: Any) -> bytes:
            return original(header, schedule._replace(**{field: ""}), *args)

        patch.setattr(schedules, "_target_header", target_header)

    return plant


def source_of_a_schedule_ignored(patch: Patch) -> None:
    original = schedules.parse_schedule
    patch.setattr(schedules, "parse_schedule", lambda header: original(header)._replace(source=""))


def fast_batches_acknowledge_at_once(patch: Patch) -> None:
    def tell_now(self: Stream, reply: str, payload: bytes) -> None:
        self.reply_port.answer_all([(reply, 0, self, payload, None)])

    patch.setattr(Stream, "tell", tell_now)


def parts_of_fast_batches_repeat(patch: Patch) -> None:
    original = FastBatches._store

    def store(self: FastBatches, part: Any, batch: Any, reply: str, call: Callable[[], Any]) -> None:
        def twice() -> Any:
            call()
            return call()

        original(self, part, batch, reply, twice if part.number == 3 else call)

    patch.setattr(FastBatches, "_store", store)


def snapshot_lacks_a_message(patch: Patch) -> None:
    original = SnapshotWriter._entries

    def entries(self: SnapshotWriter) -> Iterator[bytes]:
        found = list(original(self))
        yield from found[:-2] + found[-1:] if len(found) > 3 else found

    patch.setattr(SnapshotWriter, "_entries", entries)


def snapshot_passes_over_a_message_between_slices(patch: Patch) -> None:
    class Skipping:
        def __init__(self, log: StreamLog) -> None:
            self._log = log

        def __getattr__(self, name: str) -> Any:
            return getattr(self._log, name)

        def scan(self, subject: str, seq: int, **bounds: Any) -> Any:
            return self._log.scan(subject, seq + 1 if seq else 0, **bounds)

    original = SnapshotWriter.__init__

    def init(self: SnapshotWriter, services: Any, log: StreamLog, *args: Any, **options: Any) -> None:
        original(self, services, cast(StreamLog, Skipping(log)), *args, **options)

    patch.setattr(SnapshotWriter, "__init__", init)


def restored_message_is_lost(patch: Patch) -> None:
    original = SnapshotReader._append

    def append(self: SnapshotReader, entry: Any, now: int) -> None:
        if entry.seq != 2:
            original(self, entry, now)

    patch.setattr(SnapshotReader, "_append", append)


def restore_ends_early(patch: Patch) -> None:
    original = SnapshotReader._finish

    def finish(self: SnapshotReader, reply: str, now: int) -> None:
        original(self, reply, now)
        assert self._journal is not None
        self._journal.after.pop()
        self._complete_at(now)

    patch.setattr(SnapshotReader, "_finish", finish)


def partial_restore_stays(patch: Patch) -> None:
    """After a restart the stream is there with what it has."""
    original = Account.load

    def load(self: Account, journal: Any, now: int) -> None:
        for key, data in list(journal.store.streams()):
            entry = msgspec.json.decode(data, type=StoredStream)
            if entry.restoring and entry.config["name"] not in self.restores:
                journal.store.configure(key, data.replace(b'"restoring":true', b'"restoring":false'))
        original(self, journal, now)

    patch.setattr(Account, "load", load)


RESTART = "state after restart"
MUTATIONS = (
    Mutation("an ack is sent before its sync", "no ack before its sync", ack_before_sync),
    Mutation("the sync is skipped", ("no ack before its sync", "exact state"), sync_skipped),
    Mutation("the journal of subject rows is lost", RESTART, subject_rows_not_journaled),
    Mutation("the mark of a purge is not stored", RESTART, purge_mark_not_stored),
    Mutation("the record of a segment is not stored", RESTART, segment_not_stored),
    Mutation("a deleted stream stays on the disk", RESTART, deleted_stream_stays),
    Mutation("the index of expiries is not stored", "messages expire", expiries_not_stored),
    Mutation("the duplicate window is not rebuilt", "exact state", duplicate_window_not_rebuilt),
    Mutation("ids of a lost group are remembered", "acknowledged is kept", lost_ids_remembered),
    Mutation(
        "min_last_seq is answered one early",
        ("min_last_seq is exact", "multi_last is complete"),
        min_last_seq_one_early,
    ),
    Mutation("a read that waits is not released", "min_last_seq is exact", min_last_seq_refused),
    Mutation("reads see uncommitted messages", "reads are exact", reads_of_uncommitted_messages),
    Mutation("a rollup is not atomic", ("acknowledged is kept", "exact state"), rollup_in_the_next_group),
    Mutation("a batch is stored in part", ("acknowledged is kept", "exact state"), half_a_batch),
    Mutation("a lost group is acknowledged", "acknowledged is kept", lost_group_acknowledged),
    Mutation(
        "a smaller limit deletes although new messages are discarded",
        "acknowledged is kept",
        smaller_limits_delete_although_new_messages_are_discarded,
    ),
    Mutation("expiry is forgotten after a restart", "messages expire", expiry_forgotten_after_a_restart),
    Mutation("delivery state is not stored", "no ack before its sync", delivery_state_not_stored),
    Mutation("pushes end with their connection", "at least once", pushes_end_with_their_connection),
    Mutation("a source forgets its position", "copies are exact", position_of_a_source_forgotten),
    Mutation("copies skip messages", ("copies are exact", "copies are complete"), message_skipped_by_copies),
    Mutation("a mirror resumes one too late", ("copies are exact", "copies are complete"), mirror_resumes_late),
    Mutation("overwritten subjects are left out", "multi_last is complete", overwritten_subjects_are_left_out),
    Mutation(
        "a held replica answers what it lacks",
        ("min_last_seq is exact", "reads are exact", "multi_last is complete"),
        held_replica_answers_what_it_lacks,
    ),
    Mutation("subjects are not transformed", "copies are exact", subjects_are_not_transformed),
    Mutation("filters of copies are ignored", "copies are exact", filters_are_ignored),
    Mutation("schedules fire twice", "schedules fire once", schedules_fire_twice),
    Mutation("due times are not stored", ("schedules fire", "schedules fire once"), due_times_not_stored),
    Mutation("the source of a schedule is ignored", "schedules fire once", source_of_a_schedule_ignored),
    Mutation("what a schedule publishes has no TTL", "schedules fire once", without_field("ttl")),
    Mutation("what a schedule publishes replaces nothing", "schedules fire once", without_field("rollup")),
    Mutation("fast batches acknowledge at once", "no ack before its sync", fast_batches_acknowledge_at_once),
    Mutation("parts of fast batches are stored twice", "exact state", parts_of_fast_batches_repeat),
    Mutation("a snapshot lacks a message", "a snapshot is a state", snapshot_lacks_a_message),
    Mutation(
        "a snapshot passes over a message between slices",
        "a snapshot is a state",
        snapshot_passes_over_a_message_between_slices,
    ),
    Mutation("a restored message is lost", "acknowledged is kept", restored_message_is_lost),
    Mutation("a restore ends before it is durable", ("no ack before its sync", "exact state"), restore_ends_early),
    Mutation("a partial restore stays after a restart", "exact state", partial_restore_stays),
    Mutation("an answer is forgotten", "every request is answered", an_answer_forgotten),
)
