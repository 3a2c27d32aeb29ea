"""Streams kept on the disk: groups of changes become LMDB transactions, synced before they count.

One environment holds all streams, so a group costs one sync. The transaction is begun and committed by one thread (LMDB
ties it to that thread) and filled on the loop, in slices. Until a group is finished it exists in memory only, on top of
the committed base: giving it up means forgetting it. What may wait is done by jobs, a bounded piece in each group.

Deleting gives pages back to LMDB, not to the file system: the file never shrinks.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from itertools import islice
from struct import Struct
from threading import get_ident
from typing import Literal

import lmdb

from slipstream.errors import StoreError, UsageError
from slipstream.server.engine.ports import Group, StreamLog, record_size
from slipstream.server.store.lmdb.env import (
    GRAVE,
    INDEXED,
    JOURNAL,
    KEPT,
    META,
    SEGMENT,
    STATE,
    STREAM,
    Environment,
    control_key,
    translated,
)
from slipstream.server.store.lmdb.jobs import CleanupJob, DropJob, FlushJob, Job, SealJob
from slipstream.server.store.lmdb.log import LmdbLog
from slipstream.server.store.lmdb.records import (
    SEGMENT as SEGMENT_RECORD,
)
from slipstream.server.store.lmdb.records import (
    body_of,
    pack_journal,
    pack_state,
    pack_stream,
    seal,
    unpack_journal,
    unpack_state,
    unpack_stream,
)
from slipstream.server.store.lmdb.segments import Base, Delta, Segment, Tuning

_FORMAT = 1
_META = Struct("<III")  # format, size of a segment, next stream id
_PUTS = 500


class LmdbGroup:
    """Changes on their way to the disk together."""

    def __init__(self) -> None:
        self.size = 0
        self.deltas: dict[LmdbLog, Delta] = {}
        self.deleted: list[LmdbLog] = []
        self.buried: list[int] = []  # ids of streams that are to be cleared
        self.streams: dict[str, LmdbLog] = {}  # as they are at its end; filled when it is sealed
        self.steps: Iterator[int] | None = None
        self.settled: list[Job] = []
        self.worked = False  # on jobs
        self.error: StoreError | None = None
        self.committed = False


class LmdbStore:
    """All streams of a server, in one directory that no other process may use meanwhile."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        map_size: int = 1 << 40,
        sync: Literal["always"] = "always",
        tuning: Tuning | None = None,
    ) -> None:
        if sync != "always":
            raise UsageError(f"sync={sync!r}: only 'always' is supported")
        self.tuning = tuning or Tuning()
        if not 1 <= self.tuning.segment <= 65_536:
            raise UsageError(f"segments of {self.tuning.segment} sequences: 1 to 65536 are allowed")
        self._disk = Environment(path, map_size=map_size, step=max(1, self.tuning.slice // 4))
        self.open = LmdbGroup()
        self.sweeping: dict[LmdbLog, None] = {}  # logs with purged messages that are still on the disk
        self._sealed: LmdbGroup | None = None
        self._streams: dict[str, LmdbLog] = {}
        self._committed: dict[str, LmdbLog] = {}
        self._jobs: deque[tuple[Job, Iterator[int]]] = deque()  # memory is held until they are done
        self._chores: deque[tuple[Job, Iterator[int]]] = deque()  # only space is
        self._groups = 0
        self._graves: set[int] = set()
        self._owner = 0  # the thread that began the transaction
        self._doomed: lmdb.Transaction[bytes] | None = None
        self._before = -1  # the last transaction before the one under way
        self._broken = ""
        # LMDB uses pages that were freed only from the second commit after that on. When the store is full a commit
        # with messages may never come: one without any is made instead.
        self._failed = self._nudge = False
        try:
            with translated("reading the streams"):
                self._load()
        except BaseException:
            self._disk.close()
            raise

    # Streams.

    size_of = staticmethod(record_size)

    def streams(self) -> list[tuple[str, bytes]]:
        return [(name, log.config) for name, log in self._streams.items()]

    def create(self, name: str, config: bytes) -> StreamLog:
        if name in self._streams:
            raise UsageError(f"stream {name!r} exists already")
        sid = self.new_sid()
        log = LmdbLog(self, self._disk, name, config, Base(sid, self._segment))
        self._streams[name] = log
        log.open = self.open.deltas[log] = Delta(sid, 1, fresh=True)
        self.open.size += 1
        return log

    def configure(self, name: str, config: bytes) -> None:
        log = self._find(name)
        log.config = log.touch().config = config

    def delete(self, name: str) -> None:
        log = self._find(name)
        delta = log.touch()
        if not delta.fresh:
            self.open.buried.append(delta.sid)
        del self.open.deltas[log]
        log.open, log.deleted = None, True
        self.open.deleted.append(log)
        self.sweeping.pop(log, None)
        del self._streams[name]

    def log(self, name: str) -> StreamLog:
        return self._find(name)

    def _find(self, name: str) -> LmdbLog:
        log = self._streams.get(name)
        if log is None:
            raise StoreError(f"there is no stream {name!r} in the store")
        return log

    def new_sid(self) -> int:
        self._next_sid += 1
        return self._next_sid - 1

    # Figures.

    @property
    def corrupt_records(self) -> int:
        """How often a record did not match its checksum since the store was opened."""
        return self._disk.corrupt_records

    def damaged(self) -> list[tuple[str, int]]:
        return list(self._disk.damaged)

    @property
    def backlog(self) -> bool:
        """Whether there is work left for later groups; when the server is idle, empty groups get it done."""
        return bool(self._jobs or self._chores or self.sweeping or self._nudge)

    # Groups.

    @property
    def pending(self) -> int:
        return self.open.size

    def seal(self) -> Group:
        if self._sealed is not None:
            raise UsageError("a sealed group is still under way; finish or abandon it first")
        self._disk.check_owner()
        budget = self.tuning.slice
        for log in list(self.sweeping):
            if budget > 0:
                budget -= log.sweep(budget)
        group, self.open = self.open, LmdbGroup()
        for log, delta in group.deltas.items():
            log.seal(delta)
        group.streams = dict(self._streams)
        self._sealed = group
        return group

    def begin(self, group: Group) -> None:
        sealed = self._check(group)
        self._disk.check_owner()
        if self._broken:
            raise StoreError(self._broken)
        if self._disk.transaction is not None:
            raise UsageError("the group was begun already")
        if not (sealed.deltas or sealed.buried or self._jobs or self._chores or self._nudge):
            return
        with translated("beginning a group"):
            self._end_doomed()
            self._before = self._disk.env.info()["last_txnid"]
            self._disk.transaction = self._disk.env.begin(write=True)
        self._owner = get_ident()

    def write_some(self, group: Group) -> bool:
        """An error is kept for `commit`: only the thread that began the transaction may end it."""
        sealed = self._check(group)
        if self._disk.transaction is None or sealed.error is not None:
            return True
        if sealed.steps is None:
            sealed.steps = self._work(sealed)
        done = 0
        try:
            with translated("writing a group"):
                for count in sealed.steps:
                    done += count
                    if done >= self.tuning.slice:
                        return False
        except StoreError as exc:
            sealed.error = exc
        return True

    def commit(self, group: Group) -> None:
        sealed = self._check(group)
        self._disk.check_owner()
        transaction = self._disk.transaction
        if transaction is None:
            sealed.committed = not (sealed.deltas or sealed.buried)  # otherwise it was never begun
            return
        if get_ident() != self._owner:
            raise UsageError("commit was called by another thread than begin")
        self._disk.transaction = None
        if sealed.error is not None:
            transaction.abort()
            raise sealed.error
        with translated("committing a group"):
            transaction.commit()
        self._before = -1
        sealed.committed = True

    def finish(self, group: Group) -> None:
        sealed = self._check(group)
        if not sealed.committed:
            raise UsageError("the group is not committed yet")
        self._sealed = None
        self._disk.renew()
        self._committed = sealed.streams
        for log, delta in sealed.deltas.items():
            log.finish(delta)
        for log in sealed.deleted:
            log.finish_deleted()
        self._take_flushed()
        for job in sealed.settled:
            job.settle()
        for sid in sealed.buried:
            self._queue(CleanupJob(sid, self._graves))
        for log in sealed.deltas:
            self._schedule(log)
        if self._failed:
            self._failed = not any(delta.messages for delta in sealed.deltas.values())
            self._nudge = self._failed and bool(sealed.size or sealed.worked)
        self._groups += 1
        if self._groups % 64 == 0:
            self._save_memory()

    def abandon(self) -> None:
        if self._sealed is not None and self._sealed.committed:
            self.finish(self._sealed)  # it is on the disk: nothing takes it back
        groups = [self.open] if self._sealed is None else [self._sealed, self.open]
        self._sealed, self.open = None, LmdbGroup()
        if self._disk.transaction is not None:
            self._doomed, self._disk.transaction = self._disk.transaction, None
            if get_ident() == self._owner:
                self._end_doomed()
        elif self._before >= 0 and self._disk.env.info()["last_txnid"] != self._before:
            self._broken = "a commit failed and may have reached the disk all the same; the store must be opened again"
        self._before = -1
        self._failed = True
        self._nudge = any(group.size for group in groups)
        self._streams = dict(self._committed)
        for group in groups:
            for log in (*group.deltas, *group.deleted):
                log.reset()
        self._disk.flushed.clear()
        self._stored_sid = 0
        self._plan()

    def close(self) -> None:
        """Give the files back. Groups that are not committed are lost."""
        if self._disk.transaction is not None:
            self.abandon()
        if self._doomed is not None and get_ident() == self._owner:
            self._end_doomed()
        self._disk.close()

    def _check(self, group: Group) -> LmdbGroup:
        if group is not self._sealed or not isinstance(group, LmdbGroup):
            raise UsageError("only the group that was sealed last can be carried through, and only once")
        return group

    def _end_doomed(self) -> None:
        """Abort a transaction that was abandoned; another thread than its own would leave LMDB locked for ever."""
        if self._doomed is not None:
            if get_ident() != self._owner:
                raise StoreError("an abandoned transaction can only be ended by the thread that began it")
            doomed, self._doomed = self._doomed, None
            doomed.abort()

    # Writing a group.

    def _work(self, group: LmdbGroup) -> Iterator[int]:
        """Put a group into the transaction, then some of the waiting jobs; yields how much was done."""
        disk, written = self._disk, 0
        for log, delta in group.deltas.items():
            written += max(len(delta.messages) + len(delta.deletes), len(delta.figures))
            yield from self._write_messages(delta)
            yield from self._write_rows(delta)
            self._write_control(log, delta)
            yield 1 + len(delta.segments) + len(delta.kept)
        for sid in group.buried:
            for kind in (STREAM, STATE):
                disk.write.delete(control_key(kind, sid), db=disk.control)
            disk.write.put(control_key(GRAVE, sid), b"", db=disk.control)
        if self._next_sid != self._stored_sid or self._nudge:
            self._write_meta()
        # A change makes two to three units of work, for its index entry and its row: four leave room for chores.
        budget = self.tuning.slice // 4 + 4 * written if group.size else 4 * self.tuning.slice
        while budget > 0 and (queue := self._jobs or self._chores):
            job, steps = queue[0]
            done = next(steps, None)
            group.worked = True
            if done is None:
                queue.popleft()
                group.settled.append(job)
            else:
                budget -= done
                yield done

    def _write_messages(self, delta: Delta) -> Iterator[int]:
        disk = self._disk
        items = list(delta.messages.items())
        with disk.write.cursor(db=disk.messages) as cursor:
            for at in range(0, len(items), _PUTS):
                part = items[at : at + _PUTS]
                cursor.putmulti(part)
                yield len(part)
        rest, delete = iter(delta.deletes), disk.write.delete
        while keys := list(islice(rest, _PUTS)):
            for key in keys:
                delete(key, db=disk.messages)
            yield len(keys)
        for at, (key, there) in enumerate(delta.moments.items(), 1):
            if there:
                disk.write.put(key, b"", db=disk.expiries)
            else:
                delete(key, db=disk.expiries)
            if at % _PUTS == 0:
                yield _PUTS

    def _write_rows(self, delta: Delta) -> Iterator[int]:
        disk = self._disk
        rest = iter(delta.figures.items())
        while rows := list(islice(rest, _PUTS)):
            for body in pack_journal(rows):
                key = control_key(JOURNAL, delta.sid, disk.journal_next)
                disk.write.put(key, seal(key, body), db=disk.control)
                disk.journal_next += 1
            yield len(rows) // 2

    def _write_control(self, log: LmdbLog, delta: Delta) -> None:
        disk = self._disk
        put = disk.write.put
        for number, segment in delta.segments.items():
            key = control_key(SEGMENT, delta.sid, number)
            if segment.count:
                put(key, seal(key, SEGMENT_RECORD.pack(segment.count, segment.bytes)), db=disk.control)
            else:
                disk.write.delete(key, db=disk.control)
        key = control_key(STATE, delta.sid)
        put(key, seal(key, pack_state(delta.state, delta.swept)), db=disk.control)
        if delta.config is not None:
            key = control_key(STREAM, delta.sid)
            put(key, seal(key, pack_stream(log.name, delta.config)), db=disk.control)
        for name, value in delta.kept.items():
            key = control_key(KEPT, delta.sid) + name.encode()
            if value is None:
                disk.write.delete(key, db=disk.control)
            else:
                put(key, seal(key, value), db=disk.control)

    def _write_meta(self) -> None:
        following = self._next_sid  # the loop may take one meanwhile: then it is written again
        self._disk.write.put(META, seal(META, _META.pack(_FORMAT, self._segment, following)), db=self._disk.control)
        self._stored_sid = following

    # Jobs.

    def _queue(self, job: Job) -> None:
        queue = self._jobs if isinstance(job, SealJob | FlushJob) else self._chores
        queue.append((job, job.steps(self._disk)))

    def _schedule(self, log: LmdbLog) -> None:
        """Queue the jobs that a log is due for."""
        base = log.base
        if base.unindexed:
            for number in sorted(base.sealable()):
                self._queue(SealJob(base, number))
        for number in base.bury():
            self._queue(DropJob(base, number))
        tuning = self.tuning
        if not base.flushing and (len(base.dirty) >= tuning.dirty or base.journaled >= tuning.journal):
            self._queue(FlushJob(log))

    def _save_memory(self) -> None:
        """Many streams together must not hold much more than one may."""
        logs, tuning = list(self._streams.values()), self.tuning
        if sum(len(log.base.clean) for log in logs) > 4 * tuning.cache:
            for log in logs:
                log.base.clean = {}
        if sum(log.base.journaled for log in logs) > 4 * tuning.journal:
            largest = max(logs, key=lambda log: log.base.journaled)
            if not largest.base.flushing:
                self._queue(FlushJob(largest))

    def _plan(self) -> None:
        """Queue all jobs anew."""
        self._jobs.clear()
        self._chores.clear()
        self.sweeping.clear()
        for sid in list(self._graves):
            self._queue(CleanupJob(sid, self._graves))
        for log in self._streams.values():
            base = log.base
            base.flushing = False
            base.sealing.clear()
            for number in base.dropping:
                self._queue(DropJob(base, number))
            self._schedule(log)
            if base.swept < base.state.first_seq:
                self.sweeping[log] = None

    def _take_flushed(self) -> None:
        for base, subjects in self._disk.flushed:
            base.flushed(subjects, self.tuning.cache)
        self._disk.flushed.clear()

    # Opening.

    def _load(self) -> None:
        disk = self._disk
        value = disk.read.get(META, db=disk.control)
        if value is None:
            self._segment, self._next_sid, self._stored_sid = self.tuning.segment, 1, 0
            disk.transaction = disk.env.begin(write=True)
            self._write_meta()
            disk.transaction.commit()
            disk.transaction = None
            disk.renew()
        else:
            version, self._segment, self._next_sid = _META.unpack(body_of(META, value, "the store's own record"))
            self._stored_sid = self._next_sid
            if version != _FORMAT:
                raise StoreError(f"the store has format {version}; this version reads format {_FORMAT}")
        for key, value in self._control(STREAM):
            name, config = unpack_stream(body_of(key, value, f"the record of stream {key[1:].hex()}"))
            sid = int.from_bytes(key[1:], "big")
            kept = {
                key[5:].decode(): body_of(key, value, f"a record beside stream {name!r}")
                for key, value in self._control(control_key(KEPT, sid))
            }
            self._streams[name] = LmdbLog(self, disk, name, config, self._load_base(name, sid), kept)
        self._graves.update(int.from_bytes(key[1:], "big") for key, _ in self._control(GRAVE))
        self._committed = dict(self._streams)
        self._plan()

    def _control(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._disk.read.cursor(db=self._disk.control) as cursor:
            if cursor.set_range(prefix):
                for key, value in cursor.iternext():
                    if not key.startswith(prefix):
                        return
                    yield key, value

    def _load_base(self, name: str, sid: int) -> Base:
        disk, base = self._disk, Base(sid, self._segment)
        key = control_key(STATE, sid)
        value = disk.read.get(key, db=disk.control)
        if value is None:
            raise StoreError(f"the state of stream {name!r} is missing")
        base.state, base.swept = unpack_state(body_of(key, value, f"the state of stream {name!r}"))
        for key, value in self._control(control_key(SEGMENT, sid)):
            body = body_of(key, value, f"a segment's record of stream {name!r}")
            base.segments[int.from_bytes(key[5:], "big")] = Segment(*SEGMENT_RECORD.unpack(body))
        for key, value in self._control(control_key(INDEXED, sid)):
            body = body_of(key, value, f"an index record of stream {name!r}")
            base.indexed[int.from_bytes(key[5:], "big")] = int.from_bytes(body, "little")
        for key, value in self._control(control_key(JOURNAL, sid)):
            disk.journal_next = max(disk.journal_next, int.from_bytes(key[5:], "big") + 1)
            for subject, figures in unpack_journal(body_of(key, value, f"a journal record of stream {name!r}")):
                base.dirty[subject] = figures
                base.journaled += 1
        base.tail = None
        base.unindexed = {number for number in base.segments if number not in base.indexed}
        base.dead = {number for number in base.indexed if number not in base.segments}
        return base
