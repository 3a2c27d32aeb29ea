"""Offline check of a store, and salvage: a copy of everything in it that is undamaged.

Both read the file through `pages.PageFile`, which no damage can end, and never through LMDB. `survey` finds out what is
lost: pages that cannot be read, records that fail their checksums, blocks of messages that do not add up (`proof.py`),
tables that are not those of the last commit. `salvage` copies stream by stream, message by message, into a new store,
where rows, indexes and sums are made again.

What is copied was in the stream. A message of a block that adds up was; so was any sound message of a block without
holes. Where some are missing and it is known why (a page cannot be read, a record is damaged) the others were. Where it
is not (a page may be an older one, with messages that were removed since) only those are copied that the rows of their
subjects name; the others are reported as lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from heapq import merge
from itertools import chain
from pathlib import Path
from struct import error as StructError  # noqa: N812 - the module calls it `error`
from typing import NamedTuple

from slipstream.errors import StoreError, UsageError
from slipstream.server.engine.ports import LogState, StreamLog
from slipstream.server.store.groups import commit_open_group
from slipstream.server.store.lmdb.env import (
    COPY,
    INDEXED,
    JOURNAL,
    KEPT,
    META,
    RETIRED,
    SEGMENT,
    STAMP,
    STATE,
    STREAM,
    control_key,
    unused,
)
from slipstream.server.store.lmdb.pages import Damage, PageFile
from slipstream.server.store.lmdb.records import (
    INDEXED as INDEXED_RECORD,
)
from slipstream.server.store.lmdb.records import (
    MESSAGE_KEY,
    decode,
    inspect,
    is_sound,
    seal,
    subject_of,
    unpack_journal,
    unpack_row,
    unpack_segment,
    unpack_state,
    unpack_stream,
    weight,
)
from slipstream.server.store.lmdb.records import (
    STAMP as STAMP_RECORD,
)
from slipstream.server.store.lmdb.segments import COUNTED, Row, Segment, Tuning, block_size, share
from slipstream.server.store.lmdb.store import META_RECORD, LmdbStore

_MASK = (1 << 64) - 1
_GROUP = 1000
_CONTROL_KEYS = {META: 1, STAMP: 1, STREAM: 5, STATE: 5, RETIRED: 5, SEGMENT: 13, INDEXED: 13, JOURNAL: 13}


UNPROVED = "messages are copied without proof that none was removed"


class Loss(NamedTuple):
    """Messages of a stream that cannot be had."""

    stream: str
    low: int
    high: int
    lost: int  # 0: not known

    def __str__(self) -> str:
        some = f"{self.lost} message{'s' if self.lost != 1 else ''}" if self.lost else "an unknown number of messages"
        where = f"from {self.low} to {self.high}" if self.low != self.high else f"at {self.low}"
        return f"stream {self.stream!r}: {some} {where}"


class Stream(NamedTuple):
    """What is known of a stream beside its messages."""

    sid: int
    name: str
    config: bytes
    state: LogState
    segments: dict[int, Segment]
    kept: dict[str, bytes]


class Block:
    """What was found of a block of messages."""

    __slots__ = ("damaged", "found", "freed", "maybe", "total")

    def __init__(self) -> None:
        self.found: int = 0  # sum of the sound messages
        self.total: int = 0  # the same with those that fail their checksums
        self.damaged: list[int] = []
        self.freed: list[tuple[int, int]] = []  # sequences and shares of those on pages that may be free
        self.maybe: list[tuple[int, str]] = []  # sequences and subjects, while it is not known that they are all


def _is_message(key: bytes, value: bytes) -> bool:
    """Whether an entry is a sound message: all tables have the same checksums."""
    if len(key) != MESSAGE_KEY.size or len(value) < 21:
        return False
    stored = inspect(key, value)
    return stored.sound and bool(stored.subject)


def _is_control(key: bytes, body: bytes) -> bool:
    """Whether a sound record has the form of its kind: an older page may be of another table."""
    kind, length = key[:1], _CONTROL_KEYS.get(key[:1], 0)
    try:
        if kind == KEPT:
            return len(key) > 5 and bool(key[5:].decode())
        if len(key) != length:
            return False
        if kind == META:
            return bool(META_RECORD.unpack(body)[1])
        if kind == STREAM:
            return bool(unpack_stream(body)[0])
        if kind == STATE:
            return bool(unpack_state(body))
        if kind == SEGMENT:
            return len(unpack_segment(body).sums) > 0
        if kind == JOURNAL:
            return bool(list(unpack_journal(body)))
        if kind == INDEXED:
            return bool(INDEXED_RECORD.unpack(body))
        return kind == RETIRED or (key == STAMP and bool(STAMP_RECORD.unpack(body)))
    except (ValueError, StructError):
        return False


class Survey:
    """What a store has, and what it lacks."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path)
        self.problems: list[str] = []  # in words
        self.losses: list[Loss] = []
        self.streams: dict[int, Stream] = {}
        self._skipped: dict[int, set[int]] = {}  # by stream id: sequences that are not copied
        self._strays: dict[tuple[int, int], tuple[bytes, bytes]] = {}  # messages on pages that no tree leads to
        self._freed: set[tuple[int, int]] = set()  # those of them on pages that may be free: they may have been removed
        with ExitStack() as stack:
            stack.enter_context(unused(self.path))
            try:
                self._file = stack.enter_context(PageFile(self.path / "data.mdb", lenient=True))
            except OSError as exc:
                raise StoreError(f"{self.path / 'data.mdb'} cannot be read: {exc.strerror}") from exc
            if self._file.meta is None:
                raise StoreError(f"{self.path / 'data.mdb'} is not a store: neither of its meta pages can be read")
            self._pages()
            self._read_control()
            self._read_messages()
            self._check_index()

    @property
    def messages(self) -> int:
        return sum(stream.state.messages for stream in self.streams.values())

    @property
    def is_sound(self) -> bool:
        return not self.problems and not self.losses

    def _complain(self, what: object) -> None:
        if str(what) not in self.problems:
            self.problems.append(str(what))

    def _pages(self) -> None:
        for damage in self._file.check():
            self._complain(damage)
        self._damage: list[Damage] = list(self._file.damage)
        self._is_broken = any(damage.table != "free list" for damage in self._damage)
        if self._is_broken:
            has_free_list = self._file.free_pages() is not None
            for key, value in self._file.strays():
                if _is_message(key, value):
                    self._strays[MESSAGE_KEY.unpack(key)] = key, value
            # Without the free list it is not known which pages are in use. If the file was cut off, free pages may have
            # what was moved behind its end.
            if self._file.is_cut or not has_free_list:
                for key, value in self._file.strays(is_any=True):
                    if _is_message(key, value) and MESSAGE_KEY.unpack(key) not in self._strays:
                        self._strays[MESSAGE_KEY.unpack(key)] = key, value
                        self._freed.add(MESSAGE_KEY.unpack(key))

    # Control records.

    def _read_control(self) -> None:
        found: dict[bytes, bytes] = {}
        total = 0
        self._is_current, self._has_old_rows = True, False
        for key, value in self._file.entries("control"):
            if key != STAMP:
                total += weight(key, value)
            if is_sound(key, value):
                if _is_control(key, value[:-4]):
                    found[key] = value
                else:
                    self._complain("a record of another table was found among the control records")
            else:
                self._complain(f"a control record ({key[:1].decode(errors='replace')!r}) does not match its checksum")
        self._check_stamp(found, total)
        if self._is_broken or META not in found:
            self._add_copies(found)
            self._add_older(found)
        if META not in found:
            raise StoreError(f"the store in {self.path} cannot be read: its own record is lost")
        self.segment: int = META_RECORD.unpack(found[META][:-4])[1]
        self.block: int = block_size(self.segment)
        for key, value in found.items():
            if key[:1] == STREAM and len(key) == 5:
                self._add_stream(int.from_bytes(key[1:], "big"), value, found)
        self._retired = {int.from_bytes(key[1:], "big") for key in found if key[:1] == RETIRED}
        self._rows: dict[int, dict[str, Row]] = {}
        for key, value in sorted(found.items()):
            if key[:1] == JOURNAL:
                rows = self._rows.setdefault(int.from_bytes(key[1:5], "big"), {})
                rows.update(unpack_journal(value[:-4]))
        self._indexed = {
            key[1:]: INDEXED_RECORD.unpack(value[:-4])[1] for key, value in found.items() if key[:1] == INDEXED
        }

    def _check_stamp(self, found: dict[bytes, bytes], control: int) -> None:
        assert self._file.meta is not None
        if STAMP not in found:
            self._complain(f"the stamp of the last commit is missing; {UNPROVED}")
            self._is_current = False
            return
        number, *sums = STAMP_RECORD.unpack(found[STAMP][:-4])
        if number != self._file.meta.transaction:
            self._complain(
                f"the last commit was {self._file.meta.transaction}, and its records are of {number}; {UNPROVED}"
            )
            self._is_current = False
        tables = {"streams": control, "subjects": self._sum("subjects"), "expiries": self._sum("expiries")}
        for (what, got), wanted in zip(tables.items(), sums, strict=True):
            if wanted != got & _MASK:
                # Among those of streams are the sums of blocks: older ones fit older messages.
                unproved = f"; {UNPROVED}" if what == "streams" else ""
                self._complain(f"the records of {what} are not those of the last commit{unproved}")
                if what == "streams":
                    self._is_broken, self._is_current = True, False
                elif what == "subjects":
                    self._has_old_rows = True

    def _sum(self, table: str) -> int:
        return sum(weight(key, value) for key, value in self._file.entries(table))

    def _add_copies(self, found: dict[bytes, bytes]) -> None:
        """Names and configurations that are lost, from the copies that are kept in the table of indexes."""
        copies = list(self._file.entries("index"))
        if not any(key.startswith(COPY) for key, _ in copies):
            copies = list(self._file.strays(is_any=True))
        for key, value in copies:
            is_copy = key.startswith(COPY) and is_sound(key, value) and key[4:] not in found
            is_copy = is_copy and _is_control(key[4:], value[:-4])
            if is_copy and (key[4:] == META or RETIRED + key[5:9] not in found):
                found[key[4:]] = seal(key[4:], value[:-4])

    def _add_older(self, found: dict[bytes, bytes]) -> None:
        """Records of streams that are lost, as they were at some earlier time; of states the latest."""
        older: dict[bytes, bytes] = {}
        for key, value in self._file.strays(is_any=True):
            known = key == META or (key[:1] in (STREAM, STATE) and len(key) == 5) or (key[:1] == KEPT and len(key) > 5)
            if not known or key in found or not is_sound(key, value) or not _is_control(key, value[:-4]):
                continue
            if key[:1] == STATE and key in older:
                newer = unpack_state(value[:-4])[0].last_seq >= unpack_state(older[key][:-4])[0].last_seq
                value = value if newer else older[key]
            older[key] = value
        alive = {key[1:5] for key in found if key[:1] in (STREAM, STATE, SEGMENT) and len(key) >= 5}
        alive.update(key[:4] for key, _ in self._file.entries("messages") if len(key) == MESSAGE_KEY.size)
        alive.update(sid.to_bytes(4, "big") for sid, _ in self._strays)
        alive.difference_update(key[1:5] for key in found if key[:1] == RETIRED)
        for key, value in older.items():
            if key == META or key[1:5] in alive:
                found[key] = value
                if key != META:
                    kind = {STREAM: "configuration", STATE: "state", KEPT: "consumer or schedule"}[key[:1]]
                    self._complain(
                        f"a {kind} of stream id {int.from_bytes(key[1:5], 'big')} is that of an earlier time"
                    )

    def _add_stream(self, sid: int, value: bytes, found: dict[bytes, bytes]) -> None:
        name, config = unpack_stream(value[:-4])
        state = LogState()
        stored = found.get(control_key(STATE, sid))
        if stored is not None:
            state = unpack_state(stored[:-4])[0]
        else:
            self._complain(f"the state of stream {name!r} is lost")
        prefix, kept = control_key(SEGMENT, sid), control_key(KEPT, sid)
        segments = {
            int.from_bytes(k[5:], "big"): unpack_segment(v[:-4]) for k, v in found.items() if k.startswith(prefix)
        }
        per = self.segment // self.block
        segments = {number: segment for number, segment in segments.items() if len(segment.sums) == per}
        if sum(segment.count for segment in segments.values()) != state.messages:
            self._complain(f"the records of stream {name!r} do not fit its state")
        records = {k[5:].decode(): v[:-4] for k, v in found.items() if k.startswith(kept)}
        self.streams[sid] = Stream(sid, name, config, state, segments, records)

    # Messages.

    def _messages(self) -> Iterator[tuple[int, int, bytes, bytes]]:
        """Stream id, sequence, key and value of what can be read of the messages of streams that exist."""
        for key, value in self._file.entries("messages"):
            if len(key) == MESSAGE_KEY.size:
                sid, seq = MESSAGE_KEY.unpack(key)
                if self._is_of(sid, seq):
                    yield sid, seq, key, value
                elif sid not in self.streams and sid not in self._retired:
                    self._nameless[sid] = self._nameless.get(sid, 0) + 1

    def _is_of(self, sid: int, seq: int) -> bool:
        """Whether a stream has that sequence, as far as its state is known."""
        stream = self.streams.get(sid)
        if stream is None or seq < stream.state.first_seq:
            return False
        return seq <= stream.state.last_seq or not self._is_current

    def _read_messages(self) -> None:
        blocks: dict[int, dict[int, Block]] = {sid: {} for sid in self.streams}
        self._nameless: dict[int, int] = {}
        strays, before = self._strays, (0, 0)
        self._strays = {}
        for sid, seq, key, value in chain(self._messages(), ((*at, *item) for at, item in strays.items())):
            if not self._is_of(sid, seq) or (sid, seq) == before:
                continue
            if (sid, seq) < before or (
                sid,
                seq,
            ) in strays:  # not in its place: a second pass would not find it in order
                if (sid, seq) in self._strays or not is_sound(key, value):
                    continue
                self._strays[sid, seq] = key, value
            else:
                before = sid, seq
            block = blocks[sid].get(seq // self.block)
            if block is None:
                block = blocks[sid][seq // self.block] = Block()
            block.total += share(seq, value)
            if _is_message(key, value):
                block.found += share(seq, value)
                block.maybe.append((seq, subject_of(value)))
                if (sid, seq) in self._freed and (sid, seq) in self._strays:
                    block.freed.append((seq, share(seq, value)))
            else:
                block.damaged.append(seq)
        for sid, number in self._nameless.items():
            self._complain(f"lost: {number} messages of stream id {sid}, whose name and configuration are lost")
        for sid, stream in self.streams.items():
            self._judge_stream(stream, blocks[sid])

    def _judge_stream(self, stream: Stream, blocks: dict[int, Block]) -> None:
        per = self.segment // self.block
        wanted = {
            number * per + at: total
            for number, s in stream.segments.items()
            for at, total in enumerate(s.sums)
            if total
        }
        doubtful: list[int] = []
        unproved: list[int] = []
        for number in sorted({*wanted, *blocks}):
            block, total = blocks.get(number) or Block(), wanted.get(number, 0)
            if block.found == total:
                continue
            low = max(number * self.block, stream.state.first_seq)
            high = min((number + 1) * self.block, stream.state.last_seq + 1) - 1
            known = stream.segments.get(number // per) is not None
            is_full = total // COUNTED == high - low + 1
            if block.freed and known and not is_full:
                self._drop_freed(stream, block)
                if block.found == total:
                    continue
            for seq in block.damaged:
                self.losses.append(Loss(stream.name, seq, seq, 1))
            if is_full and not block.damaged and block.found // COUNTED == total // COUNTED:
                doubtful.append(number)  # all are there and sound, and some are not those that were written
                continue
            if is_full or block.total == total or not known:
                pass  # all that were found are alive: it has no holes, or every message of it was found
            elif not self._is_unreadable(stream.sid, low, high) or block.total // COUNTED > total // COUNTED:
                doubtful.append(number)  # more than there should be: removed ones are among them
                continue
            missing = total // COUNTED - block.total // COUNTED
            if missing > 0:
                self._lost(stream, block, low, high, missing)
            # With holes, and beside what cannot be read, a page may be an older one with messages that were removed.
            if block.maybe and not is_full and (not known if missing <= 0 else block.total != total):
                unproved += (block.maybe[0][0], block.maybe[-1][0])
        if unproved:
            self._complain(
                f"stream {stream.name!r}: messages between {min(unproved)} and {max(unproved)} are copied "
                f"without proof that none was removed"
            )
        if doubtful:
            self._judge_doubtful(stream, {number: blocks.get(number) or Block() for number in doubtful}, wanted)

    def _drop_freed(self, stream: Stream, block: Block) -> None:
        """Messages of a block with holes that are on free pages may have been removed: leave them out."""
        dropped = {seq for seq, _ in block.freed}
        self._skipped.setdefault(stream.sid, set()).update(dropped)
        amount = sum(amount for _, amount in block.freed)
        block.found, block.total, block.freed = block.found - amount, block.total - amount, []
        block.maybe = [item for item in block.maybe if item[0] not in dropped]

    def _lost(self, stream: Stream, block: Block, low: int, high: int, count: int) -> None:
        there = {seq for seq, _ in block.maybe} | set(block.damaged)
        absent = [seq for seq in range(low, high + 1) if seq not in there]
        if absent:
            low, high = absent[0], absent[-1]
        self.losses.append(Loss(stream.name, low, high, count))

    def _is_unreadable(self, sid: int, low: int, high: int) -> bool:
        """Whether a page cannot be read that has messages from `low` to `high`: then some are missing, and none is
        there that was removed."""
        first, last = MESSAGE_KEY.pack(sid, low), MESSAGE_KEY.pack(sid, high)
        return any(
            damage.table == "messages"
            and damage.fatal
            and damage.low <= last
            and (damage.high is None or damage.high > first)
            for damage in self._damage
        )

    def _judge_doubtful(self, stream: Stream, blocks: dict[int, Block], wanted: dict[int, int]) -> None:
        """Keep what the rows of the subjects name; a page may be an older one."""
        rows = self._rows.get(stream.sid, {})
        subjects = {subject for block in blocks.values() for _, subject in block.maybe}
        prefix = stream.sid.to_bytes(4, "big")
        stored: dict[str, Row] = {}
        for key, value in self._file.entries("subjects"):
            if key.startswith(prefix) and (known := unpack_row(key, value)) is not None and known[0] in subjects:
                stored[known[0]] = known[1]
        skipped = self._skipped.setdefault(stream.sid, set())
        is_proved = not self._has_old_rows
        for number, block in sorted(blocks.items()):
            certain = 0
            for seq, subject in block.maybe:
                row = rows.get(subject) or stored.get(subject) or (0, 0, 0)
                if row == (1, seq, seq):
                    certain += 1
                    if not is_proved:
                        is_proved = True  # said once
                        self._complain(
                            f"stream {stream.name!r}: messages that records of subjects name are copied without proof "
                            f"that none was removed"
                        )
                else:
                    skipped.add(seq)
            count = max(0, wanted.get(number, 0) // COUNTED - certain - len(block.damaged))
            low = max(number * self.block, stream.state.first_seq)
            high = min((number + 1) * self.block, stream.state.last_seq + 1) - 1
            if count:
                self.losses.append(Loss(stream.name, low, high, count))
            else:
                self._complain(
                    f"stream {stream.name!r}: removed messages from {low} to {high} are back; they are not copied"
                )

    # The index.

    def _check_index(self) -> None:
        """It can be made again from the messages: a problem, but no loss."""
        sums = dict.fromkeys(self._indexed, 0)
        for key, value in self._file.entries("index"):
            if key[:12] in sums:
                sums[key[:12]] += weight(key, value)
        for prefix, total in sums.items():
            stream = self.streams.get(int.from_bytes(prefix[:4], "big"))
            if stream is not None and total & _MASK != self._indexed[prefix]:
                self._complain(
                    f"the index of segment {int.from_bytes(prefix[4:], 'big')} of stream {stream.name!r} is damaged"
                )

    # Copying.

    def records(self) -> Iterator[tuple[int, int, bytes, bytes]]:
        """The sound messages that were in the streams, in order: stream id, sequence, key and value."""
        with PageFile(self.path / "data.mdb", lenient=True) as self._file:
            strays = ((*at, *item) for at, item in sorted(self._strays.items()))
            for sid, seq, key, value in merge(self._in_order(), strays, key=lambda item: item[:2]):
                if _is_message(key, value) and seq not in self._skipped.get(sid, ()):
                    yield sid, seq, key, value

    def _in_order(self) -> Iterator[tuple[int, int, bytes, bytes]]:
        before = (0, 0)
        for item in self._messages():
            if item[:2] > before and item[:2] not in self._strays:
                before = item[:2]
                yield item


def salvage(path: str | os.PathLike[str], target: str | os.PathLike[str], tell: Callable[[str], None]) -> Survey:
    """Copy what is sound in a store to a new directory; `tell` gets the progress in words."""
    new = Path(target)
    if new.exists() and any(new.iterdir()):
        raise UsageError(f"the target directory must be empty, and {new} is not")
    survey = Survey(path)
    store = LmdbStore(new, tuning=Tuning(segment=survey.segment))
    try:
        _copy(survey, store, tell)
    finally:
        store.close()
    return survey


def _copy(survey: Survey, store: LmdbStore, tell: Callable[[str], None]) -> None:
    logs: dict[int, StreamLog] = {}
    counts: dict[int, int] = dict.fromkeys(survey.streams, 0)
    for stream in survey.streams.values():
        log = logs[stream.sid] = store.create(stream.name, stream.config)
        for name, value in stream.kept.items():
            log.keep(name, value)
    commit_open_group(store)
    for sid, seq, key, value in survey.records():
        log = logs[sid]
        if seq <= log.state.last_seq:
            continue
        if store.pending >= _GROUP or seq - log.state.last_seq > _GROUP:
            commit_open_group(store)
        record = decode(survey.streams[sid].name, seq, key, value)
        log.skip(seq)
        log.append(record.time, record.subject, record.header, record.payload)
        counts[sid] += 1
    commit_open_group(store)
    for stream in survey.streams.values():
        logs[stream.sid].skip(stream.state.last_seq + 1)
    commit_open_group(store)
    while store.backlog:
        commit_open_group(store)
    for stream in survey.streams.values():
        tell(f"stream {stream.name!r}: {counts[stream.sid]} of {stream.state.messages} messages copied")
