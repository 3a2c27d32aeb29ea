"""What only a store on the disk can get wrong: damage, a full disk, other processes, threads, leftovers."""

from __future__ import annotations

import os
import random
import resource
import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from types import SimpleNamespace
from zlib import crc32

import lmdb
import pytest

from slipstream.errors import CorruptRecordError, StoreError, UsageError
from slipstream.server.engine.ports import Record, StreamLog
from slipstream.server.store.groups import commit_open_group, write_group
from slipstream.server.store.lmdb import view
from slipstream.server.store.lmdb.env import Environment, translated
from slipstream.server.store.lmdb.jobs import _sorted
from slipstream.server.store.lmdb.log import LmdbGroup, LmdbLog
from slipstream.server.store.lmdb.pages import PageFile
from slipstream.server.store.lmdb.records import MESSAGE_KEY, STAMP, CorruptMessageError, decode, seal
from slipstream.server.store.lmdb.salvage import Survey
from slipstream.server.store.lmdb.segments import Base, Part, Row, Tuning, pack_row
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.lmdb.view import stored_rows

TINY = Tuning(segment=8, slice=6, dirty=4, journal=12, cache=3, probe=4, page=3)
TABLES = (b"messages", b"index", b"subjects", b"control")


def drain(store: LmdbStore) -> None:
    commit_open_group(store)
    while store.backlog:
        commit_open_group(store)


def fill(log: StreamLog, count: int, subjects: int = 3) -> None:
    for n in range(count):
        log.append(n, f"s.{n % subjects}", b"", b"%d" % n)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Iterator[LmdbStore]:
    store = LmdbStore(path, map_size=1 << 26, tuning=TINY)
    yield store
    store.close()


def tables(path: Path) -> dict[bytes, list[tuple[bytes, bytes]]]:
    """Everything in the files of a store that is closed."""
    env = lmdb.open(str(path), max_dbs=8, readonly=True, lock=False)
    found = {}
    for name in TABLES:
        db = env.open_db(name, create=False)
        with env.begin(db=db) as txn:
            found[name] = list(txn.cursor().iternext())
    env.close()
    return found


def damage(path: Path, table: bytes, wanted: Callable[[bytes], bool], at: int = -6) -> None:
    """Flip one bit in the value of the first key that is wanted, in every copy that the file has of it."""
    key, value = next((key, value) for key, value in tables(path)[table] if wanted(key))
    data = bytearray((path / "data.mdb").read_bytes())
    place = data.find(key + value)
    assert place > 0
    while place >= 0:
        data[place + len(key) + at % len(value)] ^= 0x10
        place = data.find(key + value)
    (path / "data.mdb").write_bytes(data)


def filled(path: Path, count: int = 30) -> None:
    store = LmdbStore(path, tuning=TINY)
    log = store.create("S", b"config")
    for _ in range(count // 6):  # enough groups for the rows to be flushed
        fill(log, 6)
        commit_open_group(store)
    drain(store)
    store.close()


# Checksums.


def test_every_bit_of_a_record_is_covered_by_its_checksum() -> None:
    key = (1).to_bytes(4, "big") + (7).to_bytes(8, "big")
    body = (5).to_bytes(8, "little") + (1).to_bytes(4, "little") + (0).to_bytes(4, "little") + b"spayload"
    value = seal(key, body)
    assert decode("S", 7, key, value) == Record(7, 5, "s", b"", b"payload")
    for bit in range(len(value) * 8):
        broken = bytearray(value)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecordError):
            decode("S", 7, key, bytes(broken))
    with pytest.raises(CorruptRecordError):
        decode("S", 8, key[:-1] + b"\x08", value)


def test_a_scan_takes_no_message_for_another_one_whose_key_has_the_same_checksum(store: LmdbStore) -> None:
    own, others = store.create("own", b""), store.create("others", b"")
    last = 0xD07AA046
    assert crc32(MESSAGE_KEY.pack(1, last)) == crc32(MESSAGE_KEY.pack(2, 1))
    others.append(0, "others", b"", b"secret")
    own.skip(last - 1)
    own.append(0, "own", b"", b"1")
    own.append(0, "own", b"", b"2")
    commit_open_group(store)
    own.remove(last)
    commit_open_group(store)
    assert [record.seq for record in own.scan("", last - 1, limit=10)] == [last - 1]
    assert own.scan("", last, limit=10) == []


def test_a_scan_over_a_wide_gap_takes_no_message_for_another_one(store: LmdbStore) -> None:
    log, later = store.create("own", b""), 0x196300775
    assert crc32(MESSAGE_KEY.pack(1, 2)) == crc32(MESSAGE_KEY.pack(1, later))
    log.append(0, "s", b"", b"1")
    commit_open_group(store)
    log.skip(later)
    log.append(0, "s", b"", b"2")
    commit_open_group(store)
    assert [record.seq for record in log.scan("", 1, limit=10)] == [1, later]


def test_a_damaged_message_raises_and_the_others_are_served(path: Path) -> None:
    filled(path)
    damage(path, b"messages", lambda key: key.endswith(b"\x05"))
    store = LmdbStore(path)
    log = store.log("S")
    with pytest.raises(CorruptMessageError, match="message 5 of stream 'S'") as caught:
        log.get(5)
    assert (caught.value.stream, caught.value.seq) == ("S", 5)
    assert [record.seq for record in log.scan("", 1, limit=10)] == [1, 2, 3, 4]
    for pattern in ("", ">", "s.*", "s.1"):
        with pytest.raises(CorruptMessageError):
            log.scan(pattern, 5, limit=10)
    assert [record.seq for record in log.scan("s.1", 2, limit=10)] == [2]
    assert [record.seq for record in log.scan("s.*", 1, limit=10)] == [1, 2, 3, 4]
    assert [record.seq for record in log.scan("", 6, limit=3)] == [6, 7, 8]
    assert store.corrupt_records >= 6
    store.close()


@pytest.mark.parametrize("at", [-6, 8, 10, 12, 16, 17])  # payload, lengths, subject
def test_a_damaged_message_can_be_removed_and_purged(path: Path, at: int) -> None:
    filled(path)
    damage(path, b"messages", lambda key: key.endswith(b"\x05"), at)
    store = LmdbStore(path)
    log = store.log("S")
    assert log.count_of("s.1") == 10
    assert log.remove(5)
    assert log.state.messages == 29
    assert log.count_of("s.1") == 9
    assert log.purge(below=31) == 29
    assert log.state.messages == log.state.bytes == log.state.subjects == 0
    commit_open_group(store)
    store.close()


