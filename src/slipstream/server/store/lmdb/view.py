"""View of a log: the snapshot on the disk, the committed base, and the uncommitted groups on top.

A view is valid as long as its snapshot. The reader's view has no groups, the writer's has up to two. All answers are
exact: hints of the index and bounds of the rows are followed only to messages that exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import lmdb

from slipstream.errors import CorruptRecordError, StoreError
from slipstream.server.engine.ports import matcher
from slipstream.server.store.lmdb.env import Environment
from slipstream.server.store.lmdb.proof import (
    check_absent,
    check_found,
    check_index,
    check_poison,
    is_found,
    looked_up,
    settle,
    uncertain,
)
from slipstream.server.store.lmdb.proof import count as count_block
from slipstream.server.store.lmdb.records import (
    LONG,
    MESSAGE_KEY,
    CorruptMessageError,
    is_sound,
    literal_prefix,
    row_of,
    subject_key,
    subject_of,
    unpack_entry,
    unpack_row,
)
from slipstream.server.store.lmdb.segments import UNSOUND, Base, Delta, Part, Row, Tail, pack_row, share
from slipstream.server.store.lmdb.segments import unpack_row as unpack

_key = MESSAGE_KEY.pack
_numbers = MESSAGE_KEY.unpack

NO_ROW: Final = (0, 0, 0)
LOOKED = 512  # rows or entries that a walk looks at between two pauses: a third of a millisecond


def read_tail(env: Environment, base: Base) -> Tail:
    """The index of the segments that have none on the disk; read from there once, after the log was opened."""
    if base.tail is None:
        wanted = set(base.unindexed)
        if base.swept < base.state.first_seq:
            unswept = range(base.swept // base.size, (base.state.first_seq - 1) // base.size + 1)
            wanted.update(n for n in unswept if n not in base.indexed)
        tail: Tail = {}
        for number in sorted(wanted):
            if (found := read_segment(env, base, number)) or number in base.poison:
                tail[number] = Part.of(found)
        base.tail = tail  # not before: a page that cannot be read would leave a part of it for good
    return base.tail


def read_segment(env: Environment, base: Base, number: int) -> dict[str, list[int]]:
    """The index of one segment, from the messages themselves. Damaged messages, and those that a block lacks, are noted
    instead: any subject may have one of those. That a block adds up does not show that its messages are sound: their
    stored checksums are added."""
    found: dict[str, list[int]] = {}
    poison: dict[int, str] = {}
    before, end = number * base.size - 1, (number + 1) * base.size
    sums = [0] * base.per_segment
    with env.read.cursor(db=env.messages) as cursor:
        if cursor.set_range(_key(base.sid, number * base.size)):
            for key, value in cursor.iternext():
                sid, seq = _numbers(key) if len(key) == MESSAGE_KEY.size else (0, 0)
                if sid != base.sid or not before < seq < end:  # the end, or a key that does not belong here
                    break
                before, is_alive = seq, seq >= base.state.first_seq
                if is_alive and is_found(env, key):
                    sums[seq % base.size // base.block] += share(seq, value)
                if is_sound(key, value):
                    found.setdefault(subject_of(value), []).append(seq)
                elif is_alive:
                    poison[seq] = UNSOUND
    for seq in poison:
        if (base.name, seq) not in env.damaged:
            env.report(base.name, seq)
    base.poison.pop(number, None)
    for at, total in enumerate(sums):
        block = number * base.per_segment + at
        if settle(env, base, block, total):
            poison.update(uncertain(env, base, block, found))
    if poison:
        base.poison[number] = poison
    return found


def stored_row(env: Environment, base: Base, subject: str) -> Row | None:
    """A subject's row on the disk."""
    key = base.sid.to_bytes(4, "big") + subject_key(subject)
    value = env.read.get(key, db=env.subjects)
    if value is None:
        return None
    known = unpack_row(key, value)
    if known is None:
        return _recount(env, base, subject)
    if known[0] != subject:
        raise StoreError(f"the subjects {known[0]!r} and {subject!r} have the same digest; only one can be stored")
    return known[1]


