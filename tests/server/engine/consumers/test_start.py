"""The start of a consumer of a large stream, a search in slices: exact whatever is committed in the meantime."""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.server.engine.consumers import consumer as consumer_module
from slipstream.server.engine.consumers import cursor
from slipstream.server.engine.consumers.deliver_policy import SkipList
from slipstream.server.engine.ports import Store
from slipstream.server.store.lmdb import snapshot as lmdb_snapshot
from slipstream.server.store.lmdb import view as lmdb_view
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.memory import snapshot as memory_snapshot
from slipstream.server.store.memory.store import MemoryStore
from slipstream.wire import matches, pub
from tests.server.support import Client, Rig

SUBJECTS = [f"s.{a}.{b}" for a in "12345" for b in "xyz"]


@pytest.fixture(params=["memory", "lmdb"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """An engine whose consumers all begin with a search, a subject or two in each slice."""
    monkeypatch.setattr(cursor, "FEW_MESSAGES", -1)
    monkeypatch.setattr(consumer_module, "SLICE_UNITS", 1)
    for module, name in ((memory_snapshot, "PAUSE"), (lmdb_snapshot, "PAUSE"), (lmdb_view, "LOOKED")):
        monkeypatch.setattr(module, name, 1)
    store: Store = LmdbStore(tmp_path / "s", map_size=1 << 26) if request.param == "lmdb" else MemoryStore()
    yield Rig(store=store)
    store.close()


def begin(client: Client, config: dict[str, Any]) -> None:
    body = {"stream_name": "S", "config": {"name": "c", "durable_name": "c", "ack_policy": "none"} | config}
    client.send(pub("$JS.API.CONSUMER.CREATE.S.c", msgspec.json.encode(body), f"{client.inbox}made"), settle=False)


def is_covered(subject: str, filters: list[str]) -> bool:
    return not filters or any(matches(pattern, subject) for pattern in filters)


def delivered(client: Client) -> list[tuple[int, str]]:
    """All messages that the consumer has, by sequence."""
    client.take()
    client.send(pub("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":1000,"no_wait":true}', f"{client.inbox}next"))
    found = [message for message in client.messages() if not message.header.startswith(b"NATS/1.0 4")]
    return [(int(message.reply.split(".")[5]), message.payload.decode()) for message in found if message.reply]


POLICIES: list[dict[str, Any]] = [
    {"deliver_policy": "all"},
    {"deliver_policy": "last"},
    {"deliver_policy": "last_per_subject"},
    {"deliver_policy": "by_start_sequence", "opt_start_seq": 20},
    {"deliver_policy": "by_start_sequence", "opt_start_seq": 1000},
]
FILTERS: list[list[str]] = [["*.*.x"], ["s.1.*", "*.*.z"], ["s.2.x", "s.3.y"]]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: str(list(policy.values())))
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_start_in_slices_gets_every_message_once_and_counts_exactly(
    rig: Rig, policy: dict[str, Any], filters: list[str]
) -> None:
    rng = random.Random(len(filters) * 31 + len(policy))
    client, writer = rig.client(), rig.client()
    client.create("S", storage="file")
    for _ in range(60):
        subject = rng.choice(SUBJECTS)
        writer.publish(subject, subject.encode())
    before = {r.seq: r.subject for r in rig.engine.streams["S"].log.scan("", 0, limit=1000)}
    begin(client, policy | ({"filter_subjects": filters} if filters else {}))
    searched = 0
    while not client.events and searched < 400:
        rig.turn()
        made_one = rig.engine.streams["S"].consumers.items.get("c")
        searched += made_one is not None and made_one.is_searching
        if searched < 12:
            subject = rng.choice(SUBJECTS)
            writer.send(pub(subject, subject.encode()), settle=False)
            writer.send(
                pub("$JS.API.STREAM.MSG.DELETE.S", msgspec.json.encode({"seq": rng.randint(1, 60)}), ""), settle=False
            )
    (made,) = client.messages()
    log = rig.engine.streams["S"].log
    now = {r.seq: r.subject for r in log.scan("", 0, limit=1000)}
    kind = policy["deliver_policy"]
    covered = {seq: subject for seq, subject in before.items() if is_covered(subject, filters)}
    if kind == "all":
        chosen = set(covered)
    elif kind == "last":
        chosen = {max(covered)}
    elif kind == "last_per_subject":
        chosen = set({subject: seq for seq, subject in sorted(covered.items())}.values())
    else:
        chosen = {seq for seq in covered if seq >= policy["opt_start_seq"]}
    fresh = {seq for seq, subject in now.items() if seq > max(before) and is_covered(subject, filters)}
    if kind == "by_start_sequence":
        fresh = {seq for seq in fresh if seq >= policy["opt_start_seq"]}
    wanted = sorted(seq for seq in chosen | fresh if seq in now)
    assert msgspec.json.decode(made.payload)["num_pending"] == len(wanted)
    assert client.api("CONSUMER.INFO.S.c")["num_pending"] == len(wanted)
    assert delivered(client) == [(seq, now[seq]) for seq in wanted]
    assert client.api("CONSUMER.INFO.S.c")["num_pending"] == 0


def test_reports_of_a_consumer_that_is_searching_wait_and_it_can_be_deleted_changed_or_reset(rig: Rig) -> None:
    client, other = rig.client(), rig.client()
    client.create("S", storage="file")
    for subject in SUBJECTS:
        other.publish(subject)
    for request, body in (
        ("CONSUMER.INFO.S.c", b""),
        ("CONSUMER.LIST.S", b""),
        ("CONSUMER.RESET.S.c", b""),
        ("CONSUMER.DELETE.S.c", b""),
    ):
        begin(client, {"filter_subjects": ["*.*.x"]})
        for _ in range(3):
            rig.turn()
        assert rig.engine.streams["S"].consumers.items["c"].is_searching
        answer = other.api(request, body)
        infos = answer.get("consumers", [answer])
        if "DELETE" in request:
            assert answer["success"]
            assert msgspec.json.decode(client.messages()[0].payload)["error"]["err_code"] == 10014
        else:
            assert infos[0]["num_pending"] == 5
            assert msgspec.json.decode(client.messages()[0].payload)["num_pending"] == 5
            other.api("CONSUMER.DELETE.S.c")
    begin(client, {"filter_subjects": ["*.*.x"]})
    for _ in range(3):
        rig.turn()
    update = {"name": "c", "durable_name": "c", "ack_policy": "none", "filter_subjects": ["s.1.*", "*.4.z"]}
    answer = other.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": update, "action": "update"})
    assert answer["num_pending"] == 4
    assert len(delivered(client)) == 4


def test_a_stream_that_is_purged_or_deleted_during_the_search_of_a_consumer(rig: Rig) -> None:
    client, other = rig.client(), rig.client()
    client.create("S", storage="file")
    for subject in SUBJECTS:
        other.publish(subject)
    begin(client, {"filter_subjects": ["*.*.x"], "deliver_policy": "last_per_subject"})
    rig.turn()
    rig.turn()
    other.api("STREAM.PURGE.S")
    other.publish("s.1.x", b"new")
    assert msgspec.json.decode(client.messages()[0].payload)["num_pending"] <= 1
    assert [payload for _, payload in delivered(client)] == ["new"]
    other.api("CONSUMER.DELETE.S.c")
    begin(client, {"filter_subjects": ["*.*.x"]})
    rig.turn()
    other.api("STREAM.DELETE.S")
    rig.settle()
    assert not rig.engine.step(rig.now)


def test_list_of_last_messages_is_stored_as_before() -> None:
    """A sequence, and those that are still to come, of eight bytes each."""
    skips = SkipList(array("Q", [3, 5, 900, 1 << 40]), 1 << 41)
    skips.took(3)
    assert skips.lost(900)
    data = skips.pack()
    assert data == struct.pack("<3Q", 1 << 41, 5, 1 << 40)
    again = SkipList.unpack(data)
    assert again is not None
    assert (len(again), again.resume, again.pack()) == (2, 1 << 41, data)
    again.took(1 << 40)
    assert again.done
    assert again.pack() == b""
