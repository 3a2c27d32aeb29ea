"""Compaction: the copy has all that the store has at that moment; what fails or is killed leaves one whole file."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from slipstream.errors import CorruptRecordError, StoreError, UsageError
from slipstream.server.store.groups import commit_open_group, write_group
from slipstream.server.store.lmdb import compact
from slipstream.server.store.lmdb.compact import Compaction, Phase
from slipstream.server.store.lmdb.env import COPY_DIR, STAMP
from slipstream.server.store.lmdb.pages import TABLES, PageFile
from slipstream.server.store.lmdb.salvage import Survey
from slipstream.server.store.lmdb.segments import Tuning
from slipstream.server.store.lmdb.store import LmdbStore
from tests.server.store.lmdb.test_crash import agrees_with_itself, content
from tests.server.store.lmdb.test_lmdb import drain
from tests.server.store.lmdb.test_scrub import reported, scrub

TUNING = Tuning(segment=64, slice=50, dirty=40, journal=200, cache=10, probe=16, page=7)
MAP_SIZE = 1 << 28


@pytest.fixture(autouse=True)
def many_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BYTES": 20_000, "KEYS": 40, "MANY": 100, "FEW": 10}.items():
        monkeypatch.setattr(compact, name, value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Iterator[LmdbStore]:
    store = LmdbStore(path, map_size=MAP_SIZE, tuning=TUNING)
    fill(store)
    yield store
    store.close()


def fill(store: LmdbStore, count: int = 2_000) -> None:
    """Messages, large ones among them, of which the older half is gone."""
    log = store.create("PLAIN", b"config")
    for _ in range(count):
        seq = log.state.last_seq + 1
        subject, header, payload = content(seq)
        log.append(seq, subject, header, payload if seq % 100 else payload * 2_000)
        if seq % 100 == 0:
            commit_open_group(store)
    churn = store.create("CHURN", b"")
    for seq in range(count // 2):
        churn.append(seq, f"k.{seq % 150}", b"NATS/1.0\r\nNats-TTL: 90s\r\n\r\n" if seq % 3 else b"", b"v")
    log.keep("consumer", b"state")
    drain(store)
    log.purge(below=count // 2)
    drain(store)


def steps(compaction: Compaction) -> Iterator[Phase]:
    """Do a slice at a time, up to the one that makes the copy ready."""
    is_ready = False
    for _ in range(100_000):
        if is_ready:
            return
        if not compaction.begin():
            yield compaction.phase
            continue
        try:
            compaction.work()
        finally:
            is_ready = compaction.finish()
        yield compaction.phase
    raise AssertionError("the compaction does not end")


def run(store: LmdbStore, between: Callable[[Phase], None] = lambda _: None) -> Compaction:
    compaction = store.compact()
    try:
        for phase in steps(compaction):
            between(phase)
        compaction.replace()
        compaction.switch()
    finally:
        compaction.close()
    return compaction


def dump(store: LmdbStore) -> list[dict[bytes, bytes]]:
    """All tables as of the last commit, without the stamp."""
    env = store._env
    with env.handle.begin() as read:
        found = [dict(read.cursor(db=table).iternext()) for table in env.tables()]
    found[TABLES.index("control")].pop(STAMP)
    return found


def is_whole(store: LmdbStore) -> None:
    for name, _ in store.streams():
        agrees_with_itself(store.log(name))
    scrub(store)
    assert not reported(store)


# The copy.


def test_a_compacted_store_is_smaller_and_has_the_same_content(store: LmdbStore, path: Path) -> None:
    before, size = dump(store), (path / "data.mdb").stat().st_size
    done = run(store)
    assert dump(store) == before
    assert (path / "data.mdb").stat().st_size == done.after < 0.7 * done.before
    assert done.before <= size
    assert not copies(path)
    is_whole(store)
    store.close()
    assert Survey(path).is_sound
    with PageFile(path / "data.mdb") as file:
        assert file.check() == []
    again = LmdbStore(path, map_size=MAP_SIZE, tuning=TUNING)
    assert dump(again) == before
    assert again.log("PLAIN").kept() == {"consumer": b"state"}
    is_whole(again)
    again.close()


def test_a_compacted_store_takes_messages_and_is_compacted_again(store: LmdbStore, path: Path) -> None:
    for _ in range(3):
        run(store)
        log = store.log("PLAIN")
        log.append(1, "n.new", b"", b"x")
        drain(store)
        assert log.last("n.new") is not None
    is_whole(store)
    store.close()
    again = LmdbStore(path, map_size=MAP_SIZE, tuning=TUNING)
    assert again.log("PLAIN").count_of("n.new") == 3
    is_whole(again)
    again.close()


def test_an_empty_store_is_compacted(path: Path) -> None:
    store = LmdbStore(path, map_size=MAP_SIZE, tuning=TUNING)
    run(store)
    store.create("S", b"").append(1, "s.s", b"", b"")
    commit_open_group(store)
    is_whole(store)
    store.close()


@pytest.mark.parametrize("seed", range(6))
def test_what_is_written_during_the_copy_is_in_it(store: LmdbStore, path: Path, seed: int) -> None:
    """Groups begin and end at any moment: some begin before a slice and end behind it, some are lost."""
    pick = random.Random(seed)
    logs = [store.log("PLAIN"), store.log("CHURN")]
    under_way: list[Any] = []

    def change() -> None:
        for _ in range(pick.randrange(1, 30)):
            log = pick.choice(logs)
            log.append(log.state.last_time + 1, f"k.{pick.randrange(200)}", b"", b"v" * pick.randrange(3_000))
            if pick.random() < 0.3:
                log.remove(pick.randrange(log.state.first_seq, log.state.last_seq + 1))
        if pick.random() < 0.05:
            logs[1].purge(below=logs[1].state.last_seq - pick.randrange(400))
        if pick.random() < 0.02:
            logs[1].purge()
        if pick.random() < 0.05:
            name = f"S{pick.randrange(3)}"
            if any(name == known for known, _ in store.streams()):
                store.delete(name)
            else:
                store.create(name, b"new").append(1, "s.s", b"", b"x")

    def go_on(phase: Phase) -> None:
        kind = pick.randrange(5)
        if under_way and phase is not Phase.READY and kind < 2:
            return
        if under_way:
            group = under_way.pop()
            while not store.write_some(group):
                pass
            store.commit(group)
            store.finish(group)
        elif phase is not Phase.READY and kind < 4:
            change()
            group = store.seal()
            store.begin(group)
            store.write_some(group)
            if kind:
                under_way.append(group)
            else:
                store.abandon()

    change()
    group = store.seal()
    store.begin(group)  # before keys are noted
    under_way.append(group)
    run(store, go_on)
    after = dump(store)
    is_whole(store)
    change()
    drain(store)
    is_whole(store)
    store.close()
    again = LmdbStore(path, map_size=MAP_SIZE, tuning=TUNING)
    assert after
    is_whole(again)
    again.close()


def test_a_copy_waits_for_a_group_that_began_before_it(store: LmdbStore) -> None:
    store.log("PLAIN").append(1, "s.s", b"", b"")
    group = store.seal()
    store.begin(group)
    compaction = store.compact()
    assert not compaction.begin()
    while not store.write_some(group):
        pass
    store.commit(group)
    assert not compaction.begin()
    store.finish(group)
    assert compaction.begin()
    compaction.work()
    compaction.finish()
    compaction.close()


def test_a_snapshot_of_before_is_read_afterwards(store: LmdbStore) -> None:
    log = store.log("PLAIN")
    snapshot = log.snapshot()
    snapshot.hold()
    seq = log.committed.first_seq
    wanted = log.get(seq)
    assert wanted is not None
    run(store)
    log.remove(seq)
    drain(store)
    run(store)
    assert snapshot.get(seq) == wanted
    assert log.get(seq) is None
    assert len(store._env._old_files) == 1
    snapshot.close()
    assert not store._env._old_files


def test_one_compaction_at_a_time(store: LmdbStore) -> None:
    compaction = store.compact()
    with pytest.raises(UsageError, match="compacted already"):
        store.compact()
    compaction.close()
    run(store)


# What goes wrong.


def copies(path: Path) -> list[str]:
    return [each.name for each in path.iterdir() if each.name == COPY_DIR]


def fails(store: LmdbStore, path: Path, error: type[Exception], words: str, between: Callable[[Phase], None]) -> None:
    """A compaction fails, and everything is as before."""
    wanted, inode = dump(store), (path / "data.mdb").stat().st_ino
    with pytest.raises(error, match=words):
        run(store, between)
    assert not copies(path)
    assert (path / "data.mdb").stat().st_ino == inode
    assert dump(store) == wanted
    store.log("CHURN").append(1, "k.after", b"", b"")
    drain(store)
    assert store.log("CHURN").count_of("k.after") == 1


def damage(path: Path, old: bytes) -> None:
    data = path.read_bytes()
    at = data.find(old)
    assert at > 0
    with open(path, "r+b") as file:
        while at >= 0:
            os.pwrite(file.fileno(), bytes([data[at] ^ 1]), at)
            at = data.find(old, at + 1)


def test_a_damaged_message_refuses_the_copy(store: LmdbStore, path: Path) -> None:
    damage(path / "data.mdb", b"%d" % (1777 * 1777))
    wanted = dump(store)
    with pytest.raises(CorruptRecordError, match="table 'messages' does not match its checksum"):
        run(store)
    assert not copies(path)
    assert dump(store) == wanted


def test_a_damaged_page_refuses_the_copy(store: LmdbStore, path: Path) -> None:
    with PageFile(path / "data.mdb") as file:
        tree = file.trees()["subjects"]
    with open(path / "data.mdb", "r+b") as out:
        os.pwrite(out.fileno(), bytes(4096), tree.root * 4096)
    with pytest.raises(CorruptRecordError, match="table 'subjects' is zero"):
        run(store)
    assert not copies(path)


def test_known_damage_refuses_the_copy_at_once(store: LmdbStore) -> None:
    store._env.report("PLAIN", 1_500)
    with pytest.raises(CorruptRecordError, match="it cannot be compacted"):
        store.compact()


@pytest.mark.parametrize("table", TABLES[:4])
def test_a_damaged_copy_does_not_replace_the_file(store: LmdbStore, path: Path, table: str) -> None:
    key, value = next(item for item in dump(store)[TABLES.index(table)].items() if len(item[1]) < 2_000)
    done: list[Phase] = []

    def harm(phase: Phase) -> None:
        if phase is Phase.VERIFY and not done:
            damage(path / COPY_DIR / "data.mdb", key + value)
            done.append(phase)

    fails(store, path, CorruptRecordError, f"table '{table}'", harm)
    assert done


def test_an_older_page_in_the_copy_does_not_replace_the_file(store: LmdbStore, path: Path) -> None:
    """All its records are sound: the sum of the table tells."""

    def harm(phase: Phase) -> None:
        compaction = store._compaction
        if phase is Phase.VERIFY and compaction is not None and compaction._file is not None:
            key = next(iter(dump(store)[0]))
            with compaction._file.handle.begin(write=True) as copy:
                copy.delete(key, db=compaction._file.tables[0])

    fails(store, path, CorruptRecordError, "table 'messages' of the copy is not what was written", harm)


def test_a_change_that_was_not_noted_does_not_get_lost(store: LmdbStore, path: Path) -> None:
    """As if a part of the store had forgotten to note a key: the sums of the last commit tell."""

    def harm(phase: Phase) -> None:
        if phase is Phase.READY:
            store.log("PLAIN").append(1, "s.s", b"", b"")
            carry_unnoted()

    def carry_unnoted() -> None:
        group = store.seal()
        write_group(store, group)
        store._env.changed = []
        store.finish(group)

    with pytest.raises(CorruptRecordError, match="of the copy"):
        run(store, harm)
    assert not copies(path)
    is_whole(store)


def test_a_full_disk_refuses_the_copy_at_the_start(
    store: LmdbStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact, "RESERVE", 1 << 60)
    fails(store, path, StoreError, "no space left on device", lambda _: None)


def test_a_disk_that_fills_up_ends_the_copy(store: LmdbStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [20]

    def fill_disk(_: Phase) -> None:
        left[0] -= 1
        if not left[0]:
            monkeypatch.setattr(compact, "RESERVE", 1 << 60)

    fails(store, path, StoreError, "no space left on device", fill_disk)


def test_a_copy_that_cannot_be_written_is_removed(store: LmdbStore, path: Path) -> None:
    store._env.map_size = 1 << 16
    fails(store, path, StoreError, "the map size is reached", lambda _: None)
    store._env.map_size = MAP_SIZE
    run(store)


def test_a_copy_that_is_not_known_to_have_its_name_is_used_and_takes_no_group(
    store: LmdbStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was replaced, but after a loss of power it may be the old one again."""

    def fail(_: Path) -> None:
        raise OSError(5, "Input/output error")

    wanted = dump(store)
    compaction = store.compact()
    for _ in steps(compaction):
        pass
    monkeypatch.setattr(compact, "sync_directory", fail)
    with pytest.raises(StoreError, match="Input/output error"):
        compaction.replace()
    compaction.switch()
    compaction.close()
    assert dump(store) == wanted
    store.log("PLAIN").append(1, "s.s", b"", b"")
    group = store.seal()
    with pytest.raises(StoreError, match="must be opened again"):
        store.begin(group)
    store.abandon()
    store.close()
    again = LmdbStore(path, map_size=MAP_SIZE, tuning=TUNING)
    assert dump(again) == wanted
    again.close()