def stored_rows(env: Environment, base: Base, subjects: list[str], rows: dict[str, Row]) -> None:
    """Add the rows of subjects on the disk to `rows`; of those that have none, an empty one."""
    if len(subjects) < 4 or env.found:  # each looked up from the root
        for subject in subjects:
            rows[subject] = _row_to_count_on(env, base, subject)
        return
    prefix = base.sid.to_bytes(4, "big")
    names, keys = sorted(set(subjects)), []  # in the order of their keys
    for subject in names:
        name = subject.encode()
        if len(name) > LONG:  # those are in the order of their digests
            names.sort(key=subject_key)
            keys = [prefix + subject_key(subject) for subject in names]
            break
        keys.append(prefix + name)
    with env.read.cursor(db=env.subjects) as cursor:
        stored = cursor.getmulti(keys)
    found: list[Row] = []
    for key, value in stored:
        while keys[len(found)] != key:
            found.append(NO_ROW)
        row = row_of(key, value)
        found.append(row if row is not None else _row_to_count_on(env, base, names[len(found)]))
    # Behind everything that may raise: a row that was not read must not be taken for an empty one.
    for subject in names:
        rows[subject] = NO_ROW
    for subject, row in zip(names, found, strict=False):
        rows[subject] = row


def _row_to_count_on(env: Environment, base: Base, subject: str) -> Row:
    """A subject's row on the disk, for a group that changes it. If it is damaged, and messages that may be of the
    subject are lost as well, their number is not known; an error would fail everything else that is in the group. So
    those that are found are counted, within bounds that let no lookup pass over a lost one without an error."""
    try:
        return stored_row(env, base, subject) or NO_ROW
    except CorruptMessageError:
        committed = View(env, base, (), base.swept, base.swept)
        known = committed.seqs(subject, base.swept, base.state.last_seq, is_checked=False)
        return max(1, sum(1 for _ in known)), base.swept, base.state.last_seq


def _subject_named(env: Environment, base: Base, name: bytes) -> str:
    """The subject whose form in keys is `name`, where the row that has it in full is damaged: by the index."""
    if len(name) <= LONG:
        return name.decode(errors="replace")
    committed = View(env, base, (), base.swept, base.swept)
    beginning = name[:LONG].decode(errors="ignore")
    for number in committed.segments(base.swept, base.state.last_seq):
        for subject, _ in committed.entries(number, ""):
            if subject.startswith(beginning) and subject_key(subject) == name:
                return subject
    raise CorruptRecordError(f"a record of a subject of stream {base.name!r} does not match its checksum")


def _recount(env: Environment, base: Base, subject: str) -> Row:
    """The row of a subject whose stored row is damaged; no group changed it since, so the index knows it all."""
    env.corrupt_records += 1
    committed = View(env, base, (), base.swept, base.swept)
    seqs = list(committed.seqs(subject, base.swept, base.state.last_seq))
    row = (len(seqs), seqs[0], seqs[-1]) if seqs else NO_ROW
    # Walks over the changed rows of a copy may be under way.
    (base.clean[0] if base.is_copy else base.dirty)[subject] = pack_row(*row)
    return row


