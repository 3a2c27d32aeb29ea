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
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from struct import Struct
from typing import Any, Final, NamedTuple

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


UNSOUND: Final = "does not match its checksum; its content is not returned"  # of a message

FREED: Final = 64  # rows that a group of one change frees
FLUSHES: Final = 3  # whose rows are in memory, with the one that is next
COUNTED: Final = 1 << 44  # a block has 4,096 messages at most, so their checksums add up to less

# Of a subject: number of messages; none is older than this one; none is younger. A bound is or was one of its messages.
Row = tuple[int, int, int]

# The same as it is stored. There are very many of them in memory: one object takes half the bytes of a tuple and its
# numbers, garbage collection does not look at it, and the journal and the table take it as it is.
PackedRow = bytes
ROW: Final = Struct("<QQQ")
pack_row: Final = ROW.pack
unpack_row: Final[Callable[[PackedRow], Any]] = ROW.unpack  # a Row


def share(seq: int, value: bytes | memoryview) -> int:
    """What a message adds to the sum of its block."""
    return COUNTED + ((int.from_bytes(value[-4:], "little") ^ seq) & 0xFFFFFFFF)


def block_size(segment: int) -> int:
    """How many sequences a block of a segment has."""
    return next(size for size in range(max(1, segment // 16), 0, -1) if segment % size == 0)


class Part:
    """The index of a segment in memory: the subjects of its messages as they came, and their sequences.

    Appending is what nearly all of them are used for, so it costs next to nothing. By subject they are ordered when one
    is looked up, and only those that came since the last lookup.
    """

    __slots__ = ("_by_subject", "_ordered", "names", "seqs")

    def __init__(self) -> None:
        self.names: list[str | None] = []  # None: it was removed
        self.seqs: list[int] = []  # ascending
        self._by_subject: dict[str, tuple[int, ...]] = {}
        self._ordered: int = 0  # of how many messages

    @staticmethod
    def of(found: Mapping[str, Sequence[int]]) -> Part:
        """The part with these subjects and their sequences."""
        part = Part()
        for seq, name in sorted([(seq, name) for name, seqs in found.items() for seq in seqs]):
            part.seqs.append(seq)
            part.names.append(name)
        return part

    def copied(self) -> Part:
        """The same, which later changes do not reach."""
        copy = Part()
        copy.names, copy.seqs = list(self.names), list(self.seqs)
        copy._by_subject, copy._ordered = dict(self._by_subject), self._ordered
        return copy

    def extend(self, names: Sequence[str | None], seqs: Iterable[int]) -> None:
        """Add messages behind all others."""
        self.names.extend(names)
        self.seqs.extend(seqs)

    def remove(self, seqs: Iterable[int]) -> None:
        """Take messages out, those that are there."""
        gone: dict[str, set[int]] = {}
        for seq in seqs:
            at = bisect_left(self.seqs, seq)
            if at == len(self.seqs) or self.seqs[at] != seq:
                continue
            name = self.names[at]
            if name is None:
                continue
            self.names[at] = None
            if at < self._ordered:
                gone.setdefault(name, set()).add(seq)
        for name, removed in gone.items():  # once for each subject: it may have very many
            if left := tuple([seq for seq in self._by_subject[name] if seq not in removed]):
                self._by_subject[name] = left
            else:
                del self._by_subject[name]

    def order_some(self, limit: int) -> bool:
        """Order up to `limit` messages by subject; whether that were all."""
        start, end = self._ordered, min(len(self.seqs), self._ordered + limit)
        if start < end:
            known = self._by_subject
            found: dict[str, list[int]] = {}
            group(zip(self.names[start:end], self.seqs[start:end], strict=True), found)
            for name, seqs in found.items():
                known[name] = (*known[name], *seqs) if name in known else tuple(seqs)
            self._ordered = end
        return end == len(self.seqs)

    def by_subject(self) -> Mapping[str, Sequence[int]]:
        """The sequences of every subject."""
        self.order_some(len(self.seqs))
        return self._by_subject


def group(messages: Iterable[tuple[str | None, int]], found: dict[str, list[int]]) -> None:
    """Add the sequences of messages to those of their subjects."""
    for name, seq in messages:
        if name is not None:
            known = found.get(name)
            if known is None:
                found[name] = [seq]
            else:
                known.append(seq)


Tail = dict[int, Part]  # by segment


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
        "config", "crcs", "deletes", "end", "fresh", "kept", "messages", "moments", "names", "packed", "rows",
        "segments", "settled", "sid", "size", "start", "state", "swept", "tail",
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
        self.rows: dict[str, Row] = {}
        self.packed: dict[str, PackedRow] = {}  # the rows, from when they are journaled
        self.segments: dict[int, Segment] = {}
        self.settled: set[int] = set()  # blocks that lacked messages, and whose sums were replaced
        self.tail: Tail = {}
        self.state: LogState = LogState()
        self.swept: int = 1
        # The messages up to `end` that are not in `rows`, `segments` and `tail` yet: all of one segment, without gaps.
        self.names: list[str] = []
        self.crcs: list[int] = []
        self.size: int = 0

    def entry(self, segment: int, subject: str) -> Sequence[int]:
        """Sequences of a subject that this group added to a segment."""
        part = self.tail.get(segment)
        return part.by_subject().get(subject, ()) if part is not None else ()


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
        # Rows by age: those that the disk has not, those that are on their way there, and some that it has: of the last
        # flushes, the newest first. A subject's row is that of the first dict that has it. So only the last one may
        # lose any.
        self.dirty: dict[str, PackedRow] = {}
        self.flushing: dict[str, PackedRow] = {}
        self.clean: list[dict[str, PackedRow]] = []
        self.is_flushing = False
        self.is_copy = False
        self._cache = 0  # how many rows to keep of a flush
        self._outdated: list[dict[str, PackedRow]] = []  # to be freed, some with each group: all at once take a while
        self.segments: dict[int, Segment] = {}  # those with messages, ascending
        self.indexed: dict[int, int] = {}  # segments with an index on the disk -> how many messages it names
        self.index_sums: dict[int, int] = {}  # of those whose entries were not compared with it yet
        # Blocks whose messages may be served, those whose holes are known to be holes, and those that lack messages.
        self.proved: set[int] = set()
        self.counted: set[int] = set()
        self.lost: dict[int, int] = {}
        self.foreign: set[int] = set()  # those of them that have no holes, and sound messages that are not theirs
        # By segment: sequences of damaged and lost messages, which any subject may have, with what is wrong with them.
        self.poison: dict[int, Mapping[int, str]] = {}
        self.tail: Tail | None = {}  # None: to be read from the disk when it is wanted
        self.unindexed: set[int] = set()  # segments with messages and no index
        self.dead: set[int] = set()  # full segments without messages, whose index is still there
        self.journaled: int = 0  # rows in the journal
        self.sealing: set[int] = set()
        self.dropping: set[int] = set()

    def copied(self) -> Base:
        """The log as of now, which later commits do not change. Rows that the disk has are left to the disk."""
        copy = Base(self.sid, self.size, self.name)
        copy.is_copy = True
        copy.state, copy.swept = self.state, self.swept
        copy.dirty, copy.segments, copy.indexed = self.unflushed(), dict(self.segments), dict(self.indexed)
        copy.clean = [{}]
        copy.tail = None if self.tail is None else {number: part.copied() for number, part in self.tail.items()}
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
        packed = self.dirty.get(subject) or self.flushing.get(subject)  # never empty
        if packed is None:
            for rows in self.clean:
                packed = rows.get(subject)
                if packed is not None:
                    break
            else:
                return None
        row: Row = unpack_row(packed)
        return row

    def improve(self, subject: str, row: Row, better: Row) -> None:
        """Keep better bounds of a subject that is in memory anyway, if its row is that one."""
        for rows in (self.dirty, self.flushing, *self.clean):
            if subject in rows:
                if rows[subject] == pack_row(*row):
                    rows[subject] = pack_row(*better)
                return

    def unflushed(self) -> dict[str, PackedRow]:
        """The rows that the disk may not have."""
        return {**self.flushing, **self.dirty}

    def merge(self, delta: Delta) -> None:
        """Take over what a group changed; it was committed."""
        self.state, self.swept = delta.state, delta.swept
        self.dirty.update(delta.packed)
        self.journaled += len(delta.rows)
        self._free_some(FREED + 2 * len(delta.rows))
        if self.tail is not None:
            if delta.deletes:
                self._cut_tail(self.tail, delta)
            self._extend_tail(self.tail, delta)
        for block in delta.settled:
            self.lost.pop(block, None)
            self.foreign.discard(block)
            self.proved.discard(block)
            self.counted.discard(block)
        if self.poison:
            self._cut_poison(delta)
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

    def _cut_poison(self, delta: Delta) -> None:
        """Forget sequences that were removed, and holes of blocks that lack no messages any more."""
        first, settled = self.state.first_seq, delta.settled
        gone = {int.from_bytes(key[4:], "big") for key in delta.deletes}
        for number, seqs in list(self.poison.items()):
            left = {
                seq: what
                for seq, what in seqs.items()
                if seq >= first and seq not in gone and (what == UNSOUND or seq // self.block not in settled)
            }
            if left:
                self.poison[number] = left
            else:
                del self.poison[number]

    def _cut_tail(self, tail: Tail, delta: Delta) -> None:
        gone: dict[int, list[int]] = {}
        for key in delta.deletes:
            seq = int.from_bytes(key[4:], "big")
            gone.setdefault(seq // self.size, []).append(seq)
        for number, seqs in gone.items():
            part = tail.get(number)
            if part is not None:
                part.remove(seqs)

    def _extend_tail(self, tail: Tail, delta: Delta) -> None:
        for number, added in delta.tail.items():
            known = tail.get(number)
            if known is None:
                tail[number] = added
            else:
                known.extend(added.names, added.seqs)

    # Rows pass through memory in whole dicts, so that a flush moves none of them.

    def begin_flush(self) -> dict[str, PackedRow]:
        """From now on the rows that the disk has not are on their way there."""
        self.flushing, self.dirty, self.is_flushing = self.dirty, {}, True
        return self.flushing

    def end_flush(self, cache: int) -> None:
        """The disk has them. `cache`: how many rows of a flush to keep."""
        flushed, clean = self.flushing, self.clean
        if len(flushed) > 2 * cache:  # a few more do not matter
            self._outdated += [flushed, *clean]  # older rows of those that are dropped must not be left
            self.clean = [dict(islice(flushed.items(), cache))]
        elif clean and len(flushed) <= cache // 8 and len(clean[0]) + len(flushed) <= cache:
            clean[0].update(flushed)
        else:
            clean.insert(0, flushed)
            if len(clean) > FLUSHES:
                self._outdated.append(clean.pop())
        self.flushing, self.is_flushing, self._cache = {}, False, cache

    def _free_some(self, count: int) -> None:
        """Free outdated rows, then as many clean ones as there are too many: the more wait for the next flush, the
        fewer are left of the oldest."""
        while self._outdated and count:
            outdated = self._outdated[-1]
            for _ in range(min(len(outdated), count)):
                outdated.popitem()
                count -= 1
            if not outdated:
                self._outdated.pop()
        while self.clean:
            oldest, total = self.clean[-1], len(self.dirty) + len(self.flushing)
            for rows in self.clean:
                total += len(rows)
            for _ in range(min(len(oldest), count, max(0, total - FLUSHES * self._cache))):
                oldest.popitem()
            if oldest:
                return
            self.clean.pop()

    @property
    def cached(self) -> int:
        """How many rows are in memory that the disk has."""
        return sum([len(rows) for rows in self.clean])

    def forget_oldest(self) -> None:
        """Forget the oldest rows that the disk has."""
        if self.clean:
            self.clean.pop()

    def abandon_flush(self) -> None:
        """A group failed: the flush begins again, later."""
        if self.is_flushing:
            self.dirty, self.flushing, self.is_flushing = self.unflushed(), {}, False

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
