"""The durable store: all streams of a server in one LMDB environment, where a group is one synced transaction.

Theory of operation.

**Group commit.** All changes of one turn of the server's loop, to whatever streams, are one group, so they share one
sync. A group passes through five steps:

    open --seal--> sealed --begin, write_some*, commit--> committed --finish--> visible to readers
                      \\--------- any of them fails ---------> abandon: as of the last commit

An open group exists in memory only: each log has a `Delta` of what the group changes, on top of the committed `Base`.
Sealing closes the deltas, and the next group opens at once. `begin` and `commit` run in one thread, because LMDB ties a
write transaction to its thread; `write_some` fills the transaction on the loop, a slice at a time, so that a large
group does not stall the server. Acks wait for `commit`; readers see the group from `finish` on, when the snapshot moves
and the deltas are merged into their bases. Abandoning a group means to forget its deltas.

**Segments.** A log is cut into segments of 16,384 sequences. A full segment has an index on the disk (subject ->
offsets); the index of the others, the tail, is in memory. One index entry per subject and segment costs a fraction of
one per message. Index entries are hints, checked against the message itself, so removing a message leaves the index
alone.

**Journaled subject rows.** Each subject has a row (count, bounds of the first and last sequence). Rows that changed are
written to a journal in the `control` table with their group, and to the table of subjects later, many at once and in
order: a publish to one of a million subjects touches no page of a million-row table.

**Jobs.** Writing the index of a full segment, flushing rows, and clearing what was deleted are jobs. Each group carries
out a bounded piece of them inside its own transaction. `seal` sweeps a slice of the messages that large purges left.

**Recovery replays nothing.** LMDB leaves the last committed transaction after a crash, and that is the state. Opening
reads configurations, states, segments and the journal of rows into the bases; jobs that were under way are planned
again from there.

**Checksums.** Every value ends with a CRC-32 over its key and itself, so damage, and a value under the wrong key, is
found by each read. A damaged message raises for that message alone; a damaged record that the store cannot do without
stops the start.

Deleting gives pages back to LMDB, not to the file system; a compaction (`compact.py`) copies the rest to a new file.
`docs/design/store.md` has the layout of the tables.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from itertools import islice, starmap
from pathlib import Path
from struct import Struct
from threading import get_ident
from typing import Literal

import lmdb

from slipstream.errors import CorruptRecordError, StoreError, UsageError
from slipstream.server.engine.ports import Group, StreamLog, Work, record_size
from slipstream.server.store.groups import commit_open_group
from slipstream.server.store.lmdb.compact import Compaction, Phase
from slipstream.server.store.lmdb.env import (
    INDEXED,
    JOURNAL,
    KEPT,
    MESSAGES,
    META,
    RETIRED,
    SEGMENT,
    STATE,
    STREAM,
    Environment,
    control_key,
    damaged_store,
    translated,
)
from slipstream.server.store.lmdb.jobs import CleanupJob, DropJob, FlushJob, Job, SealJob
from slipstream.server.store.lmdb.log import LmdbGroup, LmdbLog, WriteContext
from slipstream.server.store.lmdb.proof import sum_of_index, sums_of
from slipstream.server.store.lmdb.records import INDEXED as INDEXED_RECORD
from slipstream.server.store.lmdb.records import SEGMENT as SEGMENT_RECORD
from slipstream.server.store.lmdb.records import (
    body_of,
    pack_journal,
    pack_segment,
    pack_state,
    pack_stream,
    seal,
    unpack_journal,
    unpack_segment,
    unpack_state,
    unpack_stream,
)
from slipstream.server.store.lmdb.scrub import Scrubber
from slipstream.server.store.lmdb.segments import Base, Delta, Segment, Tuning, pack_row

_FORMAT = 2
META_RECORD = Struct("<III")  # format, size of a segment, next stream id
_PUTS = 500
SWEPT = 16  # messages that a group of one change removes of those that a purge has left


class LmdbStore:
    """All streams of a server, in one directory that no other process may use at the same time."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        map_size: int = 1 << 40,
        sync: Literal["always"] = "always",
        tuning: Tuning | None = None,
    ) -> None:
        if sync != "always":
            raise UsageError(f"sync must be 'always', got {sync!r}")
        self.tuning: Tuning = tuning or Tuning()
        self.size_of = record_size
        if not 1 <= self.tuning.segment <= 65_536:
            raise UsageError(f"tuning.segment must be from 1 to 65536 sequences, got {self.tuning.segment}")
        self._env = Environment(path, map_size=map_size, step=max(1, self.tuning.slice // 4))
        self._context = WriteContext(self.tuning)
        self._scrubber = Scrubber(self._env, lambda: [log.base for log in self._committed.values()])
        self._sealed: LmdbGroup | None = None
        self._compaction: Compaction | None = None
        self._streams: dict[str, LmdbLog] = {}
        self._committed: dict[str, LmdbLog] = {}
        self._jobs: deque[tuple[Job, Iterator[int]]] = deque()  # memory is held until they are done
        self._cleanup: deque[tuple[Job, Iterator[int]]] = deque()  # disk space is held until they are done
        # Units of work that a group may do for jobs, and for cleanup; less than 0 if the last step did too much.
        self._allowed = self._allowed_cleanup = 0
        self._groups = 0
        self._retired: set[int] = set()  # ids that are not cleared yet
        self._owner = 0  # the thread that began the transaction
        self._abandoned: lmdb.Transaction[bytes] | None = None  # to be aborted by the thread that began it
        self._before = -1  # the last transaction before the one under way
        self._broken = ""
        # LMDB reuses freed pages only from the second commit after they were freed. When the store is full, a commit
        # with messages may never succeed: one without any (a nudge) is made instead.
        self._failed = self._nudge = False
        try:
            with translated("reading the streams", self._env.path):
                self._load()
        except CorruptRecordError as exc:
            self._env.close()
            raise CorruptRecordError(damaged_store(self._env.path, exc)) from exc
        except BaseException:
            self._env.close()
            raise

    # Streams.

    def measure(self, work: Work) -> None:
        self._env.work = work

    def streams(self) -> list[tuple[str, bytes]]:
        return [(name, log.config) for name, log in self._streams.items()]

    def create(self, name: str, config: bytes) -> StreamLog:
        if name in self._streams:
            raise UsageError(f"stream {name!r} already exists in the store")
        sid = self._context.new_sid()
        log = LmdbLog(self._context, self._env, name, config, Base(sid, self._segment, name))
        self._streams[name] = log
        log.open = self._context.open.deltas[log] = Delta(sid, 1, fresh=True)
        self._context.open.size += 1
        return log

    def configure(self, name: str, config: bytes) -> None:
        log = self._find(name)
        log.config = log.touch().config = config

    def delete(self, name: str) -> None:
        log = self._find(name)
        delta = log.touch()
        if not delta.fresh:
            self._context.open.retired.append(delta.sid)
        del self._context.open.deltas[log]
        log.open, log.deleted = None, True
        self._context.open.deleted.append(log)
        self._context.sweeping.pop(log, None)
        del self._streams[name]

    def log(self, name: str) -> StreamLog:
        return self._find(name)

    def _find(self, name: str) -> LmdbLog:
        log = self._streams.get(name)
        if log is None:
            raise StoreError(f"stream {name!r} does not exist in the store")
        return log

    # Statistics.

    @property
    def corrupt_records(self) -> int:
        """How often a record did not match its checksum since the store was opened."""
        return self._env.corrupt_records

    @property
    def named_records(self) -> int:
        return self._env.named_records

    def damaged(self) -> list[tuple[str, int]]:
        return list(self._env.damaged)

    def losses(self) -> list[tuple[str, int, int, int]]:
        return [(*place, count) for place, count in self._env.losses.items()]

    def faults(self) -> list[str]:
        return list(self._env.faults)

    savepoints = None

    @property
    def scrubber(self) -> Scrubber:
        return self._scrubber

    @property
    def sweeping(self) -> bool:
        """Whether messages that a large purge removed are still on the disk."""
        return bool(self._context.sweeping)

    @property
    def backlog(self) -> bool:
        """Whether there is work left for later groups; when the server is idle, empty groups get it done."""
        return bool(self._jobs or self._cleanup or self._context.sweeping or self._nudge)

    # Compaction.

    @property
    def file_usage(self) -> tuple[int, int]:
        """Bytes of the file, and how many of them are in use."""
        return self._env.file_usage

    def compact(self) -> Compaction:
        """Begin to copy the file without its free pages. Raises StoreError if it is damaged, or the disk too full."""
        if self._compaction is not None and self._compaction.is_active:
            raise UsageError("the store is being compacted already")
        self._compaction = Compaction(
            self._env,
            is_noting=lambda: self._sealed is None or self._env.changed is not None,
            why_broken=lambda: self._broken,
            before_replacing=self._abort_abandoned,
            break_store=self._break,
        )
        return self._compaction

    def _break(self, why: str) -> None:
        self._broken = why

    def _note_changes(self) -> None:
        """A group is finished: what it changed is to be copied again."""
        changed, compaction = self._env.changed, self._compaction
        if changed is not None:
            if compaction is not None and compaction.is_active:
                compaction.finished_group(changed)
            self._env.changed = []

    # Groups.

    @property
    def pending(self) -> int:
        return self._context.open.size

    def seal(self) -> Group:
        if self._sealed is not None:
            raise UsageError("a sealed group is still under way; finish or abandon it first")
        self._env.check_owner()
        # Beside changes of clients, which wait for the group, less is swept than they change (but something, so that it
        # comes to an end): a message that is removed costs as much as one that is added.
        size, slice_ = self._context.open.size, self.tuning.slice
        budget = min(SWEPT + size // 2, max(1, slice_ // 4)) if size else slice_
        for log in list(self._context.sweeping):
            if budget > 0:
                budget -= self._sweep(log, budget)
        group, self._context.open = self._context.open, LmdbGroup()  # from here on changes join the next group
        try:
            with translated("reading the rows of subjects", self._env.path):
                for log, delta in group.deltas.items():
                    log.seal(delta)
        except StoreError as exc:
            group.error = exc  # `begin` raises it
        group.streams = dict(self._streams)
        self._sealed = group
        return group

    def _sweep(self, log: LmdbLog, limit: int) -> int:
        """Remove messages that a purge left. Where LMDB cannot read them they stay until the store is opened again, or
        a group is lost: otherwise no group could be sealed before they are gone."""
        try:
            with translated("removing purged messages", self._env.path):
                return log.sweep(limit)
        except StoreError:
            self._context.sweeping.pop(log, None)
            self._env.revive()
            return 0

    def begin(self, group: Group) -> None:
        sealed = self._check(group)
        self._env.check_owner()
        if self._broken:
            raise StoreError(self._broken)
        if sealed.error is not None:
            raise sealed.error
        if self._compaction is not None and self._compaction.phase is Phase.REPLACED:
            raise StoreError("a compaction has replaced the file, and the store does not use it yet")
        if self._env.transaction is not None:
            raise UsageError("group must not be begun twice")
        if not (sealed.deltas or sealed.retired or self._jobs or self._cleanup or self._nudge):
            return
        with translated("beginning a group", self._env.path):
            self._abort_abandoned()
            self._before = self._env.last_transaction
            self._env.begin()
        self._owner = get_ident()

    def write_some(self, group: Group) -> bool:
        """An error is kept for `commit`: only the thread that began the transaction may end it."""
        sealed = self._check(group)
        if self._env.transaction is None or sealed.error is not None:
            return True
        if sealed.steps is None:
            sealed.steps = self._work(sealed)
        done = 0
        try:
            with translated("writing a group", self._env.path):
                for count in sealed.steps:
                    done += count
                    if done >= self.tuning.slice:
                        return False
        except StoreError as exc:
            sealed.error = exc
        return True

    def commit(self, group: Group) -> None:
        sealed = self._check(group)
        self._env.check_owner()
        transaction = self._env.transaction
        if transaction is None:
            sealed.committed = not (sealed.deltas or sealed.retired)  # otherwise it was never begun
            return
        if get_ident() != self._owner:
            raise UsageError("commit must be called by the thread that called begin")
        self._env.transaction = None  # whatever happens now, this transaction ends here
        if sealed.error is not None:
            transaction.abort()
            raise sealed.error
        with translated("committing a group", self._env.path):
            transaction.commit()
        self._env.committed_tally = self._env.tally
        self._before = -1
        sealed.committed = True

    def finish(self, group: Group) -> None:
        sealed = self._check(group)
        if not sealed.committed:
            raise UsageError("group must be committed before it is finished")
        self._sealed = None
        self._env.renew()
        self._note_changes()
        self._committed = sealed.streams
        for log, delta in sealed.deltas.items():
            log.finish(delta)
        for log in sealed.deleted:
            log.finish_deleted()
        for job in sealed.finished_jobs:
            job.settle()
        if self._env.found:
            self._doubt()
        for sid in sealed.retired:
            self._queue(CleanupJob(sid, self._retired))
        for log in sealed.deltas:
            self._schedule(log)
        if self._failed:
            self._failed = not any(delta.messages for delta in sealed.deltas.values())
            self._nudge = self._failed and bool(sealed.size or sealed.worked)
        self._groups += 1
        if self._groups % 64 == 0:
            self._save_memory()

    def _doubt(self) -> None:
        """Compare messages and indexes with their sums again. Where pages have keys of others, a commit may hide
        entries that it does not change: LMDB merges pages, and looks for keys as if they were in order."""
        env = self._env
        has_index = any(damage.table == "index" for damage in env.found)
        for log in self._committed.values():
            base = log.base
            if env.strays:
                base.proved.clear()
                base.counted.clear()
            for number in base.indexed if has_index else ():
                key = control_key(INDEXED, base.sid, number)
                if (record := env.read.get(key, db=env.control)) is not None:
                    base.index_sums[number] = INDEXED_RECORD.unpack(body_of(key, record, "an index record"))[1]

    def abandon(self) -> None:
        if self._sealed is not None and self._sealed.committed:
            self.finish(self._sealed)  # it is on the disk: nothing takes it back
        groups = [self._context.open] if self._sealed is None else [self._sealed, self._context.open]
        self._sealed, self._context.open = None, LmdbGroup()
        if self._env.transaction is not None:
            self._abandoned, self._env.transaction = self._env.transaction, None
            if get_ident() == self._owner:
                self._abort_abandoned()
        elif self._before >= 0 and self._env.last_transaction != self._before:
            self._broken = "a commit failed and may still have reached the disk; the store must be opened again"
        self._before = -1
        self._failed = True
        self._nudge = any(group.size for group in groups)
        self._streams = dict(self._committed)
        for group in groups:  # logs that the groups created are forgotten with `_streams`
            for log in (*group.deltas, *group.deleted):
                log.reset()
        if self._env.changed is not None:
            self._env.changed = []
        self._stored_sid = 0
        self._plan()

    def close(self) -> None:
        """Close the files. Groups that are not committed are lost."""
        self._scrubber.close()
        if self._compaction is not None:
            self._compaction.close()
        if self._env.transaction is not None:
            self.abandon()
        if self._abandoned is not None and get_ident() == self._owner:
            self._abort_abandoned()
        self._env.close()

    def _check(self, group: Group) -> LmdbGroup:
        if group is not self._sealed or not isinstance(group, LmdbGroup):
            raise UsageError("group must be the one that was sealed last, and not finished yet")
        return group

    def _abort_abandoned(self) -> None:
        """Abort an abandoned transaction. In another thread than its own, that would leave LMDB locked for good."""
        if self._abandoned is not None:
            if get_ident() != self._owner:
                raise StoreError("an abandoned transaction can only be ended by the thread that began it")
            transaction, self._abandoned = self._abandoned, None
            transaction.abort()

    # Writing a group.

    def _work(self, group: LmdbGroup) -> Iterator[int]:
        """Put a group into the transaction, then some of the waiting jobs; yields how much was done."""
        env, written = self._env, 0
        for log, delta in group.deltas.items():
            written += max(len(delta.messages) + len(delta.deletes), len(delta.rows))
            yield from self._write_messages(delta)
            yield from self._write_rows(delta)
            self._write_control(log, delta)
            yield 1 + len(delta.segments) + len(delta.kept)
        for sid in group.retired:
            for kind in (STREAM, STATE):
                env.delete_control(control_key(kind, sid))
            env.delete_copy(control_key(STREAM, sid))
            key = control_key(RETIRED, sid)
            env.put_control(key, seal(key, b""))
        if self._context.next_sid != self._stored_sid or self._nudge:
            self._write_meta()
        # A change makes two to three units of work, for its index entry and its row. Steps are larger than what a small
        # group may do: its client would wait for a whole one with each, and so the next ones do none.
        if group.size:
            self._allowed = min(self._allowed, 0) + SWEPT + 4 * written
            self._allowed_cleanup = min(self._allowed_cleanup, 0) + SWEPT + written
        else:
            self._allowed = self._allowed_cleanup = 4 * self.tuning.slice
        while queue := self._due():
            if not group.size and self._context.open.size:  # a client waits for the next group by now
                break
            job, steps = queue[0]
            done = next(steps, None)
            group.worked = True
            if done is None:
                queue.popleft()
                group.finished_jobs.append(job)
            else:
                self._allowed -= done
                if queue is self._cleanup:
                    self._allowed_cleanup -= done
                yield done
        env.put_stamp()

    def _write_messages(self, delta: Delta) -> Iterator[int]:
        env = self._env
        items = list(delta.messages.items())
        with env.write.cursor(db=env.messages) as cursor:
            for at in range(0, len(items), _PUTS):
                part = items[at : at + _PUTS]
                cursor.putmulti(part)
                if env.changed is not None:
                    env.changed.append((MESSAGES, [key for key, _ in part]))
                yield len(part)
        rest, delete = iter(delta.deletes), env.write.delete
        while keys := list(islice(rest, _PUTS)):
            for key in keys:
                delete(key, db=env.messages)
            if env.changed is not None:
                env.changed.append((MESSAGES, keys))
            yield len(keys)
        for at, (key, there) in enumerate(delta.moments.items(), 1):
            if there:
                env.put_moment(key)
            else:
                env.delete_moment(key)
            if at % _PUTS == 0:
                yield _PUTS

    def _write_rows(self, delta: Delta) -> Iterator[int]:
        env = self._env
        packed, rest = delta.packed, zip(delta.rows, starmap(pack_row, delta.rows.values()), strict=True)
        while rows := list(islice(rest, _PUTS)):
            packed.update(rows)
            for body in pack_journal(rows):
                key = control_key(JOURNAL, delta.sid, env.journal_next)
                env.put_control(key, seal(key, body))
                env.journal_next += 1
            yield len(rows) // 2

    def _write_control(self, log: LmdbLog, delta: Delta) -> None:
        env = self._env
        put, delete = env.put_control, env.delete_control
        for number, segment in delta.segments.items():
            key = control_key(SEGMENT, delta.sid, number)
            if segment.count:
                put(key, seal(key, pack_segment(segment)))
            else:
                delete(key)
        key = control_key(STATE, delta.sid)
        put(key, seal(key, pack_state(delta.state, delta.swept)))
        if delta.config is not None:
            key = control_key(STREAM, delta.sid)
            put(key, seal(key, pack_stream(log.name, delta.config)))
            env.put_copy(key, pack_stream(log.name, delta.config))
        for name, value in delta.kept.items():
            key = control_key(KEPT, delta.sid) + name.encode()
            if value is None:
                delete(key)
            else:
                put(key, seal(key, value))

    def _write_meta(self) -> None:
        following = self._context.next_sid  # the loop may take another id: then it is written again
        record = META_RECORD.pack(_FORMAT, self._segment, following)
        self._env.put_control(META, seal(META, record))
        if not self._env.has_copy(META):
            self._env.put_copy(META, record)
        self._stored_sid = following

    # Jobs.

    def _due(self) -> deque[tuple[Job, Iterator[int]]] | None:
        """The jobs that the group may work on."""
        if self._allowed <= 0:
            return None
        return self._jobs or (self._cleanup if self._allowed_cleanup > 0 else None)

    def _queue(self, job: Job) -> None:
        queue = self._jobs if isinstance(job, SealJob | FlushJob) else self._cleanup
        queue.append((job, job.steps(self._env)))

    def _schedule(self, log: LmdbLog) -> None:
        """Queue the jobs that a log is due for."""
        base = log.base
        if base.unindexed:
            for number in sorted(base.sealable()):
                self._queue(SealJob(base, number))
        for number in base.drop_dead():
            self._queue(DropJob(base, number))
        tuning = self.tuning
        limit = tuning.flush_at(base.state.subjects)
        if not base.is_flushing and (len(base.dirty) >= limit or base.journaled >= max(tuning.journal, 2 * limit)):
            self._flush(log)

    def _flush(self, log: LmdbLog) -> None:
        self._queue(FlushJob(log, self._env.journal_next, self.tuning.cached(log.base.state.subjects)))

    def _save_memory(self) -> None:
        """Bound the memory of all streams together to a small multiple of what one may hold."""
        logs, tuning = list(self._streams.values()), self.tuning
        while sum(log.base.cached for log in logs) > 16 * tuning.cache:  # not those that are being flushed
            max(logs, key=lambda log: log.base.cached).base.forget_oldest()
        if sum(log.base.journaled for log in logs) > 4 * tuning.journal:
            largest = max(logs, key=lambda log: log.base.journaled)
            if not largest.base.is_flushing:
                self._flush(largest)

    def _plan(self) -> None:
        """Drop the queued jobs and queue those that the logs are due for."""
        self._jobs.clear()
        self._cleanup.clear()
        self._context.sweeping.clear()
        for sid in list(self._retired):
            self._queue(CleanupJob(sid, self._retired))
        for log in self._streams.values():
            base = log.base
            base.abandon_flush()
            base.sealing.clear()
            for number in base.dropping:
                self._queue(DropJob(base, number))
            self._schedule(log)
            if base.swept < base.state.first_seq:
                self._context.sweeping[log] = None

    # Opening.

    def _load(self) -> None:
        env = self._env
        value = env.read.get(META, db=env.control)
        if value is None:
            if any(env.read.stat(table)["entries"] for table in (env.control, env.messages, env.subjects)):
                raise CorruptRecordError("the store's own record is missing")
            self._segment, self._context.next_sid, self._stored_sid = self.tuning.segment, 1, 0
            env.begin()
            self._write_meta()
            self._commit_at_once()
        else:
            version, self._segment, self._stored_sid = META_RECORD.unpack(
                body_of(META, value, "the store's own record")
            )
            self._context.next_sid = self._stored_sid
            if version == 1:
                self._upgrade()
            elif version != _FORMAT:
                raise StoreError(f"the store has format {version}; this version reads format {_FORMAT}")
            env.check_stamp()
        for key, value in self._control(STREAM):
            name, config = unpack_stream(body_of(key, value, f"the record of stream {key[1:].hex()}"))
            sid = int.from_bytes(key[1:], "big")
            kept = {
                key[5:].decode(): body_of(key, value, f"a record beside stream {name!r}")
                for key, value in self._control(control_key(KEPT, sid))
            }
            self._streams[name] = LmdbLog(self._context, env, name, config, self._load_base(name, sid), kept)
        if not env.has_copy(META):
            self._write_copies()
        self._retired.update(int.from_bytes(key[1:], "big") for key, _ in self._control(RETIRED))
        self._committed = dict(self._streams)
        self._plan()

    def _commit_at_once(self) -> None:
        """Commit a transaction while nothing else goes on."""
        env = self._env
        env.put_stamp()
        env.write.commit()
        env.transaction, env.committed_tally = None, env.tally
        env.renew()

    def _write_copies(self) -> None:
        """Of a store that was made before there were copies."""
        env = self._env
        env.begin()
        self._write_meta()
        for log in self._streams.values():
            env.put_copy(control_key(STREAM, log.base.sid), pack_stream(log.name, log.config))
        self._commit_at_once()

    def _upgrade(self) -> None:
        """Add the sums that format 2 has: of blocks, of the index of segments, of tables."""
        env = self._env
        env.begin()
        env.adopt_sums()
        for key, value in self._control(SEGMENT):
            body = body_of(key, value, "a segment's record")
            sid, number = int.from_bytes(key[1:5], "big"), int.from_bytes(key[5:], "big")
            base, low = Base(sid, self._segment), 0
            if (state := env.read.get(control_key(STATE, sid), db=env.control)) is not None:
                low = unpack_state(body_of(control_key(STATE, sid), state, "a stream's state"))[0].first_seq
            messages, size = SEGMENT_RECORD.unpack(body)
            segment = Segment(messages, size, sums_of(env, base, number, low))
            env.put_control(key, seal(key, pack_segment(segment)))
        for key, value in self._control(INDEXED):
            named = int.from_bytes(body_of(key, value, "an index record"), "little")
            prefix = key[1:5] + key[5:]
            env.put_control(key, seal(key, INDEXED_RECORD.pack(named, sum_of_index(env, prefix))))
        self._write_meta()
        self._commit_at_once()

    def _control(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._env.read.cursor(db=self._env.control) as cursor:
            if cursor.set_range(prefix):
                for key, value in cursor.iternext():
                    if not key.startswith(prefix):
                        return
                    yield key, value

    def _load_base(self, name: str, sid: int) -> Base:
        env, base = self._env, Base(sid, self._segment, name)
        key = control_key(STATE, sid)
        value = env.read.get(key, db=env.control)
        if value is None:
            raise CorruptRecordError(f"the state of stream {name!r} is missing")
        base.state, base.swept = unpack_state(body_of(key, value, f"the state of stream {name!r}"))
        for key, value in self._control(control_key(SEGMENT, sid)):
            body = body_of(key, value, f"a segment's record of stream {name!r}")
            base.segments[int.from_bytes(key[5:], "big")] = unpack_segment(body)
        for key, value in self._control(control_key(INDEXED, sid)):
            body = body_of(key, value, f"an index record of stream {name!r}")
            number = int.from_bytes(key[5:], "big")
            base.indexed[number], base.index_sums[number] = INDEXED_RECORD.unpack(body)
        for key, value in self._control(control_key(JOURNAL, sid)):
            env.journal_next = max(env.journal_next, int.from_bytes(key[5:], "big") + 1)
            for subject, row in unpack_journal(body_of(key, value, f"a journal record of stream {name!r}")):
                base.dirty[subject] = pack_row(*row)
                base.journaled += 1
        base.tail = None
        base.unindexed = {number for number in base.segments if number not in base.indexed}
        base.dead = {number for number in base.indexed if number not in base.segments}
        return base


def compact_directory(path: Path) -> tuple[int, int]:
    """Compact the store of a stopped server; returns the size of its file before and after. Raises StoreError."""
    if not (path / "data.mdb").is_file():
        raise StoreError(f"there is no store in {path}")
    store = LmdbStore(path)
    try:
        while store.backlog:  # messages that were purged, and are still to be removed
            commit_open_group(store)
        compaction = store.compact()
        try:
            is_ready = False
            while not is_ready:
                compaction.begin()
                compaction.work()
                is_ready = compaction.finish()
            compaction.replace()
            compaction.switch()
        finally:
            compaction.close()
        return compaction.before, compaction.after
    finally:
        store.close()
