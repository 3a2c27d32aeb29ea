"""An immutable copy of a log at one moment, from which a replica that is held back answers.

Later changes of the log do not affect it. Making one costs a scan of all messages; only fault commands of tests do so
(`slipstream.testing`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import filterfalse, islice
from typing import Protocol

from slipstream.errors import CorruptRecordError
from slipstream.server.engine.ports import LogSnapshot, LogState, Record, Walk, has_wildcard, matcher

_CHUNK = 4096


class LogView(Protocol):
    """The reader's view of a log (`ports.StreamLog` has both views)."""

    @property
    def committed(self) -> LogState: ...

    def get(self, seq: int) -> Record | None: ...

    def last(self, pattern: str) -> Record | None: ...

    def scan(self, pattern: str, seq: int, *, limit: int, max_bytes: int = 0) -> list[Record]: ...

    def scan_some(self, pattern: str, seq: int, *, limit: int, max_bytes: int = 0) -> tuple[list[Record], int]: ...

    def snapshot(self) -> LogSnapshot: ...

    @property
    def is_crowded(self) -> bool: ...

    def count(self, pattern: str, seq: int) -> int: ...

    def time_to_seq(self, time: int) -> int: ...

    def multi_last(self, patterns: Sequence[str], *, up_to: int = 0, limit: int = 1024) -> list[int] | None: ...

    def subjects(self, pattern: str) -> Iterator[tuple[str, int]]: ...


class FrozenLog:
    """All committed messages, with the statistics of that moment."""

    def __init__(self, log: LogView) -> None:
        self.committed: LogState = log.committed
        self._records: dict[int, Record | None] = {}  # None: damaged already in the log it was taken from
        self._by_subject: dict[str, list[int]] = {}
        for record in records_of(log):
            if isinstance(record, int):
                self._records[record] = None
            else:
                self._records[record.seq] = record
                self._by_subject.setdefault(record.subject, []).append(record.seq)
        self._seqs = list(self._records)

    def get(self, seq: int) -> Record | None:
        record = self._records.get(seq)
        if record is None and seq in self._records:
            raise CorruptRecordError(f"message {seq} does not match its checksum")
        return record

    def last(self, pattern: str) -> Record | None:
        if pattern in ("", ">"):
            return self.get(self._seqs[-1]) if self._seqs else None
        seq = max((seqs[-1] for seqs in self.of(pattern)), default=0)
        return self.get(seq) if seq else None

    def scan(self, pattern: str, seq: int, *, limit: int, max_bytes: int = 0) -> list[Record]:
        found: list[Record] = []
        size = 0
        for at in self.from_on(pattern, seq):
            record = self._records[at]
            if record is None and not found:
                self.get(at)  # raises
            if record is None or len(found) >= limit:
                break
            size += len(record.header) + len(record.payload)
            if max_bytes and size > max_bytes and found:
                break
            found.append(record)
        return found

    def scan_some(self, pattern: str, seq: int, *, limit: int, max_bytes: int = 0) -> tuple[list[Record], int]:
        found = self.scan(pattern, seq, limit=limit, max_bytes=max_bytes)
        return found, found[-1].seq + 1 if found else max(seq, self.committed.last_seq + 1)

    is_crowded = False

    def snapshot(self) -> LogSnapshot:
        return _Whole(self)

    def count(self, pattern: str, seq: int) -> int:
        return sum(1 for _ in self.from_on(pattern, seq))

    def time_to_seq(self, time: int) -> int:
        at = bisect_left(self._seqs, time, key=self._time_of)
        return self._seqs[at] if at < len(self._seqs) else self.committed.last_seq + 1

    def multi_last(self, patterns: Sequence[str], *, up_to: int = 0, limit: int = 1024) -> list[int] | None:
        found: set[int] = set()
        for pattern in patterns:
            for seqs in self.of(pattern):
                at = bisect_right(seqs, up_to) if up_to else len(seqs)
                if at:
                    found.add(seqs[at - 1])
                    if len(found) > limit:
                        return None
        return sorted(found)

    def subjects(self, pattern: str) -> Iterator[tuple[str, int]]:
        fits = matcher(pattern or ">")
        yield from sorted((subject, len(seqs)) for subject, seqs in self._by_subject.items() if fits(subject))

    def of(self, pattern: str) -> list[list[int]]:
        """The sequences of every subject that matches."""
        if pattern and not has_wildcard(pattern):
            return [self._by_subject[pattern]] if pattern in self._by_subject else []
        fits = matcher(pattern or ">")
        return [seqs for subject, seqs in self._by_subject.items() if fits(subject)]

    def from_on(self, pattern: str, seq: int) -> Iterator[int]:
        """Sequences from `seq` on that match, in order; damaged ones match everything."""
        fits = matcher(pattern or ">")
        for at in self._seqs[bisect_left(self._seqs, seq) :]:
            record = self._records[at]
            if record is None or fits(record.subject):
                yield at

    def _time_of(self, seq: int) -> int:
        record = self._records[seq]
        return record.time if record is not None else 0


class _Whole:
    """The copy as its own snapshot: it never changes. Its walks are not cut, since only tests have such copies."""

    def __init__(self, log: FrozenLog) -> None:
        self._log = log
        self.committed, self.get = log.committed, log.get

    def hold(self) -> None:
        """Nothing changes."""

    def close(self) -> None:
        """Nothing to close."""

    def last(self, pattern: str) -> Walk[int]:
        yield 0
        return max((seqs[-1] for seqs in self._log.of(pattern)), default=0)

    def next(self, pattern: str, seq: int) -> Walk[Record | None]:
        yield 0
        return next(iter(self._log.scan(pattern, seq, limit=1)), None)

    def multi_last(self, patterns: Sequence[str], *, up_to: int = 0, limit: int = 1024) -> Walk[list[int] | None]:
        yield 0
        return self._log.multi_last(patterns, up_to=up_to, limit=limit)

    def count(self, patterns: Sequence[str], seq: int) -> Walk[int]:
        yield 0
        return len({at for pattern in patterns for at in self._log.from_on(pattern, seq)})

    def subjects(self, pattern: str) -> Walk[list[tuple[str, int]]]:
        yield 0
        return list(self._log.subjects(pattern))

    def gaps(self, limit: int) -> Walk[list[int]]:
        yield 0
        there = set(self._log.from_on("", 0))
        every = range(self.committed.first_seq, self.committed.last_seq + 1) if there else ()
        return list(islice(filterfalse(there.__contains__, every), limit))


def records_of(log: LogView, seq: int = 0) -> Iterator[Record | int]:
    """Every message of a log from `seq` on, in order; of a damaged one its sequence."""
    last = log.committed.last_seq
    seq = max(seq, log.committed.first_seq)
    while seq <= last:
        try:
            records = log.scan("", seq, limit=_CHUNK)
        except CorruptRecordError as exc:
            at = damaged_at(exc, log, seq)
            yield at
            seq = at + 1
            continue
        yield from records
        seq = records[-1].seq + 1 if records else last + 1


def damaged_at(error: CorruptRecordError, log: LogView, seq: int) -> int:
    """The first sequence from `seq` on that cannot be read, where a scan from there failed."""
    while not error.seq:
        try:
            log.get(seq)
        except CorruptRecordError:
            return seq
        seq += 1
    return error.seq
