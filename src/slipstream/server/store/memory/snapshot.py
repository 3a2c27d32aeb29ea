"""Snapshot of one log in memory, for walks in slices.

A message of the snapshot is where readers find it, or in what was retained: the tombstones of every group that was
finished since. So making a snapshot copies nothing, and committing costs more only while one is open. What was added
since lies beyond the snapshot's last sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

from slipstream.server.engine.ports import LogState, Record, Walk, has_wildcard, matching, sorted_walk
from slipstream.server.store.memory.index import MessageIndex

PAUSE = 512  # subjects that are looked at between two pauses
PAUSE_UNITS = 64
MERGED = 256  # tombstones up to this number are copied together; more of them stay an index of their own


class ReadableLog(Protocol):
    """A log, as a snapshot sees it."""

    committed: LogState
    snapshots: dict[MemorySnapshot, None]

    def indexes(self) -> list[MessageIndex]: ...


class MemorySnapshot:
    """The reader's view of one log at one moment."""

    def __init__(self, log: ReadableLog) -> None:
        self._log = log
        self.committed: LogState = log.committed
        self._retained: list[MessageIndex] = []
        log.snapshots[self] = None

    def close(self) -> None:
        self._log.snapshots.pop(self, None)
        self._retained = []

    def hold(self) -> None:
        """Nothing is copied later."""

    def retain(self, removed: MessageIndex) -> None:
        """A group was finished that removed these messages."""
        if len(removed.messages) > MERGED:
            self._retained.append(removed)
            return
        if not self._retained or len(self._retained[0].messages) > 16 * MERGED:
            self._retained.insert(0, MessageIndex())
        for record in removed.messages.values():
            self._retained[0].insert(record)

    def _indexes(self) -> list[MessageIndex]:
        return [*self._log.indexes(), *self._retained]

    def get(self, seq: int) -> Record | None:
        if seq > self.committed.last_seq:
            return None
        return next((index.messages[seq] for index in self._indexes() if seq in index.messages), None)

    def last(self, pattern: str) -> Walk[int]:
        best = 0
        for names, units in self._names((pattern,)):
            best = max(best, *(self._last_of(name, self.committed.last_seq) for name in names), 0)
            yield units
        return best

    def next(self, pattern: str, seq: int) -> Walk[Record | None]:
        best = 0
        for names, units in self._names((pattern,)):
            for name in names:
                if (at := self._next_of(name, seq)) and (not best or at < best):
                    best = at
            yield units
        return self.get(best) if best else None

    def multi_last(self, patterns: Sequence[str], *, up_to: int = 0, limit: int = 1024) -> Walk[list[int] | None]:
        end = min(up_to, self.committed.last_seq) if up_to else self.committed.last_seq
        found: set[int] = set()
        for names, units in self._names(patterns):
            found.update(seq for name in names if (seq := self._last_of(name, end)))
            if len(found) > limit:
                return None
            yield units + len(names) // 4
        return (yield from sorted_walk(list(found)))

    def count(self, patterns: Sequence[str], seq: int) -> Walk[int]:
        total = 0
        for names, units in self._names(patterns):
            total += sum(self._count_of(name, seq) for name in names)
            yield units + len(names) // 4
        return total

    def subjects(self, pattern: str) -> Walk[list[tuple[str, int]]]:
        found: list[tuple[str, int]] = []
        for names, units in self._names((pattern,)):
            found += ((name, count) for name in names if (count := self._count_of(name, 0)))
            yield units + len(names) // 4
        return (yield from sorted_walk(found))

    def gaps(self, limit: int) -> Walk[list[int]]:
        state, found = self.committed, list[int]()
        for start in range(state.first_seq, state.last_seq + 1, PAUSE) if state.messages else ():
            indexes = self._indexes()
            for seq in range(start, min(start + PAUSE, state.last_seq + 1)):
                if not any(seq in index.messages for index in indexes):
                    found.append(seq)
            if len(found) >= limit:
                return found[:limit]
            yield PAUSE_UNITS // 2
        return found

    def _names(self, patterns: Sequence[str]) -> Iterator[tuple[list[str], int]]:
        """Subjects that match, with some that have no message in the snapshot; a list for every so many looked at, and
        the units of work that this took."""
        if patterns and all(pattern and not has_wildcard(pattern) for pattern in patterns):
            every: list[str] = list(dict.fromkeys(patterns))
            fits, weight = None, 1
        else:
            indexes = self._indexes()
            every = list(indexes[0].by_subject if len(indexes) == 1 else {n for i in indexes for n in i.by_subject})
            fits, weight = matching(patterns)
        rest = iter(every)
        while names := list(islice(rest, PAUSE)):
            yield (names if fits is None else [name for name in names if fits(name)]), PAUSE_UNITS * weight

    def _last_of(self, subject: str, up_to: int) -> int:
        return max(
            (seqs.up_to(up_to) for index in self._indexes() if (seqs := index.by_subject.get(subject)) is not None),
            default=0,
        )

    def _next_of(self, subject: str, seq: int) -> int:
        """The lowest sequence from `seq` on; 0 if there is none."""
        parts = [index.by_subject[subject].from_on(seq) for index in self._indexes() if subject in index.by_subject]
        found = min((at for part in parts for at in islice(part, 1)), default=0)
        return found if found <= self.committed.last_seq else 0

    def _count_of(self, subject: str, seq: int) -> int:
        return sum(
            seqs.between(seq, self.committed.last_seq)
            for index in self._indexes()
            if (seqs := index.by_subject.get(subject)) is not None
        )