def test_no_group_begins_between_the_renaming_and_the_switch(store: LmdbStore) -> None:
    compaction = store.compact()
    for _ in steps(compaction):
        pass
    compaction.replace()
    store.log("PLAIN").append(1, "s.s", b"", b"")
    group = store.seal()
    with pytest.raises(StoreError, match="does not use it yet"):
        store.begin(group)
    store.abandon()
    compaction.switch()
    compaction.close()
    store.log("PLAIN").append(1, "s.s", b"", b"")
    drain(store)
    is_whole(store)


def test_a_store_that_is_closed_in_the_middle_leaves_no_copy(store: LmdbStore, path: Path) -> None:
    compaction = store.compact()
    for _, _ in zip(range(10), steps(compaction), strict=False):
        pass
    assert copies(path)
    store.close()
    assert not copies(path)


# Kills.

KILLS = ("COPY", "CATCH_UP", "VERIFY", "READY", "before the renaming", "after the renaming", "switched", "written")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in(moment: str, path: Path, acknowledge: Callable[[int], object]) -> None:
    """A process that publishes while it compacts, and is killed at a moment of that."""
    store = LmdbStore(path, map_size=MAP_SIZE, tuning=TUNING)
    log = store.log("PLAIN")

    def publish() -> None:
        for _ in range(30):
            seq = log.state.last_seq + 1
            log.append(seq, *content(seq))
        commit_open_group(store)
        acknowledge(log.committed.last_seq)

    seen: list[Phase] = []

    def go_on(phase: Phase) -> None:
        if not seen or phase is not seen[-1]:
            seen.append(phase)
        if phase in (Phase.COPY, Phase.VERIFY):
            publish()
        if phase.name == moment and (phase is not Phase.COPY or store._compaction._at[0] == 2):  # type: ignore[union-attr]
            die()

    with pytest.MonkeyPatch.context() as patched:
        if moment == "before the renaming":
            patched.setattr(os, "replace", lambda *_: die())
        elif moment == "after the renaming":
            patched.setattr(compact, "sync_directory", lambda _: die())
        run(store, go_on)
    if moment == "written":
        publish()
    die()


