"""Damaged messages whose subject cannot be trusted: no lookup by subject passes over them."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from slipstream.server.engine.ports import StreamLog
from slipstream.server.store.groups import commit_open_group
from slipstream.server.store.lmdb.log import LmdbLog
from slipstream.server.store.lmdb.records import MESSAGE_KEY, STAMP, CorruptMessageError, seal
from slipstream.server.store.lmdb.store import LmdbStore
from tests.server.store.lmdb.test_lmdb import TINY, drain, fill, filled, tables
from tests.server.store.test_walks import finish

SUBJECT = 16  # where it begins in a stored message: behind time (0), its length (8), the header's length (12)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of 30 messages on three subjects. Those from 24 on are in a segment without an index, whose last message of `s.1`
    but one is 26."""
    filled(tmp_path / "store")
    return tmp_path / "store"


def flip(path: Path, table: bytes, key: bytes, at: int, bits: int) -> None:
    """Flip bits of a stored value in every copy of it. What it says of its checksum stays the same."""
    value = dict(tables(path)[table])[key]
    changed = value[:at] + bytes([value[at] ^ bits]) + value[at + 1 :]
    data = (path / "data.mdb").read_bytes()
    assert key + value in data
    (path / "data.mdb").write_bytes(data.replace(key + value, key + changed))


def flip_message(path: Path, seq: int, at: int, bits: int) -> None:
    flip(path, b"messages", MESSAGE_KEY.pack(1, seq), at, bits)


def as_of(log: StreamLog, pattern: str, up_to: int) -> list[int] | None:
    """`multi_last`, in one piece and as a walk."""
    snapshot = log.snapshot()
    found = log.multi_last([pattern], up_to=up_to)
    assert finish(snapshot.multi_last([pattern], up_to=up_to)) == found
    snapshot.close()
    return found


# The time; lengths that lead out of the message, or elsewhere in it; no UTF-8; another letter; another subject.
DAMAGES = [(0, 1), (8, 16), (8, 1), (12, 16), (SUBJECT, 128), (SUBJECT, 16), (SUBJECT + 2, 1), (SUBJECT + 2, 3)]


@pytest.mark.parametrize(("at", "bits"), DAMAGES)
def test_a_damaged_message_may_be_of_any_subject(path: Path, at: int, bits: int) -> None:
    """Its block adds up: the sum has the checksum that is stored with it."""
    flip_message(path, 26, at, bits)
    store = LmdbStore(path, tuning=TINY)
    log = store.log("S")
    for pattern in ("s.0", "s.1", "s.2", "s.*", "*.1"):
        assert 26 in (as_of(log, pattern, 26) or ())  # reading it raises
    assert as_of(log, "s.1", 28) == [26]
    assert ("S", 26) in store.damaged()
    with pytest.raises(CorruptMessageError, match="checksum"):
        log.get(26)
    snapshot = log.snapshot()
    for pattern in ("s.0", "s.1", "s.2", "s.*", "*.1"):
        with pytest.raises(CorruptMessageError, match=r"26.*checksum"):
            log.scan(pattern, 26, limit=9)
        with pytest.raises(CorruptMessageError, match=r"26.*checksum"):
            log.scan_some(pattern, 26, limit=9)
        with pytest.raises(CorruptMessageError, match=r"26.*checksum"):
            finish(snapshot.next(pattern, 26))
        # A reader that waits for what is left must come to it.
        assert log.count(pattern, 26) == finish(snapshot.count((pattern,), 26)) >= 2
    snapshot.close()
    # What does not lead over it is served.
    assert [log.last(f"s.{n}") is not None for n in range(3)] == [True] * 3
    assert as_of(log, "s.0", 25) == [25]
    assert [record.seq for record in log.scan("s.1", 27, limit=9)] == [29]
    store.close()