def test_a_damaged_index_entry_is_rebuilt_from_the_messages(path: Path) -> None:
    filled(path)
    damage(path, b"index", lambda key: key.endswith(b"s.1"))
    store = LmdbStore(path)
    log = store.log("S")
    for pattern in ("s.1", "*.1"):
        assert [record.seq for record in log.scan(pattern, 1, limit=50)] == list(range(2, 31, 3))
        assert log.count(pattern, 2) == 10
        assert log.count(pattern, 4) == 9
    store.close()


def test_a_damaged_subject_row_is_counted_again(path: Path) -> None:
    filled(path, 24)  # the flush begins behind the last of them
    damage(path, b"subjects", lambda key: key.endswith(b"s.1"))
    store = LmdbStore(path)
    log = store.log("S")
    assert log.count_of("s.1") == 8
    assert (log.first_seq_of("s.1"), log.last_seq_of("s.1")) == (2, 23)
    assert store.corrupt_records > 0
    store.close()
    store = LmdbStore(path)
    assert list(store.log("S").subjects("s.*")) == [("s.0", 8), ("s.1", 8), ("s.2", 8)]
    store.close()


@pytest.mark.parametrize("kind", [b"m", b"s", b"t", b"g", b"x"])
def test_a_store_whose_own_records_are_damaged_is_not_opened(path: Path, kind: bytes) -> None:
    filled(path)
    damage(path, b"control", lambda key: key.startswith(kind), at=0)
    with pytest.raises(StoreError, match=r"checksum.*slipstream server check.*slipstream server salvage"):
        LmdbStore(path)
    damage(path, b"control", lambda key: key.startswith(kind), at=-1)
    with pytest.raises(StoreError, match=r"last commit|checksum"):  # and the lock was given back
        LmdbStore(path)


# A full disk.


def test_a_full_map_drops_the_groups_and_the_store_recovers(path: Path) -> None:
    store = LmdbStore(path, map_size=1 << 20)
    log = store.create("S", b"")
    log.append(1, "a", b"", b"first")
    commit_open_group(store)
    for _ in range(40):
        log.append(2, "b", b"", bytes(50_000))
    group = store.seal()
    log.append(3, "c", b"", b"in the open group")
    store.begin(group)
    while not store.write_some(group):
        pass
    with pytest.raises(StoreError, match="full"):
        store.commit(group)
    store.abandon()
    assert log.state == log.committed
    assert log.committed.last_seq == 1
    assert log.last_seq_of("b") == log.count_of("c") == 0
    assert log.append(4, "d", b"", b"fits") == 2
    commit_open_group(store)
    store.close()
    store = LmdbStore(path)
    assert [record.payload for record in store.log("S").scan("", 1, limit=9)] == [b"first", b"fits"]
    store.close()


def test_a_group_that_cannot_be_written_is_dropped_again_and_again(path: Path) -> None:
    store = LmdbStore(path, map_size=1 << 19, tuning=TINY)
    log = store.create("S", b"")
    commit_open_group(store)
    last = failed = 0
    for n in range(120):
        for _ in range(10):
            log.append(n, f"s.{n}", b"", bytes(400))
        try:
            commit_open_group(store)
            last = log.committed.last_seq
        except StoreError:
            store.abandon()
            failed += 1
            assert log.committed.last_seq == log.state.last_seq == last
            if failed == 3:
                break
    assert failed == 3
    assert log.count("", 1) == len(log.scan("", 1, limit=5_000)) == last
    store.close()


def test_a_failed_commit_is_dropped_and_the_store_recovers(path: Path) -> None:
    store = LmdbStore(path)
    log = store.create("S", b"")
    fill(log, 50)
    commit_open_group(store)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((path / "data.mdb").stat().st_size, limits[1]))
    try:
        for _ in range(100):
            log.append(1, "large", b"", bytes(10_000))
        with pytest.raises(StoreError, match="disk"):
            commit_open_group(store)
        store.abandon()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert log.state == log.committed
    assert log.committed.last_seq == 50
    assert log.append(2, "s.0", b"", b"after") == 51
    commit_open_group(store)
    store.close()
    store = LmdbStore(path)
    assert [record.seq for record in store.log("S").scan("", 1, limit=99)] == list(range(1, 52))
    store.close()


# Threads.


def test_a_group_may_be_begun_and_committed_by_a_thread(store: LmdbStore) -> None:
    log = store.create("S", b"")
    with ThreadPoolExecutor(1) as worker:
        for _ in range(3):
            fill(log, 20)
            group = store.seal()
            worker.submit(store.begin, group).result()
            while not store.write_some(group):
                log.append(1, "meanwhile", b"", b"")
            worker.submit(store.commit, group).result()
            store.finish(group)
        assert log.committed.last_seq >= 60


def test_a_transaction_that_is_abandoned_elsewhere_does_not_lock_the_next_one_out(store: LmdbStore) -> None:
    log = store.create("S", b"")
    with ThreadPoolExecutor(1) as worker:
        fill(log, 20)
        group = store.seal()
        worker.submit(store.begin, group).result()
        store.write_some(group)
        store.abandon()
        assert store.streams() == []
        log = store.create("S", b"")
        fill(log, 5)
        group = store.seal()
        worker.submit(store.begin, group).result(timeout=20)
        while not store.write_some(group):
            pass
        with pytest.raises(UsageError):
            store.commit(group)  # not the thread that began it
        worker.submit(store.commit, group).result()
        store.finish(group)
    assert log.committed.messages == 5


def test_groups_are_carried_through_one_at_a_time(store: LmdbStore) -> None:
    store.create("S", b"")
    group = store.seal()
    with pytest.raises(UsageError):
        store.seal()
    store.commit(group)  # not begun: nothing happens
    with pytest.raises(UsageError):
        store.finish(group)
    store.begin(group)
    with pytest.raises(UsageError):
        store.begin(group)
    while not store.write_some(group):
        pass
    with pytest.raises(UsageError):
        store.finish(group)
    store.commit(group)
    store.finish(group)
    with pytest.raises(UsageError):
        store.finish(group)


# Other processes.


def test_a_second_process_learns_the_pid_of_the_lock_holder(store: LmdbStore, path: Path) -> None:
    code = "import sys; from slipstream.server.store.lmdb.store import LmdbStore; LmdbStore(sys.argv[1])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    other = subprocess.run([sys.executable, "-c", code, str(path)], env=environment, capture_output=True, text=True)
    assert other.returncode == 1
    assert f"in use by process {os.getpid()}" in other.stderr
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        LmdbStore(path)
    assert store.streams() == []


