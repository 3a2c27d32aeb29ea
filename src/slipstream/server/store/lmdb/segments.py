"""In-memory state of a log in LMDB: the committed base, and the changes of a group on top of it.

A log is cut into segments of so many sequences. Of a segment that is full the disk has an index (subject -> offsets);
of the others the same is kept here, as the tail. Index entries are hints: a message may have been removed since, so
its existence is checked. A sequence never gets a second message, so existence is enough.

Each segment has the sums of its blocks (sixteen of them, where its size can be divided so): over the living messages of
a block, `COUNTED` for each and their checksums, mixed with their sequences. So how many messages a block has, and
which, is known apart from the messages (`proof.py`).

Three marks divide a log: below `swept` nothing exists; from there to `first_seq` lie messages that a large purge took
out and that still await removal (they are counted in their subjects' rows, and nowhere else); the rest is alive.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from slipstream.server.engine.ports import LogState


class Tuning(NamedTuple):
    """Sizes that decide about speed only; tests make them tiny."""

    segment: int = 16_384  # sequences to a segment; fixed when the store is made, 65,536 at most
    slice: int = 1_000  # units of work in one `write_some`, one sweep
    dirty: int = 65_536  # changed subject rows that start a flush; more with many subjects (`flush_at`)
    journal: int = 131_072  # journaled rows that start a flush: what a crash leaves to be read
    cache: int = 32_768  # subject rows to keep in memory after a flush; more with many subjects
    probe: int = 512  # messages that a filtered scan looks at before it asks whether the index would be quicker
    page: int = 4_096  # subjects to list at once

    # A flush of rows that are scattered over a large table writes nearly every page of it, whether it has few rows or
    # many: the fewer flushes, the less is written. A quarter of the subjects, up to a bound: some 100 MB at most.

    def flush_at(self, subjects: int) -> int:
        """How many changed rows start a flush."""
        return max(self.dirty, min(subjects // 4, 4 * self.dirty))

    def cached(self, subjects: int) -> int:
        """How many rows stay in memory after a flush."""
        return max(self.cache, min(subjects // 4, 8 * self.cache))


COUNTED: Final = 1 << 44  # a block has 4,096 messages at most, so their checksums add up to less

Row = tuple[int, int, int]  # of a subject: number of messages; none is older than this one; none is younger
Tail = dict[int, dict[str, Sequence[int]]]  # segment -> subject -> sequences, ascending


def share(seq: int, value: bytes | memoryview) -> int:
    """What a message adds to the sum of its block."""
    return COUNTED + ((int.from_bytes(value[-4:], "little") ^ seq) & 0xFFFFFFFF)


def block_size(segment: int) -> int:
    """How many sequences a block of a segment has."""
    return next(size for size in range(max(1, segment // 16), 0, -1) if segment % size == 0)


class MutableRow:
    """A subject's row while the open group changes it. A bound is or was a message of the subject."""

    __slots__ = ("count", "first", "last", "seqs")

    def __init__(self, count: int, first: int, last: int) -> None:
        self.count: int = count
        self.first: int = first
        self.last: int = last
        self.seqs: list[int] = []  # added by the open group in the current segment


class Segment:
    """How much of a segment is alive, and the sums of its blocks."""

    __slots__ = ("bytes", "count", "sums")

    def __init__(self, count: int, size: int, sums: Iterable[int]) -> None:
        self.count: int = count
        self.bytes: int = size
        self.sums: list[int] = list(sums)

    def subtract(self, block: int, seq: int, value: bytes) -> None:
        """Take a message out of the sum of its block. One that is damaged may claim more than all of them add up to."""
        count, checksums = divmod(self.sums[block], COUNTED)
        left = checksums + COUNTED - share(seq, value)
        self.sums[block] = max(count - 1, 0) * COUNTED + max(left, 0)


