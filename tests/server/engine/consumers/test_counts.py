"""What a consumer counts again, and acks of very many messages: in slices, and exact whatever happens in between."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.server.engine.consumers import ack_handling, cursor, deliver_policy
from slipstream.server.engine.consumers import consumer as consumer_module
from slipstream.server.engine.ports import Store
from slipstream.server.store import change_log
from slipstream.server.store.lmdb import snapshot as lmdb_snapshot
from slipstream.server.store.lmdb import view as lmdb_view
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.memory import snapshot as memory_snapshot
from slipstream.server.store.memory.store import MemoryStore
from slipstream.wire import matches, pub
from tests.server.support import Client, Rig

SUBJECTS = [f"s.{a}.{b}" for a in "12345" for b in "xyz"]


@pytest.fixture
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor, "FEW_MESSAGES", -1)
    monkeypatch.setattr(consumer_module, "SLICE_UNITS", 1)
    monkeypatch.setattr(ack_handling, "AT_ONCE", 4)
    monkeypatch.setattr(ack_handling, "PIECE", 2)
    monkeypatch.setattr(change_log, "MOST", 6)  # a larger group is a recount
    for module, name in (
        (memory_snapshot, "PAUSE"), (lmdb_snapshot, "PAUSE"), (lmdb_view, "LOOKED"), (cursor, "REVIEWED"),
        (deliver_policy, "REVIEWED"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 2)


@pytest.fixture(params=["memory", "lmdb"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, _small_slices: None) -> Iterator[Rig]:
    """An engine whose consumers count all things in slices, a subject or two in each."""
    store: Store = LmdbStore(tmp_path / "s", map_size=1 << 26) if request.param == "lmdb" else MemoryStore()
    yield Rig(store=store)
    store.close()


def put(client: Client, config: dict[str, Any], action: str = "", *, settle: bool = True) -> None:
    body = {"stream_name": "S", "config": {"name": "c", "durable_name": "c"} | config, "action": action}
    client.send(pub("$JS.API.CONSUMER.CREATE.S.c", msgspec.json.encode(body), f"{client.inbox}put"), settle=settle)


def pull(client: Client, batch: int) -> list[tuple[int, str, str]]:
    """Sequence, subject and ack subject of the messages that there are."""
    client.take()
    body = msgspec.json.encode({"batch": batch, "no_wait": True})
    client.send(pub("$JS.API.CONSUMER.MSG.NEXT.S.c", body, f"{client.inbox}next"))
    found = [message for message in client.messages() if message.reply]
    return [(int(message.reply.split(".")[5]), message.payload.decode(), message.reply) for message in found]


def filled(rig: Rig, count: int, **config: Any) -> tuple[Client, Client]:
    client, writer = rig.client(), rig.client()
    client.create("S", storage="file", **config)
    rng = random.Random(count)
    for _ in range(count):
        subject = rng.choice(SUBJECTS)
        writer.publish(subject, subject.encode())
    return client, writer


def covered(rig: Rig, pattern: str, start: int = 0) -> list[int]:
    log = rig.engine.streams["S"].log
    return [r.seq for r in log.scan("", start, limit=1000) if matches(pattern, r.subject)]


def counted(rig: Rig) -> int:
    """How many turns it took until the consumer had counted."""
    turns = 0
    while rig.engine.streams["S"].consumers.items["c"].is_searching:
        rig.turn()
        turns += 1
        assert turns < 1000
    return turns


@pytest.mark.parametrize("policy", ["all", "last_per_subject"])
def test_changed_filters_are_counted_in_slices_beside_publishes_and_deletions(rig: Rig, policy: str) -> None:
    client, writer = filled(rig, 60)
    put(client, {"filter_subject": "s.*.x", "ack_policy": "explicit", "deliver_policy": policy})
    first = pull(client, 4)
    before = set(covered(rig, "s.*.*"))
    client.take()
    put(client, {"filter_subject": "s.*.*", "ack_policy": "explicit", "deliver_policy": policy}, settle=False)
    rng = random.Random(7)
    turns = 0
    while not client.messages():
        turns += 1
        assert turns < 500
        subject = rng.choice(SUBJECTS)
        writer.send(pub(subject, subject.encode()), settle=False)
        seq = msgspec.json.encode({"seq": rng.randint(1, 60)})
        writer.send(pub("$JS.API.STREAM.MSG.DELETE.S", seq, ""), settle=False)
        rig.turn()
    assert turns > 3
    rig.settle()
    now = covered(rig, "s.*.*")
    start = first[-1][0] + 1
    if policy == "all":
        wanted = [seq for seq in now if seq >= start]
    else:  # the rest of its list, which was of the old filter, and what is new since it began
        info = client.api("CONSUMER.INFO.S.c")
        wanted = [seq for seq, _, _ in pull(client, 1000)]
        assert info["num_pending"] == len(wanted)
        assert [seq for seq in now if seq > max(before)] == [seq for seq in wanted if seq > max(before)]
        return
    assert client.api("CONSUMER.INFO.S.c")["num_pending"] == len(wanted)
    assert [seq for seq, _, _ in pull(client, 1000)] == wanted


def test_large_purge_is_counted_in_slices_and_pending_messages_are_reviewed(rig: Rig) -> None:
    client, writer = filled(rig, 60)
    put(client, {"filter_subject": "s.*.*", "ack_policy": "explicit"})
    taken = pull(client, 20)
    body = msgspec.json.encode({"seq": 16})
    writer.send(pub("$JS.API.STREAM.PURGE.S", body, ""), settle=False)
    rig.commit()
    assert rig.engine.streams["S"].consumers.items["c"].is_searching
    writer.send(pub("s.1.x", b"s.1.x"), settle=False)
    assert counted(rig) > 1
    rig.settle()
    info = client.api("CONSUMER.INFO.S.c")
    assert (info["num_pending"], info["num_ack_pending"]) == (41, 5)
    assert [seq for seq, _, _ in pull(client, 100)] == list(range(21, 62))
    assert [seq for seq, _, _ in taken] == list(range(1, 21))


def test_nothing_is_delivered_while_it_is_counted_and_nothing_is_lost(rig: Rig) -> None:
    client, writer = filled(rig, 40)
    put(client, {"filter_subject": "s.*.*", "ack_policy": "none"})
    client.send(pub("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":1000,"expires":60000000000}', f"{client.inbox}next"))
    got = [int(message.reply.split(".")[5]) for message in client.messages() if message.reply]
    for _ in range(3):
        writer.send(b"".join(pub("s.1.y", b"s.1.y") for _ in range(9)), settle=False)  # more than a list of changes has
        rig.turn()
    rig.settle()
    got += [int(message.reply.split(".")[5]) for message in client.messages() if message.reply]
    assert got == list(range(1, 68))
    assert client.api("CONSUMER.INFO.S.c")["num_pending"] == 0


def test_pull_request_waits_until_the_consumer_has_counted(rig: Rig) -> None:
    client, _ = filled(rig, 40)
    put(client, {"filter_subject": "s.*.*", "ack_policy": "explicit"})
    put(client, {"filter_subject": "*.*.*", "ack_policy": "explicit"}, settle=False)
    client.send(pub("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":5}', f"{client.inbox}next"), settle=False)
    turns = 0
    while rig.engine.streams["S"].consumers.items["c"].is_searching:
        rig.turn()
        turns += 1
        if rig.engine.streams["S"].consumers.items["c"].is_searching:
            assert not any(message.reply for message in client.messages())
    assert turns > 1
    rig.settle()
    assert len([message for message in client.messages() if message.reply]) == 5
    assert client.api("CONSUMER.INFO.S.c")["num_pending"] == 35


def test_consumer_that_is_counted_can_be_changed_reset_and_deleted(rig: Rig) -> None:
    client, writer = filled(rig, 40)
    put(client, {"filter_subject": "s.*.x", "ack_policy": "explicit"})
    put(client, {"filter_subject": "s.*.y", "ack_policy": "explicit"}, settle=False)
    put(client, {"filter_subject": "s.*.z", "ack_policy": "explicit"}, settle=False)
    assert rig.engine.streams["S"].consumers.items["c"].is_searching
    rig.settle()
    assert client.api("CONSUMER.INFO.S.c")["num_pending"] == len(covered(rig, "s.*.z"))
    put(client, {"filter_subject": "s.*.y", "ack_policy": "explicit"}, settle=False)
    answer = client.api("CONSUMER.RESET.S.c", {"seq": 11})
    assert answer["reset_seq"] == 11
    assert answer["num_pending"] == len(covered(rig, "s.*.y", 11))
    assert [seq for seq, _, _ in pull(client, 100)] == covered(rig, "s.*.y", 11)
    put(client, {"filter_subject": "s.*.x", "ack_policy": "explicit"}, settle=False)
    client.take()
    client.send(pub("$JS.API.CONSUMER.DELETE.S.c", b""), settle=False)
    rig.settle()
    assert any(b"consumer not found" in message.payload for message in client.messages())  # in place of the report
    writer.publish("s.1.x")


@pytest.mark.usefixtures("_small_slices")
def test_restarted_server_counts_its_consumers_in_slices(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "s", map_size=1 << 26)
    rig = Rig(store=store)
    client, _ = filled(rig, 50)
    put(client, {"filter_subject": "s.*.x", "ack_policy": "explicit"})
    taken = pull(client, 3)
    rig.wait(1)
    store.close()
    store = LmdbStore(tmp_path / "s", map_size=1 << 26)
    rig = Rig(store=store)
    client = rig.client()
    client.send(pub("$JS.API.CONSUMER.INFO.S.c", b"", f"{client.inbox}info"), settle=False)
    rig.settle()
    (answer,) = client.messages()
    wanted = covered(rig, "s.*.x", taken[-1][0] + 1)
    assert msgspec.json.decode(answer.payload)["num_pending"] == len(wanted)
    assert [seq for seq, _, _ in pull(client, 100)] == wanted
    store.close()


def test_lost_group_while_it_is_counted(rig: Rig) -> None:
    client, writer = filled(rig, 40)
    put(client, {"filter_subject": "s.*.x", "ack_policy": "explicit"})
    put(client, {"filter_subject": "s.*.y", "ack_policy": "explicit"})
    writer.send(b"".join(pub("s.1.y", b"s.1.y") for _ in range(9)))
    writer.send(b"".join(pub("s.1.y", b"lost") for _ in range(9)), settle=False)
    (journal,) = rig.engine.journals
    journal.seal()
    rig.engine.failed(journal, OSError("no space left on device"), rig.now)
    rig.settle()
    assert client.api("CONSUMER.INFO.S.c")["num_pending"] == len(covered(rig, "s.*.y"))


# Acks of very many messages.


def test_ack_of_all_settles_and_removes_in_slices_and_is_answered_last(rig: Rig) -> None:
    client, _ = rig.client(), rig.client()
    client.create("S", storage="file", retention="interest")
    put(client, {"filter_subject": "s.*.*", "ack_policy": "all", "max_ack_pending": -1})
    for _ in range(30):
        client.publish("s.1.x")
    taken = pull(client, 100)
    client.take()
    client.send(pub(taken[24][2], b"+ACK", f"{client.inbox}acked"), settle=False)
    seen = []
    log = rig.engine.streams["S"].log
    while not client.messages():
        rig.turn()
        rig.wait(0.02)
        state = rig.engine.streams["S"].consumers.items["c"].state
        seen.append((log.state.messages, len(state.pending), state.floor_seq))
        # What is acknowledged has left the stream, and nothing else has.
        assert log.state.messages == len(state.pending) == 30 - state.floor_seq
        assert len(seen) < 100
    info = client.api("CONSUMER.INFO.S.c")
    assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"], info["ack_floor"]["consumer_seq"]) == (5, 25, 25)
    assert client.api("STREAM.INFO.S")["state"]["messages"] == 5


def test_acks_that_arrive_while_very_many_are_settled_join_them(rig: Rig) -> None:
    client = rig.client()
    client.create("S", storage="file", retention="interest")
    put(client, {"filter_subject": "s.*.*", "ack_policy": "all", "max_ack_pending": -1})
    for _ in range(30):
        client.publish("s.1.x")
    taken = pull(client, 100)
    client.take()
    for at in (10, 5, 20, 29):
        client.send(pub(taken[at][2], b"+ACK", f"{client.inbox}{at}"), settle=False)
    rig.engine.step(rig.now)
    client.send(pub(taken[3][2], b"+ACK", f"{client.inbox}3"), settle=False)
    rig.settle()
    rig.wait(0.1)
    assert {message.subject.removeprefix(client.inbox) for message in client.messages()} == {"10", "5", "20", "29", "3"}
    assert client.api("CONSUMER.INFO.S.c")["num_ack_pending"] == 0
    assert client.api("STREAM.INFO.S")["state"]["messages"] == 0


def test_consumer_deleted_while_very_many_acks_are_settled(rig: Rig) -> None:
    client = rig.client()
    client.create("S", storage="file", retention="interest")
    put(client, {"filter_subject": "s.*.*", "ack_policy": "all", "max_ack_pending": -1})
    for _ in range(30):
        client.publish("s.1.x")
    taken = pull(client, 100)
    client.send(pub(taken[24][2], b"+ACK", ""), settle=False)
    rig.engine.step(rig.now)
    client.api("CONSUMER.DELETE.S.c")
    assert client.api("STREAM.INFO.S")["state"]["messages"] == 0  # no interest is left
