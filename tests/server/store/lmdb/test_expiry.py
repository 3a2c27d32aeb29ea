"""Times to live in the stores: expired messages are reported once, in order, over restarts, at their own cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.server.engine.ports import Store, StreamLog, expires_at, memory_size, parse_ttl, time_to_live
from slipstream.server.store.groups import commit_open_group
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.lmdb.view import View
from slipstream.server.store.memory.store import MemoryStore

SECOND = 1_000_000_000


def block(ttl: str) -> bytes:
    return f"NATS/1.0\r\nNats-TTL: {ttl}\r\n\r\n".encode()


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else LmdbStore(tmp_path / "store")


@pytest.fixture
def log(store: Store) -> StreamLog:
    return store.create("S", b"")


@pytest.mark.parametrize(
    ("text", "seconds"), [("1", 1), ("1s", 1), ("1.5s", 1), ("1m30s", 90), ("never", -1), ("NEVER", -1), ("", 0)]
)
def test_a_time_to_live_is_read_as_nats_server_reads_it(text: str, seconds: int) -> None:
    assert parse_ttl(text) == seconds
    assert time_to_live(block(text)) == seconds


@pytest.mark.parametrize("text", ["0", "0s", "500ms", "-1", "-5s", "abc", "1x", "9" * 30, "9999999h"])
def test_an_invalid_time_to_live_is_rejected_and_never_expires(text: str) -> None:
    with pytest.raises(ValueError, match=r"time to live must|duration"):
        parse_ttl(text)
    assert expires_at(5, block(text)) == 0


def test_expired_messages_are_reported_once_and_in_order(store: Store, log: StreamLog) -> None:
    for ttl in ("5", "1", "never", "2s", "1"):
        log.append(SECOND, "a", block(ttl), b"")
    log.append(SECOND, "a", b"", b"")
    assert log.take_expired(9 * SECOND, 10) == []  # not before it is committed
    commit_open_group(store)
    assert log.next_expiry() == 2 * SECOND
    assert log.take_expired(2 * SECOND - 1, 10) == []
    assert log.take_expired(2 * SECOND, 10) == [2, 5]
    assert log.take_expired(2 * SECOND, 10) == []
    assert log.next_expiry() == 3 * SECOND
    assert log.take_expired(100 * SECOND, 1) == [4]
    assert log.take_expired(100 * SECOND, 1) == [1]
    assert log.next_expiry() == 0


def test_a_removed_message_does_not_expire(store: Store, log: StreamLog) -> None:
    for _ in range(3):
        log.append(SECOND, "a", block("1"), b"")
    commit_open_group(store)
    log.append(SECOND, "b", block("1"), b"")
    log.remove(1)
    log.remove(4)
    log.purge(below=3)
    assert log.take_expired(9 * SECOND, 10) == [3]


def test_an_abandoned_group_restores_the_expiries(store: Store, log: StreamLog) -> None:
    log.append(SECOND, "a", block("1"), b"")
    commit_open_group(store)
    log.append(SECOND, "a", block("1"), b"")
    assert log.take_expired(9 * SECOND, 10) == [1]
    log.remove(1)
    store.abandon()
    assert log.take_expired(9 * SECOND, 10) == [1]


def test_expiries_survive_a_restart_and_are_deleted_with_their_stream(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    for name in ("S", "T"):
        store.create(name, b"").append(SECOND, "a", block("1"), b"")
    commit_open_group(store)
    store.close()
    store = LmdbStore(tmp_path)
    assert store.log("S").next_expiry() == 2 * SECOND
    store.delete("S")
    store.log("T").purge()
    while store.pending or store.backlog:
        commit_open_group(store)
    store.create("S", b"")
    assert store.log("S").next_expiry() == store.log("T").next_expiry() == 0
    env = store._env
    assert env.read.stat(env.expiries)["entries"] == 0
    store.close()


def test_expired_messages_are_found_without_reading_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LmdbStore(tmp_path)
    log = store.create("S", b"")
    for n in range(2_000):
        log.append(SECOND, f"s.{n}", block("100"), b"")
    log.append(SECOND, "s.0", block("1"), b"")
    commit_open_group(store)
    looked_at: list[int] = []
    original = View.value

    def value(self: View, seq: int) -> bytes | None:
        looked_at.append(seq)
        return original(self, seq)

    monkeypatch.setattr(View, "value", value)
    assert log.take_expired(3 * SECOND, 100) == [2_001]
    assert looked_at == [2_001]
    assert log.next_expiry() == 101 * SECOND
    store.close()


def test_memory_does_not_grow_with_removed_messages() -> None:
    store = MemoryStore()
    log = store.create("S", b"")
    for n in range(10_000):
        log.append(SECOND, "a", block("1h"), b"")
        if n:
            log.remove(n)
        if n % 100 == 0:
            commit_open_group(store)
    assert len(log._moments) < 3_000  # type: ignore[attr-defined]


def test_streams_in_memory_have_their_own_size_formula() -> None:
    store = MemoryStore(size_of=memory_size)
    log = store.create("S", b"")
    log.append(1, "ü", b"NATS/1.0\r\n\r\n", b"12345")
    assert log.state.bytes == 2 + 12 + 5 + 16
    log.remove(1)
    assert log.state.bytes == 0