@pytest.mark.parametrize(
    ("error", "free", "text"),
    [
        ("mdb_txn_commit: No space left on device", 10**9, "no space left on device while committing a group in"),
        ("mdb_txn_commit: Input/output error", 0, "no space left on device while committing a group in"),
        (
            "mdb_txn_commit: Input/output error",
            10**9,
            "the disk failed while committing a group: mdb_txn_commit: Input",
        ),
    ],
)
def test_a_full_disk_is_named_as_such(
    error: str, free: int, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """LMDB reports a write that a full disk cut short as an I/O error."""
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=1))
    with pytest.raises(StoreError, match=text), translated("committing a group", tmp_path):
        raise lmdb.DiskError(error)


def test_an_error_that_lmdb_returns_beside_a_result_is_one_of_the_store(tmp_path: Path) -> None:
    """What CPython makes of it when py-lmdb's cursor deletes an entry beside a page that cannot be read."""
    error = SystemError("<method 'delete' of 'Cursor' objects> returned a result with an exception set")
    error.__cause__ = lmdb.BadTxnError("MDB_BAD_TXN")
    with (
        pytest.raises(StoreError, match="the disk failed while writing a group: MDB_BAD_TXN") as caught,
        translated("writing a group", tmp_path),
    ):
        raise error
    assert caught.value.__cause__ is error
    for cause in (None, ValueError("another")):
        error = SystemError("of something else")
        error.__cause__ = cause
        with pytest.raises(SystemError, match="of something else"), translated("writing a group", tmp_path):
            raise error


@pytest.mark.parametrize("name", ["store.lock", "lock.mdb", "data.mdb"])
@pytest.mark.parametrize("kind", ["symbolic", "hard", "dangling"])
def test_a_link_in_place_of_a_file_of_the_store_is_refused(name: str, kind: str, tmp_path: Path) -> None:
    """It would have the server overwrite the file that it leads to."""
    folder, victim = tmp_path / "store", tmp_path / "victim"
    folder.mkdir()
    if kind != "dangling":
        victim.write_text("precious")
    if kind == "hard":
        (folder / name).hardlink_to(victim)
    else:
        (folder / name).symlink_to(victim)
    with pytest.raises(StoreError, match=rf"{name} in .* must be a file of its own, not a link"):
        LmdbStore(folder)
    assert not victim.exists() if kind == "dangling" else victim.read_text() == "precious"


def test_a_lock_file_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    LmdbStore(path).close()
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(StoreError, match=rf"must belong to the user of the server \(uid {uid + 1}\), got uid {uid}"):
        LmdbStore(path)


def test_a_forked_child_can_neither_read_nor_write(store: LmdbStore) -> None:
    log = store.create("S", b"")
    fill(log, 5)
    commit_open_group(store)
    pid = os.fork()
    if pid == 0:
        wrong = 0
        for use in (lambda: log.get(1), store.seal, lambda: log.scan("", 1, limit=1), lambda: log.last("s.*")):
            try:
                use()
                wrong += 1
            except StoreError:
                pass
        os._exit(wrong)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert log.get(1) is not None
    fill(log, 5)
    commit_open_group(store)


def test_a_directory_that_cannot_be_used_is_an_error_of_the_store(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StoreError, match="cannot be used"):
        LmdbStore(file / "store")


# Streams.


def test_streams_and_their_configurations_are_there_after_reopening(store: LmdbStore, path: Path) -> None:
    store.create("A", b"one")
    store.create("B", b"two")
    commit_open_group(store)
    store.configure("A", b"three")
    store.delete("B")
    fill(store.create("B", b"four"), 3)
    commit_open_group(store)
    store.configure("A", b"lost")
    store.close()
    again = LmdbStore(path)
    assert sorted(again.streams()) == [("A", b"three"), ("B", b"four")]
    assert again.log("B").committed.messages == 3
    with pytest.raises(StoreError, match="stream 'C' does not exist"):
        again.log("C")
    with pytest.raises(UsageError):
        again.create("A", b"")
    again.close()


def test_the_log_of_a_deleted_stream_is_empty_and_rejects_changes(store: LmdbStore) -> None:
    log = store.create("S", b"")
    fill(log, 9)
    commit_open_group(store)
    store.delete("S")
    assert log.get(3) is not None  # the reader's view moves with the commit
    with pytest.raises(StoreError, match="was deleted"):
        log.append(1, "a", b"", b"")
    commit_open_group(store)
    assert log.get(3) is None
    assert log.committed.messages == 0
    assert log.scan("", 1, limit=9) == []


@pytest.mark.parametrize("how", ["delete", "purge", "recreate"])
def test_nothing_is_left_of_deleted_streams(store: LmdbStore, path: Path, how: str) -> None:
    other = store.create("OTHER", b"")
    fill(other, 20)
    log = store.create("S", b"")
    for _ in range(5):
        fill(log, 40, subjects=30)
        drain(store)
    if how == "purge":
        log.purge()
    else:
        store.delete("S")
        if how == "recreate":
            store.create("S", b"")
    commit_open_group(store)
    assert store.backlog
    drain(store)
    store.close()
    left = tables(path)
    assert len(left[b"messages"]) == 20
    # The copies of configurations are those of the streams that exist.
    copies = {key[4:] for key, _ in left[b"index"] if key[:4] == bytes(4)}
    assert copies == {b"m", *(key for key, _ in left[b"control"] if key[:1] == b"s")}
    left[b"index"] = [item for item in left[b"index"] if item[0][:4] != bytes(4)]
    assert {key[:4] for name in (b"messages", b"index", b"subjects") for key, _ in left[name]} == {bytes((0, 0, 0, 1))}
    assert not [key for key, _ in left[b"control"] if key.startswith(b"d")]
    assert {key[1:5] for key, _ in left[b"control"] if key[:1] in b"gxj"} == {bytes((0, 0, 0, 1))}


