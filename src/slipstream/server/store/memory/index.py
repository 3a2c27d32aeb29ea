"""In-memory message index by sequence and subject; removing a subject's oldest message is O(1).

Messages are in the order of their sequences unless one was put back (`insert`); `sort` restores the order when a reader
needs it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice

from slipstream.server.engine.ports import Record


class Seqs:
    """Ascending sequences of one subject; the oldest leaves in constant time."""

    __slots__ = ("items", "start")

    def __init__(self, items: list[int]) -> None:
        self.items: list[int] = items
        self.start: int = 0  # before it: removed, not yet cut off

    def __len__(self) -> int:
        return len(self.items) - self.start

    def __iter__(self) -> Iterator[int]:
        return islice(self.items, self.start, None)

    def from_on(self, seq: int) -> Iterator[int]:
        return islice(self.items, bisect_left(self.items, seq, self.start), None)

    def up_to(self, seq: int) -> int:
        """The highest one that is at most `seq`; 0 if there is none."""
        at = bisect_left(self.items, seq + 1, self.start)
        return self.items[at - 1] if at > self.start else 0

    def between(self, low: int, high: int) -> int:
        """How many are at least `low` and at most `high`."""
        items, start = self.items, self.start
        return max(0, bisect_left(items, high + 1, start) - bisect_left(items, low, start))

    def discard(self, seq: int) -> None:
        at = bisect_left(self.items, seq, self.start)
        if at > self.start:
            del self.items[at]
            return
        self.start += 1
        if self.start > 32 and self.start * 2 > len(self.items):
            del self.items[: self.start]
            self.start = 0


class MessageIndex:
    """Messages by sequence and sequences by subject."""

    __slots__ = ("by_subject", "messages", "ordered")

    def __init__(self) -> None:
        self.ordered: bool = True
        self.messages: dict[int, Record] = {}
        self.by_subject: dict[str, Seqs] = {}

    def add(self, record: Record) -> None:
        """Add a message behind all others."""
        self.messages[record.seq] = record
        seqs = self.by_subject.get(record.subject)
        if seqs is None:
            self.by_subject[record.subject] = Seqs([record.seq])
        else:
            seqs.items.append(record.seq)

    def take(self, seq: int) -> Record:
        """Remove a message."""
        record = self.messages.pop(seq)
        seqs = self.by_subject[record.subject]
        if len(seqs) == 1:
            del self.by_subject[record.subject]
        else:
            seqs.discard(seq)
        return record

    def insert(self, record: Record) -> None:
        """Add a message anywhere."""
        if self.ordered and (not self.messages or record.seq > next(reversed(self.messages))):
            return self.add(record)
        self.ordered = False
        self.messages[record.seq] = record
        seqs = self.by_subject.get(record.subject)
        if seqs is None:
            self.by_subject[record.subject] = Seqs([record.seq])
        else:
            insort(seqs.items, record.seq, seqs.start)
        return None

    def sort(self) -> None:
        """Put the messages in the order of their sequences, if they are not."""
        if not self.ordered:
            self.messages, self.ordered = dict(sorted(self.messages.items())), True

    def seqs(self, seq: int) -> Iterator[int]:
        """All sequences from `seq` on, in order."""
        self.sort()
        messages = self.messages
        if not messages:
            return iter(())
        last = next(reversed(messages))
        if last - seq > 4 * len(messages):  # more holes than messages
            return filter(seq.__le__, messages)
        return filter(messages.__contains__, range(seq, last + 1))
