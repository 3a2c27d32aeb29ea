"""Streams kept in memory: the model of the port, and the store of streams that need not survive the process.

The shelves hold the writer's view. What an unfinished group took out waits in that group's own shelf, its limbo, and
what it added lies beyond the committed last sequence: the reader's view is both shelves together, up to that sequence.
So nothing is copied on append, and a group that is finished only drops its limbo.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, merge
from itertools import takewhile

from slipstream.errors import StoreError, UsageError
from slipstream.server.engine.ports import (
    Changes,
    Group,
    LogState,
    Record,
    StreamLog,
    expires_at,
    has_wildcard,
    matcher,
    record_size,
)
from slipstream.server.store.change_log import ChangeLog
from slipstream.server.store.memory.index import MessageIndex, Seqs

_new = tuple.__new__


class MemoryLog:
    """One stream in memory."""

    def __init__(self, store: MemoryStore, name: str) -> None:
        self.name = name
        self.deleted = False
        self._store = store
        self._shelf = MessageIndex()
        self._bytes = 0
        self._first_seq, self._last_seq = 1, 0
        self._first_time = self._last_time = 0
        self._committed = LogState()
        self._kept: dict[str, bytes] = {}
        self._diary: ChangeLog | None = None
        self._moments: list[tuple[int, int]] = []  # heap of moments and sequences; some messages are gone already

    # The writer's view.

    @property
    def state(self) -> LogState:
        shelf = self._shelf
        return LogState(
            len(shelf.messages),
            self._bytes,
            self._first_seq,
            self._last_seq,
            self._first_time,
            self._last_time,
            len(shelf.by_subject),
        )

    def append(self, time: int, subject: str, header: bytes, payload: bytes) -> int:
        self._store._open.touch(self)
        messages, by_subject = self._shelf.messages, self._shelf.by_subject
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
        if header and (moment := expires_at(time, header)):
            self._add_moment(moment, seq)
        self._bytes += self._store.size_of(subject, header, payload)
        self._last_seq, self._last_time = seq, time
        if self._diary is not None:
            self._diary.added.append((seq, subject))
        return seq

    def skip(self, seq: int) -> None:
        if seq > self._last_seq + 1:
            self._store._open.touch(self)
            self._last_seq = seq - 1
            if not self._shelf.messages:
                self._first_seq = seq

    def remove(self, seq: int) -> bool:
        if seq not in self._shelf.messages:
            return False
        self._store._open.touch(self)
        self._take((seq,))
        return True

    def purge(self, *, pattern: str = "", below: int = 0, keep: int = 0) -> int:
        self._store._open.touch(self)
        everything = pattern in ("", ">")
        if everything and not keep and (not below or below > self._last_seq):
            count = len(self._shelf.messages)
            self._take_all()
            self._last_seq = max(self._last_seq, below - 1)
            self._first_seq = self._last_seq + 1
            return count
        if everything:
            victims: Iterable[int] = self._shelf.seqs(self._first_seq)
        elif has_wildcard(pattern):
            fits = matcher(pattern)
            victims = merge(*(seqs for subject, seqs in self._shelf.by_subject.items() if fits(subject)))
        else:
            victims = self._shelf.by_subject.get(pattern, ())
        chosen = list(victims if not below else takewhile(below.__gt__, victims))
        if keep:
            del chosen[-keep:]
        self._take(chosen)
        return len(chosen)

    def next_expiry(self) -> int:
        moments = self._moments
        while moments and moments[0][1] not in self._shelf.messages:
            heappop(moments)
        return moments[0][0] if moments else 0

    def take_expired(self, now: int, limit: int) -> list[int]:
        found: list[int] = []
        early: list[tuple[int, int]] = []
        while len(found) < limit and 0 < self.next_expiry() <= now:
            entry = heappop(self._moments)
            if entry[1] <= self._committed.last_seq:
                found.append(entry[1])
            else:
                early.append(entry)
        for entry in early:
            heappush(self._moments, entry)
        if found:
            self._store._open.touch(self)
        return sorted(found)

    def last_seq_of(self, subject: str) -> int:
        by_subject = self._shelf.by_subject
        if not has_wildcard(subject):
            seqs = by_subject.get(subject)
            return seqs.items[-1] if seqs is not None else 0
        fits = matcher(subject)
        return max((seqs.items[-1] for name, seqs in by_subject.items() if fits(name)), default=0)

    def first_seq_of(self, subject: str) -> int:
        seqs = self._shelf.by_subject.get(subject)
        return seqs.items[seqs.start] if seqs is not None else 0

    def count_of(self, subject: str) -> int:
        seqs = self._shelf.by_subject.get(subject)
        return len(seqs) if seqs is not None else 0

    def peek(self, seq: int) -> Record | None:
        return self._shelf.messages.get(seq)

    def _add_moment(self, moment: int, seq: int) -> None:
        moments, messages = self._moments, self._shelf.messages
        if len(moments) > 1024 + 2 * len(messages):  # most are of messages that are gone
            moments[:] = [entry for entry in moments if entry[1] in messages]
            heapify(moments)
        heappush(moments, (moment, seq))

    def keep(self, key: str, value: bytes | None) -> None:
        self._store._open.touch(self)
        old = self._kept.get(key)
        self._store._open.kept.setdefault(self, {}).setdefault(key, old)
        if value is None:
            self._kept.pop(key, None)
        else:
            self._kept[key] = value

    def kept(self) -> Mapping[str, bytes]:
        return self._kept

    def _take(self, seqs: Iterable[int]) -> None:
        shelf, limbo = self._shelf, self._store._open.limbo(self)
        visible, diary = self._store._sealed_last(self), self._diary
        for seq in seqs:
            record = shelf.take(seq)
            if diary is not None:
                diary.removed.append((seq, record.subject))
            self._bytes -= self._store.size_of(record.subject, record.header, record.payload)
            if seq <= visible:  # otherwise no reader was ever to see it
                limbo.insert(record)
        self._find_first()

    def _take_all(self) -> None:
        if self._diary is not None:
            self._diary.recount = True
        if not self._store._open.limbo(self).messages and self._store._sealed_last(self) == self._last_seq:
            self._store._open.limbos[self], self._shelf = self._shelf, MessageIndex()
            self._bytes = 0
            return
        self._take(list(self._shelf.messages))

    def _find_first(self) -> None:
        messages, seq = self._shelf.messages, self._first_seq
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

    @property
    def committed(self) -> LogState:
        return self._committed

    def get(self, seq: int) -> Record | None:
        if seq > self._committed.last_seq:
            return None
        record = self._shelf.messages.get(seq)
        if record is None:
            for limbo in self._limbos():
                record = record or limbo.messages.get(seq)
        return record

    def last(self, pattern: str) -> Record | None:
        if pattern in ("", ">"):
            seq = self._committed.last_seq
            if seq in self._shelf.messages:
                return self._shelf.messages[seq]
            return max((r for shelf in self._shelves() if (r := self._newest(shelf))), default=None)
        up_to = self._committed.last_seq
        if not has_wildcard(pattern):
            seqs = self._shelf.by_subject.get(pattern)
            if seqs is not None and seqs.items[-1] <= up_to and not self._limbos():
                return self._shelf.messages[seqs.items[-1]]
            seq = self._last_of(pattern, up_to)
        else:
            seq = max((self._last_of(subject, up_to) for subject in self._names(pattern)), default=0)
        return self.get(seq) if seq else None

    def scan(self, pattern: str, seq: int, *, limit: int, max_bytes: int = 0) -> list[Record]:
        found: list[Record] = []
        size, end = 0, self._committed.last_seq
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

    def count(self, pattern: str, seq: int) -> int:
        state = self._committed
        if pattern in ("", ">"):
            if seq <= state.first_seq:
                return state.messages
            if state.messages == state.last_seq - state.first_seq + 1:  # no holes
                return max(0, state.last_seq - seq + 1)
        return sum(1 for at in self._matching(pattern, seq) if at <= state.last_seq)

    def time_to_seq(self, time: int) -> int:
        state = self._committed
        if not state.messages or time <= state.first_time:
            return state.first_seq
        seqs = [seq for seq in self._matching("", 0) if seq <= state.last_seq]
        at = bisect_left(seqs, time, key=lambda seq: record.time if (record := self.get(seq)) else 0)
        return seqs[at] if at < len(seqs) else state.last_seq + 1

    def multi_last(self, patterns: Sequence[str], *, up_to: int = 0, limit: int = 1024) -> list[int] | None:
        end = min(up_to, self._committed.last_seq) if up_to else self._committed.last_seq
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
            if count := sum(1 for seq in self._of(subject, 0) if seq <= self._committed.last_seq):
                yield subject, count

    def watch(self, on: bool) -> None:
        self._diary = ChangeLog() if on else None

    def news(self) -> Changes | None:
        return self._diary.take() if self._diary is not None else None

    def _limbos(self) -> list[MessageIndex]:
        store = self._store
        if not store._open.limbos and (store._sealed is None or not store._sealed.limbos):
            return []
        groups = (store._sealed, store._open) if store._sealed else (store._open,)
        return [limbo for group in groups if (limbo := group.limbos.get(self)) and limbo.messages]

    def _shelves(self) -> list[MessageIndex]:
        return [self._shelf, *self._limbos()]

    def _newest(self, shelf: MessageIndex) -> Record | None:
        shelf.sort()
        end = self._committed.last_seq
        return next((record for seq, record in reversed(shelf.messages.items()) if seq <= end), None)

    def _last_of(self, subject: str, up_to: int) -> int:
        return max(s.by_subject[subject].up_to(up_to) if subject in s.by_subject else 0 for s in self._shelves())

    def _of(self, subject: str, seq: int) -> Iterator[int]:
        parts = [s.by_subject[subject].from_on(seq) for s in self._shelves() if subject in s.by_subject]
        return parts[0] if len(parts) == 1 else merge(*parts)

    def _names(self, pattern: str) -> list[str]:
        """Subjects that match; some may be ahead of the reader's view."""
        if pattern not in ("", ">") and not has_wildcard(pattern):
            return [pattern]
        fits = matcher(pattern or ">")
        shelves = self._shelves()
        names: Iterable[str] = (
            shelves[0].by_subject if len(shelves) == 1 else {n for s in shelves for n in s.by_subject}
        )
        return [name for name in names if fits(name)]

    def _matching(self, pattern: str, seq: int) -> Iterator[int]:
        """Sequences from `seq` on that match, in order; some may be ahead of the reader's view."""
        if pattern in ("", ">"):
            seq = max(seq, self._committed.first_seq)
            parts = [shelf.seqs(seq) for shelf in self._shelves()]
            return parts[0] if len(parts) == 1 else merge(*parts)
        if not has_wildcard(pattern):
            return self._of(pattern, seq)
        return self._filtered(pattern, seq)

    def _filtered(self, pattern: str, seq: int) -> Iterator[int]:
        """One message after the other while many match; by subject from where few do."""
        fits, shelves = matcher(pattern), self._shelves()
        messages = shelves[0].messages
        hits, at, probe = 0, seq, self._store.probe
        for seen, at in enumerate(self._matching("", seq), 1):
            record = messages.get(at) or next(s.messages[at] for s in shelves if at in s.messages)
            if fits(record.subject):
                hits += 1
                yield at
            if seen % probe == 0 and hits * 8 < seen:
                break
        else:
            return
        yield from merge(*(self._of(subject, at + 1) for subject in self._names(pattern)))

    # For the store.

    def _seal(self) -> None:
        if self._diary is not None:
            self._diary.seal()

    def _finish(self, state: LogState) -> None:
        self._committed = state
        if self._diary is not None:
            self._diary.finish()

    def _abandon(self, limbos: Iterable[MessageIndex], kept: Iterable[Mapping[str, bytes | None]]) -> None:
        """Back to the committed state: what was added goes, what was removed returns."""
        self.deleted = False
        if self._diary is not None:
            self._diary.abandon()
        for before in kept:  # the younger group first
            for key, value in before.items():
                if value is None:
                    self._kept.pop(key, None)
                else:
                    self._kept[key] = value
        state = self._committed
        for seq in [seq for seq in reversed(self._shelf.messages) if seq > state.last_seq]:
            self._shelf.take(seq)
        for limbo in limbos:
            for seq, record in limbo.messages.items():
                if seq <= state.last_seq:
                    self._shelf.insert(record)
        self._shelf.sort()
        records = self._shelf.messages.values()
        self._moments = [(moment, r.seq) for r in records if (moment := expires_at(r.time, r.header))]
        heapify(self._moments)
        self._bytes = state.bytes
        self._first_seq, self._last_seq = state.first_seq, state.last_seq
        self._first_time, self._last_time = state.first_time, state.last_time


