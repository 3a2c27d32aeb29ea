"""Scrubber of a store: reads all that is stored, little by little, and reports damage before a reader comes to it.

It reads the file's pages itself (`pages.PageFile`), one leaf after the other, since LMDB may end the process at a page
that is damaged. A slice of a round has two halves:

    read     a thread reads some leaves and checks their entries; it waits for the disk, and touches nothing else
    settle   on the loop, what was found is compared with what the streams should have, and reported

Between the two halves the snapshot that is read stays open (`Environment.pin`), while some pages are read.
A round is not of one moment: each slice reads the last commit of its own, and goes on behind the key at which the last
one ended. So a stream may be deleted, purged or moved to another id in between; blocks and indexes that changed while
they were read are looked at again as readers do (`proof.py`), or left to the next round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import lmdb

from slipstream.server.store.lmdb.env import INDEXED, STAMP, Environment, Pin, control_key
from slipstream.server.store.lmdb.pages import TABLES, Damage, PageFile
from slipstream.server.store.lmdb.proof import blocks_with, bounds, count, sum_of_index
from slipstream.server.store.lmdb.records import INDEXED as INDEXED_RECORD
from slipstream.server.store.lmdb.records import MESSAGE_KEY, is_sound, weight
from slipstream.server.store.lmdb.segments import COUNTED, Base, share

LEAVES = 16  # of a slice
BYTES = 256 * 1024  # of a slice, from which on it ends

_MESSAGE, _INDEX = "messages", "index"
_MASK = (1 << 64) - 1
_numbers = MESSAGE_KEY.unpack


class Slice(NamedTuple):
    """A piece of a round."""

    transaction: int
    table: str
    begin: bytes  # the key it begins at
    end: bytes | None  # the key the next one begins at; None: the table is read
    size: int
    damage: list[Damage]
    unsound: list[bytes]  # keys whose values fail their checksums
    sums: dict[bytes, int]  # of messages by their keys, of index entries by segment
    total: int  # of all entries, in the tables of which there is a sum


class Scrubber:
    """The position of a round, and what it has found of the block and the index that it is in."""

    def __init__(self, env: Environment, streams: Callable[[], Iterable[Base]]) -> None:
        self._env, self._streams = env, streams
        self._file: PageFile | None = None
        self._handle: object = None  # the environment that the file is of: a compaction replaces it
        self._pin: Pin | None = None
        self._part: Slice | None = None  # read, and not settled
        self._at: tuple[str, bytes] = (TABLES[0], b"")
        self._blocks: dict[tuple[int, int], int] = {}  # stream id and block -> sum of what was read of it
        self._damaged: set[tuple[int, int]] = set()  # blocks with damaged messages
        self._entries: dict[bytes, int] = {}  # the same of the index of segments
        self._faults: dict[str, None] = {}  # of this round
        self._broken: list[Damage] = []  # pages that this round could not read
        self._total, self._total_of = 0, -1  # of the table, if all of it is of one transaction
        self._meta_failures = 0  # in a row: one may have been read while it was written
        self.rounds: int = 0

    def begin(self) -> bool:
        """Keep what the next slice reads; False if that must wait."""
        if self._env.is_crowded:
            return False
        self._pin = self._env.pin()
        return True

    def finish(self) -> tuple[int, bool]:
        """Report what was read, and let go of it; how many bytes that were, and whether a round is complete."""
        part, self._part = self._part, None
        if self._pin is not None:
            self._pin.release()
            self._pin = None
        if part is None:
            return 0, False
        return part.size, self._settle(part, self._streams())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # In a thread.

    def read(self) -> None:
        """Read the next slice."""
        assert self._pin is not None
        if self._file is None or self._handle is not self._pin.handle:
            self.close()
            self._file, self._handle = PageFile(self._env.path / "data.mdb", walks=False), self._pin.handle
            self._total_of = -1  # another file counts its transactions from the start
        file, (table, begin) = self._file, self._at
        transaction = self._pin.read.id()
        if not file.turn_to(transaction):
            self._meta_failures += bool(file.damage)
            if self._meta_failures > 1:
                self._part = Slice(transaction, table, begin, None, 0, file.damage, [], {}, 0)
            return
        self._meta_failures = 0
        sums: dict[bytes, int] = {}
        unsound: list[bytes] = []
        key, size, total = begin, 0, 0
        end: bytes | None = None
        for _ in range(LEAVES):
            leaf = file.leaf(table, key)
            for name, value in leaf.entries:
                if name < key:  # pages were divided in another way since
                    continue
                if table == _MESSAGE:
                    sums[name] = share(int.from_bytes(name[4:], "big"), value)
                elif table == _INDEX:
                    sums[name[:12]] = sums.get(name[:12], 0) + weight(name, value)
                elif name != STAMP:
                    total += weight(name, value)
                if table != "expiries" and not is_sound(name, value):
                    unsound.append(name)
            size += leaf.size
            end = leaf.high
            if end is None or size >= BYTES:
                break
            key = end
        self._part = Slice(transaction, table, begin, end, size, file.damage, unsound, sums, total)

    # On the loop.

    def _settle(self, part: Slice, streams: Iterable[Base]) -> bool:
        """Compare a slice with the streams, and report what is wrong; true if a round is complete."""
        bases = sorted((base for base in streams if base.sid), key=lambda base: base.sid)
        for damage in part.damage:
            self._broken.append(damage)
            self._report(damage, bases)
        if part.table == _MESSAGE:
            self._settle_messages(part, bases)
        elif part.table == _INDEX:
            try:
                self._settle_index(part, bases)
            except lmdb.Error as exc:  # of another table, in which the sums are
                self._fault(f"LMDB cannot read a record of an index: {exc}")
        else:
            for key in part.unsound:
                sid = int.from_bytes(key[1:5] if part.table == "control" else key[:4], "big")
                name = next((repr(base.name) for base in bases if base.sid == sid), "no stream")
                self._fault(f"a record of {name} in table {part.table!r} does not match its checksum")
            self._settle_table(part)
        if part.end is not None:
            self._at = part.table, part.end
            return False
        following = TABLES.index(part.table) + 1
        self._at = TABLES[following % len(TABLES)], b""
        if following < len(TABLES):
            return False
        self._env.faults, self._faults = self._faults, {}  # those that are mended are not reported any more
        self._blocks.clear()
        self._damaged.clear()
        self._entries.clear()
        self._broken.clear()
        self.rounds += 1
        return True

    def _settle_table(self, part: Slice) -> None:
        """An older page has records that are sound: it is found by the sum of the table, if no commit came between."""
        if not part.begin:
            self._total, self._total_of = 0, part.transaction
        elif part.transaction != self._total_of:
            self._total_of = -1
        self._total += part.total
        known = self._env.committed_tally
        wanted = {"control": known.control, "subjects": known.subjects, "expiries": known.expiries}[part.table]
        is_whole = part.end is None and self._total_of == self._env.last_transaction and not part.damage
        if is_whole and (self._total - wanted) & _MASK:
            self._fault(f"the records of table {part.table!r} are not those of the last commit")

    def _fault(self, what: str) -> None:
        self._faults[what] = None
        if what not in self._env.faults:
            self._env.faults[what] = None
            self._env.corrupt_records += 1
            self._env.named_records += 1

    def _report(self, damage: Damage, bases: list[Base]) -> None:
        self._fault(str(damage))
        if damage.table == _MESSAGE:
            for base, low, high in _ranges(damage.low, damage.high, bases):
                if base.segments:
                    self._env.report_loss(base.name, low, high, 0)

    def _settle_messages(self, part: Slice, bases: list[Base]) -> None:
        known = {base.sid: base for base in bases}
        block = bases[0].block if bases else 1
        for key, amount in part.sums.items():
            sid, seq = _numbers(key) if len(key) == MESSAGE_KEY.size else (0, 0)
            if sid in known and seq >= known[sid].state.first_seq:
                self._blocks[sid, seq // block] = self._blocks.get((sid, seq // block), 0) + amount
        for key in part.unsound:
            sid, seq = _numbers(key) if len(key) == MESSAGE_KEY.size else (0, 0)
            base = known.get(sid)
            if base is not None and base.state.first_seq <= seq <= base.state.last_seq:
                self._env.report(base.name, seq)
                self._damaged.add((sid, seq // block))
        for base, low, high in _ranges(part.begin, part.end, bases):
            # The block that the slice ends in is not complete, unless it is the last one of its stream.
            last = high if high >= base.state.last_seq else high // block * block - 1
            for number in blocks_with(base, low // block * block, last) if last >= low // block * block else ():
                self._settle_block(base, number)
        for sid, number in [each for each in self._blocks if each[0] not in known]:  # deleted meanwhile
            del self._blocks[sid, number]

    def _settle_block(self, base: Base, number: int) -> None:
        found, wanted = self._blocks.pop((base.sid, number), 0), base.sum_of(number)
        low, high = bounds(base, number)
        if found == wanted or low >= high:
            return
        if (base.sid, number) in self._damaged and found // COUNTED == wanted // COUNTED:
            return  # all are there, and the damaged ones are reported
        first, last = MESSAGE_KEY.pack(base.sid, low), MESSAGE_KEY.pack(base.sid, high - 1)
        if self._is_broken(_MESSAGE, first, last):
            return  # LMDB must not be asked; the range is reported
        try:
            count(self._env, base, number)  # it may have changed since: as readers see it now
        except lmdb.Error:
            self._env.report_loss(base.name, low, high - 1, 0)

    def _is_broken(self, table: str, first: bytes, last: bytes) -> bool:
        """Whether a page of a table cannot be read that has keys between two."""
        return any(
            each.table == table and each.low <= last and (each.high is None or each.high > first)
            for each in self._broken
        )

    def _settle_index(self, part: Slice, bases: list[Base]) -> None:
        for prefix, amount in part.sums.items():
            self._entries[prefix] = self._entries.get(prefix, 0) + amount
        unsound = {key[:12] for key in part.unsound}
        for base in bases:
            sid = base.sid.to_bytes(4, "big")
            if sid < part.begin[:4] or (part.end is not None and sid > part.end[:4]):
                continue
            for number in list(base.indexed):
                prefix = sid + number.to_bytes(8, "big")
                if prefix < part.begin[:12] or (part.end is not None and prefix >= part.end[:12]):
                    continue
                found = self._entries.pop(prefix, 0)
                self._settle_segment(base, number, prefix, found, is_sound=prefix not in unsound)

    def _settle_segment(self, base: Base, number: int, prefix: bytes, found: int, *, is_sound: bool) -> None:
        env, key = self._env, control_key(INDEXED, base.sid, number)
        record = env.read.get(key, db=env.control)
        if record is None or self._is_broken(_INDEX, prefix, prefix + b"\xff"):
            return
        wanted = INDEXED_RECORD.unpack(record[:-4])[1]
        if is_sound and (found == wanted or sum_of_index(env, prefix) == wanted):
            return
        base.index_sums[number] = wanted  # compared before its next use, and made again from the messages
        self._fault(f"the index of segment {number} of stream {base.name!r} is damaged; it is made again when used")


def _ranges(begin: bytes, end: bytes | None, bases: list[Base]) -> Iterator[tuple[Base, int, int]]:
    """The streams that have messages with keys from `begin` to before `end`, and which sequences of them."""
    for base in bases:
        low, high = base.state.first_seq, base.state.last_seq
        if len(begin) == MESSAGE_KEY.size:
            sid, seq = _numbers(begin)
            if sid > base.sid:
                continue
            low = max(low, seq) if sid == base.sid else low
        if end is not None and len(end) >= MESSAGE_KEY.size:
            sid, seq = _numbers(end[: MESSAGE_KEY.size])
            if sid < base.sid:
                continue
            high = min(high, seq - (len(end) == MESSAGE_KEY.size)) if sid == base.sid else high
        if low <= high:
            yield base, low, high
