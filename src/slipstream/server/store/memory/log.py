"""One stream in memory, and the groups that change it.

The index has the writer's view. Messages that an unfinished group removed are kept as that group's tombstones until it
is finished, and those that it added lie beyond the committed last sequence: the reader's view is the index and the
tombstones together, up to that sequence. So nothing is copied on append, and finishing a group only drops its
tombstones.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, merge
from itertools import islice, takewhile

from slipstream.errors import StoreError
from slipstream.server.engine.ports import Changes, LogState, Record, expires_at, has_wildcard, matcher
from slipstream.server.store.change_log import ChangeLog
from slipstream.server.store.memory.index import MessageIndex, Seqs
from slipstream.server.store.memory.snapshot import MemorySnapshot

SizeOf = Callable[[str, bytes, bytes], int]

_new = tuple.__new__

LOOKED = 4096  # messages that a bounded scan looks at


class MemoryGroup:
    """What one group changed: for each stream the state at its end and the messages that it removed."""

    def __init__(self) -> None:
        self.size: int = 0
        self.committed = False
        self.tombstones: dict[MemoryLog, MessageIndex] = {}  # removed messages that readers still see
        self.kept: dict[MemoryLog, dict[str, bytes | None]] = {}  # changed records, as they were before
        self.touched: dict[MemoryLog, LogState] = {}
        self.deleted: list[MemoryLog] = []
        self.streams: dict[str, tuple[MemoryLog, bytes]] = {}  # as they are at its end; filled when it is sealed

    def touch(self, log: MemoryLog) -> None:
        """Count a change of a log."""
        if log.deleted:
            raise StoreError(f"stream {log.name!r} was deleted")
        self.size += 1
        if log not in self.touched:
            self.touched[log] = log.committed

    def tombstones_of(self, log: MemoryLog) -> MessageIndex:
        """The tombstones of a log, to add to."""
        return self.tombstones.setdefault(log, MessageIndex())


class LogUndo:
    """How one log gets back to a savepoint: its state there, and what was removed or overwritten since."""

    __slots__ = ("index", "kept", "removed", "state")

    def __init__(self, state: LogState) -> None:
        self.state: LogState = state
        self.removed: MessageIndex = MessageIndex()
        self.kept: dict[str, bytes | None] = {}
        self.index: MessageIndex | None = None  # what a deleted stream had at its end


class Groups:
    """The open group of a store, and the sealed one that is being committed. All logs of the store share it."""

    def __init__(self) -> None:
        self.open: MemoryGroup = MemoryGroup()
        self.sealed: MemoryGroup | None = None

    def tombstones(self, log: MemoryLog) -> list[MessageIndex]:
        """The messages of a log that unfinished groups removed, oldest group first."""
        sealed = self.sealed
        if not self.open.tombstones and (sealed is None or not sealed.tombstones):
            return []
        groups = (sealed, self.open) if sealed is not None else (self.open,)
        return [found for group in groups if (found := group.tombstones.get(log)) and found.messages]

    def last_visible(self, log: MemoryLog) -> int:
        """The last sequence that a reader has seen or will see before the open group is finished."""
        if self.sealed is not None and log in self.sealed.touched:
            return self.sealed.touched[log].last_seq
        return log.committed.last_seq


class MemoryLog:
    """One stream in memory."""

    def __init__(self, groups: Groups, name: str, *, size_of: SizeOf, probe: int) -> None:
        """`probe` is how many messages a filtered scan looks at before it goes by subject."""
        self.name = name
        self.deleted: bool = False
        self._groups = groups
        self._size_of = size_of
        self._probe = probe
        self._index = MessageIndex()
        self._bytes = 0
        self._first_seq, self._last_seq = 1, 0
        self._first_time = self._last_time = 0
        self.committed: LogState = LogState()
        self._kept: dict[str, bytes] = {}
        self._changes: ChangeLog | None = None
        self.snapshots: dict[MemorySnapshot, None] = {}  # that are open
        self._moments: list[tuple[int, int]] = []  # heap of moments and sequences; some messages are gone already
        self._has_moments = False  # ever
        self.headers_from: int = 0

    # The writer's view.

    @property
    def state(self) -> LogState:
        index = self._index
        return LogState(
            len(index.messages),
            self._bytes,
            self._first_seq,
            self._last_seq,
            self._first_time,
            self._last_time,
            len(index.by_subject),
        )

    def append(self, time: int, subject: str, header: bytes, payload: bytes) -> int:
        self._groups.open.touch(self)
        messages, by_subject = self._index.messages, self._index.by_subject
        seq = self._last_seq + 1
        seqs = by_subject.get(subject)
        if seqs is None:
            by_subject[subject] = Seqs([seq])
        else:
            subject = messages[seqs.items[-1]].subject  # one string for all messages of a subject
            seqs.items.append(seq)
        if not messages:
            self._first_seq, self._first_time = seq, time
        messages[seq] = _new(Record, (seq, time, subject, header, payload))
        if header:
            self.headers_from = self.headers_from or seq
            if moment := expires_at(time, header):
                self._add_moment(moment, seq)
        self._bytes += self._size_of(subject, header, payload)
        self._last_seq, self._last_time = seq, time
        if self._changes is not None:
            self._changes.added.append((seq, subject))
        return seq

    def skip(self, seq: int) -> None:
        if seq > self._last_seq + 1:
            self._groups.open.touch(self)
            self._last_seq = seq - 1
            if not self._index.messages:
                self._first_seq = seq

    def remove(self, seq: int) -> bool:
        if seq not in self._index.messages:
            return False
        self._groups.open.touch(self)
        self._take((seq,))
        return True

    def purge(self, *, pattern: str = "", below: int = 0, keep: int = 0) -> int:
        self._groups.open.touch(self)
        everything = pattern in ("", ">")
        if everything and not keep and (not below or below > self._last_seq):
            count = len(self._index.messages)
            self._take_all()
            self._last_seq = max(self._last_seq, below - 1)
            self._first_seq = self._last_seq + 1
            return count
        if everything:
            victims: Iterable[int] = self._index.seqs(self._first_seq)
        elif has_wildcard(pattern):
            fits = matcher(pattern)
            victims = merge(*(seqs for subject, seqs in self._index.by_subject.items() if fits(subject)))
        else:
            victims = self._index.by_subject.get(pattern, ())
        chosen = list(victims if not below else takewhile(below.__gt__, victims))
        if keep:
            del chosen[-keep:]
        self._take(chosen)
        return len(chosen)

    def purge_some(self, subject: str, seq: int, *, below: int, limit: int) -> tuple[int, int]:
        if subject == ">":
            found = self._index.seqs(max(seq, self._first_seq))
        else:
            seqs = self._index.by_subject.get(subject)
            found = seqs.from_on(seq) if seqs is not None else iter(())
        chosen = list(islice(takewhile(below.__gt__, found), limit))
        if chosen:
            self._groups.open.touch(self)
            self._take(chosen)
        return len(chosen), chosen[-1] + 1 if len(chosen) == limit else below

    purges_at_once = False

    def newest(self, keep: int) -> int:
        messages = self._index.messages
        before = len(messages) - keep
        if before <= 0:
            return self._first_seq
        if not keep or self._last_seq - self._first_seq + 1 == len(messages):  # no holes
            return self._last_seq - keep + 1
        self._index.sort()
        if keep <= before:
            return next(islice(reversed(messages), keep - 1, None))
        return next(islice(messages, before, None))

    def next_expiry(self) -> int:
        moments = self._moments
        while moments and moments[0][1] not in self._index.messages:
            heappop(moments)
        return moments[0][0] if moments else 0

    def take_expired(self, now: int, limit: int) -> list[int]:
        found: list[int] = []
        early: list[tuple[int, int]] = []
        while len(found) < limit and 0 < self.next_expiry() <= now:
            entry = heappop(self._moments)
            if entry[1] <= self.committed.last_seq:
                found.append(entry[1])
            else:
                early.append(entry)
        for entry in early:
            heappush(self._moments, entry)
        if found:
            self._groups.open.touch(self)
        return sorted(found)

    def last_seq_of(self, subject: str) -> int:
        by_subject = self._index.by_subject
        if not has_wildcard(subject):
            seqs = by_subject.get(subject)
            return seqs.items[-1] if seqs is not None else 0
        fits = matcher(subject)
        return max((seqs.items[-1] for name, seqs in by_subject.items() if fits(name)), default=0)

    def first_seq_of(self, subject: str) -> int:
        seqs = self._index.by_subject.get(subject)
        return seqs.items[seqs.start] if seqs is not None else 0

    def count_of(self, subject: str) -> int:
        seqs = self._index.by_subject.get(subject)
        return len(seqs) if seqs is not None else 0

    def peek(self, seq: int) -> Record | None:
        return self._index.messages.get(seq)

    def _add_moment(self, moment: int, seq: int) -> None:
        moments, messages = self._moments, self._index.messages
        self._has_moments = True
        if len(moments) > 1024 + 2 * len(messages):  # most are of messages that are gone
            moments[:] = [entry for entry in moments if entry[1] in messages]
            heapify(moments)
        heappush(moments, (moment, seq))

    def keep(self, key: str, value: bytes | None) -> None:
        self._groups.open.touch(self)
        old = self._kept.get(key)
        self._groups.open.kept.setdefault(self, {}).setdefault(key, old)
        if value is None:
            self._kept.pop(key, None)
        else:
            self._kept[key] = value

    def kept(self) -> Mapping[str, bytes]:
        return self._kept

    def _take(self, seqs: Iterable[int]) -> None:
        index, tombstones = self._index, self._groups.open.tombstones_of(self)
        visible, changes = self._groups.last_visible(self), self._changes
        for seq in seqs:
            record = index.take(seq)
            if changes is not None:
                changes.removed.append((seq, record.subject))
            self._bytes -= self._size_of(record.subject, record.header, record.payload)
            if seq <= visible:  # otherwise no reader was ever to see it
                tombstones.insert(record)
        self._find_first()

    def _take_all(self) -> None:
        if self._changes is not None:
            self._changes.recount = True
        if not self._groups.open.tombstones_of(self).messages and self._groups.last_visible(self) == self._last_seq:
            # All that is left is visible to readers: the index becomes the tombstones, and nothing is copied.
            self._groups.open.tombstones[self], self._index = self._index, MessageIndex()
            self._bytes = 0
            return
        self._take(list(self._index.messages))

    def _find_first(self) -> None:
        messages, seq = self._index.messages, self._first_seq
        if not messages:
            self._first_seq = self._last_seq + 1
            return
        end = seq + 1024
        while seq not in messages:
            seq += 1
            if seq == end:  # a wide gap: the messages are in order
                seq = next(iter(messages))
        self._first_seq, self._first_time = seq, messages[seq].time

    # The reader's view.

    def get(self, seq: int) -> Record | None:
        if seq > self.committed.last_seq:
            return None
        record = self._index.messages.get(seq)
        if record is None:
            for tombstones in self._groups.tombstones(self):
                record = record or tombstones.messages.get(seq)
        return record

    def last(self, pattern: str) -> Record | None:
        if pattern in ("", ">"):
            seq = self.committed.last_seq
            if seq in self._index.messages:
                return self._index.messages[seq]
            return max((r for index in self.indexes() if (r := self._newest(index))), default=None)
        up_to = self.committed.last_seq
        if not has_wildcard(pattern):
            seqs = self._index.by_subject.get(pattern)
            if seqs is not None and seqs.items[-1] <= up_to and not self._groups.tombstones(self):
                return self._index.messages[seqs.items[-1]]
            seq = self._last_of(pattern, up_to)
        else:
            seq = max((self._last_of(subject, up_to) for subject in self._names(pattern)), default=0)
        return self.get(seq) if seq else None

    def scan(self, pattern: str, seq: int, *, limit: int, max_bytes: int = 0) -> list[Record]:
        found: list[Record] = []
        size, end = 0, self.committed.last_seq
        for at in self._matching(pattern, seq):
            if at > end or len(found) >= limit:
                break
            record = self.get(at)
            assert record is not None
            size += len(record.header) + len(record.payload)
            if max_bytes and size > max_bytes and found:
                break
            found.append(record)
        return found

    def scan_some(self, pattern: str, seq: int, *, limit: int, max_bytes: int = 0) -> tuple[list[Record], int]:
        end = self.committed.last_seq
        seq = max(seq, self.committed.first_seq)
        if pattern in ("", ">") or not has_wildcard(pattern):
            found = self.scan(pattern, seq, limit=limit, max_bytes=max_bytes)
            return found, found[-1].seq + 1 if found else max(seq, end + 1)
        found, size, fits, indexes = [], 0, matcher(pattern), self.indexes()
        for looked, at in enumerate(self._from(seq, indexes)):
            if at > end:
                break
            if looked == LOOKED:
                return found, at
            record = next(index.messages[at] for index in indexes if at in index.messages)
            if not fits(record.subject):
                continue
            size += len(record.header) + len(record.payload)
            if max_bytes and size > max_bytes and found:
                return found, at
            found.append(record)
            if len(found) >= limit:
                return found, at + 1
        return found, max(seq, end + 1)

    def _from(self, seq: int, indexes: list[MessageIndex]) -> Iterator[int]:
        """All sequences from `seq` on, in order: a wide gap costs a look at all messages, a narrow one its width."""
        end = max((next(reversed(index.messages)) for index in indexes if index.messages), default=0)
        gap = 0
        while seq <= end:
            if any(seq in index.messages for index in indexes):
                gap = 0
                yield seq
            else:
                gap += 1
                if gap == LOOKED:
                    later = self._all_seqs()
                    at = bisect_right(later, seq)
                    seq, gap = (later[at] if at < len(later) else end + 1) - 1, 0
            seq += 1

    is_crowded = False

    def snapshot(self) -> MemorySnapshot:
        return MemorySnapshot(self)

    def count(self, pattern: str, seq: int) -> int:
        state = self.committed
        if pattern in ("", ">"):
            if seq <= state.first_seq:
                return state.messages
            if state.messages == state.last_seq - state.first_seq + 1:  # no holes
                return max(0, state.last_seq - seq + 1)
        return sum(1 for at in self._matching(pattern, seq) if at <= state.last_seq)

    def time_to_seq(self, time: int) -> int:
        state = self.committed
        if not state.messages or time <= state.first_time:
            return state.first_seq
        if state.messages == state.last_seq - state.first_seq + 1:  # no holes
            every = range(state.first_seq, state.last_seq + 1)
            return state.first_seq + bisect_left(every, time, key=self._time_of)
        found = self._seq_at(time, state)
        if found is not None:
            return found
        seqs = self._all_seqs()
        end = bisect_right(seqs, state.last_seq)
        at = bisect_left(seqs, time, bisect_left(seqs, state.first_seq), end, key=self._time_of)
        return seqs[at] if at < end else state.last_seq + 1

    def _seq_at(self, time: int, state: LogState) -> int | None:
        """The same with gaps, by a binary search among sequences; None if it came to a wide gap."""
        low, high = state.first_seq, state.last_seq + 1
        following = high  # the first message from `high` on
        while low < high:
            middle = (low + high) // 2
            seq = self._next_to(middle, high)
            if seq is None:
                return None
            if seq == high:
                high = middle
            elif self._time_of(seq) < time:
                low = seq + 1
            else:
                high, following = middle, seq
        return following

    def _next_to(self, seq: int, end: int) -> int | None:
        """The first message from `seq` on that readers see, or `end`; None behind a wide gap."""
        indexes = self.indexes()
        for at in range(seq, min(seq + LOOKED, end)):
            for index in indexes:
                if at in index.messages:
                    return at
        return end if seq + LOOKED >= end else None

    def _all_seqs(self) -> list[int]:
        """The sequences of all messages, in order. Lists are made and merged in C: some nanoseconds for each."""
        seqs: list[int] = []
        for index in self.indexes():
            index.sort()
            seqs += index.messages
        seqs.sort()
        return seqs

    def _time_of(self, seq: int) -> int:
        record = self.get(seq)
        return record.time if record is not None else 0

    def multi_last(self, patterns: Sequence[str], *, up_to: int = 0, limit: int = 1024) -> list[int] | None:
        end = min(up_to, self.committed.last_seq) if up_to else self.committed.last_seq
        found: set[int] = set()
        for pattern in patterns:
            for subject in self._names(pattern):
                if seq := self._last_of(subject, end):
                    found.add(seq)
                    if len(found) > limit:
                        return None
        return sorted(found)

    def subjects(self, pattern: str) -> Iterator[tuple[str, int]]:
        for subject in sorted(self._names(pattern)):
            if count := sum(1 for seq in self._of(subject, 0) if seq <= self.committed.last_seq):
                yield subject, count

    def watch(self, on: bool) -> None:
        self._changes = ChangeLog() if on else None

    def news(self) -> Changes | None:
        return self._changes.take() if self._changes is not None else None

    def indexes(self) -> list[MessageIndex]:
        """Where the reader's messages are; a message is in one of them."""
        return [self._index, *self._groups.tombstones(self)]

    def _newest(self, index: MessageIndex) -> Record | None:
        index.sort()
        end = self.committed.last_seq
        return next((record for seq, record in reversed(index.messages.items()) if seq <= end), None)

    def _last_of(self, subject: str, up_to: int) -> int:
        return max(s.by_subject[subject].up_to(up_to) if subject in s.by_subject else 0 for s in self.indexes())

    def _of(self, subject: str, seq: int) -> Iterator[int]:
        parts = [s.by_subject[subject].from_on(seq) for s in self.indexes() if subject in s.by_subject]
        return parts[0] if len(parts) == 1 else merge(*parts)

    def _names(self, pattern: str) -> list[str]:
        """Subjects that match; some may be ahead of the reader's view."""
        if pattern not in ("", ">") and not has_wildcard(pattern):
            return [pattern]
        fits = matcher(pattern or ">")
        indexes = self.indexes()
        names: Iterable[str] = (
            indexes[0].by_subject if len(indexes) == 1 else {n for s in indexes for n in s.by_subject}
        )
        return [name for name in names if fits(name)]

    def _matching(self, pattern: str, seq: int) -> Iterator[int]:
        """Sequences from `seq` on that match, in order; some may be ahead of the reader's view."""
        if pattern in ("", ">"):
            seq = max(seq, self.committed.first_seq)
            parts = [index.seqs(seq) for index in self.indexes()]
            return parts[0] if len(parts) == 1 else merge(*parts)
        if not has_wildcard(pattern):
            return self._of(pattern, seq)
        return self._filtered(pattern, seq)

    def _filtered(self, pattern: str, seq: int) -> Iterator[int]:
        """One message after the other while many match; by subject from where few do."""
        fits, indexes = matcher(pattern), self.indexes()
        messages = indexes[0].messages
        hits, at, probe = 0, seq, self._probe
        for seen, at in enumerate(self._matching("", seq), 1):
            record = messages.get(at) or next(s.messages[at] for s in indexes if at in s.messages)
            if fits(record.subject):
                hits += 1
                yield at
            if seen % probe == 0 and hits * 8 < seen:
                break
        else:
            return
        yield from merge(*(self._of(subject, at + 1) for subject in self._names(pattern)))

    # Groups.

    def seal(self) -> None:
        """The open group is closed."""
        if self._changes is not None:
            self._changes.seal()

    def finish(self, state: LogState, removed: MessageIndex | None) -> None:
        """A group that left the log in `state` was committed; `removed` were its tombstones."""
        self.committed = state
        if removed is not None and removed.messages:
            for snapshot in self.snapshots:
                snapshot.retain(removed)
        if self._changes is not None:
            self._changes.finish()

    def finish_deleted(self) -> MessageIndex:
        """The group that deleted the stream was committed; returns the messages that it had."""
        left, self._index = self._index, MessageIndex()
        self.finish(LogState(), left)
        return left

    def roll_back(self, undo: LogUndo) -> None:
        """Back to what the log was at a savepoint, at the cost of what has changed since."""
        if undo.index is not None:
            self._index = undo.index
        self.committed = undo.state
        added = MessageIndex()
        self._index.sort()
        for seq in takewhile(undo.state.last_seq.__lt__, reversed(self._index.messages)):
            added.insert(self._index.messages[seq])
        for snapshot in self.snapshots:  # a read that is under way ends with what it began with
            snapshot.retain(added)
        self.abandon([undo.removed], [undo.kept])

    def abandon(self, tombstones: Iterable[MessageIndex], kept: Iterable[Mapping[str, bytes | None]]) -> None:
        """Back to the committed state: what was added goes, what was removed returns."""
        self.deleted = False
        if self._changes is not None:
            self._changes.abandon()
        for before in kept:  # the younger group first
            for key, value in before.items():
                if value is None:
                    self._kept.pop(key, None)
                else:
                    self._kept[key] = value
        state = self.committed
        self._index.sort()
        for seq in list(takewhile(state.last_seq.__lt__, reversed(self._index.messages))):
            self._index.take(seq)
        for removed in tombstones:
            for seq, record in removed.messages.items():
                if seq <= state.last_seq:
                    self._index.insert(record)
        self._index.sort()
        if self._has_moments:
            records = self._index.messages.values()
            self._moments = [(moment, r.seq) for r in records if (moment := expires_at(r.time, r.header))]
            heapify(self._moments)
        if self.headers_from > state.last_seq:
            self.headers_from = 0
        self._bytes = state.bytes
        self._first_seq, self._last_seq = state.first_seq, state.last_seq
        self._first_time, self._last_time = state.first_time, state.last_time