class MemoryGroup:
    """What one group changed: for each stream the state at its end and the messages that it took out."""

    def __init__(self) -> None:
        self.size = 0
        self.committed = False
        self.limbos: dict[MemoryLog, MessageIndex] = {}
        self.kept: dict[MemoryLog, dict[str, bytes | None]] = {}  # changed records, as they were before
        self.touched: dict[MemoryLog, LogState] = {}
        self.deleted: list[MemoryLog] = []
        self.streams: dict[str, tuple[MemoryLog, bytes]] = {}  # as they are at its end; filled when it is sealed

    def touch(self, log: MemoryLog) -> None:
        if log.deleted:
            raise StoreError(f"stream {log.name!r} was deleted")
        self.size += 1
        if log not in self.touched:
            self.touched[log] = log._committed

    def limbo(self, log: MemoryLog) -> MessageIndex:
        return self.limbos.setdefault(log, MessageIndex())


class MemoryStore:
    """All streams of a server that keeps nothing on the disk."""

    def __init__(self, *, probe: int = 512, size_of: Callable[[str, bytes, bytes], int] = record_size) -> None:
        self.probe = probe  # messages that a filtered scan looks at before it goes by subject
        self.size_of = size_of
        self._streams: dict[str, tuple[MemoryLog, bytes]] = {}
        self._committed: dict[str, tuple[MemoryLog, bytes]] = {}
        self._open = MemoryGroup()
        self._sealed: MemoryGroup | None = None

    def streams(self) -> list[tuple[str, bytes]]:
        return [(name, config) for name, (_, config) in self._streams.items()]

    def create(self, name: str, config: bytes) -> StreamLog:
        if name in self._streams:
            raise UsageError(f"stream {name!r} exists already")
        log = MemoryLog(self, name)
        self._streams[name] = (log, config)
        self._open.touch(log)
        return log

    def configure(self, name: str, config: bytes) -> None:
        log = self._entry(name)[0]
        self._streams[name] = (log, config)
        self._open.touch(log)

    def delete(self, name: str) -> None:
        log = self._entry(name)[0]
        del self._streams[name]
        self._open.touch(log)
        self._open.deleted.append(log)
        log.deleted = True

    def log(self, name: str) -> StreamLog:
        return self._entry(name)[0]

    def _entry(self, name: str) -> tuple[MemoryLog, bytes]:
        entry = self._streams.get(name)
        if entry is None:
            raise StoreError(f"there is no stream {name!r} in the store")
        return entry

    corrupt_records = 0

    def damaged(self) -> list[tuple[str, int]]:
        return []

    # Groups.

    @property
    def pending(self) -> int:
        return self._open.size

    @property
    def backlog(self) -> bool:
        return False

    def seal(self) -> Group:
        if self._sealed is not None:
            raise UsageError("a sealed group is still under way; finish or abandon it first")
        group, self._open = self._open, MemoryGroup()
        for log in group.touched:
            group.touched[log] = log.state
            log._seal()
        group.streams = dict(self._streams)
        self._sealed = group
        return group

    def begin(self, group: Group) -> None:
        self._check(group)

    def write_some(self, group: Group) -> bool:
        self._check(group)
        return True

    def commit(self, group: Group) -> None:
        self._check(group).committed = True

    def finish(self, group: Group) -> None:
        sealed = self._check(group)
        self._sealed = None
        self._committed = sealed.streams
        for log, state in sealed.touched.items():
            log._finish(state)
        for log in sealed.deleted:
            log._shelf = MessageIndex()
            log._finish(LogState())
            self._open.limbos.pop(log, None)

    def abandon(self) -> None:
        if self._sealed is not None and self._sealed.committed:
            self.finish(self._sealed)
        groups = [self._open] if self._sealed is None else [self._sealed, self._open]
        self._sealed, self._open = None, MemoryGroup()
        self._streams = dict(self._committed)
        for log in {log: None for group in groups for log in group.touched}:
            log._abandon(
                [limbo for group in groups if (limbo := group.limbos.get(log))],
                [before for group in reversed(groups) if (before := group.kept.get(log))],
            )

    def close(self) -> None:
        """Nothing to give back."""

    def _check(self, group: Group) -> MemoryGroup:
        if group is not self._sealed or not isinstance(group, MemoryGroup):
            raise UsageError("only the group that was sealed last can be carried through, and only once")
        return group

    def _sealed_last(self, log: MemoryLog) -> int:
        """The last sequence that a reader has seen or will see before the open group is finished."""
        if self._sealed is not None and log in self._sealed.touched:
            return self._sealed.touched[log].last_seq
        return log._committed.last_seq