def test_a_large_purge_is_seen_at_once_and_cleared_in_slices(store: LmdbStore, path: Path) -> None:
    log = store.create("S", b"")
    for _ in range(10):
        fill(log, 50, subjects=20)
        commit_open_group(store)
    drain(store)
    assert log.purge(below=401) == 400
    assert (log.state.messages, log.state.first_seq) == (100, 401)
    assert [log.count_of(f"s.{n}") for n in range(20)] == [6] * 10 + [4] * 10
    group = store.seal()
    assert group.size < 60
    write_group(store, group)
    store.finish(group)
    assert log.get(400) is None
    assert log.scan("s.3", 1, limit=99)[0].seq > 400
    assert store.backlog
    store.close()
    store = LmdbStore(path, tuning=TINY)  # a crash in the middle of it
    log = store.log("S")
    assert store.backlog
    assert [log.count_of(f"s.{n}") for n in range(20)] == [6] * 10 + [4] * 10
    assert dict(log.subjects(">")) == {f"s.{n}": 6 if n < 10 else 4 for n in range(20)}
    drain(store)
    store.close()
    left = tables(path)
    assert [int.from_bytes(key[4:], "big") for key, _ in left[b"messages"]] == list(range(401, 501))
    assert min(int.from_bytes(key[4:12], "big") for key, _ in left[b"index"]) == 401 // 8


def test_subjects_longer_than_a_key_are_kept_apart(store: LmdbStore, path: Path) -> None:
    log = store.create("S", b"")
    names = [f"long.{'x' * 600}.{n}" for n in range(20)] + [f"long.{'é' * 250}", "long.short"]
    for n, name in enumerate(names * 3):
        log.append(n, name, b"", b"")
    drain(store)
    store.close()
    again = LmdbStore(path, tuning=TINY)
    log = again.log("S")
    assert list(log.subjects("long.>")) == [(name, 3) for name in sorted(names)]
    assert [log.last_seq_of(name) for name in names] == list(range(45, 67))
    assert [len(log.scan(name, 1, limit=9)) for name in names] == [3] * 22
    assert log.count("long.*.7", 10) == 2
    assert log.purge(pattern=names[5]) == 3
    assert log.count_of(names[5]) == 0
    commit_open_group(again)
    again.close()


def test_a_sequence_far_ahead_costs_nothing(store: LmdbStore) -> None:
    log = store.create("S", b"")
    fill(log, 20)
    log.purge(below=1 << 50)
    assert log.state.last_seq == (1 << 50) - 1
    assert log.append(1, "a", b"", b"") == 1 << 50
    assert log.remove(1 << 50)
    assert log.purge(keep=5) == 0
    assert log.last_seq_of("a") == log.first_seq_of("a") == 0
    log.append(2, "a", b"", b"")
    assert log.purge(keep=5) == 0
    commit_open_group(store)
    assert [record.seq for record in log.scan("a", 1, limit=9)] == [(1 << 50) + 1]
    assert log.time_to_seq(2) == (1 << 50) + 1
    assert log.last("*") is not None


def test_rows_of_many_streams_are_evicted_from_memory(path: Path) -> None:
    tuning = Tuning(segment=8, slice=50, dirty=1_000, journal=20, cache=2)
    store = LmdbStore(path, tuning=tuning)
    names = [f"S{n}" for n in range(10)]
    for name in names:
        fill(store.create(name, b""), 15, subjects=15)
    for _ in range(600):
        commit_open_group(store)
    logs = [store.log(name) for name in names]
    assert sum(log.base.journaled for log in logs if isinstance(log, LmdbLog)) <= 4 * tuning.journal
    store.close()
    store = LmdbStore(path, tuning=tuning)
    for name in names:
        assert dict(store.log(name).subjects(">")) == {f"s.{n}": 1 for n in range(15)}
    store.close()


def test_a_stream_of_one_subject_is_read_by_it_from_anywhere(store: LmdbStore) -> None:
    log = store.create("S", b"")
    for n in range(100):
        log.append(n, "only", b"", b"")
        if n % 7 == 6:
            log.remove(n - 3)
        if n % 10 == 9:
            commit_open_group(store)
    expected = [seq for seq in range(1, 101) if seq % 7 != 3]
    for seq in (1, 30, 99, 101):
        assert [record.seq for record in log.scan("only", seq, limit=200)] == [at for at in expected if at >= seq]
        assert log.count("only", seq) == log.count("*", seq) == len([at for at in expected if at >= seq])
    assert log.multi_last(["only"], up_to=50) == [50]
    assert log.multi_last(["only"], up_to=52) == [51]
    assert log.purge(pattern="only", keep=10) == len(expected) - 10
    commit_open_group(store)
    assert log.committed.first_seq == expected[-10]


def test_another_format_and_invalid_options_are_rejected(path: Path) -> None:
    with pytest.raises(UsageError, match="sync"):
        LmdbStore(path, sync="never")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="segment"):
        LmdbStore(path, tuning=Tuning(segment=100_000))
    LmdbStore(path).close()
    env = lmdb.open(str(path), max_dbs=8)
    with env.begin(write=True, db=env.open_db(b"control")) as txn:
        txn.put(b"m", seal(b"m", (9).to_bytes(4, "little") + bytes(8)))
    env.close()
    with pytest.raises(StoreError, match="format 9"):
        LmdbStore(path)


def test_a_store_of_format_1_gets_the_sums_that_it_lacks(path: Path) -> None:
    filled(path)
    env = lmdb.open(str(path), max_dbs=8)
    with env.begin(write=True, db=env.open_db(b"control")) as txn:
        for key, value in list(txn.cursor().iternext()):
            if key[:1] == b"g":
                txn.put(key, seal(key, value[:16]))
            elif key[:1] == b"x":
                txn.put(key, seal(key, value[:8]))
            elif key == b"m":
                txn.put(key, seal(key, (1).to_bytes(4, "little") + value[4:-4]))
            elif key == b"z":
                txn.delete(key)
    env.close()
    before = {name: content for name, content in tables(path).items() if name != b"control"}
    store = LmdbStore(path, tuning=TINY)
    log = store.log("S")
    assert [record.seq for record in log.scan("s.1", 1, limit=50)] == list(range(2, 31, 3))
    assert log.remove(7)
    commit_open_group(store)
    store.close()
    store = LmdbStore(path, tuning=TINY)
    assert [record.seq for record in store.log("S").scan("", 1, limit=50)] == [n for n in range(1, 31) if n != 7]
    assert store.log("S").get(7) is None
    assert not store.corrupt_records
    store.close()
    assert before[b"index"] == tables(path)[b"index"]


# A store that is not what it was.