@pytest.mark.parametrize(("at", "bits"), DAMAGES)
def test_nothing_is_in_doubt_once_a_damaged_message_is_removed(path: Path, at: int, bits: int) -> None:
    flip_message(path, 26, at, bits)
    store = LmdbStore(path, tuning=TINY)
    log = store.log("S")
    assert as_of(log, "s.1", 28) == [26]
    assert log.remove(26)
    commit_open_group(store)
    assert not store.damaged()
    assert [as_of(log, f"s.{n}", 28) for n in range(3)] == [[28], [23], [27]]
    assert [record.seq for record in log.scan("s.1", 22, limit=9)] == [23, 29]
    counts = dict(log.subjects(">"))
    assert (counts["s.0"], counts["s.2"]) == (10, 10)  # also if it seemed to be of one of them
    if at == 0:
        assert counts["s.1"] == 9
    for seq in (22, 25, 28):
        assert log.remove(seq)
    commit_open_group(store)
    assert dict(log.subjects("s.0"))["s.0"] == 7
    store.close()


def test_a_damaged_message_counts_once_for_a_subject_it_seems_to_be_of(path: Path) -> None:
    """Else the last message of the other subject could not be found any more."""
    store = LmdbStore(path, tuning=TINY)
    log = store.log("S")
    for seq in range(1, 29):
        if seq % 3 == 1 and seq != 25:
            log.remove(seq)
    commit_open_group(store)
    assert log.count_of("s.0") == 1
    store.close()
    flip_message(path, 26, SUBJECT + 2, 1)  # it seems to be of `s.0`, too
    store = LmdbStore(path, tuning=TINY)
    log = store.log("S")
    assert log.remove(26)
    commit_open_group(store)
    assert log.count_of("s.0") == 1
    assert (record := log.last("s.0")) is not None
    assert record.seq == 25
    store.close()


@pytest.mark.parametrize("pattern", ["s.*", "*.1", "x.*"])
def test_the_newest_match_of_a_filter_is_not_looked_for_behind_a_damaged_message(path: Path, pattern: str) -> None:
    flip_message(path, 29, SUBJECT, 16)
    store = LmdbStore(path, tuning=TINY)
    log = store.log("S")
    log.remove(30)
    commit_open_group(store)
    snapshot = log.snapshot()
    assert finish(snapshot.last(pattern)) == 29
    snapshot.close()
    with pytest.raises(CorruptMessageError, match="message 29"):
        log.last(pattern)
    store.close()


def test_a_segment_with_a_damaged_message_gets_its_index_when_that_is_removed(tmp_path: Path) -> None:
    """Before, an index would not name the message, and nothing would show that it does not."""
    path = tmp_path / "other"
    store = LmdbStore(path, tuning=TINY)
    log = store.create("S", b"")
    fill(log, 22)
    drain(store)
    fill(log, 2)
    commit_open_group(store)  # the segment from 16 on is full, and is to be indexed by a later group
    store.close()
    flip_message(path, 18, SUBJECT, 16)
    store = LmdbStore(path, tuning=TINY)
    log = store.log("S")
    assert isinstance(log, LmdbLog)
    drain(store)
    assert 1 in log.base.indexed
    assert 2 not in log.base.indexed
    assert as_of(log, "s.2", 20) == [18]
    log.remove(18)
    drain(store)
    drain(store)
    assert 2 in log.base.indexed
    assert as_of(log, "s.2", 20) == [15]
    store.close()


def test_what_is_lost_counts_for_those_who_wait_for_the_rest(path: Path) -> None:
    """Without it, nothing would be left for a consumer before it, which so would never come to it."""
    store = LmdbStore(path, tuning=TINY)
    log = store.log("S")
    assert isinstance(log, LmdbLog)
    with store._env.handle.begin(write=True, db=store._env.messages) as txn:
        for seq in (29, 30):
            assert txn.delete(MESSAGE_KEY.pack(1, seq))
    store._env.renew()
    snapshot = log.snapshot()
    for pattern, seq in (("", 29), ("s.1", 28), ("s.2", 28), ("s.*", 29), ("*.1", 28)):
        assert log.count(pattern, seq) >= 1, pattern
        assert finish(snapshot.count((pattern,), seq)) >= 1, pattern
    assert log.count("", 29) == 2
    assert log.count("", 28) == 3
    snapshot.close()
    store.close()