class View:
    """One log as its reader, or its writer, sees it."""

    def __init__(self, env: Environment, base: Base, deltas: tuple[Delta, ...], swept: int, first: int) -> None:
        self.env = env
        self.epoch: int = env.epoch
        self.base = base
        self.deltas = deltas  # oldest first
        self.swept = swept
        self.first = first
        self._prefix = base.sid.to_bytes(4, "big")
        self._cursor: lmdb.Cursor[bytes] | None = None

    @property
    def cursor(self) -> lmdb.Cursor[bytes]:
        if self._cursor is None:
            self._cursor = self.env.read.cursor(db=self.env.messages)
        return self._cursor

    @property
    def fresh_cursor(self) -> lmdb.Cursor[bytes]:
        """A cursor for a lookup. LMDB looks into the page of a cursor before it begins at the root: a page with keys of
        another one answers for that one then."""
        if self.env.found:
            self._cursor = None
        return self.cursor

    # Messages.

    def has(self, seq: int, *, is_checked: bool = True) -> bool:
        """Whether a message exists. Raises if it was lost, or may have been removed, unless that does not matter."""
        key = _key(self.base.sid, seq)
        for delta in reversed(self.deltas):
            if key in delta.messages:
                return True
            if key in delta.deletes:
                return False
        base = self.base
        cursor = self.fresh_cursor
        is_there = cursor.set_key(key)
        if is_checked and base.state.first_seq <= seq <= base.state.last_seq:
            if base.poison:
                check_poison(base, seq)
            if not is_there:
                check_absent(self.env, base, seq)
            elif seq // base.block not in base.proved:
                check_found(self.env, base, seq, cursor.value())
        return is_there

    def value(self, seq: int) -> bytes | None:
        """The message as it is stored, wherever it is between `swept` and the end."""
        key = _key(self.base.sid, seq)
        for delta in reversed(self.deltas):
            value = delta.messages.get(key)
            if value is not None:
                return value
            if key in delta.deletes:
                return None
        return self.env.read.get(key)

    def items(self, low: int, high: int) -> Iterator[tuple[int, bytes]]:
        """Messages from `low` to before `high` as they are stored, in order. Those that were yielded may be removed."""
        base = self.base
        if low <= base.state.last_seq:
            with self.env.read.cursor() as cursor:
                found, end = cursor.set_range(_key(base.sid, low)), _key(base.sid, high)
                for key, value in cursor.iternext() if found else ():
                    if key >= end:
                        break
                    if not self._deleted(key):
                        yield int.from_bytes(key[4:], "big"), value
        for delta in self.deltas:
            for seq in range(max(low, delta.start), min(high - 1, delta.end) + 1):
                key = _key(base.sid, seq)
                stored = delta.messages.get(key)
                if stored is not None and not self._deleted(key):
                    yield seq, stored

    def next_from(self, seq: int) -> int:
        """The lowest sequence from `seq` on that has a message; 0 if there is none."""
        base = self.base
        if self.env.strays:  # a scan passes over messages whose pages have keys of others
            for at in looked_up(self.env, base, max(seq, base.state.first_seq), base.state.last_seq + 1):
                if not self._deleted(_key(base.sid, at)):
                    return at
        elif seq <= base.state.last_seq:
            cursor, target = self.fresh_cursor, _key(base.sid, seq)
            found = cursor.set_range(target)
            while found:
                key = cursor.key()
                if key[:4] != self._prefix:
                    break
                if not self._deleted(key):
                    return int.from_bytes(key[4:], "big")
                found = cursor.next()
        for delta in self.deltas:
            for at in range(max(seq, delta.start), delta.end + 1):
                key = _key(base.sid, at)
                if key in delta.messages and not self._deleted(key):
                    return at
        return 0

    def prev_from(self, seq: int) -> int:
        """The highest living sequence up to `seq` (or one below all of them); 0 if there is none."""
        base = self.base
        for delta in reversed(self.deltas):
            for at in range(min(seq, delta.end), max(delta.start, self.first) - 1, -1):
                key = _key(base.sid, at)
                if key in delta.messages and not self._deleted(key):
                    return at
        if self.env.strays:
            high = min(seq, base.state.last_seq) + 1
            for at in looked_up(self.env, base, base.state.first_seq, high, down=True):
                if not self._deleted(_key(base.sid, at)):
                    return at
            return 0
        cursor, target = self.fresh_cursor, _key(base.sid, min(seq, base.state.last_seq))
        found = cursor.set_range(target)
        if not found:
            found = cursor.last()
        elif cursor.key() != target:
            found = cursor.prev()
        while found:
            key = cursor.key()
            if key[:4] != self._prefix:
                break
            if not self._deleted(key):
                return int.from_bytes(key[4:], "big")
            found = cursor.prev()
        return 0

    def is_stray(self, key: bytes) -> bool:
        """Whether a key is in another page than its own, and not in that one."""
        return bool(self.env.strays) and key in self.env.strays and self.env.read.get(key) is None

    def _deleted(self, key: bytes) -> bool:
        for delta in self.deltas:  # noqa: SIM110 - `any` would cost more than the loop
            if key in delta.deletes:
                return True
        return False

    # Subjects.

    def row(self, subject: str) -> Row | None:
        """The subject's row; None if it has none."""
        for delta in reversed(self.deltas):
            row = delta.rows.get(subject)
            if row is not None:
                return row
        return self.base.row(subject) or stored_row(self.env, self.base, subject)

    def _improve(self, subject: str, row: Row, better: Row) -> None:
        """Remember better bounds of a row, where that changes no other view. It may be that of an older group: then the
        newest one has another count."""
        if not self.deltas:
            self.base.improve(subject, row, better)
        elif self.deltas[-1].rows.get(subject) == row:
            self.deltas[-1].rows[subject] = better

    def rows(self, pattern: str, after: str = "") -> Iterator[tuple[str, Row]]:
        """Rows with messages of subjects that match, in the order of their keys, beyond the subject `after`."""
        fits, prefix = matcher(pattern or ">"), literal_prefix(pattern)
        start = subject_key(prefix)[:LONG] if not after else subject_key(after) + b"\0"
        fresh: dict[str, Row] = {}
        for unflushed in (self.base.flushing, self.base.dirty):
            for subject, packed in unflushed.items():
                if subject.startswith(prefix) and fits(subject):
                    fresh[subject] = unpack(packed)
        for delta in self.deltas:
            for subject, row in delta.rows.items():
                if subject.startswith(prefix) and fits(subject):
                    fresh[subject] = row
        ready = sorted((key, subject) for subject in fresh if (key := subject_key(subject)) >= start)
        at = 0
        for name, subject, row in self._stored_rows(start, subject_key(prefix)[:LONG], fits):
            while at < len(ready) and ready[at][0] < name:
                newer = ready[at][1]
                if fresh[newer][0]:
                    yield newer, fresh[newer]
                at += 1
            if row[0] and not (at < len(ready) and ready[at][0] == name):
                yield subject, row
        for _, subject in ready[at:]:
            if fresh[subject][0]:
                yield subject, fresh[subject]

    def _stored_rows(
        self, start: bytes, prefix: bytes, fits: Callable[[str], bool]
    ) -> Iterator[tuple[bytes, str, Row]]:
        within = self._prefix + prefix
        with self.env.read.cursor(db=self.env.subjects) as cursor:
            if not cursor.set_range(self._prefix + start):
                return
            for key, value in cursor.iternext():
                if not key.startswith(within):
                    return
                name = key[4:]
                if len(name) <= LONG and not fits(name.decode(errors="replace")):
                    continue
                known = unpack_row(key, value)
                if known is None:
                    text = _subject_named(self.env, self.base, name)
                    known = text, self.base.row(text) or _recount(self.env, self.base, text)
                if fits(known[0]):
                    yield name, *known

    def row_steps(self, prefix: str, fits: Callable[[str], bool]) -> Iterator[tuple[str, Row] | None]:
        """The same in no order, for a view without groups whose base does not change: None after every `LOOKED` rows
        that were looked at."""
        dirty, looked = self.base.unflushed() if self.base.flushing else self.base.dirty, 0
        for subject, packed in dirty.items():
            if subject.startswith(prefix) and fits(subject) and (row := unpack(packed))[0]:
                yield subject, row
            looked += 1
            if not looked % LOOKED:
                yield None
        within = self._prefix + subject_key(prefix)[:LONG]
        with self.env.read.cursor(db=self.env.subjects) as cursor:
            for key, value in cursor.iternext() if cursor.set_range(within) else ():
                if not key.startswith(within):
                    return
                looked += 1
                if not looked % LOOKED:
                    yield None
                name = key[4:]
                if len(name) <= LONG and not fits(name.decode(errors="replace")):
                    continue
                known = unpack_row(key, value)
                if known is None:
                    text = _subject_named(self.env, self.base, name)
                    if text in dirty:
                        continue
                    known = text, self.base.row(text) or _recount(self.env, self.base, text)
                elif known[0] in dirty:
                    continue
                if known[1][0] and fits(known[0]):
                    yield known

    # The index.

    def segments(self, low: int, high: int, *, down: bool = False) -> Iterable[int]:
        """Segments that can have messages with these sequences, in order."""
        base = self.base
        low, high = low // base.size, high // base.size
        tail = read_tail(self.env, base)
        recent = {n for delta in self.deltas for n in delta.tail}
        if high - low <= 2 * (len(base.indexed) + len(tail) + len(recent)):
            every = range(high, low - 1, -1) if down else range(low, high + 1)
            return _present(every, base, tail, recent)
        return sorted((n for n in {*base.indexed, *tail, *recent} if low <= n <= high), reverse=down)

    def _has_index(self, number: int) -> bool:
        """Whether the index of a segment is as it was written; one that is not is made again from the messages."""
        base = self.base
        if number not in base.index_sums or check_index(self.env, base, number):
            return True
        read_tail(self.env, base)[number] = Part.of(read_segment(self.env, base, number))
        return False

    def _in_tail(self, number: int) -> Mapping[str, Sequence[int]]:
        part = read_tail(self.env, self.base).get(number)
        return part.by_subject() if part is not None else {}

    def entry(self, number: int, subject: str) -> Sequence[int]:
        """Hints: sequences of a subject in one segment, ascending, and those that any subject may have."""
        seqs, is_known = self.named(number, subject)
        if not is_known and number in self.base.poison:
            return sorted({*seqs, *self.base.poison[number]})
        return seqs

    def named(self, number: int, subject: str) -> tuple[Sequence[int], bool]:
        """Hints: sequences of a subject in one segment, ascending; and whether they are all, by its index. If they are
        by the messages themselves, damaged ones are not among them."""
        base = self.base
        if number in base.indexed and self._has_index(number):
            key = self._prefix + number.to_bytes(8, "big") + subject_key(subject)
            value = self.env.read.get(key, db=self.env.index)
            if value is None:
                return (), True
            known = unpack_entry(key, value)
            if known is None:
                return read_segment(self.env, base, number).get(subject, ()), False
            start = number * base.size
            return [start + offset for offset in known[1]], True
        seqs = self._in_tail(number).get(subject, ())
        for delta in self.deltas:
            if added := delta.entry(number, subject):
                seqs = [*seqs, *added]
        return seqs, False

    def entries(self, number: int, pattern: str) -> Iterator[tuple[str, Sequence[int]]]:
        """Hints: every subject of a committed segment that matches, with its sequences."""
        base = self.base
        fits = matcher(pattern or ">")
        if number not in base.indexed or not self._has_index(number):
            for s, q in list(self._in_tail(number).items()):
                if fits(s):
                    yield s, q
            if number in base.poison:
                yield "", sorted(base.poison[number])
            return
        start, prefix = number * base.size, self._prefix + number.to_bytes(8, "big")
        prefix += subject_key(literal_prefix(pattern))[:LONG]
        with self.env.read.cursor(db=self.env.index) as cursor:
            if not cursor.set_range(prefix):
                return
            for key, value in cursor.iternext():
                if not key.startswith(prefix):
                    return
                if len(key) <= LONG + 12 and not fits(key[12:].decode(errors="replace")):
                    continue
                if self.env.found and self.env.read.get(key, db=self.env.index) != value:
                    continue  # in a page where it does not belong: not among what adds up to the sum
                known = unpack_entry(key, value)
                if known is None:
                    yield from self._read_again(number, key[12:], fits)
                elif fits(known[0]):
                    yield known[0], [start + offset for offset in known[1]]

    def entry_steps(
        self, number: int, prefix: str, fits: Callable[[str], bool]
    ) -> Iterator[tuple[str, Sequence[int]] | None]:
        """The same, with None after every `LOOKED` subjects that were looked at."""
        base, looked = self.base, 0
        if number not in base.indexed or not self._has_index(number):
            if (part := read_tail(self.env, base).get(number)) is not None:
                while not part.order_some(LOOKED):
                    yield None
            if number in base.poison:
                yield "", sorted(base.poison[number])
            for subject, seqs in list(self._in_tail(number).items()):
                if fits(subject):
                    yield subject, seqs
                looked += 1
                if not looked % LOOKED:
                    yield None
            return
        start, within = number * base.size, self._prefix + number.to_bytes(8, "big")
        within += subject_key(prefix)[:LONG]
        with self.env.read.cursor(db=self.env.index) as cursor:
            for key, value in cursor.iternext() if cursor.set_range(within) else ():
                if not key.startswith(within):
                    return
                looked += 1
                if not looked % LOOKED:
                    yield None
                if len(key) <= LONG + 12 and not fits(key[12:].decode(errors="replace")):
                    continue
                if self.env.found and self.env.read.get(key, db=self.env.index) != value:
                    continue  # in a page where it does not belong: not among what adds up to the sum
                known = unpack_entry(key, value)
                if known is None:
                    yield from self._read_again(number, key[12:], fits)
                elif fits(known[0]):
                    yield known[0], [start + offset for offset in known[1]]

    def _read_again(self, number: int, name: bytes, fits: Callable[[str], bool]) -> Iterator[tuple[str, Sequence[int]]]:
        """What a damaged entry of the index of a segment should say, by the messages themselves."""
        for subject, seqs in read_segment(self.env, self.base, number).items():
            if subject_key(subject) == name and fits(subject):
                yield subject, seqs
        if number in self.base.poison:
            yield "", sorted(self.base.poison[number])

    def seqs(self, subject: str, low: int, high: int, *, is_checked: bool = True) -> Iterator[int]:
        """Sequences of the subject's messages from `low` to `high`, ascending. Raises at one that was lost, or may have
        been removed, unless that does not matter."""
        for number in self.segments(low, high):
            for seq in self.entry(number, subject):
                if low <= seq <= high and self.has(seq, is_checked=is_checked):
                    yield seq

    def seqs_down(self, subject: str, low: int, high: int) -> Iterator[int]:
        for number in self.segments(low, high, down=True):
            for seq in reversed(self.entry(number, subject)):
                if low <= seq <= high and self.has(seq):
                    yield seq

    def counted(self, subject: str, low: int, high: int) -> Iterator[int]:
        """The subject's messages from `low` to `high` as they are counted, in a view without groups."""
        lost: dict[int, int] = {}
        for number in self.segments(low, high):
            for seq in self.entry(number, subject):
                if low <= seq <= high and self.is_counted(seq, lost):
                    yield seq

    def is_counted(self, seq: int, lost: dict[int, int]) -> bool:
        """Whether there is a message, sound or not. Of those that are not found as many count as their block lacks
        (`lost`: how many of them did not yet): a reader that waits for what is left must come to them, to be told."""
        if self.has(seq, is_checked=False):
            return True
        base, block = self.base, seq // self.base.block
        if block not in base.counted and base.state.first_seq <= seq <= base.state.last_seq and base.sum_of(block):
            if block not in base.lost:
                count_block(self.env, base, block)
            left = lost.get(block, base.lost.get(block, 0))
            lost[block] = left - 1
            return left > 0
        return False

    def lacks(self, subject: str, seq: int) -> bool:
        """Whether the index names fewer messages of a subject than it has: then one that is damaged, and seems to be of
        the subject, can be."""
        count, low, high = self.row(subject) or NO_ROW
        if not low <= seq <= high:
            return False
        for number in self.segments(low, high):
            for at in self.named(number, subject)[0]:
                if at != seq and low <= at <= high and self.has(at, is_checked=False):
                    count -= 1
                    if count <= 0:
                        return False
        return count > 0

    # One subject.

    def last_of(self, subject: str, up_to: int = 0) -> int:
        """Sequence of the newest message of the subject (at or below `up_to`, if not 0); 0 if there is none."""
        row = self.row(subject)
        return self.last_in(subject, row, up_to) if row is not None else 0

    def last_in(self, subject: str, row: Row, up_to: int = 0) -> int:
        """The same, for a subject whose row is known."""
        count, first, last = row
        if not count or last < self.first:
            return 0
        high = min(last, up_to) if up_to else last
        if high == last and self.has(high):
            return high
        found = next(self.seqs_down(subject, max(self.first, first), high), 0)
        if high == last and found:
            self._improve(subject, row, (count, first, found))
        return found

    def first_of(self, subject: str) -> int:
        """Sequence of the oldest message of the subject; 0 if there is none."""
        row = self.row(subject) or NO_ROW
        count, first, last = row
        if not count or last < self.first:
            return 0
        if first >= self.first and self.has(first):
            return first
        if count == 1 and self.swept == self.first and self.has(last):
            return last
        found = next(self.seqs(subject, max(self.first, first), last), 0)
        if found:
            self._improve(subject, row, (count, found, last))
        return found

    def count_of(self, subject: str, row: Row) -> int:
        """The row's count without the messages that are purged already but not swept."""
        if self.swept >= self.first:
            return row[0]
        return row[0] - sum(1 for _ in self.seqs(subject, self.swept, min(self.first - 1, row[2]), is_checked=False))


def _present(numbers: Iterable[int], base: Base, tail: Tail, recent: set[int]) -> Iterator[int]:
    """Those of the segments that have messages, as they are asked for."""
    for number in numbers:
        if number in base.indexed or number in tail or number in recent:
            yield number