def grown(path: Path, word: bytes, first: int) -> None:
    store = LmdbStore(path, map_size=1 << 26, tuning=Tuning(segment=256))
    log = store.log("S") if first > 1 else store.create("S", b"")
    for n in range(first, first + 200):
        log.append(n, f"s.{n % 7}", b"", b"%b %d" % (word, n))
        if n % 20 == 0:
            commit_open_group(store)
    commit_open_group(store)
    store.close()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_store_whose_file_is_empty_or_gone_is_refused(tmp_path: Path, is_there: bool) -> None:
    grown(tmp_path, b"a", 1)
    (tmp_path / "data.mdb").unlink()
    if is_there:
        (tmp_path / "data.mdb").touch()
    with pytest.raises(CorruptRecordError, match=f"data.mdb is {'empty' if is_there else 'not there'}"):
        LmdbStore(tmp_path, map_size=1 << 26)
    (tmp_path / "store.made").unlink()
    LmdbStore(tmp_path, map_size=1 << 26).close()


def test_a_store_that_was_never_finished_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "store.lock").write_bytes(b"4711\n")
    (tmp_path / "lock.mdb").touch()
    (tmp_path / "data.mdb").touch()
    LmdbStore(tmp_path, map_size=1 << 26).close()


def test_a_page_of_a_copy_that_went_on_alone_is_not_served(tmp_path: Path) -> None:
    one, two, mixed = tmp_path / "one", tmp_path / "two", tmp_path / "mixed"
    grown(one, b"both", 1)
    shutil.copytree(one, two)
    grown(one, b"one", 201)
    grown(two, b"two", 201)
    ours, theirs = (one / "data.mdb").read_bytes(), (two / "data.mdb").read_bytes()
    noticed = 0
    for at in range(2 * 4096, min(len(ours), len(theirs)), 4096):
        if ours[at : at + 4096] == theirs[at : at + 4096]:
            continue
        shutil.rmtree(mixed, ignore_errors=True)
        mixed.mkdir()
        (mixed / "data.mdb").write_bytes(ours[:at] + theirs[at : at + 4096] + ours[at + 4096 :])
        survey = Survey(mixed)
        try:
            store = LmdbStore(mixed, map_size=1 << 26, tuning=TINY)
        except CorruptRecordError:
            continue
        errors = 0
        for seq in range(1, 401):
            try:
                record = store.log("S").get(seq)
            except CorruptRecordError:
                errors += 1
            else:
                assert record is not None
                assert not record.payload.startswith(b"two")
        assert (not errors) == survey.is_sound
        assert bool(errors) == bool(store.losses())
        noticed += bool(errors)
        store.close()
    assert noticed


def test_a_free_list_with_an_impossible_key_is_refused(tmp_path: Path) -> None:
    grown(tmp_path, b"a", 1)
    data = bytearray((tmp_path / "data.mdb").read_bytes())
    with PageFile(tmp_path / "data.mdb") as file:
        assert file.meta is not None
        at = file.meta.free.root * 4096
    (node,) = struct.unpack_from("<H", data, at + 16)
    for bit in (5, 20, 40, 62):
        flipped = bytearray(data)
        flipped[at + node + 8 + bit // 8] ^= 1 << bit % 8
        (tmp_path / "data.mdb").write_bytes(flipped)
        with pytest.raises(CorruptRecordError, match="free list"):
            LmdbStore(tmp_path, map_size=1 << 26)


def test_an_unreadable_page_leaves_all_other_messages_readable(tmp_path: Path) -> None:
    grown(tmp_path, b"a", 1)
    grown(tmp_path, b"a", 201)
    store = LmdbStore(tmp_path, map_size=1 << 26)
    with PageFile(tmp_path / "data.mdb") as file:
        tree = file.trees()["messages"]
        assert tree.depth == 2
        pages = [(number, [key for key, *_ in file._leaf(page)]) for number, page, _, _ in file._leaves(tree, "m")]
    number, keys = pages[len(pages) // 2]
    with open(tmp_path / "data.mdb", "r+b") as data:
        os.pwrite(data.fileno(), bytes(4096), number * 4096)
    gone = {int.from_bytes(key[4:], "big") for key in keys}
    log, errors = store.log("S"), set()
    for _ in range(2):
        for seq in range(1, 401):
            try:
                record = log.get(seq)
            except CorruptRecordError:
                errors.add(seq)
            else:
                assert record is not None
    assert errors == gone
    assert {seq for _, seq in store.damaged()} == gone
    store.close()


def test_a_damaged_message_is_removed_whatever_its_checksum_says(tmp_path: Path) -> None:
    """Its share in the sum of its block is not known: the sum must neither get negative nor stay wrong."""
    grown(tmp_path, b"a", 1)
    data = (tmp_path / "data.mdb").read_bytes()
    known = b"s.4a 200"
    at = data.index(known) + len(known)
    for trailer in (b"\xff" * 4, bytes(4)):
        (tmp_path / "data.mdb").write_bytes(data.replace(known + data[at : at + 4], known + trailer))
        store = LmdbStore(tmp_path, map_size=1 << 26)
        log = store.log("S")
        with pytest.raises(CorruptRecordError):
            log.get(200)
        for seq in (*range(193, 200), 200):
            assert log.remove(seq)
            commit_open_group(store)
        assert log.get(192) is not None
        store.close()
        again = LmdbStore(tmp_path, map_size=1 << 26)
        assert [record.seq for record in again.log("S").scan("", 0, limit=999)] == list(range(1, 193))
        assert not again.losses()
        again.close()


@pytest.mark.parametrize("below", [9_001, 12_345, 15_000, 16_384, 17_000, 30_000])
def test_messages_are_counted_exactly_where_a_purge_cuts_a_segment_of_very_many(path: Path, below: int) -> None:
    """The checksums of some 8,000 messages reach the bit from which on a sum of blocks has their number."""
    with_purge, count = LmdbStore(path), 33_000
    log = with_purge.create("S", b"{}")
    fill(log, count)
    commit_open_group(with_purge)
    assert log.count("", below) == count - below + 1
    assert log.purge(below=below) == below - 1
    commit_open_group(with_purge)
    assert log.committed.messages == log.count("", 0) == count - below + 1
    assert log.purge(keep=1000) == count - below + 1 - 1000
    assert (log.state.first_seq, log.state.messages) == (count - 999, 1000)
    with_purge.close()


@pytest.mark.parametrize("keep", [1, 9, 10, 11, 64, 199, 200, 201])
def test_purge_that_keeps_the_newest_counts_by_blocks(path: Path, keep: int) -> None:
    small = LmdbStore(path, tuning=Tuning(segment=32))
    log = small.create("S", b"{}")
    fill(log, 150)
    commit_open_group(small)
    for seq in (3, 40, 41, 149):
        log.remove(seq)
    commit_open_group(small)
    log.skip(100_000)  # a wide gap
    fill(log, 60)
    log.remove(100_005)
    every = [seq for seq in range(1, 101_000) if log.peek(seq) is not None]
    assert len(every) == log.state.messages == 205
    assert log.purge(keep=keep) == max(0, 205 - keep)
    assert [seq for seq in range(1, 101_000) if log.peek(seq) is not None] == every[-keep:]
    commit_open_group(small)
    assert log.committed.messages == keep
    small.close()


# Jobs and sizes.


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000])
@pytest.mark.parametrize("is_ordered", [True, False])
def test_names_are_sorted_in_pieces(count: int, is_ordered: bool) -> None:
    names = [f"s.{n:04}" for n in range(count)]
    mixed = names if is_ordered else random.Random(count).sample(names, count)
    parts = [part for part in _sorted(mixed, 4) if not isinstance(part, int)]
    assert [name for part in parts for name in part] == names
    assert all(0 < len(part) <= 4 for part in parts)


