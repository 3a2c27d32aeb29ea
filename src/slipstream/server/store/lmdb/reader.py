"""The reader's view of a stream in LMDB: records and statistics as of the last finished group.

`get`, `last` of a literal subject and `scan` are the hot path: they go to the snapshot directly. A message that does
not match its checksum is never returned: it raises, or ends an answer that has begun.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from zlib import crc32

from slipstream.server.engine.ports import LogState, Record, has_wildcard, matcher
from slipstream.server.store.lmdb.env import Environment
from slipstream.server.store.lmdb.records import (
    HEAD,
    LONG,
    MESSAGE_KEY,
    RESIDUE,
    CorruptMessageError,
    is_sound,
    subject_of,
)
from slipstream.server.store.lmdb.segments import Base, Tuning
from slipstream.server.store.lmdb.view import View

_key = MESSAGE_KEY.pack
_numbers = MESSAGE_KEY.unpack
_head = HEAD.unpack_from
_new = tuple.__new__


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

    def _reader(self) -> View:
        view, base = self._read_view, self._base
        if view is None or view.epoch != self._env.epoch:
            view = self._read_view = View(self._env, base, (), base.swept, base.state.first_seq)
        return view

    def _decode(self, seq: int, key: bytes, value: bytes) -> Record:
        if crc32(value, crc32(key)) != RESIDUE:
            self._env.report(self.name, seq)
            raise CorruptMessageError(self.name, seq)
        time, subject, header = _head(value)
        subject += 16
        header += subject
        return _new(Record, (seq, time, value[16:subject].decode(), value[subject:header], value[header:-4]))

    def get(self, seq: int) -> Record | None:
        base = self._base
        if not base.state.first_seq <= seq <= base.state.last_seq:
            return None
        key = _key(base.sid, seq)
        value = self._env.read.get(key)
        return None if value is None else self._decode(seq, key, value)

    # The newest message.

    def last(self, pattern: str) -> Record | None:
        base = self._base
        if not base.state.messages:
            return None
        if pattern in ("", ">"):
            record = self.get(base.state.last_seq)
            return record if record is not None else self.get(self._reader().prev_from(base.state.last_seq))
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
        view, base, fits = self._reader(), self._base, matcher(pattern)
        seq = view.prev_from(base.state.last_seq)
        if seq < base.state.first_seq:
            return 0
        for key, value in islice(view.cursor.iterprev(), 2 * self._tuning.probe):
            sid, at = _numbers(key)
            if sid != base.sid or at < base.state.first_seq:
                return 0
            if fits(subject_of(value)):
                return int(at)
        best = 0
        for subject, row in view.rows(pattern):
            if row[2] > best:
                best = max(best, view.last_in(subject, row))
        return best

    def multi_last(self, patterns: Sequence[str], *, up_to: int = 0, limit: int = 1024) -> list[int] | None:
        view = self._reader()
        found: set[int] = set()
        for pattern in patterns:
            if pattern in ("", ">") or has_wildcard(pattern):
                seqs: Iterator[int] = (view.last_in(subject, row, up_to) for subject, row in view.rows(pattern))
            else:
                seqs = iter((view.last_of(pattern, up_to),))
            for seq in seqs:
                if seq:
                    found.add(seq)
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
        every = self._matches(pattern, seq) if has_wildcard(pattern) else self._of_subject(pattern, seq)
        found: list[Record] = []
        size = 0
        for at, key, value in every:
            try:
                record = self._decode(at, key, value)
            except CorruptMessageError:
                if found:
                    break
                raise
            size += len(record.header) + len(record.payload)
            if max_bytes and size > max_bytes and found:
                break
            found.append(record)
            if len(found) == limit:
                break
        return found

    def _scan_all(self, seq: int, limit: int, max_bytes: int) -> list[Record]:
        base, env = self._base, self._env
        found: list[Record] = []
        append, size, end = found.append, 0, _key(base.sid, base.state.last_seq)
        with env.read.cursor() as cursor:
            if not cursor.set_range(_key(base.sid, seq)):
                return found
            for key, value in islice(cursor.iternext(), limit):
                if key > end:
                    break
                seq = _numbers(key)[1]
                if crc32(value, crc32(key)) != RESIDUE:
                    env.report(self.name, seq)
                    if found:
                        break
                    raise CorruptMessageError(self.name, seq)
                time, subject, header = _head(value)
                subject += 16
                if max_bytes:
                    size += len(value) - subject - 4
                    if size > max_bytes and found:
                        break
                header += subject
                append(_new(Record, (seq, time, value[16:subject].decode(), value[subject:header], value[header:-4])))
        return found

    def _of_subject(self, subject: str, seq: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Messages of one subject from `seq` on, undecoded."""
        view, sid, get = self._reader(), self._base.sid, self._env.read.get
        row = view.row(subject)
        if row is None or not row[0]:
            return
        seq = max(seq, row[1])
        for number in view.segments(seq, row[2]):
            for at in view.entry(number, subject):
                if at >= seq:
                    key = _key(sid, at)
                    value = get(key)
                    if value is not None:
                        yield at, key, value

    def _matches(self, pattern: str, seq: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Messages from `seq` on that match a filter with wildcards, undecoded. One after the other while many of them
        do, by the index from where few do."""
        base, fits = self._base, matcher(pattern)
        end = _key(base.sid, base.state.last_seq)
        view = self._reader()
        cursor = view.cursor
        hits = seen = 0
        probe = self._tuning.probe
        if not cursor.set_range(_key(base.sid, seq)):
            return
        for key, value in cursor.iternext():
            if key > end:
                return
            seq = _numbers(key)[1]
            if not is_sound(key, value) or fits(subject_of(value)):
                hits += 1
                yield seq, key, value
            seen += 1
            if seen == probe:
                if hits * 8 < seen:
                    break
                hits = seen = 0
        else:
            return
        yield from self._by_index(view, pattern, seq + 1)

    def _by_index(self, view: View, pattern: str, seq: int) -> Iterator[tuple[int, bytes, bytes]]:
        sid, get = self._base.sid, self._env.read.get
        for number in view.segments(seq, self._base.state.last_seq):
            for at in sorted(at for _, seqs in view.entries(number, pattern) for at in seqs if at >= seq):
                key = _key(sid, at)
                value = get(key)
                if value is not None:
                    yield at, key, value

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
            return sum(1 for _ in view.seqs(pattern, seq, row[2]))
        if seq <= state.first_seq:
            return sum(view.count_of(subject, row) for subject, row in view.rows(pattern))
        return self._count_matches(view, pattern, seq)

    def _count_all(self, seq: int) -> int:
        """Messages from `seq` on: whole segments by their counts, the first one by looking."""
        base = self._base
        number = seq // base.size
        total = sum(segment.count for n, segment in base.segments.items() if n > number)
        if number in base.segments:
            end = _key(base.sid, min((number + 1) * base.size - 1, base.state.last_seq))
            cursor = self._reader().cursor
            if cursor.set_range(_key(base.sid, seq)):
                for key in cursor.iternext(values=False):
                    if key > end:
                        break
                    total += 1
        return total

    def _count_matches(self, view: View, pattern: str, seq: int) -> int:
        base, total = self._base, 0
        for number in view.segments(seq, base.state.last_seq):
            segment = base.segments.get(number)
            if segment is None:
                continue
            exact = base.indexed.get(number) == segment.count and seq <= number * base.size
            for _, seqs in view.entries(number, pattern):
                total += len(seqs) if exact else sum(1 for at in seqs if at >= seq and view.has(at))
        return total

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
        return view.next_from(low) or base.state.last_seq + 1

    def _time_from(self, view: View, seq: int, end: int) -> tuple[int, int]:
        """Sequence and time of the first sound message from `seq` to before `end`; zeros if there is none."""
        while (seq := view.next_from(seq)) and seq < end:
            value = view.value(seq)
            if value is not None and is_sound(_key(self._base.sid, seq), value):
                return seq, _head(value)[0]
            seq += 1
        return 0, 0