class Delta:
    """What a group changes in one log: rows and segments in full, messages to write and to remove."""

    __slots__ = (
        "config", "current", "deletes", "end", "fresh", "kept", "messages", "moments", "rows", "sealed_rows",
        "segments", "settled", "sid", "start", "state", "swept", "tail",
    )  # fmt: skip

    def __init__(self, sid: int, start: int, *, fresh: bool) -> None:
        self.sid: int = sid
        self.fresh: bool = fresh  # begins with an empty log under a new id: nothing older is visible through it
        self.start: int = start  # the first sequence that it can have added
        self.end: int = start - 1
        self.config: bytes | None = None  # if it is to be written
        self.kept: dict[str, bytes | None] = {}  # records to write, or to forget
        self.messages: dict[bytes, bytes] = {}
        self.deletes: dict[bytes, str] = {}  # keys of older messages, with their subjects
        self.moments: dict[bytes, bool] = {}  # keys of the table of expiries: to be put, or to be removed
        self.rows: dict[str, MutableRow] = {}  # while it is open
        self.sealed_rows: dict[str, Row] = {}  # when it is sealed
        self.segments: dict[int, Segment] = {}
        self.settled: set[int] = set()  # blocks that lacked messages, and whose sums were replaced
        self.tail: dict[int, dict[str, list[int]]] = {}
        self.current: int = -1  # the segment that the `seqs` of the rows belong to
        self.state: LogState = LogState()
        self.swept: int = 1

    def close_segment(self) -> None:
        """Move the sequences that were added from the rows to the tail."""
        part = {}
        for subject, row in self.rows.items():
            if row.seqs:
                part[subject] = row.seqs
                row.seqs = []
        if part:
            self.tail[self.current] = part

    def seal(self, state: LogState, swept: int) -> None:
        """Nothing changes any more."""
        part: dict[str, list[int]] = {}
        rows = self.sealed_rows
        for subject, row in self.rows.items():
            rows[subject] = (row.count, row.first, row.last)
            if row.seqs:
                part[subject] = row.seqs
        if part:
            self.tail[self.current] = part
        self.state, self.swept = state, swept
        self.rows = {}

    def row(self, subject: str) -> Row | None:
        row = self.rows.get(subject)
        return (row.count, row.first, row.last) if row is not None else self.sealed_rows.get(subject)

    def changed(self) -> dict[str, Row]:
        """The rows of all subjects that it touched."""
        return self.sealed_rows or {subject: (row.count, row.first, row.last) for subject, row in self.rows.items()}

    def forget(self, seq: int, segment: int, subject: str) -> None:
        """Take a message that this group added out of its index."""
        seqs = self.rows[subject].seqs if segment == self.current else self.tail[segment][subject]
        del seqs[bisect_left(seqs, seq)]

    def entry(self, segment: int, subject: str) -> list[int]:
        """Sequences of a subject that this group added to a segment."""
        row = self.rows.get(subject) if segment == self.current else None
        return row.seqs if row is not None else self.tail.get(segment, {}).get(subject, [])