def test_more_rows_are_kept_for_a_flush_where_there_are_many_subjects() -> None:
    tuning = Tuning(dirty=100, cache=50)
    assert [tuning.flush_at(subjects) for subjects in (0, 400, 1_000, 10_000_000)] == [100, 100, 250, 400]
    assert [tuning.cached(subjects) for subjects in (0, 200, 1_000, 10_000_000)] == [50, 50, 250, 400]


def test_rows_that_change_while_they_are_flushed_survive_a_crash(path: Path) -> None:
    tuning = Tuning(segment=8, slice=8, dirty=20, journal=60, cache=4)
    store = LmdbStore(path, tuning=tuning)
    log, pick, alive = store.create("S", b""), random.Random(5), dict[int, str]()
    were_flushing = 0
    for n in range(120):
        for _ in range(3):
            subject = f"s.{pick.randrange(40)}"
            alive[log.append(n, subject, b"", b"")] = subject
        for seq in pick.sample(sorted(alive), 2):
            log.remove(seq)
            del alive[seq]
        commit_open_group(store)
        assert isinstance(log, LmdbLog)
        were_flushing += log.base.is_flushing
        expected = {subject: list(alive.values()).count(subject) for subject in set(alive.values())}
        shutil.copytree(path, path.parent / "copy")  # what a crash leaves
        copy = LmdbStore(path.parent / "copy", tuning=tuning)
        for found in (log, copy.log("S")):
            assert dict(found.subjects(">")) == expected
            assert {subject: found.count_of(subject) for subject in expected} == expected
            assert found.state.subjects == found.committed.subjects == len(expected)
        copy.close()
        shutil.rmtree(path.parent / "copy")
    assert were_flushing > 20
    store.close()


def test_a_flush_begins_again_after_a_group_was_lost(path: Path) -> None:
    tuning = Tuning(segment=64, slice=8, dirty=20, journal=60, cache=4)
    store = LmdbStore(path, tuning=tuning)
    log = store.create("S", b"")
    assert isinstance(log, LmdbLog)
    fill(log, 30, subjects=30)
    commit_open_group(store)
    assert log.base.is_flushing
    fill(log, 1)
    group = store.seal()
    store.begin(group)
    store.write_some(group)
    store.abandon()
    assert len(log.base.unflushed()) == 30
    fill(log, 1)
    drain(store)
    assert not log.base.is_flushing
    drain(store)
    store.close()
    assert sum(key.startswith((1).to_bytes(4, "big")) for key, _ in tables(path)[b"subjects"]) == 30


