"""Times to live and delete markers in virtual time: what leaves when, what stays, what a restart remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.errors import StoreError
from slipstream.server.engine.jobs import STEP_UNITS
from slipstream.server.engine.ports import Store
from slipstream.server.engine.streams.expiry import MAX_PENDING, SLICE
from slipstream.server.engine.streams.stream import Stream
from slipstream.server.store.lmdb.records import MESSAGE_KEY
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.memory.store import MemoryStore
from slipstream.wire import pub
from tests.server.support import START, Client, Rig, headers, sequences

SECOND = 1_000_000_000


@pytest.fixture
def client() -> Client:
    return Rig().client()


def left(client: Client) -> list[int]:
    return sequences(client.direct("S", {"seq": 1, "batch": 1000}))


@pytest.mark.spec("KV-26", on="E")
def test_a_message_leaves_at_the_end_of_its_time(client: Client) -> None:
    client.create("S", allow_msg_ttl=True)
    client.publish("s.1", Nats_TTL="2s")
    client.publish("s.1", Nats_TTL="1")
    client.publish("s.2", Nats_TTL="never")
    client.publish("s.3")
    client.rig.wait(0.9)
    assert left(client) == [1, 2, 3, 4]
    client.rig.wait(0.2)
    assert left(client) == [1, 3, 4]
    client.rig.wait(1)
    assert left(client) == [3, 4]
    client.rig.wait(100)
    assert left(client) == [3, 4]


def test_a_shorter_time_than_the_one_that_is_waited_for_is_kept(client: Client) -> None:
    client.create("S", allow_msg_ttl=True, max_age=3600 * SECOND)
    client.publish("s.1", Nats_TTL="1h")
    client.publish("s.1", Nats_TTL="5s")
    client.rig.wait(6)
    assert left(client) == [1]


def test_the_age_of_the_stream_counts_for_all_but_those_that_never_end(client: Client) -> None:
    client.create("S", allow_msg_ttl=True, max_age=10 * SECOND)
    for n, ttl in enumerate(("never", "", "1h", "never", ""), 1):
        client.publish("s.1", **({"Nats_TTL": ttl} if ttl else {}))
        client.rig.wait(1)
        assert left(client) == list(range(1, n + 1))
    client.rig.wait(6.5)  # the second message is 10.5 s old
    assert left(client) == [1, 3, 4, 5]
    client.rig.wait(100)
    assert left(client) == [1, 4]
    client.publish("s.1")
    client.rig.wait(9)
    assert left(client) == [1, 4, 6]
    client.rig.wait(1.1)
    assert left(client) == [1, 4]


def test_messages_without_expiry_are_checked_once(client: Client) -> None:
    client.create("S", allow_msg_ttl=True, max_age=SECOND)
    for _ in range(600):
        client.publish("s.1", Nats_TTL="never")
    client.rig.wait(2)
    stream = client.rig.engine.streams["S"]
    assert stream.expiry._next == 601
    assert len(left(client)) == 600
    deadline = client.rig.engine.next_deadline()
    assert deadline is None or deadline > client.rig.now + SECOND


def test_many_that_are_too_old_leave_in_slices(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    monkeypatch.setattr("slipstream.server.engine.streams.expiry.SLICE", 10)
    client.create("S", allow_msg_ttl=True, max_age=SECOND)
    for _ in range(35):
        client.publish("s.1", Nats_TTL="1h")
    client.rig.now += SECOND
    client.rig.engine.tick(client.rig.now)
    client.rig.engine.step(client.rig.now)
    assert client.rig.engine.streams["S"].log.state.messages == 25
    client.rig.settle()
    assert left(client) == []


@pytest.mark.spec("KV-18", on="E")
def test_a_marker_replaces_the_last_message_of_a_subject(client: Client) -> None:
    client.create("S", subject_delete_marker_ttl=5 * SECOND, max_msgs_per_subject=3)
    client.publish("s.1", b"old", Nats_TTL="5s")
    client.publish("s.1", b"new", Nats_TTL="10s")
    client.rig.wait(5.5)
    assert left(client) == [2]
    client.rig.wait(5)
    (marker, _) = client.direct("S", {"seq": 1, "batch": 10})
    found = headers(marker)
    assert (found["Nats-Sequence"], found["Nats-Subject"], marker.payload) == ("3", "s.1", b"")
    assert (found["Nats-Marker-Reason"], found["Nats-TTL"], found["Nats-Rollup"]) == ("MaxAge", "5s", "sub")
    client.rig.wait(5)
    assert left(client) == []
    assert client.api("STREAM.INFO.S")["state"]["last_seq"] == 3


def test_marker_in_a_full_stream_that_discards_new_messages_costs_no_other_message(client: Client) -> None:
    client.create("S", subject_delete_marker_ttl=5 * SECOND, discard="new", max_bytes=150)
    client.publish("s.1", b"kept" * 8)
    client.publish("s.2", Nats_TTL="5s")
    assert "error" in client.publish("s.3", b"too much" * 8)
    client.rig.wait(5.5)
    state = client.api("STREAM.INFO.S")["state"]
    assert left(client) == [1, 3]
    assert state["bytes"] > 150  # the marker is larger than the message that it replaces
    assert "error" in client.publish("s.3")
    client.rig.wait(5)
    assert left(client) == [1]
    assert client.publish("s.3")["seq"] == 4


def test_marker_takes_the_place_of_what_has_expired_rather_than_of_another_message(client: Client) -> None:
    client.create("S", subject_delete_marker_ttl=5 * SECOND)
    client.publish("s.a", b"stays")
    client.publish("s.b", Nats_TTL="30")
    client.publish("s.a", b"x" * 100, Nats_TTL="10")
    client.publish("s.a", b"newest")
    state = client.api("STREAM.INFO.S")["state"]
    config = {"name": "S", "subjects": ["s.>"], "storage": "memory", "subject_delete_marker_ttl": 5 * SECOND}
    config |= {"allow_msg_ttl": True, "allow_rollup_hdrs": True, "max_bytes": state["bytes"] + 10}
    assert "error" not in client.api("STREAM.UPDATE.S", config)
    client.rig.now += 60 * SECOND  # the server stood still, and both have expired when it goes on
    client.rig.engine.tick(client.rig.now)
    client.rig.settle()
    log = client.rig.engine.streams["S"].log
    assert [(record.seq, record.subject) for record in log.scan("", 0, limit=9)] == [(1, "s.a"), (4, "s.a"), (5, "s.b")]


def test_a_marker_that_cannot_be_stored_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    client.create("S", subject_delete_marker_ttl=5 * SECOND)
    for n in range(3):
        client.publish(f"s.{n}", Nats_TTL="5s")
    stream = client.rig.engine.streams["S"]
    append = Stream._append

    def failing(self: Stream, subject: str, *rest: Any) -> int:
        if subject == "s.0":
            raise StoreError("the disk failed")
        return append(self, subject, *rest)

    monkeypatch.setattr(Stream, "_append", failing)
    client.rig.wait(8)
    assert [record.subject for record in stream.log.scan("", 0, limit=9)] == ["s.0", "s.1", "s.2"]
    assert stream.log.state.last_seq == 5  # the markers of two of them


def test_a_message_lives_no_shorter_than_a_marker(client: Client) -> None:
    client.create("S", subject_delete_marker_ttl=60 * SECOND)
    client.publish("s.1", Nats_TTL="1s", Other="kept")
    (message,) = client.direct("S", {"seq": 1})
    assert headers(message)["Nats-TTL"] == "60"
    assert headers(message)["Other"] == "kept"
    client.create("ONE", subject_delete_marker_ttl=60 * SECOND, max_msgs_per_subject=1)
    client.publish("one.1", Nats_TTL="1s")
    client.rig.wait(1.5)
    (marker,) = client.direct("ONE", {"last_by_subj": "one.1"})
    assert headers(marker)["Nats-TTL"] == "1m0s"


def test_a_marker_is_delivered_to_subscribers(client: Client) -> None:
    client.create("S", subject_delete_marker_ttl=SECOND, republish={"src": ">", "dest": "again.>"})
    client.publish("s.1", Nats_TTL="1s")
    client.send(b"SUB again.> 9\r\n")
    client.take()
    client.rig.wait(1.5)
    (told,) = client.messages()
    assert (told.subject, headers(told)["Nats-Marker-Reason"]) == ("again.s.1", "MaxAge")


def test_limits_other_than_time_leave_no_marker(client: Client) -> None:
    client.create("S", subject_delete_marker_ttl=SECOND, max_msgs=1)
    client.publish("s.1")
    client.publish("s.2")
    client.api("STREAM.MSG.DELETE.S", {"seq": 2})
    client.publish("s.3")
    client.api("STREAM.PURGE.S")
    assert left(client) == []


@pytest.mark.parametrize("kill", [False, True])
def test_a_restart_forgets_no_time_to_live(tmp_path: Path, kill: bool) -> None:
    store = LmdbStore(tmp_path)
    rig = Rig(store=store)
    client = rig.client()
    client.create("S", subject_delete_marker_ttl=5 * SECOND, storage="file")
    for n in range(20):
        client.publish(f"s.{n}", Nats_TTL=f"{10 + n}s")
    if kill:
        client.send(b"PUB s.lost 1\r\nx\r\n", settle=False)
    store.close()
    later = LmdbStore(tmp_path)
    rig = Rig(store=later, now=START + 15 * SECOND)
    client = rig.client()
    rig.wait(0.5)
    info = client.api("STREAM.INFO.S")
    assert info["state"]["messages"] == 20  # six of them are markers
    assert info["state"]["first_seq"] == 7
    rig.wait(100)
    assert client.api("STREAM.INFO.S")["state"]["messages"] == 0
    later.close()


def test_times_to_live_count_from_when_they_are_allowed(client: Client) -> None:
    config: dict[str, Any] = {"allow_direct": True, "storage": "memory", "name": "S", "subjects": ["s.>"]}
    client.create("S", allow_msg_ttl=True)
    client.publish("s.1", Nats_TTL="5s")
    client.rig.wait(1)
    client.api("STREAM.UPDATE.S", config | {"allow_msg_ttl": True, "max_age": 3600 * SECOND})
    client.rig.wait(5)
    assert left(client) == []


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@pytest.mark.parametrize("by_age", [False, True])
def test_thousands_that_expire_at_once_share_the_server(tmp_path: Path, kind: str, by_age: bool) -> None:
    store: Store = LmdbStore(tmp_path / "s", map_size=1 << 27) if kind == "lmdb" else MemoryStore()
    rig, count = Rig(store=store), 10 * SLICE
    client, other = rig.client(), rig.client()
    client.create("S", storage="file", subject_delete_marker_ttl=5 * SECOND, max_age=20 * SECOND if by_age else 0)
    header = b"" if by_age else b"NATS/1.0\r\nNats-TTL: 20s\r\n\r\n"
    client.send(b"".join(pub(f"s.{n}", b"x", "", header) for n in range(count)))
    rig.now += 20 * SECOND
    rig.engine.tick(rig.now)
    turns = 0
    log = rig.engine.streams["S"].log
    while log.state.last_seq < 2 * count + turns:
        other.send(pub("s.other", b"x", f"{other.inbox}o"), settle=False)
        before = log.state.last_seq
        rig.engine.step(rig.now)
        assert rig.engine.jobs.used <= 2 * STEP_UNITS
        assert log.state.last_seq - before <= SLICE
        assert rig.store.pending <= MAX_PENDING + 8 * SLICE
        rig.commit()
        rig.flush()
        assert len(other.messages()) == 1
        turns += 1
    assert turns >= 10
    rig.wait(3)
    assert log.state.messages == count + turns  # a marker for each
    rig.wait(4)
    assert log.state.messages == turns
    store.close()


def test_expiry_goes_on_after_a_lost_group_and_a_restart(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_size=1 << 27)
    rig, count = Rig(store=store), 4 * SLICE
    client = rig.client()
    client.create("S", storage="file", allow_msg_ttl=True)
    client.send(b"".join(pub(f"s.{n}", b"x", "", b"NATS/1.0\r\nNats-TTL: 20s\r\n\r\n") for n in range(count)))
    rig.now += 20 * SECOND
    rig.engine.tick(rig.now)
    rig.engine.step(rig.now)
    log = rig.engine.streams["S"].log
    assert log.state.messages == count - SLICE
    rig.engine.failed(rig.engine.journals[0], OSError("the disk is full"), rig.now)
    assert log.state.messages == count
    rig.engine.step(rig.now)
    rig.commit()
    assert log.state.messages == count - SLICE
    store.close()
    later = LmdbStore(tmp_path, map_size=1 << 27)
    rig = Rig(store=later, now=rig.now)
    rig.wait(1)
    assert rig.engine.streams["S"].log.state.messages == 0
    later.close()


def test_shorter_times_to_live_move_the_timer_without_a_search(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    client.create("S", allow_msg_ttl=True)
    client.publish("s.0", Nats_TTL="100s")
    log, searches = client.rig.engine.streams["S"].log, 0
    original = log.next_expiry

    def next_expiry() -> int:
        nonlocal searches
        searches += 1
        return original()

    monkeypatch.setattr(log, "next_expiry", next_expiry)
    for n in range(1, 50):
        client.publish(f"s.{n}", Nats_TTL=f"{100 - n}s")
    assert not searches
    client.rig.wait(75.5)
    assert left(client) == list(range(1, 26))


def deadlines(rig: Rig, seconds: int) -> int:
    """Let time go by; how often a timer was due."""
    count, end = 0, rig.now + seconds * SECOND
    while (deadline := rig.engine.next_deadline()) is not None and deadline <= end and count < 1000:
        rig.now = max(rig.now, deadline)
        rig.engine.tick(rig.now)
        rig.settle()
        count += 1
    rig.now = end
    return count


@pytest.mark.parametrize("lifetimes", [True, False])
@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("gone", [range(1, 3), range(4, 6), range(9, 11), range(1, 11)])
def test_damaged_messages_expire_with_the_others(tmp_path: Path, lifetimes: bool, is_lost: bool, gone: range) -> None:
    """Also those behind which there is none that is sound: the server would try that again without end."""
    store = LmdbStore(tmp_path, map_size=1 << 26)
    rig = Rig(store=store)
    client = rig.client()
    client.create("S", storage="file", max_age=60 * SECOND, allow_msg_ttl=lifetimes)
    for n in range(1, 11):
        client.publish(f"s.{n}", b"payload %03d" % n)
        rig.now += SECOND
    if is_lost:
        with store._env.handle.begin(write=True, db=store._env.messages) as txn:
            assert all(txn.delete(MESSAGE_KEY.pack(1, seq)) for seq in gone)
            txn.put(b"z", store._env.tally.stamp(txn.id()), db=store._env.control)
    store.close()
    if not is_lost:
        data = (tmp_path / "data.mdb").read_bytes()
        for seq in gone:
            data = data.replace(b"payload %03d" % seq, b"damaged %03d" % seq)
        (tmp_path / "data.mdb").write_bytes(data)
    store = LmdbStore(tmp_path, map_size=1 << 26)
    rig = Rig(store=store, now=rig.now)
    log = rig.engine.streams["S"].log
    assert deadlines(rig, 49) <= 1
    assert log.state.messages == 10
    assert deadlines(rig, 30) <= 200
    assert log.state.messages == 0
    assert rig.engine.health().ok
    store.close()


def test_very_many_lost_messages_expire_in_slices(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_size=1 << 26)
    rig = Rig(store=store)
    client = rig.client()
    client.create("S", storage="file", max_age=60 * SECOND, allow_msg_ttl=True)
    for _ in range(12):
        client.send(pub("s.1", b"x") * 500)
    with store._env.handle.begin(write=True, db=store._env.messages) as txn:
        assert all(txn.delete(MESSAGE_KEY.pack(1, seq)) for seq in range(1, 5501))
        txn.put(b"z", store._env.tally.stamp(txn.id()), db=store._env.control)
    store.close()
    store = LmdbStore(tmp_path, map_size=1 << 26)
    rig = Rig(store=store, now=rig.now + 60 * SECOND)
    log = rig.engine.streams["S"].log
    rig.now += SECOND
    rig.engine.tick(rig.now)
    for turn in range(1000):
        if not log.state.messages:
            break
        before = log.state.messages
        assert rig.turn() <= 2 * STEP_UNITS
        assert before - log.state.messages <= 2 * SLICE, turn
    assert log.state.messages == 0
    store.close()


def test_nothing_is_due_behind_a_message_that_stays_when_the_rest_was_deleted(client: Client) -> None:
    client.create("S", allow_msg_ttl=True, max_age=10 * SECOND)
    client.publish("s.1", Nats_TTL="never")
    for n in range(3):
        client.publish("s.2")
        client.api("STREAM.MSG.DELETE.S", {"seq": n + 2})
    assert deadlines(client.rig, 100) <= 3
    client.publish("s.2")
    client.rig.wait(9)
    assert left(client) == [1, 5]
    client.rig.wait(2)
    assert left(client) == [1]


@pytest.mark.parametrize("lifetimes", [True, False])
def test_age_that_is_raised_while_messages_leave_counts_for_those_that_are_left(
    client: Client, lifetimes: bool
) -> None:
    rig, config = client.rig, {"name": "S", "subjects": ["s.>"], "storage": "memory", "allow_msg_ttl": lifetimes}
    client.api("STREAM.CREATE.S", config)
    for _ in range(2000):
        client.send(pub("s.1", b"x"))
        rig.now += SECOND // 2
    log = rig.engine.streams["S"].log
    update = "$JS.API.STREAM.UPDATE.S"
    client.send(pub(update, msgspec.json.encode(config | {"max_age": 10 * SECOND}), f"{client.inbox}u"), settle=False)
    rig.now += SECOND
    rig.engine.tick(rig.now)
    while log.state.messages == 2000:
        rig.turn()
    assert log.state.messages > 1000
    assert "error" not in client.api("STREAM.UPDATE.S", config | {"max_age": 3600 * SECOND})
    count, first = log.state.messages, log.state.first_time
    rig.wait((first - rig.now) / SECOND + 3602)
    assert 2 <= count - log.state.messages <= 5