class Base:
    """A log as of the last commit. What it has many of are tuples of numbers: garbage collection passes over them."""

    def __init__(self, sid: int, size: int, name: str = "") -> None:
        self.sid = sid
        self.name = name
        self.size = size  # of a segment
        self.block: int = block_size(size)
        self.per_segment: int = size // self.block
        self.state: LogState = LogState()
        self.swept: int = 1
        self.dirty: dict[str, Row] = {}  # rows that the disk has not
        self.clean: dict[str, Row] = {}  # some that it has
        self.segments: dict[int, Segment] = {}  # those with messages, ascending
        self.indexed: dict[int, int] = {}  # segments with an index on the disk -> how many messages it names
        self.index_sums: dict[int, int] = {}  # of those whose entries were not compared with it yet
        # Blocks whose messages may be served, those whose holes are known to be holes, and those that lack messages.
        self.proved: set[int] = set()
        self.counted: set[int] = set()
        self.lost: dict[int, int] = {}
        self.foreign: set[int] = set()  # those of them that have no holes, and sound messages that are not theirs
        self.poison: dict[int, frozenset[int]] = {}  # by segment: sequences that may be lost messages of any subject
        self.tail: Tail | None = {}  # None: to be read from the disk when it is wanted
        self.unindexed: set[int] = set()  # segments with messages and no index
        self.dead: set[int] = set()  # full segments without messages, whose index is still there
        self.journaled: int = 0  # rows in the journal
        self.flushing = False
        self.sealing: set[int] = set()
        self.dropping: set[int] = set()

    def copied(self) -> Base:
        """The log as of now, which later commits do not change. Rows that the disk has are left to the disk."""
        copy = Base(self.sid, self.size, self.name)
        copy.state, copy.swept = self.state, self.swept
        copy.dirty, copy.segments, copy.indexed = dict(self.dirty), dict(self.segments), dict(self.indexed)
        copy.tail = None if self.tail is None else {number: dict(part) for number, part in self.tail.items()}
        copy.unindexed = set(self.unindexed)
        copy.index_sums, copy.poison, copy.lost = dict(self.index_sums), dict(self.poison), dict(self.lost)
        copy.proved, copy.counted, copy.foreign = set(self.proved), set(self.counted), set(self.foreign)
        return copy

    def new_segment(self) -> Segment:
        return Segment(0, 0, (0,) * self.per_segment)

    def sum_of(self, block: int) -> int:
        """What the living messages of a block must add up to."""
        number = block // self.per_segment
        segment = self.segments.get(number)
        return segment.sums[block - number * self.per_segment] if segment is not None else 0

    def row(self, subject: str) -> Row | None:
        return self.dirty.get(subject) or self.clean.get(subject)  # rows are never empty tuples

    def improve(self, subject: str, row: Row) -> None:
        """Keep better bounds of a subject that is in memory anyway."""
        if subject in self.dirty:
            self.dirty[subject] = row
        elif subject in self.clean:
            self.clean[subject] = row

    def merge(self, delta: Delta) -> None:
        """Take over what a group changed; it was committed."""
        self.state, self.swept = delta.state, delta.swept
        self.dirty.update(delta.sealed_rows)
        self.journaled += len(delta.sealed_rows)
        if self.tail is not None:
            if delta.deletes:
                self._cut_tail(self.tail, delta)
            self._extend_tail(self.tail, delta)
        for block in delta.settled:
            self.lost.pop(block, None)
            self.foreign.discard(block)
            self.proved.discard(block)
            self.counted.discard(block)
            number = block // self.per_segment
            if left := frozenset(seq for seq in self.poison.pop(number, ()) if seq // self.block != block):
                self.poison[number] = left
        for number, segment in delta.segments.items():
            if segment.count:
                self.segments[number] = segment
                if number not in self.indexed:
                    self.unindexed.add(number)
                continue
            # No message is left. A full segment keeps its index until messages that await their sweep are gone too.
            self.segments.pop(number, None)
            self.unindexed.discard(number)
            if (number + 1) * self.size <= self.state.last_seq + 1:
                self.dead.add(number)

    def _cut_tail(self, tail: Tail, delta: Delta) -> None:
        gone: dict[tuple[int, str], set[int]] = {}
        for key, subject in delta.deletes.items():
            seq = int.from_bytes(key[4:], "big")
            number = seq // self.size
            if number in tail:
                gone.setdefault((number, subject), set()).add(seq)
        for (number, subject), seqs in gone.items():
            part = tail[number]
            if left := tuple(seq for seq in part.get(subject, ()) if seq not in seqs):
                part[subject] = left
            else:
                part.pop(subject, None)

    def _extend_tail(self, tail: Tail, delta: Delta) -> None:
        for number, added in delta.tail.items():
            part = tail.setdefault(number, {})
            for subject, seqs in added.items():
                known = part.get(subject)
                part[subject] = tuple(seqs) if known is None else (*known, *seqs)

    def flushed(self, subjects: Iterable[str], cache: int) -> None:
        """The disk has these rows now; up to `cache` rows stay in memory."""
        dirty, clean = self.dirty, self.clean
        free = cache - len(clean)
        for subject in subjects:
            row = dirty.pop(subject)
            if row[0] and (free > 0 or subject in clean):
                clean[subject] = row
                free -= 1
            else:
                clean.pop(subject, None)

    def sealable(self) -> list[int]:
        """Segments that are full and have no index yet."""
        end = self.state.last_seq + 1
        return [
            n for n in self.unindexed if (n + 1) * self.size <= end and n not in self.sealing and n not in self.poison
        ]

    def drop_dead(self) -> list[int]:
        """Forget segments without a message, even one that awaits its sweep; returns those with an index to delete."""
        if not self.dead:
            return []
        first, swept, size = self.state.first_seq, self.swept, self.size
        gone = [n for n in self.dead if (n + 1) * size <= swept or n * size >= first or swept >= first]
        self.dead.difference_update(gone)
        for number in gone:
            if self.tail is not None:
                self.tail.pop(number, None)
        # One that is being indexed has (or will have) entries too: its job runs before the one that drops them.
        gone = [n for n in gone if self.indexed.pop(n, None) is not None or n in self.sealing]
        self.dropping.update(gone)
        return gone
