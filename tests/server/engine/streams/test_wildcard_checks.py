"""Expected last sequences of wildcards: searched in slices, and checked against the moment of storing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from slipstream.server.engine.jobs import STEP_UNITS
from slipstream.server.engine.ports import Store
from slipstream.server.engine.streams import wildcard_checks
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.memory.store import MemoryStore
from slipstream.wire import pub
from tests.server.support import Client, Rig

COUNT = 6000  # subjects: several slices
NEWEST = COUNT // 2 - 2  # the newest of `s.*.0`


@pytest.fixture(params=["memory", "lmdb"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    store: Store = LmdbStore(tmp_path / "s", map_size=1 << 28) if request.param == "lmdb" else MemoryStore()
    yield filled(Rig(store=store))
    store.close()


def filled(rig: Rig) -> Rig:
    """With a stream S, whose first half is `s.<n>.<n % 3>` and whose second half is `s.<n>.x`."""
    client = rig.client()
    client.create("S", storage="file", allow_atomic=True, allow_batched=True)
    for start in range(0, COUNT, 500):
        client.send(
            b"".join(
                pub(f"s.{n}.{n % 3 if n < COUNT // 2 else 'x'}", b"x") for n in range(start, min(start + 500, COUNT))
            )
        )
    return rig


def expect(seq: int, subject: str, *lines: str) -> bytes:
    more = "".join(f"{line}\r\n" for line in lines)
    return (
        f"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: {seq}\r\n"
        f"Nats-Expected-Last-Subject-Sequence-Subject: {subject}\r\n{more}\r\n"
    ).encode()


def ask(client: Client, name: str, header: bytes, subject: str = "s.new", payload: bytes = b"n") -> None:
    """Publish without a turn of the server."""
    client.send(pub(subject, payload, f"{client.inbox}{name}", header), settle=False)


def test_search_for_a_wildcard_is_sliced_and_others_are_served_meanwhile(rig: Rig) -> None:
    client, other = rig.client(), rig.client()
    for n in range(20):
        ask(client, f"{n}", expect(0, "s.*.none"))
    turns, most = 0, 0
    while not (found := client.answers()) or len(found) < 1:
        ask(other, "o", b"")
        most = max(most, rig.turn())
        turns += 1
        assert turns < 1000
        assert other.answers()["o"]["seq"] > COUNT
    assert turns > 1
    assert most <= 2 * STEP_UNITS
    rig.settle()
    done = found | client.answers()
    assert [done[f"{n}"]["stream"] for n in range(20)] == ["S"] * 20
    assert all("error" not in each for each in done.values())


def test_answers_keep_the_order_of_the_publishes(rig: Rig) -> None:
    client = rig.client()
    ask(client, "search", expect(0, "s.*.none"), "s.1.a")
    ask(client, "after", b"", "s.1.b")
    ask(client, "both", expect(COUNT + 2, "s.1.*"), "s.1.c")
    rig.settle()
    found = client.answers()
    assert [found[name]["seq"] for name in ("search", "after", "both")] == [COUNT + 1, COUNT + 2, COUNT + 3]


def test_wrong_expectation_names_the_newest_message(rig: Rig) -> None:
    client = rig.client()
    ask(client, "wrong", expect(1, "s.*.0"))
    ask(client, "right", expect(NEWEST, "s.*.0"))
    rig.settle()
    found = client.answers()
    assert found["wrong"]["error"]["description"] == f"wrong last sequence: {NEWEST}"
    assert found["right"]["seq"] == COUNT + 1


@pytest.mark.parametrize("is_committed", [False, True])
def test_message_stored_during_the_search_counts(rig: Rig, is_committed: bool) -> None:
    client, other = rig.client(), rig.client()
    ask(client, "late", expect(NEWEST, "s.*.0"))
    assert not client.answers()
    ask(other, "first", b"", "s.other.0")
    if is_committed:
        rig.commit()
    rig.settle()
    assert client.answers()["late"]["error"]["description"] == f"wrong last sequence: {COUNT + 1}"


def test_message_removed_during_the_search_does_not_count(rig: Rig) -> None:
    client, other = rig.client(), rig.client()
    ask(client, "late", expect(NEWEST - 3, "s.*.0"))
    other.send(pub("$JS.API.STREAM.MSG.DELETE.S", b'{"seq":%d}' % NEWEST, f"{other.inbox}d"), settle=False)
    rig.settle()
    assert client.answers()["late"].get("seq") == COUNT + 1


def test_batch_with_wildcards_is_checked_as_a_whole_after_the_search(rig: Rig) -> None:
    client, other = rig.client(), rig.client()

    def batch(name: str, seq: int) -> None:
        for n in (1, 2, 3):
            commit = ["Nats-Batch-Commit: 1"] if n == 3 else []
            lines = (f"Nats-Batch-Id: {name}", f"Nats-Batch-Sequence: {n}", *commit)
            ask(client, f"{name}{n}", expect(seq, f"s.*.{n - 1}", *lines) if n == 1 else expect(0, "s.*.q", *lines))

    batch("good", NEWEST)
    batch("bad", NEWEST - 3)
    ask(other, "o", b"")
    assert rig.turn() <= 2 * STEP_UNITS
    assert other.answers()["o"]["seq"] == COUNT + 1  # the batch is not complete yet
    rig.settle()
    found = {each.subject.removeprefix(client.inbox): each.payload for each in client.messages()}
    good, bad = msgspec.json.decode(found["good3"]), msgspec.json.decode(found["bad3"])
    assert (good["seq"], good["count"]) == (COUNT + 4, 3)
    assert bad["error"]["description"] == f"wrong last sequence: {NEWEST}"


def test_message_of_a_fast_batch_waits_for_its_search(rig: Rig) -> None:
    client = rig.client()
    for n, operation in ((1, 0), (2, 2)):
        reply = f"{client.inbox}b.x.10.fail.{n}.{operation}.$FI"
        client.send(pub(f"s.f.{n}", b"x", reply, expect(0, "s.*.none") if n == 1 else b""), settle=False)
    rig.settle()
    assert rig.engine.streams["S"].log.state.last_seq == COUNT + 2


def test_deleted_stream_answers_what_still_searches(rig: Rig) -> None:
    client, other = rig.client(), rig.client()
    ask(client, "late", expect(0, "s.*.none"))
    other.send(pub("$JS.API.STREAM.DELETE.S", b"", f"{other.inbox}d"), settle=False)
    rig.settle()
    assert client.answers()["late"]["error"]["err_code"] == 10059


def test_search_of_a_client_that_leaves_stores_nothing_and_frees_its_snapshot(rig: Rig) -> None:
    client = rig.client()
    ask(client, "late", expect(0, "s.*.none"))
    rig.engine.disconnect(client.cid)
    rig.settle()
    log = rig.engine.streams["S"].log
    assert log.state.last_seq == COUNT
    assert not getattr(log, "snapshots", ())


def test_few_subjects_are_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    client = rig.client()
    client.create("S")
    for n in range(10):
        client.publish(f"s.{n}.a")
    monkeypatch.setattr(wildcard_checks, "AT_ONCE", 10)
    ask(client, "now", expect(10, "s.*.a"))
    rig.commit()
    rig.flush()
    assert client.answers()["now"]["seq"] == 11


def test_batch_that_names_one_wildcard_many_times_searches_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    client = rig.client()
    client.create("S", allow_atomic=True)
    for n in range(10):
        client.publish(f"s.{n}.a")
    log = rig.engine.streams["S"].log
    monkeypatch.setattr(wildcard_checks, "AT_ONCE", 100)
    monkeypatch.setattr(log, "last_seq_of", lambda _: pytest.fail("a message of the batch was looked up by itself"))
    for n in range(1, 21):
        lines = ("Nats-Batch-Id: b", f"Nats-Batch-Sequence: {n}", *(["Nats-Batch-Commit: 1"] if n == 20 else []))
        ask(client, f"{n}", expect(10, "s.*.a", *lines), f"s.{n}.b")
    rig.settle()
    last = client.messages()[-1]
    assert msgspec.json.decode(last.payload)["count"] == 20
