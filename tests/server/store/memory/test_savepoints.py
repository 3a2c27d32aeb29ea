"""Savepoints of the memory store: whatever was done since, a return to one gives the same store back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import UsageError
from slipstream.server.store.memory.store import MemoryStore
from tests.server.store.memory.test_memory import carry

TTL = b"NATS/1.0\r\nNats-TTL: %ds\r\n\r\n"


def dump(store: MemoryStore) -> dict[str, Any]:
    """Everything that a reader or a writer can see of a store."""
    found: dict[str, Any] = {}
    for name, config in store.streams():
        log = store.log(name)
        found[name] = (
            config,
            log.state,
            log.committed,
            log.scan("", 0, limit=1000),
            sorted(log.subjects(">")),
            dict(log.kept()),
            log.next_expiry(),
            [log.last_seq_of(f"s.{n}") for n in range(3)],
            [log.first_seq_of(f"s.{n}") for n in range(3)],
        )
    return found


names = st.sampled_from(["A", "B", "C"])
seqs = st.integers(1, 20)
operations = st.one_of(
    st.tuples(st.just("append"), names, st.integers(0, 2), st.booleans()),
    st.tuples(st.just("remove"), names, seqs),
    st.tuples(st.just("purge"), names, st.sampled_from(["", "s.1", "s.*"]), st.integers(0, 9), st.integers(0, 2)),
    st.tuples(st.just("keep"), names, st.sampled_from(["x", "y"]), st.one_of(st.none(), st.binary(max_size=2))),
    st.tuples(st.just("skip"), names, seqs),
    st.tuples(st.just("expire"), names, st.integers(0, 50)),
    st.tuples(st.just("configure"), names, st.binary(max_size=2)),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("commit")),
    st.tuples(st.just("abandon")),
)


def apply(store: MemoryStore, operation: tuple[Any, ...]) -> None:
    kind, *rest = operation
    if kind == "commit":
        carry(store)
        return
    if kind == "abandon":
        store.abandon()
        return
    name, *rest = rest
    exists = name in dict(store.streams())
    if kind == "delete":
        if exists:
            store.delete(name)
        return
    log = store.log(name) if exists else store.create(name, b"")
    if kind == "append":
        subject, has_ttl = rest
        time = log.state.last_time + 1
        log.append(time, f"s.{subject}", TTL % (subject + 1) if has_ttl else b"", b"x" * subject)
    elif kind == "remove":
        log.remove(*rest)
    elif kind == "purge":
        pattern, below, keep = rest
        log.purge(pattern=pattern, below=below, keep=keep)
    elif kind == "keep":
        log.keep(*rest)
    elif kind == "skip":
        log.skip(*rest)
    elif kind == "expire":
        for seq in log.take_expired(rest[0] * 1_000_000_000, 5):
            log.remove(seq)
    else:
        store.configure(name, *rest)


@given(st.lists(operations, max_size=25), st.lists(operations, max_size=25), st.lists(operations, max_size=25))
def test_a_return_to_a_savepoint_undoes_everything_since(
    before: list[tuple[Any, ...]], first: list[tuple[Any, ...]], second: list[tuple[Any, ...]]
) -> None:
    store = MemoryStore()
    for operation in before:
        apply(store, operation)
    carry(store)
    at_start = dump(store)
    assert store.add_savepoint() == 1
    for operation in first:
        apply(store, operation)
    carry(store)
    in_between = dump(store)
    assert store.add_savepoint() == 2
    for operation in second:
        apply(store, operation)
    store.roll_back(2)
    assert dump(store) == in_between
    for operation in second:  # a savepoint can be used again
        apply(store, operation)
    carry(store)
    store.roll_back(1)
    assert dump(store) == at_start
    for operation in first:  # and the store goes on from it as it did before
        apply(store, operation)
    carry(store)
    assert dump(store) == in_between
    with pytest.raises(UsageError, match="savepoint must be one of 1 that are set, got 2"):
        store.roll_back(2)


def test_a_savepoint_needs_committed_changes() -> None:
    store = MemoryStore()
    store.create("S", b"")
    with pytest.raises(UsageError, match="while changes are uncommitted"):
        store.add_savepoint()


def test_a_read_that_is_under_way_ends_with_what_it_began_with() -> None:
    store = MemoryStore()
    log = store.create("S", b"")
    carry(store)
    store.add_savepoint()
    for n in range(3):
        log.append(n, "s.1", b"", b"")
    carry(store)
    snapshot = log.snapshot()
    store.roll_back(1)
    assert log.get(2) is None
    assert [record.seq for seq in (1, 2, 3) if (record := snapshot.get(seq))] == [1, 2, 3]
    snapshot.close()


def test_a_stream_without_changes_costs_nothing_to_restore() -> None:
    """Neither a savepoint nor a return to it looks at the messages: they are the same objects afterwards."""
    store = MemoryStore()
    log = store.create("S", b"")
    for n in range(100):
        log.append(n, f"s.{n}", b"", b"")
    carry(store)
    index = log.snapshot()._indexes()[0]  # type: ignore[attr-defined]
    store.add_savepoint()
    log.append(100, "s.1", b"", b"")
    carry(store)
    store.roll_back(1)
    assert log.snapshot()._indexes()[0] is index  # type: ignore[attr-defined]
    assert len(index.messages) == 100


def test_a_record_that_several_groups_changed_returns_to_its_first_value() -> None:
    store = MemoryStore()
    log = store.create("S", b"")
    log.keep("old", b"0")
    carry(store)
    store.add_savepoint()
    for value in (b"1", b"2", None):
        log.keep("old", value)
        log.keep("new", value)
        carry(store)
    store.roll_back(1)
    assert log.kept() == {"old": b"0"}