def test_rows_that_cannot_be_read_fail_the_group_and_not_the_store(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.create("S", b"")
    fill(log, 3)
    commit_open_group(store)

    def damaged(*_: object) -> None:
        raise lmdb.CorruptedError("a damaged page")

    fill(log, 1)
    with monkeypatch.context() as patched:
        patched.setattr(LmdbLog, "seal", damaged)
        group = store.seal()
        with pytest.raises(StoreError, match="a damaged page"):
            store.begin(group)
        store.abandon()
    assert log.state == log.committed
    fill(log, 1)
    commit_open_group(store)
    assert log.committed.messages == 4


def test_a_group_of_few_changes_removes_few_messages_of_a_purge(path: Path) -> None:
    store = LmdbStore(path, tuning=Tuning(segment=1_024))
    log = store.create("S", b"")
    fill(log, 8_000, subjects=8_000)
    drain(store)
    log.purge(below=6_000)
    commit_open_group(store)
    for size, most in ((1, 17), (100, 68), (4_000, 250)):
        fill(log, size)
        group = store.seal()
        assert isinstance(group, LmdbGroup)
        removed = sum(len(delta.deletes) for delta in group.deltas.values())
        assert 0 < removed <= most
        write_group(store, group)
        store.finish(group)
    drain(store)
    assert not store.sweeping
    left = dict(log.subjects(">"))
    assert sum(left.values()) == log.committed.messages == 8_000 - 5_999 + 4_101
    assert len(left) == log.committed.subjects == 2_001 + 3
    store.close()


def test_small_groups_share_the_work_of_jobs(path: Path) -> None:
    """A step of a job is more than a group of one change may do: its client would wait for a whole one each time."""
    store = LmdbStore(path, tuning=Tuning(segment=1_024))
    log = store.create("S", b"")
    fill(log, 3_000, subjects=3_000)
    commit_open_group(store)  # two segments are full
    did, groups = 0, 0
    while store.backlog:
        fill(log, 1)
        group = store.seal()
        assert isinstance(group, LmdbGroup)
        write_group(store, group)
        store.finish(group)
        did, groups = did + group.worked, groups + 1
    assert 0 < did < groups / 3
    store.close()


def test_messages_that_were_not_counted_yet_are_removed_with_their_segment(store: LmdbStore) -> None:
    log = store.create("S", b"")
    fill(log, 10)
    assert log.remove(4)
    assert log.count_of("s.0") == 3
    fill(log, 2)
    log.skip(100)
    fill(log, 2)
    assert log.purge(below=9) == 7
    assert log.state.messages == 6
    commit_open_group(store)
    assert dict(log.subjects(">")) == {"s.0": 3, "s.1": 2, "s.2": 1}
    assert [seq for seq in range(1, 110) if log.get(seq)] == [9, 10, 11, 12, 100, 101]


@pytest.mark.parametrize("moved", [2, 6, 300])
def test_a_scan_takes_no_message_for_another_one(path: Path, moved: int) -> None:
    """It does not read the keys of messages that come without a gap: a checksum covers the key."""
    store = LmdbStore(path)
    fill(store.create("S", b""), 600)
    commit_open_group(store)
    store.close()
    values = [value for _, value in tables(path)[b"messages"]]
    file = path / "data.mdb"
    file.write_bytes(file.read_bytes().replace(values[moved - 1], values[moved]))  # sound, under another key
    store = LmdbStore(path)
    log = store.log("S")
    assert [record.seq for record in log.scan("", 1, limit=600)] == list(range(1, moved))
    with pytest.raises(CorruptRecordError):
        log.scan("", moved, limit=600)
    assert [record.seq for record in log.scan("", moved + 1, limit=600)] == list(range(moved + 1, 601))
    store.close()


def test_a_scan_goes_on_behind_gaps_and_ends_before_another_stream(store: LmdbStore) -> None:
    log, other = store.create("S", b""), store.create("T", b"")
    fill(log, 700)
    fill(other, 5)
    commit_open_group(store)
    gone = {1, 2, 250, 255, 256, 257, 400, 511, 512, 699}
    for seq in gone:
        log.remove(seq)
    commit_open_group(store)
    left = [seq for seq in range(1, 701) if seq not in gone]
    assert [record.seq for record in log.scan("", 1, limit=1_000)] == left
    assert [record.seq for record in log.scan("", 254, limit=3)] == [254, 258, 259]
    assert all(record.payload == b"%d" % (record.seq - 1) for record in log.scan("", 1, limit=1_000))
    assert [record.seq for record in other.scan("", 1, limit=1_000)] == [1, 2, 3, 4, 5]


def test_a_wildcard_lookup_keeps_what_the_open_group_removed(store: LmdbStore) -> None:
    """The group before it has an older row of the subject, which counts more."""
    log = store.create("S", b"")
    for n in range(4):
        log.append(n, "s.0", b"", b"")
    group = store.seal()
    log.remove(4)
    assert log.last_seq_of("s.*") == 3
    assert log.count_of("s.0") == 3
    write_group(store, group)
    store.finish(group)
    commit_open_group(store)
    assert list(log.subjects(">")) == [("s.0", 3)]
    assert log.purge(pattern="s.0") == 3
    assert log.state.subjects == 0


# Rows of appended messages that cannot be read.


class Unreadable:
    """The table of subjects, of which LMDB cannot read a page."""

    def __init__(self, times: int, error: type[lmdb.Error] = lmdb.CorruptedError) -> None:
        self.left, self.error = times, error

    def __call__(self, *_: object) -> None:
        if self.left:
            self.left -= 1
            raise self.error("a damaged page")


def unreadable_rows(monkeypatch: pytest.MonkeyPatch, failure: Unreadable) -> None:
    def failing(env: Environment, base: Base, subjects: list[str], rows: dict[str, Row]) -> None:
        failure()
        stored_rows(env, base, subjects, rows)

    monkeypatch.setattr("slipstream.server.store.lmdb.log.stored_rows", failing)


def test_the_state_of_a_stream_whose_rows_cannot_be_read_is_known(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers ask for it, and reports of all streams: an error would end them."""
    log = store.create("S", b"")
    fill(log, 3)
    drain(store)
    log.append(9, "t.1", b"", b"")
    unreadable_rows(monkeypatch, Unreadable(100))
    assert (log.state.messages, log.state.last_seq) == (4, 4)
    with pytest.raises(StoreError, match="a damaged page"):
        log.count_of("t.1")
    group = store.seal()
    with pytest.raises(StoreError, match="a damaged page"):
        store.begin(group)
    store.abandon()
    assert log.state == log.committed


def test_a_read_that_another_one_ended_is_repeated_for_the_rows(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.create("S", b"")
    fill(log, 3)
    drain(store)
    log.append(9, "t.1", b"", b"")
    unreadable_rows(monkeypatch, Unreadable(1, lmdb.BadTxnError))
    commit_open_group(store)
    assert dict(log.subjects(">")) == {"s.0": 1, "s.1": 1, "s.2": 1, "t.1": 1}


def test_rows_that_could_not_be_read_once_are_read_again(path: Path) -> None:
    """What was not read is not taken for a subject without messages."""
    store = LmdbStore(path, tuning=TINY._replace(cache=0))
    log = store.create("S", b"")
    fill(log, 32, subjects=8)
    drain(store)
    assert isinstance(log, LmdbLog)
    before = {f"s.{n}": log.count_of(f"s.{n}") for n in range(8)}
    log.base.clean.clear()
    rows: dict[str, Row] = {}

    class StoppedError(Exception):
        pass

    def stopped(found: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        yield from found[:6]
        raise StoppedError

    @contextmanager
    def cursor(db: object) -> Iterator[SimpleNamespace]:
        with store._env.read.cursor(db=db) as real:  # type: ignore[arg-type]
            yield SimpleNamespace(getmulti=lambda keys: stopped(real.getmulti(keys)))

    env = SimpleNamespace(found=[], subjects=store._env.subjects, read=SimpleNamespace(cursor=cursor))
    with pytest.raises(StoppedError):
        stored_rows(env, log.base, list(before), rows)  # type: ignore[arg-type]
    assert not rows
    stored_rows(store._env, log.base, list(before), rows)
    assert {subject: row[0] for subject, row in rows.items()} == before
    store.close()


def test_rows_are_read_for_their_subjects_whatever_else_is_asked_for(path: Path) -> None:
    """Twice, subjects without a row, and such as are longer than a key: those are in another order."""
    long = ["s." + letter * 420 for letter in "hgfedcba"]
    for known in ([], long[::2]):
        store = LmdbStore(path / str(len(known)), tuning=TINY)
        log = store.create("S", b"")
        for n in range(300):
            log.append(n, f"s.{n % 60}", b"", b"")
        for n, subject in enumerate(known):
            for _ in range(n + 1):
                log.append(n, subject, b"", b"")
        drain(store)
        assert isinstance(log, LmdbLog)
        asked = [f"s.{n}" for n in range(-20, 80)] + (long if known else [])
        asked += asked[::3]
        random.Random(3).shuffle(asked)
        rows: dict[str, Row] = {}
        stored_rows(store._env, log.base, asked, rows)
        assert {subject: row[0] for subject, row in rows.items() if row[0]} == dict(log.subjects(">"))
        assert set(rows) == set(asked)
        store.close()


def test_rows_in_memory_are_the_newest_ones_and_not_too_many(path: Path) -> None:
    """They are in several dicts: where one loses rows, an older one must not have them."""
    tuning = Tuning(segment=64, slice=40, dirty=40, journal=120, cache=24)
    for most in (3, 30, 150):  # changes of a group
        store, pick = LmdbStore(path / str(most), tuning=tuning), random.Random(most)
        log, alive = store.create("S", b""), dict[int, str]()
        assert isinstance(log, LmdbLog)
        seen = too_many = 0
        counts = Counter[str]()
        for n in range(300):
            for _ in range(pick.randrange(1, most + 1)):
                subject = f"s.{min(pick.randrange(300), pick.randrange(300))}"
                alive[log.append(n, subject, b"", b"")] = subject
            for seq in pick.sample(sorted(alive), min(most // 4, len(alive))):
                log.remove(seq)
                del alive[seq]
            commit_open_group(store)
            counts = Counter(alive.values())
            known = {subject: row for n in range(300) if (row := log.base.row(subject := f"s.{n}")) is not None}
            assert {subject: row[0] for subject, row in known.items()} == {name: counts[name] for name in known}
            in_memory = len(log.base.dirty) + len(log.base.flushing)
            too_many += log.base.cached > max(0, 3 * tuning.cached(300) - in_memory)
            seen = max(seen, len(log.base.clean))
        if most == 30:  # other groups flush less than may be kept, or more
            assert seen > 1
            assert too_many < 10  # of 300 groups: what a flush leaves is freed with the next ones
        drain(store)
        for _ in range(50):
            fill(log, 6)
            commit_open_group(store)
        log.base.clean.clear()
        counts.update(f"s.{n % 3}" for n in range(300))
        assert dict(log.subjects(">")) == {subject: count for subject, count in counts.items() if count}
        store.close()


def test_rows_of_a_flush_that_is_too_large_to_be_kept_hide_older_ones() -> None:
    base = Base(1, 8)
    for newest, size in enumerate((10, 30), 1):
        base.dirty = {f"s.{n}": pack_row(newest, 1, 1) for n in reversed(range(size))}
        base.begin_flush()
        base.end_flush(cache=12)
        known = {row for n in range(30) if (row := base.row(f"s.{n}"))}
        assert known == {(newest, 1, 1)}
    assert base.cached == 12


def test_the_row_of_a_subject_is_kept_whatever_the_number_of_its_messages(path: Path) -> None:
    """The lowest byte of the number is not the number."""
    store = LmdbStore(path, tuning=Tuning(segment=64, slice=1_000, dirty=1, journal=4, cache=1))
    log = store.create("S", b"")
    for name, count in (("a", 255), ("b", 256), ("c", 512), ("d", 65_536), ("gone", 1)):
        for n in range(count):
            log.append(n, name, b"", b"")
    log.remove(log.state.last_seq)
    drain(store)
    store.close()
    rows = [key[4:] for key, _ in tables(path)[b"subjects"]]
    assert rows == [b"a", b"b", b"c", b"d"]


def test_a_damaged_row_whose_messages_are_lost_too_fails_no_group(path: Path) -> None:
    """Publishes to other subjects, and to other streams, are in the same group."""
    filled(path, 24)
    damage(path, b"subjects", lambda key: key.endswith(b"s.1"))
    env = lmdb.open(str(path), max_dbs=8)
    with env.begin(write=True, db=env.open_db(b"messages")) as txn:
        assert txn.delete(MESSAGE_KEY.pack(1, 23))
        control = env.open_db(b"control", txn)
        _, *sums = STAMP.unpack((txn.get(b"z", db=control) or b"")[:-4])
        txn.put(b"z", seal(b"z", STAMP.pack(txn.id(), *sums)), db=control)
    env.close()
    store = LmdbStore(path)
    log = store.log("S")
    other = store.create("OTHER", b"")
    for n in range(2):
        fill(other, 1)
        log.append(n, "s.1", b"", b"new")
        assert log.state.messages == 25 + n
        commit_open_group(store)
    assert log.last_seq_of("s.1") == 26
    assert log.remove(26)
    assert log.remove(25)
    assert log.last_seq_of("s.1") == 23  # it is lost: who reads it gets an error
    with pytest.raises(CorruptMessageError):
        log.get(23)
    commit_open_group(store)
    store.close()
    store = LmdbStore(path)
    assert store.log("S").committed.messages == 24
    store.close()


def test_a_purge_that_cannot_be_completed_stops_no_commit(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    log, other = store.create("S", b""), store.create("OTHER", b"")
    fill(log, 60)
    drain(store)
    log.purge(below=50)
    commit_open_group(store)
    assert store.sweeping

    def failing(*_: object) -> int:
        raise lmdb.CorruptedError("a damaged page")

    with monkeypatch.context() as patched:
        patched.setattr(LmdbLog, "sweep", failing)
        fill(other, 3)
        commit_open_group(store)
        assert other.committed.messages == 3
        assert not store.sweeping
    assert log.purge(below=55) == 5  # it goes on with the next one
    drain(store)
    assert dict(log.subjects(">")) == {"s.0": 2, "s.1": 2, "s.2": 2}


def test_an_index_that_could_not_be_read_once_is_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)
    store = LmdbStore(path)
    log = store.log("S")
    assert isinstance(log, LmdbLog)
    log.base.tail, log.base.unindexed = None, set(log.base.segments)
    log.base.indexed.clear()
    read, left = view.read_segment, [2]

    def failing(env: Environment, base: Base, number: int) -> dict[str, list[int]]:
        left[0] -= 1
        if not left[0]:
            raise StoreError("a damaged page")
        return read(env, base, number)

    monkeypatch.setattr(view, "read_segment", failing)
    with pytest.raises(StoreError):
        view.read_tail(store._env, log.base)
    tail = view.read_tail(store._env, log.base)
    assert [seq for number in sorted(tail) for seq in tail[number].seqs] == list(range(1, 31))
    store.close()


def test_removing_many_messages_of_one_subject_orders_its_index_once() -> None:
    """A stream with a limit has as many removals as messages, and its index may have one subject only."""
    part = Part()
    part.extend(["s"] * 16_000, range(16_000))
    assert len(part.by_subject()["s"]) == 16_000
    before = process_time()
    part.remove(range(0, 16_000, 2))
    assert part.by_subject() == {"s": tuple(range(1, 16_000, 2))}
    part.remove([*range(1, 16_000, 2), 99_999])
    assert process_time() - before < 1  # one by one it takes several seconds
    assert part.by_subject() == {}
