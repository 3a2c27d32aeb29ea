"""The memory store on its own: what makes it fit for streams that live in memory, and the rules of its groups."""

from __future__ import annotations

import random

import pytest

from slipstream.errors import StoreError, UsageError
from slipstream.server.engine.ports import Walk
from slipstream.server.store.memory.log import MemoryLog
from slipstream.server.store.memory.store import FREED, MemoryStore


def carry(store: MemoryStore) -> None:
    group = store.seal()
    store.begin(group)
    assert store.write_some(group)
    store.commit(group)
    store.finish(group)


def test_a_reader_sees_a_message_when_its_group_is_finished() -> None:
    store = MemoryStore()
    log = store.create("S", b"")
    assert log.append(5, "a", b"", b"x") == 1
    group = store.seal()
    assert (log.state.messages, log.committed.messages) == (1, 0)
    assert log.get(1) is None
    assert log.last("a") is None
    store.begin(group)
    store.commit(group)
    store.finish(group)
    record = log.get(1)
    assert record is not None
    assert log.last("a") == log.last(">") == record


def test_a_reader_sees_a_removed_message_until_that_is_committed() -> None:
    store = MemoryStore()
    log = store.create("S", b"")
    for n in range(4):
        log.append(n, f"s.{n % 2}", b"", b"")
    carry(store)
    log.remove(2)
    log.purge(below=2)
    log.append(9, "s.1", b"", b"")
    assert [record.seq for record in log.scan("", 1, limit=9)] == [1, 2, 3, 4]
    assert list(log.subjects("s.*")) == [("s.0", 2), ("s.1", 2)]
    carry(store)
    assert [record.seq for record in log.scan("", 1, limit=9)] == [3, 4, 5]


def test_the_string_of_a_subject_is_kept_once() -> None:
    store = MemoryStore()
    log = store.create("S", b"")
    for n in range(3):
        log.append(n, "".join(("sub", "ject")), b"", b"")
    carry(store)
    assert len({id(record.subject) for record in log.scan("", 1, limit=9)}) == 1


def test_the_oldest_messages_are_removed_one_by_one() -> None:
    store = MemoryStore()
    log = store.create("S", b"")
    for n in range(300):
        log.append(n, "one", b"", b"")
        if n >= 100:
            assert log.purge(below=n - 98) == 1
        carry(store)
    assert (log.committed.first_seq, log.committed.messages) == (201, 100)
    assert (log.first_seq_of("one"), log.count_of("one")) == (201, 100)


def test_groups_are_carried_through_one_at_a_time() -> None:
    store = MemoryStore()
    group = store.seal()
    with pytest.raises(UsageError):
        store.seal()
    store.finish(group)
    with pytest.raises(UsageError):
        store.begin(group)
    store.close()


def test_streams_have_one_name_each() -> None:
    store = MemoryStore()
    log = store.create("S", b"")
    with pytest.raises(UsageError):
        store.create("S", b"")
    with pytest.raises(StoreError):
        store.log("T")
    store.delete("S")
    with pytest.raises(StoreError, match="was deleted"):
        log.append(1, "a", b"", b"")


@pytest.mark.parametrize("is_deleted", [False, True])
def test_memory_of_very_many_messages_is_given_back_by_later_groups(is_deleted: bool) -> None:
    store = MemoryStore()
    log = store.create("S", b"")
    count = 3 * FREED
    for n in range(count):
        log.append(n, f"s.{n % (count // 2)}", b"", b"x")
    carry(store)
    if is_deleted:
        store.delete("S")
    else:
        log.purge()
    carry(store)
    assert log.committed.messages == 0
    groups = 0
    while store.backlog:
        (refuse,) = store._refuse
        before = len(refuse.messages) + len(refuse.by_subject)
        carry(store)
        assert before - len(refuse.messages) - len(refuse.by_subject) <= FREED
        groups += 1
    assert groups >= 4


def test_snapshot_reads_on_in_what_was_purged_as_a_whole() -> None:
    store = MemoryStore()
    log = store.create("S", b"")
    for n in range(2 * FREED):
        log.append(n, f"s.{n}", b"", b"x")
    carry(store)
    snapshot = log.snapshot()
    walk = snapshot.subjects("s.*")
    next(walk)
    log.purge()
    for _ in range(5):
        carry(store)
    assert len(result_of(walk)) == 2 * FREED
    snapshot.close()


def result_of(walk: Walk[list[tuple[str, int]]]) -> list[tuple[str, int]]:
    try:
        while True:
            next(walk)
    except StopIteration as end:
        found: list[tuple[str, int]] = end.value
        return found


def test_position_by_time_is_found_without_a_look_at_all_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(3)
    for share in (0.05, 0.5, 0.95):
        store = MemoryStore()
        log = store.create("S", b"")
        assert isinstance(log, MemoryLog)
        for n in range(2000):
            log.append(10 * (n // 3), f"s.{n}", b"", b"")
        carry(store)
        for seq in range(1, 2001):
            if chance.random() < share:
                log.remove(seq)
        if share == 0.5:
            carry(store)  # otherwise readers still see what was removed
        expected = {time: slow_position(log, time) for time in range(-5, 6700, 5)}
        with monkeypatch.context() as patch:
            patch.setattr(log, "_all_seqs", None)
            assert {time: log.time_to_seq(time) for time in expected} == expected


def test_position_by_time_behind_a_wide_gap() -> None:
    store = MemoryStore()
    log = store.create("S", b"")
    for seq in (1, 2, 100_000, 100_001, 300_000):
        log.skip(seq)
        log.append(seq * 10, "s", b"", b"")
    carry(store)
    found = [log.time_to_seq(time) for time in (5, 20, 21, 1_000_000, 1_000_011, 3_000_000, 3_000_001)]
    assert found == [1, 2, 100_000, 100_000, 300_000, 300_000, 300_001]


def slow_position(log: MemoryLog, time: int) -> int:
    records = log.scan("", 0, limit=10_000)
    return next((record.seq for record in records if record.time >= time), log.committed.last_seq + 1)
