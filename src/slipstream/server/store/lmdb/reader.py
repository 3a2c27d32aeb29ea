"""The reader's view of a stream in LMDB: records and statistics as of the last finished group.

`get`, `last` of a literal subject and `scan` are the hot path: they go to the snapshot directly. A message that does
not match its checksum is never returned: it raises, or ends an answer that has begun. So does a message that should be
there and is not, and one that may have been removed (`proof.py`): what a scan passes over was removed by someone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from struct import error as StructError  # noqa: N812 - the module calls it `error`
from typing import Final
from zlib import crc32

import lmdb

from slipstream.server.engine.ports import MOST_UNFORESEEN, LogState, Record, has_wildcard, matcher
from slipstream.server.store.lmdb.env import Environment
from slipstream.server.store.lmdb.proof import (
    DISORDER,
    check_absent,
    check_found,
    check_gap,
    check_poison,
    looked_up,
    without_strays,
)
from slipstream.server.store.lmdb.records import (
    HEAD,
    LONG,
    MESSAGE_KEY,
    RESIDUE,
    CorruptMessageError,
    crc32_table,
    is_sound,
    literal_prefix,
    subject_of,
)
from slipstream.server.store.lmdb.segments import COUNTED, Base, Tuning
from slipstream.server.store.lmdb.view import LOOKED, View

_key: Final = MESSAGE_KEY.pack
_numbers: Final = MESSAGE_KEY.unpack
_head: Final = HEAD.unpack_from
_new: Final = tuple.__new__

_NOT: Final = 0xFFFFFFFF
_CRC_STEP: Final = crc32_table()

WINDOWS = 8  # of `Tuning.probe` messages each, that a bounded scan looks at one after the other


class LogReader:
    """One stream as readers see it: committed messages only."""

    def __init__(self, env: Environment, name: str, base: Base, tuning: Tuning) -> None:
        self.name = name
        self._env = env
        self._base = base
        self._tuning = tuning
        self._read_view: View | None = None

    @property
    def committed(self) -> LogState:
        return self._base.state

    @property
    def view(self) -> View:
        """The snapshot, the committed state in memory, and nothing else."""
        return self._reader()

    def _reader(self) -> View:
        view, base = self._read_view, self._base
        if view is None or view.epoch != self._env.epoch:
            view = self._read_view = View(self._env, base, (), base.swept, base.state.first_seq)
        return view

    def _decode(self, seq: int, key: bytes, value: bytes) -> Record:
        if crc32(value, crc32(key)) != RESIDUE:
            self._env.report(self.name, seq)
            raise CorruptMessageError(self.name, seq)
        time, named, headed = _head(value)
        subject: int = 16 + named
        header: int = subject + headed
        return _new(Record, (seq, time, value[16:subject].decode(), value[subject:header], value[header:-4]))

    def get(self, seq: int) -> Record | None:
        base = self._base
        if not base.state.first_seq <= seq <= base.state.last_seq:
            return None
        key = _key(base.sid, seq)
        try:
            value = self._env.read.get(key)
            if value is None:
                check_absent(self._env, base, seq)
                return None
            if seq // base.block not in base.proved:
                check_found(self._env, base, seq, value)
        except lmdb.Error as exc:
            raise self._env.unreadable(self.name, seq, exc) from exc
        return self._decode(seq, key, value)

    # The newest message.

    def last(self, pattern: str) -> Record | None:
        base = self._base
        if not base.state.messages:
            return None
        if pattern in ("", ">"):
            record = self.get(base.state.last_seq)
            if record is None:
                seq = self._reader().prev_from(base.state.last_seq)
                check_gap(self._env, base, seq + 1, base.state.last_seq)
                record = self.get(seq)
            return record
        if has_wildcard(pattern):
            seq = self._last_match(pattern)
        else:
            row = base.row(pattern)
            if row is not None and row[0]:
                record = self.get(row[2])
                if record is not None:
                    return record
            seq = self._reader().last_of(pattern)
        return self.get(seq) if seq else None

    def _last_match(self, pattern: str) -> int:
        """Sequence of the newest match of a filter with wildcards: among the newest messages, or by the rows."""
        recent = self.last_recent(pattern)
        if recent is not None:
            return recent
        best, view = 0, self._reader()
        for subject, row in view.rows(pattern):
            if row[2] > best:
                best = max(best, view.last_in(subject, row))
        return best

    def last_recent(self, pattern: str) -> int | None:
        """The same, if it is among the newest messages or they are all; None: it is not known."""
        view, base, fits = self._reader(), self._base, matcher(pattern)
        if self._env.strays:
            return None
        seq = view.prev_from(base.state.last_seq)  # the cursor is there, then
        if seq < base.state.first_seq:
            return 0
        before = base.state.last_seq + 1
        for key, value in islice(view.cursor.iterprev(), 2 * self._tuning.probe):
            sid, at = _numbers(key)
            if sid != base.sid or at < base.state.first_seq:
                check_gap(self._env, base, base.state.first_seq, before)
                return 0
            if at != before - 1:
                check_gap(self._env, base, at + 1, before)
            before = at
            if fits(subject_of(value)) or not is_sound(key, value):
                return int(at)
        return None

    def multi_last(self, patterns: Sequence[str], *, up_to: int = 0, limit: int = 1024) -> list[int] | None:
        view = self._reader()
        found: set[int] = set()
        for pattern in patterns:
            if pattern not in ("", ">") and not has_wildcard(pattern):
                found.add(or_damaged(view.last_of, pattern, up_to))
            else:
                for subject, row in view.rows(pattern):
                    found.add(or_damaged(view.last_in, subject, row, up_to))
                    if len(found) > limit + 1:  # 0, for nothing found, may be one of them
                        return None
            found.discard(0)
            if len(found) > limit:
                return None
        return sorted(found)

    def subjects(self, pattern: str) -> Iterator[tuple[str, int]]:
        literal = pattern not in ("", ">") and not has_wildcard(pattern)
        if literal:
            if count := self.count(pattern, 0):
                yield pattern, count
            return
        long: list[tuple[str, int]] = []  # these come in the order of their digests
        page, after = self._subject_page(pattern, "")
        while page:
            for item in page:
                if len(item[0]) * 4 > LONG and len(item[0].encode()) > LONG:
                    long.append(item)
                    continue
                if long:
                    yield from sorted(long)
                    long = []
                yield item
            page, after = self._subject_page(pattern, after)
        yield from sorted(long)

    def _subject_page(self, pattern: str, after: str) -> tuple[list[tuple[str, int]], str]:
        """Some subjects beyond `after`, and where the next page begins. Groups may be finished between pages."""
        view = self._reader()
        while rows := list(islice(view.rows(pattern, after), self._tuning.page)):
            after = rows[-1][0]
            page = [(subject, count) for subject, row in rows if (count := view.count_of(subject, row))]
            if page:
                return page, after
        return [], after

    # Ranges.

    def scan(self, pattern: str, seq: int, *, limit: int, max_bytes: int = 0) -> list[Record]:
        base = self._base
        seq = max(seq, base.state.first_seq)
        if seq > base.state.last_seq or limit <= 0:
            return []
        if pattern in ("", ">"):
            return self._scan_all(seq, limit, max_bytes)
        return self._scan_matches(pattern, seq, limit, max_bytes, bounded=False)[0]

    def scan_some(self, pattern: str, seq: int, *, limit: int, max_bytes: int = 0) -> tuple[list[Record], int]:
        base = self._base
        seq = max(seq, base.state.first_seq)
        if seq > base.state.last_seq or limit <= 0:
            return [], seq
        if pattern not in ("", ">"):
            return self._scan_matches(pattern, seq, limit, max_bytes, bounded=True)
        found = self._scan_all(seq, limit, max_bytes)
        return found, found[-1].seq + 1 if found else base.state.last_seq + 1

    def _scan_matches(
        self, pattern: str, seq: int, limit: int, max_bytes: int, *, bounded: bool
    ) -> tuple[list[Record], int]:
        """Messages that match, and where to go on; `bounded`: only so many are looked at."""
        found: list[Record] = []
        size = 0
        at = seq
        begun = self._env.work.units
        try:
            for item in self._matches(pattern, seq) if has_wildcard(pattern) else self._of_subject(pattern, seq):
                if isinstance(item, int):
                    if bounded:
                        return found, item
                    continue
                at, key, value = item
                record = self._decode(at, key, value)
                size += len(record.header) + len(record.payload)
                if max_bytes and size > max_bytes and found:
                    return found, at
                found.append(record)
                if len(found) == limit or (bounded and self._env.work.units - begun > MOST_UNFORESEEN):
                    return found, at + 1
        except CorruptMessageError as exc:
            if found:
                return found, exc.seq
            raise
        except (lmdb.Error, StructError) as error:  # not `exc`: mypyc gives one variable one type
            if found:
                self._env.revive()
                return found, at + 1
            raise self._env.unreadable(self.name, seq, error) from error
        return found, self._base.state.last_seq + 1

    def _scan_all(self, seq: int, limit: int, max_bytes: int) -> list[Record]:
        # Hot. A checksum covers the key too: a value that matches with the key of the expected message is that message.
        # So keys are not read, and of their checksums only the last byte's step is new, until a value does not match.
        # The checksums of two keys always differ if only their last four bytes do. Those of two streams may be equal:
        # the stream must have its last message, so that the scan does not come to the next stream unawares.
        base, env = self._base, self._env
        found: list[Record] = []
        crc, size, last_seq = crc32, 0, base.state.last_seq
        end = _key(base.sid, last_seq)
        proved = seq  # messages before it may be served
        has_gaps: bool = bool(env.strays) or seq ^ last_seq > _NOT  # or may have; where there was one, there are more
        named: int
        headed: int
        key_crc: int
        before: int = crc32(_key(base.sid, seq)[:-1]) ^ _NOT  # of the key without its last byte
        try:
            with env.read.cursor() as cursor:
                has_gaps = has_gaps or not cursor.set_key(end)
                if cursor.set_range(_key(base.sid, seq)):
                    for value in islice(cursor.iternext(keys=False), limit):
                        if not has_gaps:
                            if seq > last_seq:
                                break
                            if not seq & 255:
                                before = crc32(_key(base.sid, seq)[:-1]) ^ _NOT
                            key_crc = _CRC_STEP[(before ^ seq) & 255] ^ (before >> 8) ^ _NOT
                        if has_gaps or crc(value, key_crc) != RESIDUE:
                            key = cursor.key()
                            if key in env.strays:
                                raise CorruptMessageError(self.name, seq, DISORDER)
                            if key > end:
                                break
                            sid, at = _numbers(key)
                            if at != seq or sid != base.sid:
                                seq = self._step(sid, seq, at)
                                has_gaps = True
                            if crc32(value, crc32(key)) != RESIDUE:
                                if seq >= proved:
                                    self._prove(seq, value)
                                env.report(self.name, seq)
                                raise CorruptMessageError(self.name, seq)
                        if seq >= proved:
                            proved = self._prove(seq, value)
                        time, named, headed = _head(value)
                        subject = 16 + named
                        if max_bytes:
                            size += len(value) - subject - 4
                            if size > max_bytes and found:
                                return found
                        header = subject + headed
                        found.append(
                            _new(
                                Record, (seq, time, value[16:subject].decode(), value[subject:header], value[header:-4])
                            )
                        )
                        seq += 1
            if len(found) < limit:
                check_gap(env, base, seq, base.state.last_seq + 1)
        except CorruptMessageError:
            if not found:
                raise
        except (lmdb.Error, StructError) as exc:
            if not found:
                raise env.unreadable(self.name, seq, exc) from exc
            env.revive()
        return found

    def _in_order(self, seq: int, items: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """The messages of a scan from `seq` on, of a file whose pages may have keys of others."""
        return without_strays(self._env, self.name, seq, items) if self._env.strays else items

    def _step(self, sid: int, seq: int, at: int) -> int:
        """A scan expected `seq` and came to `at`: nothing between them may be missing."""
        if sid != self._base.sid or at < seq:
            self._env.report(self.name, seq)
            raise CorruptMessageError(self.name, seq, DISORDER)
        check_gap(self._env, self._base, seq, at)
        return at

    def _prove(self, seq: int, value: bytes) -> int:
        """The sequence up to which messages may be served without looking further; raises if `seq` may not."""
        base = self._base
        block = seq // base.block
        if block not in base.proved:
            check_found(self._env, base, seq, value)
            if block not in base.proved:
                return seq + 1
        return (block + 1) * base.block

    def _of_subject(self, subject: str, seq: int) -> Iterator[tuple[int, bytes, bytes] | int]:
        """Messages of one subject from `seq` on, undecoded; between them, after every `LOOKED` hints, the sequence up
        to which all was looked at."""
        view, sid, get = self._reader(), self._base.sid, self._env.read.get
        row = view.row(subject)
        if row is None or not row[0]:
            return
        seq = max(seq, row[1])
        looked = 0
        for number in view.segments(seq, row[2]):
            looked += 16
            for at in view.entry(number, subject):
                if at >= seq:
                    key = _key(sid, at)
                    value = self._check(at, get(key))
                    if value is not None:
                        yield at, key, value
                    looked += 1
                    if looked >= LOOKED:
                        looked = 0
                        yield at + 1

    def _check(self, seq: int, value: bytes | None) -> bytes | None:
        """A message that the index names, if it exists; raises if it was lost, or is not certain to be alive."""
        base = self._base
        if base.poison:
            check_poison(base, seq)
        if value is None:
            if seq >= base.state.first_seq:
                check_absent(self._env, base, seq)
        elif seq // base.block not in base.proved:
            check_found(self._env, base, seq, value)
        return value

    def _matches(self, pattern: str, seq: int) -> Iterator[tuple[int, bytes, bytes] | int]:
        """Messages from `seq` on that match a filter with wildcards, undecoded. One after the other while many of them
        do, by the index from where few do. Between them, after so much work, the sequence up to which all was looked
        at."""
        base, fits = self._base, matcher(pattern)
        end = _key(base.sid, base.state.last_seq)
        view = self._reader()
        cursor = view.fresh_cursor
        hits = seen = windows = 0
        probe = self._tuning.probe
        proved = seq
        any_left = cursor.set_range(_key(base.sid, seq))
        for key, value in self._in_order(seq, cursor.iternext()) if any_left else ():
            if key > end:
                break
            sid, at = _numbers(key)
            if at != seq or sid != base.sid:
                seq = self._step(sid, seq, at)
            if seq >= proved:
                proved = self._prove(seq, value)
            if not is_sound(key, value) or fits(subject_of(value)):
                hits += 1
                yield seq, key, value
            seq += 1
            seen += 1
            if seen == probe:
                if hits * 8 < seen:
                    yield from self._by_index(view, pattern, seq)
                    return
                hits = seen = 0
                windows += 1
                if not windows % WINDOWS:
                    yield seq
        check_gap(self._env, base, seq, base.state.last_seq + 1)

    def _by_index(self, view: View, pattern: str, seq: int) -> Iterator[tuple[int, bytes, bytes] | int]:
        sid, get, size = self._base.sid, self._env.read.get, self._base.size
        for number in view.segments(seq, self._base.state.last_seq):
            found = sorted(at for _, seqs in view.entries(number, pattern) for at in seqs if at >= seq)
            for looked, at in enumerate(found, 1):
                key = _key(sid, at)
                value = self._check(at, get(key))
                if value is not None:
                    yield at, key, value
                if not looked % LOOKED:
                    yield at + 1
            yield min((number + 1) * size, self._base.state.last_seq + 1)

    def probe_next(self, fits: Callable[[str], bool], seq: int) -> tuple[int, int]:
        """The first sequence from `seq` on whose subject matches, among so many messages (0: none of them does), and
        where to go on."""
        base = self._base
        seq = max(seq, base.state.first_seq)
        if seq > base.state.last_seq or not base.state.messages:
            return 0, base.state.last_seq + 1
        end = _key(base.sid, base.state.last_seq)
        try:
            with self._env.read.cursor() as cursor:
                seen = 0
                any_left = cursor.set_range(_key(base.sid, seq))
                found = self._in_order(seq, cursor.iternext())
                for key, value in islice(found, self._tuning.probe) if any_left else ():
                    if key > end:
                        break
                    sid, at = _numbers(key)
                    if at != seq or sid != base.sid:
                        seq = self._step(sid, seq, at)
                    if not is_sound(key, value) or fits(subject_of(value)):
                        return seq, seq + 1
                    seq += 1
                    seen += 1
                if seen == self._tuning.probe:
                    return 0, seq
            check_gap(self._env, base, seq, base.state.last_seq + 1)
        except (lmdb.Error, StructError) as exc:
            raise self._env.unreadable(self.name, seq, exc) from exc
        return 0, base.state.last_seq + 1

    def all_seqs(self) -> Iterator[int]:
        """Every sequence, in order, for a reader whose snapshot does not move."""
        base, view = self._base, self._reader()
        end = _key(base.sid, base.state.last_seq)
        with self._env.read.cursor() as cursor:
            any_left = cursor.set_range(_key(base.sid, base.state.first_seq))
            for key in cursor.iternext(values=False) if any_left else ():
                if key > end:
                    return
                if not view.is_stray(key):
                    yield _numbers(key)[1]

    def seq_steps(self, prefix: str, fits: Callable[[str], bool], seq: int) -> Iterator[int | None]:
        """Sequences from `seq` on whose subjects match, in order, by the index, for a reader whose base does not
        change; None after so much work."""
        view = self.view
        for number in view.segments(seq, self._base.state.last_seq):
            found: list[int] = []
            for item in view.entry_steps(number, prefix, fits):
                if item is None:
                    yield None
                else:
                    found += (at for at in item[1] if at >= seq)
            for looked, at in enumerate(sorted(found), 1):
                if view.has(at):
                    yield at
                if not looked % LOOKED:
                    yield None

    # Statistics.

    def count(self, pattern: str, seq: int) -> int:
        state = self._base.state
        everything = pattern in ("", ">")
        if seq > state.last_seq or not state.messages:
            return 0
        if everything:
            return state.messages if seq <= state.first_seq else self._count_all(seq)
        view = self._reader()
        if not has_wildcard(pattern):
            row = view.row(pattern)
            if row is None or not row[0]:
                return 0
            if seq <= max(row[1], state.first_seq):
                return view.count_of(pattern, row)
            return sum(1 for _ in view.counted(pattern, seq, row[2]))
        if seq <= state.first_seq:
            return sum(view.count_of(subject, row) for subject, row in view.rows(pattern))
        return self._count_matches(pattern, seq)

    def _count_all(self, seq: int) -> int:
        """Messages from `seq` on: whole segments and blocks by their counts, the first one without those that are found
        before `seq`. So lost messages count: who waits for the rest must come to them."""
        base = self._base
        number, block = seq // base.size, seq // base.block
        total = sum(segment.count for n, segment in base.segments.items() if n > number)
        if number in base.segments:
            at = block - number * base.per_segment
            total += sum(each // COUNTED for each in base.segments[number].sums[at:])
            low, end = max(block * base.block, base.state.first_seq), _key(base.sid, seq)
            if self._env.strays:
                return total - sum([1 for _ in looked_up(self._env, base, low, seq)])
            cursor = self._reader().fresh_cursor
            if cursor.set_range(_key(base.sid, low)):
                for key in cursor.iternext(values=False):
                    if key >= end:
                        break
                    total -= 1
        return total

    def _count_matches(self, pattern: str, seq: int) -> int:
        return sum(count or 0 for count in self.counts_from(literal_prefix(pattern), matcher(pattern), seq))

    def counts_from(self, prefix: str, fits: Callable[[str], bool], seq: int) -> Iterator[int | None]:
        """Counts of messages from `seq` on whose subjects match, piece by piece; None after so much work."""
        view, base = self.view, self._base
        looked = 0
        for number in view.segments(seq, base.state.last_seq):
            segment = base.segments.get(number)
            if segment is None:
                continue
            exact = base.indexed.get(number) == segment.count and seq <= number * base.size
            lost: dict[int, int] = {}
            unknown: set[int] = set()
            for item in view.entry_steps(number, prefix, fits):
                if item is None:
                    yield None
                elif exact and item[0]:
                    yield len(item[1])
                else:
                    for at in item[1]:
                        if at >= seq and at not in unknown and view.is_counted(at, lost):
                            yield 1
                        looked += 1
                        if not looked % LOOKED:
                            yield None
                    if not item[0]:  # of any subject: again for each entry that is damaged
                        unknown.update(item[1])

    def time_to_seq(self, time: int) -> int:
        base, view = self._base, self._reader()
        low, high = base.state.first_seq, base.state.last_seq + 1
        if not base.state.messages:
            return high
        while low < high:  # nothing below `low` is young enough, everything from `high` on is
            middle = (low + high) // 2
            at, when = self._time_from(view, middle, high)
            if at and when < time:
                low = at + 1
            else:
                high = middle
        found = view.next_from(low) or base.state.last_seq + 1
        try:
            check_gap(self._env, base, low, found)
        except CorruptMessageError as exc:  # what is missing there counts as old as what follows it
            return exc.seq
        return found

    def _time_from(self, view: View, seq: int, end: int) -> tuple[int, int]:
        """Sequence and time of the first sound message from `seq` to before `end`; zeros if there is none."""
        while (seq := view.next_from(seq)) and seq < end:
            value = view.value(seq)
            if value is not None and is_sound(_key(self._base.sid, seq), value):
                return seq, _head(value)[0]
            seq += 1
        return 0, 0


def or_damaged(find: Callable[..., int], *args: object) -> int:
    """The sequence that a lookup finds, even if it is of a damaged message: reading it raises."""
    try:
        return find(*args)
    except CorruptMessageError as exc:
        return exc.seq