def test_the_time_of_the_first_message_is_not_taken_from_a_damaged_one(path: Path) -> None:
    flip_message(path, 2, 6, 16)
    store = LmdbStore(path, tuning=TINY)
    log = store.log("S")
    assert log.remove(1)
    assert log.state.first_seq == 2
    assert log.state.first_time == 2  # of message 3
    commit_open_group(store)
    store.close()


def test_a_damaged_row_of_a_long_subject_is_counted_again(tmp_path: Path) -> None:
    """The row has the subject in full, its key only a part: it is found by the index."""
    path = tmp_path / "long"
    long = "l." + "x" * 500
    store = LmdbStore(path, tuning=TINY)
    log = store.create("S", b"")
    for n in range(24):
        log.append(n, (long, "s.1", f"l.{n}")[n % 3], b"", b"")
        if n % 6 == 5:
            commit_open_group(store)
    drain(store)
    wanted = dict(log.subjects(">"))
    store.close()
    key = next(key for key, _ in tables(path)[b"subjects"] if len(key) > 400)
    for at in (-12, 100):
        value = dict(tables(path)[b"subjects"])[key]
        flip(path, b"subjects", key, at % len(value), 4)
    store = LmdbStore(path, tuning=TINY)
    log = store.log("S")
    snapshot = log.snapshot()
    assert dict(log.subjects(">")) == wanted
    assert dict(finish(snapshot.subjects(">"))) == wanted
    assert log.multi_last(["l.*"]) == finish(snapshot.multi_last(["l.*"])) == [3, 6, 9, 12, 15, 18, 21, 22, 24]
    snapshot.close()
    store.close()


def brought_back(path: Path, removed: list[int], back: list[int]) -> LmdbStore:
    """The store without messages that were removed, and with some of them, as an older page would have it."""
    store = LmdbStore(path, tuning=TINY)
    log = store.log("S")
    values = {seq: store._env.read.get(MESSAGE_KEY.pack(1, seq)) for seq in back}
    for seq in removed:
        log.remove(seq)
    drain(store)
    store.close()
    env = lmdb.open(str(path), max_dbs=8)
    with env.begin(write=True, db=env.open_db(b"messages")) as txn:
        for seq, value in values.items():
            assert value is not None
            txn.put(MESSAGE_KEY.pack(1, seq), value)
        control = env.open_db(b"control", txn)
        _, *sums = STAMP.unpack((txn.get(b"z", db=control) or b"")[:-4])
        txn.put(b"z", seal(b"z", STAMP.pack(txn.id(), *sums)), db=control)
    env.close()
    return LmdbStore(path, tuning=TINY)


REMOVED = [seq for seq in range(1, 30) if seq % 3 == 1 and seq != 25]  # all of `s.0` but one


def test_a_message_that_an_older_page_brought_back_is_removed_without_being_counted(path: Path) -> None:
    """Its subject's messages that count are others: they must be found as before, and the statistics be right."""
    store = brought_back(path, REMOVED, [22, 28])
    log = store.log("S")
    state = log.committed
    for seq in (22, 28):
        with pytest.raises(CorruptMessageError, match="missing or removed"):
            log.get(seq)
        assert log.remove(seq)
        commit_open_group(store)
        assert log.get(seq) is None
    assert log.committed == state
    assert dict(log.subjects("s.0")) == {"s.0": 1}
    assert as_of(log, "s.0", 28) == [25]
    assert [record.seq for record in log.scan("", 18, limit=99)] == [18, 20, 21, 23, 24, 25, 26, 27, 29, 30]
    assert not store.losses()
    store.close()


def test_purging_messages_that_an_older_page_brought_back_hides_no_other_one(path: Path) -> None:
    """They are swept without being read before: whether they count is not known then."""
    store = brought_back(path, REMOVED, REMOVED[1:])
    log = store.log("S")
    log.purge(below=25)
    drain(store)
    assert dict(log.subjects("s.0")) == {"s.0": 1}
    assert as_of(log, "s.0", 27) == [25]
    store.close()
