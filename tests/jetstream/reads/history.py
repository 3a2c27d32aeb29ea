"""The history of concurrent reads and writes, and its checker: the list of broken promises.

Every acknowledged write is known by its sequence, key and value. A read says what it had to have seen (`wanted`, in
sequences) and what it got. Then whatever it got is right or wrong without guessing: of a key, nothing older than its
newest write up to `wanted`; of a range, exactly the writes in it. One reader's views of one key never go back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from slipstream.jetstream.reads.direct_get import StoredMessage


class KeyRead(NamedTuple):
    """What a reader got of one key, None for "not found"; it had to be at least as new as `wanted`."""

    reader: str
    path: str
    key: str
    wanted: int
    got: StoredMessage | None


class RangeRead(NamedTuple):
    """What a reader got of a range of sequences, of one key or of all (empty)."""

    reader: str
    path: str
    key: str
    start: int
    end: int
    got: Sequence[int]


class History:
    """Everything that happened, in the order it ended."""

    def __init__(self) -> None:
        self.last = 0  # the highest sequence acknowledged to anybody
        self.reads: list[KeyRead] = []
        self.ranges: list[RangeRead] = []
        self.rejected: list[str] = []
        self._writes: dict[int, tuple[str, bytes]] = {}
        self._keys: dict[str, list[int]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self.reads) + len(self.ranges) + len(self._writes) + len(self.rejected)

    def wrote(self, seq: int, key: str, value: bytes) -> None:
        """A write was acknowledged."""
        self._writes[seq] = (key, value)
        insort(self._keys[key], seq)
        self.last = max(self.last, seq)

    def broken(self) -> list[str]:
        """Every promise that was not kept. Writes must have ended: one that is not known yet is no stale read."""
        found = [f"rejected: {what}" for what in self.rejected]
        views: dict[tuple[str, str], int] = {}
        for read in self.reads:
            newest = self._newest(read.key, read.wanted)
            got = read.got.seq if read.got is not None else 0
            if got < newest:
                found.append(f"stale: {read}, wrote {newest}")
            before = views.get((read.reader, read.key), 0)
            if got < before:
                found.append(f"went back: {read}, had seen {before}")
            views[read.reader, read.key] = max(got, before)
            if read.got is not None and self._writes.get(got) not in (None, (read.key, read.got.data)):
                found.append(f"wrong value: {read}")
        everything = sorted(self._writes)
        for each in self.ranges:
            seqs = self._keys[each.key] if each.key else everything
            right = seqs[bisect_left(seqs, each.start) : bisect_right(seqs, each.end)]
            missing = sorted(set(right) - set(each.got))
            if missing or list(each.got) != sorted(each.got):
                found.append(f"range: {each.path} {each.start}..{each.end} of {each.key!r} lacks {missing[:5]}")
        return found

    def _newest(self, key: str, up_to: int) -> int:
        seqs = self._keys[key]
        at = bisect_right(seqs, up_to)
        return seqs[at - 1] if at else 0