@pytest.mark.parametrize("moment", KILLS)
def test_a_kill_leaves_one_whole_file_with_all_that_was_acknowledged(tmp_path: Path, moment: str) -> None:
    path = tmp_path / "store"
    store = LmdbStore(path, map_size=MAP_SIZE, tuning=TUNING)
    fill(store)
    inode = (path / "data.mdb").stat().st_ino
    store.close()
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(read)
            kill_in(moment, path, lambda seq: os.write(write, b"%d\n" % seq))
        finally:
            os._exit(3)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        acknowledged = int(pipe.read().split()[-1])
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    is_new = moment in KILLS[5:]
    assert (path / COPY_DIR / "data.mdb").exists() is not is_new
    again = LmdbStore(path, map_size=MAP_SIZE, tuning=TUNING)
    assert not copies(path)
    assert ((path / "data.mdb").stat().st_ino != inode) is is_new
    log = again.log("PLAIN")
    assert log.committed.last_seq == acknowledged > 2_000
    for seq in range(2_001, acknowledged + 1):
        record = log.get(seq)
        assert record is not None
        assert (record.subject, record.header, record.payload) == content(seq)
    is_whole(again)
    run(again)
    is_whole(again)
    again.close()


def test_a_leftover_that_is_a_link_is_removed_and_not_followed(store: LmdbStore, path: Path, tmp_path: Path) -> None:
    store.close()
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "data.mdb").write_bytes(b"precious")
    (path / COPY_DIR).symlink_to(tmp_path / "victim")
    again = LmdbStore(path, map_size=MAP_SIZE, tuning=TUNING)
    run(again)
    again.close()
    assert (tmp_path / "victim" / "data.mdb").read_bytes() == b"precious"
    assert not (path / "data.mdb").is_symlink()


def test_lmdb_errors_of_the_copy_are_told_in_words(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise lmdb.DiskError("Input/output error")

    monkeypatch.setattr(compact, "open_file", fail)
    with pytest.raises(StoreError, match="the disk failed while compacting"):
        run(store)
