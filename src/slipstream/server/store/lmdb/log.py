"""The writer's view of one stream in LMDB: commands change the open group's delta, in memory and at once.

Statistics are exact at every moment. A large purge removes its messages from all answers at once; later groups sweep
them from the disk, in slices. A purge of everything moves the stream to a new id and leaves the old one to a cleanup
job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from heapq import merge
from typing import Final
from zlib import crc32

import lmdb

from slipstream.errors import StoreError
from slipstream.server.engine.ports import MOST_UNFORESEEN, Changes, LogState, Record, expires_at, has_wildcard, matcher
from slipstream.server.store.change_log import ChangeLog
from slipstream.server.store.lmdb.env import Environment
from slipstream.server.store.lmdb.expiry import moment_key, moment_of, moments, take
from slipstream.server.store.lmdb.jobs import Job
from slipstream.server.store.lmdb.proof import blocks_with
from slipstream.server.store.lmdb.proof import count as count_block
from slipstream.server.store.lmdb.reader import LogReader
from slipstream.server.store.lmdb.records import HEAD, LONG, MESSAGE_KEY, CorruptMessageError, Stored, inspect, is_sound
from slipstream.server.store.lmdb.segments import COUNTED, Base, Delta, Part, Row, Segment, Tuning, share, unpack_row
from slipstream.server.store.lmdb.snapshot import LmdbSnapshot
from slipstream.server.store.lmdb.view import NO_ROW, View, stored_rows

_NOTHING: Mapping[str, bytes] = {}
_key: Final = MESSAGE_KEY.pack
_pack_head: Final = HEAD.pack


class LmdbGroup:
    """Changes on their way to the disk together."""

    def __init__(self) -> None:
        self.size = 0
        self.deltas: dict[LmdbLog, Delta] = {}
        self.deleted: list[LmdbLog] = []
        self.retired: list[int] = []  # ids of streams that are to be cleared
        self.streams: dict[str, LmdbLog] = {}  # as they are at its end; filled when it is sealed
        self.steps: Iterator[int] | None = None  # the rest of what is to be written
        self.finished_jobs: list[Job] = []
        self.worked = False  # on jobs
        self.error: StoreError | None = None
        self.committed = False


class WriteContext:
    """What the logs of one store share when they write: the open group, the ids of streams, the sweeps to do."""

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self.open: LmdbGroup = LmdbGroup()
        self.sweeping: dict[LmdbLog, None] = {}  # logs with purged messages that are still on the disk
        self.next_sid: int = 1

    def new_sid(self) -> int:
        """An id that no stream has had."""
        self.next_sid += 1
        return self.next_sid - 1


class LmdbLog(LogReader):
    """One stream: the writer's view on top of the reader's."""

    def __init__(
        self,
        context: WriteContext,
        env: Environment,
        name: str,
        config: bytes,
        base: Base,
        kept: Mapping[str, bytes] = _NOTHING,
    ) -> None:
        super().__init__(env, name, base, context.tuning)
        self._context = context
        self._changes: ChangeLog | None = None
        self.committed_config: bytes = config
        self._committed_kept = dict(kept)
        self.reset()

    def reset(self) -> None:
        """Make the writer's view that of the last commit."""
        base = self._base
        self.config: bytes = self.committed_config
        self._kept = dict(self._committed_kept)
        if self._changes is not None:
            self._changes.abandon()
        self.deleted = False
        self.open: Delta | None = None
        self.sealed: Delta | None = None
        self._write_view: View | None = None
        self._sid = base.sid
        self._messages, self._bytes = base.state.messages, base.state.bytes
        self._first_seq, self._last_seq = base.state.first_seq, base.state.last_seq
        self._first_time, self._last_time = base.state.first_time, base.state.last_time
        self._subjects = base.state.subjects
        self._swept = base.swept
        self._roll_at = 0  # the sequence that begins the next segment; 0: none is current
        self._segment = base.new_segment()
        self._segment_start = 0
        self._block = base.block

    @property
    def state(self) -> LogState:
        if self.open is not None and self.open.names:
            # If rows cannot be read, the number of subjects lacks new ones; sealing fails, and so it is never stored.
            with suppress(StoreError):
                self._count(self.open)
        return LogState(
            self._messages,
            self._bytes,
            self._first_seq,
            self._last_seq,
            self._first_time,
            self._last_time,
            self._subjects,
        )

    # Commands.

    def append(self, time: int, subject: str, header: bytes, payload: bytes) -> int:
        delta = self.open
        if delta is None:
            delta = self.touch()
        seq = self._last_seq + 1
        name = subject.encode()
        if len(name) > LONG:  # its row may be refused
            self._own_row(delta, subject)
        if seq >= self._roll_at:  # also as a group's first message: its segment is not known yet
            self._roll(delta, seq)
        key = _key(self._sid, seq)
        body = b"".join((_pack_head(time, len(name), len(header)), name, header, payload))
        size = len(body) + (18 if header else 14)
        crc = crc32(body, crc32(key))
        delta.messages[key] = body + crc.to_bytes(4, "little")
        if header and (moment := expires_at(time, header)):
            delta.moments[moment_key(self._sid, moment, seq)] = True
        delta.names.append(subject)  # the rest is done with many at once: see `_count`
        delta.crcs.append(crc)
        delta.size += size
        if not self._messages:
            self._first_seq, self._first_time = seq, time
        self._messages += 1
        self._bytes += size
        self._last_seq, self._last_time = seq, time
        delta.end = seq
        self._context.open.size += 1
        if self._changes is not None:
            self._changes.added.append((seq, subject))
        return seq

    def _count(self, delta: Delta) -> None:
        """Count the messages that were appended since the last time, in the rows of their subjects and in the segment.

        Together they cost less than one by one; and a publish without limits on subjects looks for no row. All who
        look at rows or segments come here first.
        """
        names, crcs = delta.names, delta.crcs
        if not names:
            return
        rows = delta.rows
        if fresh := [subject for subject in names if subject not in rows]:
            self._fetch_rows(delta, fresh)  # raises StoreError, and then nothing is counted
        seq = start = delta.end + 1 - len(names)
        for subject in names:
            count, first, _ = rows[subject]
            if count:
                rows[subject] = (count + 1, first, seq)
            else:
                rows[subject] = (1, seq, seq)
                self._subjects += 1
            seq += 1
        segment = self._segment
        segment.count += len(names)
        segment.bytes += delta.size
        sums, block, segment_start = segment.sums, self._block, self._segment_start
        seq = start
        for crc in crcs:
            sums[(seq - segment_start) // block] += COUNTED + ((crc ^ seq) & 0xFFFFFFFF)  # `share`
            seq += 1
        delta.tail[start // self._base.size].extend(names, range(start, seq))
        delta.names, delta.crcs, delta.size = [], [], 0

    def _fetch_rows(self, delta: Delta, subjects: list[str]) -> None:
        """Bring the rows of subjects into the open group."""
        rows, base, older = delta.rows, self._base, self.sealed
        if delta.fresh or (older is not None and older.fresh):
            known = older.rows if older is not None and not delta.fresh else {}
            for subject in subjects:
                rows[subject] = known.get(subject, NO_ROW)
            return
        recent, dirty, flushing, clean = older.rows if older is not None else {}, base.dirty, base.flushing, base.clean
        missing: list[str] = []
        for subject in subjects:
            if recent and (row := recent.get(subject)) is not None:
                rows[subject] = row
                continue
            packed = dirty.get(subject)
            if packed is None:
                packed = flushing.get(subject)
            if packed is None:
                for flushed in clean:
                    packed = flushed.get(subject)
                    if packed is not None:
                        break
            if packed is None:
                missing.append(subject)
            else:
                rows[subject] = unpack_row(packed)
        if missing:
            self._read_rows(missing, rows)

    def _read_rows(self, subjects: list[str], rows: dict[str, Row]) -> None:
        """Read rows of subjects from the disk, into `rows`. Raises StoreError."""
        for is_last in (False, True):
            try:
                stored_rows(self._env, self._base, subjects, rows)
                return
            except lmdb.BadTxnError as error:  # another read met a damaged page before
                self._env.revive()
                if is_last:
                    raise StoreError(f"the rows of stream {self.name!r} cannot be read: {error}") from error
            except lmdb.Error as exc:
                self._env.revive()
                raise StoreError(f"the rows of stream {self.name!r} cannot be read: {exc}") from exc

    def skip(self, seq: int) -> None:
        if seq <= self._last_seq + 1:
            return
        delta = self.touch()
        self._count(delta)
        self._last_seq = seq - 1
        if not delta.messages:  # with messages before the gap, views walk the gap until the group is committed
            delta.start, delta.end = seq, seq - 1
        if not self._messages:
            if self._swept == self._first_seq:
                self._swept = seq
            self._first_seq = seq

    def remove(self, seq: int) -> bool:
        if not self._first_seq <= seq <= self._last_seq:
            return False
        view = self._writer()
        value = view.value(seq)
        if value is None:
            if not self._remove_lost(view, seq):
                return False
        else:
            self.touch()
            self._take(seq, value)
        if seq == self._first_seq:
            self._find_first()
        return True

    def purge(self, *, pattern: str = "", below: int = 0, keep: int = 0) -> int:
        self.touch()
        below = below or self._last_seq + 1
        if pattern in ("", ">"):
            if not keep:
                return self._purge_below(below)
            return self._purge_below(self._newest(keep, below)) if self._messages else 0
        victims = list(self._victims(pattern, below))
        if keep:
            del victims[-keep:]
        self._take_victims(victims)
        return len(victims)

    def purge_some(self, subject: str, seq: int, *, below: int, limit: int) -> tuple[int, int]:
        if subject == ">":  # most of it is done later
            return self._purge_below(min(below, self._last_seq + 1)), below
        view = self._writer()
        row = view.row(subject)
        if row is None or not row[0]:
            return 0, below
        victims, begun, is_cut = list[int](), self._env.work.units, False
        for at in self._sound(view, subject, max(seq, row[1]), min(row[2], below - 1)):
            victims.append(at)
            if is_cut := len(victims) == limit or self._env.work.units - begun > MOST_UNFORESEEN:
                break
        if victims:
            self.touch()
            self._take_victims(victims)
        return len(victims), victims[-1] + 1 if is_cut else below

    purges_at_once = True

    def newest(self, keep: int) -> int:
        return self._newest(keep, self._last_seq + 1) if self._messages else self._first_seq

    def _take_victims(self, victims: list[int]) -> None:
        """Remove messages that were found."""
        view = self._writer()
        for seq in victims:
            value = view.value(seq)
            assert value is not None
            self._take(seq, value)
        if victims and victims[0] == self._first_seq:
            self._find_first()

    def take_expired(self, now: int, limit: int) -> list[int]:
        if not 0 < self.next_expiry() <= now:
            return []
        delta = self.touch()
        return take(self._writer(), delta, now, limit)

    # Lookups.

    def next_expiry(self) -> int:
        view = self._writer()
        return next((moment for moment, _ in moments(self._env, view.base.sid, view.deltas)), 0)

    def last_seq_of(self, subject: str) -> int:
        try:
            return self._find_last(subject)
        except CorruptMessageError as exc:  # which one it is is known; reading it raises
            return exc.seq

    def _find_last(self, subject: str) -> int:
        view = self._writer()
        if not has_wildcard(subject):
            return view.last_of(subject)
        best, fits = 0, matcher(subject)
        for delta in reversed(view.deltas):  # what a younger group added is younger than all the rest
            for name, row in delta.rows.items():
                if row[2] > best and row[2] >= delta.start and fits(name):
                    best = max(best, view.last_in(name, row))
            if best >= delta.start:
                return best
        for name, row in view.rows(subject):
            if row[2] > best:
                best = max(best, view.last_in(name, row))
        return best

    def first_seq_of(self, subject: str) -> int:
        return self._writer().first_of(subject)

    def count_of(self, subject: str) -> int:
        view = self._writer()
        row = view.row(subject)
        return view.count_of(subject, row) if row is not None and row[0] else 0

    headers_from = 1  # not known without a look at all of them

    def peek(self, seq: int) -> Record | None:
        if not self._first_seq <= seq <= self._last_seq:
            return None
        view = self._writer()
        value = view.value(seq)
        if value is None:
            view.has(seq)  # raises if it was lost
            return None
        return self._decode(seq, _key(self._sid, seq), value)

    # Beside the messages.

    def keep(self, key: str, value: bytes | None) -> None:
        self.touch().kept[key] = value
        if value is None:
            self._kept.pop(key, None)
        else:
            self._kept[key] = value

    def kept(self) -> Mapping[str, bytes]:
        return self._kept

    def snapshot(self) -> LmdbSnapshot:
        return LmdbSnapshot(self._env, self, self._base, self._tuning)

    @property
    def is_crowded(self) -> bool:
        return self._env.is_crowded

    def watch(self, on: bool) -> None:
        self._changes = ChangeLog() if on else None

    def news(self) -> Changes | None:
        return self._changes.take() if self._changes is not None else None

    def _list_no_changes(self) -> None:
        """So many messages are removed that the change log asks for a recount instead."""
        if self._changes is not None:
            self._changes.recount = True

    # The open group.

    def touch(self) -> Delta:
        """The open group's delta, for one more change."""
        if self.deleted:
            raise StoreError(f"stream {self.name!r} was deleted")
        if self.open is None:
            self.open = self._context.open.deltas[self] = Delta(self._sid, self._last_seq + 1, fresh=False)
            self._roll_at = 0
            self._write_view = None
        self._context.open.size += 1
        return self.open

    def _writer(self) -> View:
        if self.open is not None:
            self._count(self.open)
        view = self._write_view
        if view is None or view.epoch != self._env.epoch:
            deltas = tuple(delta for delta in (self.sealed, self.open) if delta is not None)
            base = self._base
            for i, delta in enumerate(deltas):
                if delta.fresh:  # the log moved to a new id: nothing older is part of it
                    deltas, base = deltas[i:], Base(delta.sid, base.size, self.name)
            view = self._write_view = View(self._env, base, deltas, self._swept, self._first_seq)
        view.swept, view.first = self._swept, self._first_seq
        return view

    def _own_row(self, delta: Delta, subject: str) -> Row:
        """The subject's row as the open group has it."""
        self._count(delta)
        if subject not in delta.rows:
            self._fetch_rows(delta, [subject])
        return delta.rows[subject]

    def _take_from_row(self, delta: Delta, subject: str, seq: int) -> None:
        """Count a message less."""
        count, first, last = self._own_row(delta, subject)
        if not count:  # it is damaged and its subject is unknown
            return
        if count == 1:
            # An older page may have brought it back: then the one that counts must not be lost to all lookups.
            if seq != last and self._writer().has(last, is_checked=False):
                return
            self._subjects -= 1
        elif count == 2 and seq == first and self._writer().has(last, is_checked=False):
            first = last  # the one that is left: known if its block is damaged (`proof.is_certain`)
        delta.rows[subject] = (count - 1, first, last)

    def _own_segment(self, delta: Delta, number: int) -> Segment:
        self._count(delta)
        segment = delta.segments.get(number)
        if segment is None:
            older, known = self.sealed, None
            if not delta.fresh:
                known = older.segments.get(number) if older is not None else None
                if known is None and not (older is not None and older.fresh):
                    known = self._base.segments.get(number)
            segment = Segment(known.count, known.bytes, known.sums) if known is not None else self._base.new_segment()
            delta.segments[number] = segment
        return segment

    def _roll(self, delta: Delta, seq: int) -> None:
        """Begin the segment of `seq`."""
        self._count(delta)
        number = seq // self._base.size
        if number not in delta.tail:
            delta.tail[number] = Part()
        self._segment = self._own_segment(delta, number)
        self._segment_start = number * self._base.size
        self._roll_at = (number + 1) * self._base.size

    def _take(self, seq: int, value: bytes) -> None:
        """Remove a message, from the statistics too."""
        delta = self.touch()
        if seq // self._block in self._base.lost and self._is_surplus(seq, value):
            delta.deletes[_key(self._sid, seq)] = ""
            self._settle_block(self._writer(), seq // self._block)
            return
        stored = self._unlink(delta, seq, value)
        if self._changes is not None:
            self._changes.removed.append((seq, stored.subject))
        segment = self._own_segment(delta, seq // self._base.size)
        self._messages -= 1
        self._bytes -= min(stored.size, self._bytes)
        segment.count -= 1
        segment.bytes -= min(stored.size, segment.bytes)
        block = seq % self._base.size // self._block
        segment.subtract(block, seq, value)
        if not stored.sound:
            self._settle_block(self._writer(), seq // self._block)

    def _is_surplus(self, seq: int, value: bytes) -> bool:
        """Whether a message was removed before, and an older page has brought it back: its subject has as many messages
        without it. It does not count."""
        key, view = _key(self._sid, seq), self._writer()
        if view.base is not self._base or any(key in delta.messages for delta in view.deltas):
            return False
        stored = inspect(key, value)
        return stored.sound and not view.lacks(stored.subject, seq)

    def _unlink(self, delta: Delta, seq: int, value: bytes) -> Stored:
        """Remove a message, and take it out of its subject's row."""
        stored = self._inspect(delta, seq, value)
        self._delete(delta, seq, stored.subject)
        return stored

    def _delete(self, delta: Delta, seq: int, subject: str) -> None:
        self._take_from_row(delta, subject, seq)
        key = _key(self._sid, seq)
        if key in delta.messages:  # added by the same group: it never reaches the disk
            del delta.messages[key]
            delta.tail[seq // self._base.size].remove((seq,))
        else:
            delta.deletes[key] = subject

    def _inspect(self, delta: Delta, seq: int, value: bytes) -> Stored:
        """What there is to know of a message that is removed; its expiry is removed with it."""
        stored = inspect(_key(self._sid, seq), value)
        if not stored.sound:
            return self._identify(stored, seq)
        if moment := moment_of(value):
            delta.moments[moment_key(self._sid, moment, seq)] = False
        return stored

    def _identify(self, stored: Stored, seq: int) -> Stored:
        """The subject of a damaged message, by the index."""
        self._env.report(self.name, seq)
        view = self._writer()
        number = seq // self._base.size
        seqs, is_known = view.named(number, stored.subject)
        if seq in seqs:
            return stored
        for subject, seqs in view.entries(number, ""):
            if subject and seq in seqs:
                return stored._replace(subject=subject)
        if not is_known and view.lacks(stored.subject, seq):
            return stored
        return stored._replace(subject="")

    def _find_first(self, gone: int = 0) -> None:
        """Move the first sequence on, beyond `gone` (itself, if 0), to the next message: even to one that was lost, so
        that readers come to it and are told."""
        caught_up = self._swept == self._first_seq
        view = self._writer()
        seq = found = (gone or self._first_seq) + 1
        value = None
        if self._messages:
            value = view.value(seq)  # mostly there is no hole
            if value is None:
                found = view.next_from(seq)
                value = view.value(found) if found else None
                seq = self._first_lost(view, seq, found or self._last_seq + 1) or found
        if value is not None:
            self._first_time = self._time_at(view, found, value)
        elif seq and self._messages:  # all that is left was lost
            self._first_time = self._last_time
        self._first_seq = seq if seq and self._messages else self._last_seq + 1
        if caught_up:
            self._swept = self._first_seq

    def _time_at(self, view: View, seq: int, value: bytes) -> int:
        """The time of a message; of a damaged one, that of the next one that is sound."""
        if is_sound(_key(self._sid, seq), value):
            return int(HEAD.unpack_from(value)[0])
        return self._time_from(view, seq + 1, self._last_seq + 1)[1] or self._last_time

    # Messages that were lost with a page. They count as messages until someone removes them, or a limit passes over
    # them: so no limit removes a sound message in their stead.

    def _sum_of(self, block: int) -> int:
        """What a block must add up to, as the writer sees it."""
        number = block // self._base.per_segment
        if self.open is not None:
            self._count(self.open)
        for delta in (self.open, self.sealed):
            if delta is not None:
                if (segment := delta.segments.get(number)) is not None:
                    return segment.sums[block - number * self._base.per_segment]
                if delta.fresh:
                    return 0
        return self._base.sum_of(block)

    def _found_in(self, view: View, block: int, low: int = 0) -> int:
        """What the messages of a block (from `low` on) add up to, as the writer sees them."""
        start = block * self._block
        low, high = max(start, low, self._first_seq), min(start + self._block, self._last_seq + 1)
        if self._env.strays:  # a scan passes over messages whose pages have keys of others
            return sum([share(seq, value) for seq in range(low, high) if (value := view.value(seq)) is not None])
        return sum(share(seq, value) for seq, value in view.items(low, high))

    def _first_lost(self, view: View, low: int, high: int) -> int:
        """The first sequence from `low` on, where nothing is found before `high`, that may be one of a lost message; 0
        if none was lost there."""
        base = view.base
        for block in blocks_with(base, low, min(high, base.state.last_seq + 1) - 1):
            if block in base.counted or not (wanted := self._sum_of(block)):
                continue
            if block not in base.lost:
                count_block(self._env, base, block)
            if block in base.lost and wanted // COUNTED > self._found_in(view, block) // COUNTED:
                return max(low, block * self._block)
        return 0

    def _remove_lost(self, view: View, seq: int) -> bool:
        """Remove a message that is not found; False if none was lost there."""
        key, block = _key(self._sid, seq), seq // self._block
        if any(key in delta.deletes for delta in view.deltas) or self._first_lost(view, seq, seq + 1) != seq:
            return False
        delta = self.touch()
        stored = self._identify(Stored(0, "", 0, False), seq)
        self._take_from_row(delta, stored.subject, seq)
        delta.deletes[key] = stored.subject
        self._drop_lost(view, block, 1)
        if self._changes is not None:
            self._changes.removed.append((seq, stored.subject))
        return True

    def _drop_lost(self, view: View, block: int, count: int) -> None:
        """Take lost messages of a block out of the statistics."""
        number = block // self._base.per_segment
        segment = self._own_segment(self.touch(), number)
        size = segment.bytes // segment.count * count if segment.count else 0
        self._messages -= count
        self._bytes -= size
        segment.count -= count
        segment.bytes -= size
        segment.sums[block - number * self._base.per_segment] -= count * COUNTED
        self._settle_block(view, block)

    def _settle_block(self, view: View, block: int, low: int = 0) -> None:
        """The messages of a block that lacked some (from `low` on) are as many as they should be: take their sum as it
        is."""
        number = block // self._base.per_segment
        delta = self.touch()
        segment = self._own_segment(delta, number)
        at, found = block - number * self._base.per_segment, self._found_in(view, block, low)
        if segment.sums[at] // COUNTED == found // COUNTED:
            segment.sums[at] = found
            delta.settled.add(block)

    def _drop_all_lost(self, view: View, low: int, high: int) -> int:
        """All messages that were found from `low` to before `high` are removed: what still counts there was lost."""
        total = 0
        for block in blocks_with(view.base, low, high - 1):
            end = (block + 1) * self._block
            left = self._sum_of(block) // COUNTED - max(0, min(end, self._last_seq + 1) - high)
            if left > 0:
                self._env.report_loss(self.name, max(low, block * self._block), min(end, high) - 1, left)
                self._drop_lost(view, block, left)
                total += left
        return total

    # Purges.

    def _victims(self, pattern: str, below: int) -> Iterator[int]:
        view = self._writer()
        if has_wildcard(pattern):
            names = [(subject, row[2]) for subject, row in view.rows(pattern)]
        else:
            row = view.row(pattern)
            names = [(pattern, row[2])] if row is not None and row[0] else []
        return merge(*(self._sound(view, name, 0, min(last, below - 1)) for name, last in names))

    def _sound(self, view: View, subject: str, low: int, high: int) -> Iterator[int]:
        """Sequences of a subject's messages, without those that are lost or may have been removed."""
        for seq in view.seqs(subject, max(low, self._first_seq), high, is_checked=False):
            with suppress(CorruptMessageError):
                if view.has(seq):
                    yield seq

    def _newest(self, keep: int, below: int) -> int:
        """Where the newest `keep` messages under `below` begin: by the counts of blocks, as far as they are whole."""
        view, per_segment = self._writer(), self._base.per_segment
        for number in view.segments(self._first_seq, below - 1, down=True):
            for block in range((number + 1) * per_segment - 1, number * per_segment - 1, -1):
                start, end = block * self._block, (block + 1) * self._block
                if start >= below or end <= self._first_seq:
                    continue
                count = self._sum_of(block) // COUNTED
                if start >= self._first_seq and (end <= below or below > self._last_seq) and count <= keep:
                    keep -= count
                    continue
                low, high = max(start, self._first_seq), min(end, below)
                found = [seq for seq, _ in view.items(low, high)]
                if len(found) >= keep:
                    # All that are kept are above this block if `keep` is 0 by now: their first one.
                    return found[-keep] if keep else next((seq for seq, _ in view.items(high, below)), below)
                keep -= len(found)
        return self._first_seq

    def _purge_below(self, below: int) -> int:
        if below <= self._first_seq and below <= self._last_seq:
            return 0
        if below > self._last_seq:
            return self._purge_all(below)
        view = self._writer()
        # Few messages are removed at once. Of many only the counts are corrected now, by whole segments where possible;
        # the messages are swept later.
        if below - self._first_seq <= self._context.tuning.slice:
            return self._purge_few(view, below)
        found = view.next_from(below)
        first = self._first_lost(view, below, found or self._last_seq + 1) or found
        if not first:
            return self._purge_all(self._last_seq + 1)
        count = self._drop_segments(view, below)
        value = view.value(found) if found else None
        self._first_seq = first
        self._first_time = self._time_at(view, found, value) if value is not None else self._last_time
        self._context.sweeping[self] = None
        self.sweep(self._context.tuning.slice)
        return count

    def _purge_few(self, view: View, below: int) -> int:
        count = 0
        low = self._first_seq
        for seq, value in view.items(low, below):
            self._take(seq, value)
            count += 1
        count += self._drop_all_lost(view, low, below)
        self._find_first(below - 1)
        return count

    def _purge_all(self, below: int) -> int:
        count = self._messages
        self._list_no_changes()
        if count or self._swept < self._first_seq:
            self._move_to_new_id()
        self._messages = self._bytes = self._subjects = 0
        self._last_seq = max(self._last_seq, below - 1)
        self._first_seq = self._swept = self._last_seq + 1
        delta = self.touch()
        delta.start, delta.end = self._first_seq, self._last_seq  # it has no messages (any more)
        return count

    def _move_to_new_id(self) -> None:
        """An empty log under a new id; the old one is cleared in the background."""
        group, old = self._context.open, self.touch()
        sid = old.sid
        if not old.fresh:
            group.retired.append(sid)
            sid = self._context.new_sid()
        # An id that was fresh in this group never reached the disk, so it can be used again.
        self._sid = sid
        self.open = group.deltas[self] = Delta(sid, self._last_seq + 1, fresh=True)
        self.open.kept = {**old.kept, **self._kept}  # records move along
        self._roll_at = 0
        self._write_view = None
        self._context.sweeping.pop(self, None)

    def _drop_segments(self, view: View, below: int) -> int:
        """Take everything from the first sequence to before `below` out of the statistics."""
        delta, size = self.touch(), self._base.size
        self._list_no_changes()
        last = below // size
        count = total = 0
        for number in list(view.segments(self._first_seq, last * size - 1)) if last * size > self._first_seq else []:
            segment = self._own_segment(delta, number)
            count += segment.count
            total += segment.bytes
            segment.count = segment.bytes = 0
            segment.sums = [0] * len(segment.sums)
        low, high = max(self._first_seq, last * size), min((last + 1) * size, self._last_seq + 1)
        segment = self._own_segment(delta, last)
        # The segment that is cut in two: messages are counted by blocks, bytes on the smaller side message by message.
        if below - low <= high - below:
            gone_bytes = min(self._measure(view, low, below), segment.bytes)
        else:
            gone_bytes = max(0, segment.bytes - self._measure(view, below, high))
        at = below % size // self._block
        gone = sum(each // COUNTED for each in segment.sums[:at])  # of each: together the checksums reach `COUNTED`
        segment.sums[:at] = [0] * at
        is_sound = True
        for seq, value in view.items(max(low, below - below % self._block), below):
            segment.subtract(at, seq, value)
            is_sound = is_sound and inspect(_key(self._sid, seq), value).sound
            gone += 1
        if not is_sound:
            self._settle_block(view, below // self._block, below)
        segment.count -= gone
        segment.bytes -= gone_bytes
        self._messages -= count + gone
        self._bytes -= total + gone_bytes
        return count + gone

    def _measure(self, view: View, low: int, high: int) -> int:
        """Bytes of the messages from `low` to before `high`."""
        return sum(inspect(_key(self._sid, seq), value).size for seq, value in view.items(low, high))

    def sweep(self, limit: int) -> int:
        """Remove some of the messages that a purge left behind; returns how many."""
        delta, subjects, swept = self.touch(), dict[int, str](), self._first_seq
        for seq, value in self._writer().items(self._swept, self._first_seq):
            if len(subjects) == limit:
                swept = seq
                break
            subjects[seq] = self._inspect(delta, seq, value).subject
        if fresh := [subject for subject in subjects.values() if subject not in delta.rows]:
            self._fetch_rows(delta, fresh)
        for seq, subject in subjects.items():
            self._delete(delta, seq, subject)
        self._swept = swept
        if swept == self._first_seq:
            self._context.sweeping.pop(self, None)
        return len(subjects)

    # Groups.

    def seal(self, delta: Delta) -> None:
        """Close the open group's delta. Raises StoreError."""
        self._count(delta)
        delta.state, delta.swept = self.state, self._swept
        if self._changes is not None:
            self._changes.seal()
        if delta.fresh:
            delta.config = self.config
        self.sealed, self.open = delta, None
        self._write_view = None

    def finish(self, delta: Delta) -> None:
        """The sealed delta was committed."""
        if delta.fresh:
            self._base = Base(delta.sid, self._base.size, self.name)
            self._env.forget_stream(self.name)
        elif self._env.damaged or self._env.losses:
            self._env.forget_removed(self.name, delta.state.first_seq, delta.deletes)
        self._base.merge(delta)
        for block in delta.settled:
            self._env.forget_loss(self.name, block * self._block, (block + 1) * self._block - 1)
        if delta.config is not None:
            self.committed_config = delta.config
        for key, value in delta.kept.items():
            if value is None:
                self._committed_kept.pop(key, None)
            else:
                self._committed_kept[key] = value
        if self._changes is not None:
            self._changes.finish()
        self.sealed = None
        self._write_view = None

    def finish_deleted(self) -> None:
        self._env.forget_stream(self.name)
        self._base = Base(0, self._base.size)
        self.sealed = self.open = None
        self._write_view = None

    @property
    def base(self) -> Base:
        return self._base
