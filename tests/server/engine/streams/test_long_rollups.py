"""Rollups, purges by sequence and lowered limits that remove very many messages: in slices, and what is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.server.engine.auth.account_limits import AccountLimits
from slipstream.server.engine.auth.users import DEFAULT_ACCOUNT
from slipstream.server.engine.engine import MAX_PENDING
from slipstream.server.engine.jobs import STEP_UNITS
from slipstream.server.engine.ports import Store
from slipstream.server.engine.replication.mirror import Mirror
from slipstream.server.engine.streams.removals import AT_ONCE, AT_ONCE_IN_BATCH, SLICE, UNITS
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.memory.store import MemoryStore
from slipstream.wire import Parser, Side, pub
from tests.server.support import HELLO, Client, Rig

COUNT = 3000  # messages of `s.c`
SUB, ALL = b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n", b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n"


@pytest.fixture(params=["memory", "lmdb"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    store: Store = LmdbStore(tmp_path / "s", map_size=1 << 28) if request.param == "lmdb" else MemoryStore()
    yield filled(Rig(store=store))
    store.close()


def filled(rig: Rig, **config: Any) -> Rig:
    """With a stream S: one message of `s.a`, then those of `s.c`."""
    client = rig.client()
    client.create("S", storage="file", allow_rollup_hdrs=True, **config)
    client.send(pub("s.a", b"x"))
    for _ in range(0, COUNT, 500):
        client.send(b"".join(pub("s.c", b"x") for _ in range(500)))
    return rig


def publish(client: Client, name: str, header: bytes = b"", subject: str = "s.c") -> None:
    """Publish without a turn of the server."""
    client.send(pub(subject, b"new", f"{client.inbox}{name}", header), settle=False)


def held(rig: Rig) -> list[tuple[int, str]]:
    """What readers see."""
    log = rig.engine.streams["S"].log
    found = [(record.seq, record.subject) for record in log.scan("", 0, limit=2 * COUNT)]
    assert len(found) == log.committed.messages
    return found


def to_the_end(rig: Rig, client: Client, count: int = 1) -> dict[str, Any]:
    """Turns, until so many answers are there; no turn does more than a slice beyond its budget."""
    found: dict[str, Any] = {}
    for _ in range(1000):
        assert rig.turn() <= STEP_UNITS + UNITS * SLICE + 1
        found |= client.answers()
        if len(found) == count:
            return found
    raise AssertionError("no answer")


def lose_the_open_group(rig: Rig) -> None:
    (journal,) = rig.engine.journals
    journal.seal()
    rig.engine.failed(journal, OSError("no space left on device"), rig.now)


def test_rollup_is_acknowledged_when_all_that_it_replaces_is_gone(rig: Rig) -> None:
    client, log = rig.client(), rig.engine.streams["S"].log
    publish(client, "r", SUB)
    assert log.state.messages == COUNT + 2  # nothing of it in the turn of the publish
    sizes = []
    while not (found := client.answers()):
        rig.turn()
        state = held(rig)
        assert state[0] == (1, "s.a")
        assert state[-1] == (COUNT + 2, "s.c")  # the newest message at once
        assert [seq for seq, _ in state[1:]] == list(range(state[1][0], COUNT + 3))  # the oldest go first
        sizes.append(len(state))
    assert found["r"]["seq"] == COUNT + 2
    assert held(rig) == [(1, "s.a"), (COUNT + 2, "s.c")]
    assert len(set(sizes)) > 3


def test_small_rollup_is_done_in_one_group(rig: Rig) -> None:
    client = rig.client()
    client.send(b"".join(pub("s.few", b"x") for _ in range(500)))
    publish(client, "r", SUB, "s.few")
    rig.turn()
    assert client.answers()["r"]["seq"] == COUNT + 502
    assert rig.engine.streams["S"].log.committed.messages == COUNT + 2


def test_rollup_of_all_subjects(rig: Rig) -> None:
    client = rig.client()
    publish(client, "r", ALL)
    publish(client, "later", subject="s.later")
    assert to_the_end(rig, client, 2)["r"]["seq"] == COUNT + 2
    assert held(rig) == [(COUNT + 2, "s.c"), (COUNT + 3, "s.later")]


@pytest.mark.parametrize("is_committed", [True, False])
def test_rollup_of_a_subject_that_looks_like_a_filter(rig: Rig, is_committed: bool) -> None:
    """It removes what that covers, however much that is."""
    client = rig.client()
    client.create("T", subjects=["t.>"], storage="file", allow_rollup_hdrs=True)
    log = rig.engine.streams["T"].log
    client.send(pub("t.a.b", b"stays"))
    client.send(b"".join(pub(f"t.{n % 700}", b"x") for n in range(1400)), settle=is_committed)
    publish(client, "r", SUB, "t.*")
    publish(client, "later", subject="t.1")
    found = to_the_end(rig, client, 2)
    assert (found["r"]["seq"], found["later"]["seq"]) == (1402, 1403)
    assert [record.seq for record in log.scan("", 0, limit=2000)] == [1, 1402, 1403]
    assert not rig.engine.streams["T"].is_removing


def test_rollups_one_after_the_other_are_each_acknowledged(rig: Rig) -> None:
    client, stream = rig.client(), rig.engine.streams["S"]
    publish(client, "r", SUB)
    rig.turn()
    for name in range(5):
        publish(client, str(name), SUB)
    assert len(msgspec.json.decode(stream.stored())["removals"]) == 1
    found = to_the_end(rig, client, 6)
    assert [found[str(name)]["seq"] for name in range(5)] == [COUNT + 3 + name for name in range(5)]
    assert held(rig) == [(1, "s.a"), (COUNT + 7, "s.c")]
    assert not msgspec.json.decode(stream.stored()).get("removals")


def test_lost_rollup_removes_nothing_and_is_answered(rig: Rig) -> None:
    client = rig.client()
    publish(client, "r", SUB)
    lose_the_open_group(rig)
    rig.settle()
    assert "error" in client.answers()["r"]
    assert len(held(rig)) == COUNT + 1


@pytest.mark.parametrize("steps", [1, 3])
def test_group_that_is_lost_in_the_middle_is_removed_again(rig: Rig, steps: int) -> None:
    client = rig.client()
    publish(client, "r", SUB)
    rig.turn()
    publish(client, "lost", SUB)
    for _ in range(steps):
        rig.engine.step(rig.now)
    lose_the_open_group(rig)
    found = to_the_end(rig, client, 2)
    assert "error" in found["lost"]
    assert found["r"]["seq"] == COUNT + 2
    rig.settle()
    assert held(rig) == [(1, "s.a"), (COUNT + 2, "s.c")]


def test_deletion_of_the_stream_ends_a_rollup(rig: Rig) -> None:
    client = rig.client()
    publish(client, "r", SUB)
    rig.turn()
    client.send(pub("$JS.API.STREAM.DELETE.S", b"", f"{client.inbox}d"), settle=False)
    found = to_the_end(rig, client, 2)
    assert found["d"]["success"]
    assert "error" in found["r"]
    rig.settle()


def test_rollup_that_a_crash_interrupted_is_completed_by_the_next_start(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "s", map_size=1 << 28)
    rig = filled(Rig(store=store))
    client = rig.client()
    publish(client, "r", SUB)
    rig.turn()
    assert not client.answers()
    assert len(held(rig)) > COUNT // 2
    store.close()  # what is not committed is lost

    store = LmdbStore(tmp_path / "s", map_size=1 << 28)
    rig = Rig(store=store)
    rig.settle()
    assert held(rig) == [(1, "s.a"), (COUNT + 2, "s.c")]
    assert not msgspec.json.decode(rig.engine.streams["S"].stored()).get("removals")
    store.close()


@pytest.mark.parametrize("limit", [{"max_msgs": COUNT + 1}, {"max_bytes": 34 * (COUNT + 1)}], ids=str)
def test_limit_takes_what_a_rollup_replaces_before_other_messages(limit: dict[str, int]) -> None:
    rig = filled(Rig(), **limit)
    client, log = rig.client(), rig.engine.streams["S"].log
    before = log.state.messages
    publish(client, "r", SUB)
    for n in range(20):
        publish(client, str(n), subject=f"s.new.{n}")
        assert log.state.messages <= before
        assert log.state.bytes <= limit.get("max_bytes", 1 << 20)
    to_the_end(rig, client, 21)
    assert [subject for _, subject in held(rig)] == ["s.a", "s.c", *(f"s.new.{n}" for n in range(20))]


def test_limit_goes_on_with_other_messages_once_a_rollup_has_none_left() -> None:
    rig = filled(Rig(), max_msgs=COUNT + 1)
    client, log = rig.client(), rig.engine.streams["S"].log
    client.send(b"".join(pub("s.between", b"x") for _ in range(10)))
    publish(client, "r", SUB)
    for n in range(COUNT + 50):  # no turn of the jobs in between: the limit takes all that the rollup replaces
        publish(client, str(n), subject="s.new")
        assert log.state.messages <= COUNT + 1
    found = to_the_end(rig, client, COUNT + 51)
    assert found["r"]["seq"] == COUNT + 12
    assert {subject for _, subject in held(rig)} == {"s.new"}
    assert not msgspec.json.decode(rig.engine.streams["S"].stored()).get("removals")


def test_stream_that_discards_new_messages_has_the_room_of_a_rollup_at_once(rig: Rig) -> None:
    client = rig.client()
    config = {"name": "S", "subjects": ["s.>"], "storage": "file", "allow_rollup_hdrs": True}
    client.api("STREAM.UPDATE.S", {**config, "max_msgs": COUNT + 2, "discard": "new"})
    publish(client, "r", SUB)
    publish(client, "next")
    rig.settle()
    found = client.answers()
    assert [found["r"]["seq"], found["next"]["seq"]] == [COUNT + 2, COUNT + 3]


@pytest.mark.parametrize(
    "limit",
    [
        {"max_msgs": COUNT + 2},
        {"max_bytes": 120},
        {"max_msgs_per_subject": COUNT + 1, "discard_new_per_subject": True},
    ],
    ids=str,
)
def test_rollup_in_a_stream_that_discards_new_messages_is_in_slices(rig: Rig, limit: dict[str, int]) -> None:
    client, log = rig.client(), rig.engine.streams["S"].log
    if "max_bytes" in limit:
        limit = {"max_bytes": log.state.bytes + limit["max_bytes"]}
    config = {"name": "S", "subjects": ["s.>"], "storage": "file", "allow_rollup_hdrs": True, "discard": "new"}
    assert "error" not in client.api("STREAM.UPDATE.S", {**config, **limit})
    publish(client, "r", SUB)
    assert log.state.messages == COUNT + 2  # nothing of it in the turn of the publish
    for n in range(50):
        before = log.state.messages
        publish(client, str(n))
        assert log.state.messages > before - 40  # as many as need their place, or some more
        assert log.state.messages <= limit.get("max_msgs", COUNT + 52)
        assert log.state.bytes <= limit.get("max_bytes", 1 << 20)
    found = to_the_end(rig, client, 51)
    assert [found[str(n)].get("seq") for n in range(50)] == list(range(COUNT + 3, COUNT + 53))
    assert held(rig) == [(1, "s.a"), *((COUNT + 2 + n, "s.c") for n in range(51))]


def test_large_message_gets_the_room_of_a_rollup(rig: Rig) -> None:
    client, log = rig.client(), rig.engine.streams["S"].log
    config = {"name": "S", "subjects": ["s.>"], "storage": "file", "allow_rollup_hdrs": True, "discard": "new"}
    client.api("STREAM.UPDATE.S", {**config, "max_bytes": log.state.bytes + 100})
    publish(client, "r", SUB)
    client.send(pub("s.large", b"x" * 15_000, f"{client.inbox}l"), settle=False)
    client.send(pub("s.large", b"x" * 80_000, f"{client.inbox}m"), settle=False)
    found = to_the_end(rig, client, 3)
    assert found["l"]["seq"] == COUNT + 3
    assert found["m"]["error"]["description"] == "maximum bytes exceeded"


@pytest.mark.parametrize("scope", [SUB, ALL])
def test_rollup_in_an_account_with_a_limit_is_in_slices(scope: bytes) -> None:
    bytes_ = 34 * (COUNT + 1) + 100
    rig = filled(Rig(limits={DEFAULT_ACCOUNT: AccountLimits(max_storage=bytes_)}))
    client, log = rig.client(), rig.engine.streams["S"].log
    client.create("T", storage="file")
    publish(client, "r", scope)
    assert log.state.messages == COUNT + 2
    for n in range(40):
        publish(client, str(n), subject="t.x" if n % 2 else "s.d")
        assert log.state.messages > COUNT // 2
    found = to_the_end(rig, client, 41)
    assert all("seq" in found[str(n)] for n in range(40))
    assert len(held(rig)) == (21 if scope is ALL else 22)
    (answer,) = client.ask("t.x", b"x" * bytes_)
    assert msgspec.json.decode(answer.payload)["error"]["err_code"] == 10002


def mirrored(rig: Rig) -> Client:
    client = rig.client()
    client.api("STREAM.CREATE.M", {"name": "M", "storage": "file", "allow_rollup_hdrs": True, "mirror": {"name": "S"}})
    rig.settle()
    return client


def shown(rig: Rig) -> int:
    """As of which sequence the mirror answers."""
    return rig.engine.streams["M"].replicas.leader.as_of()


def test_rollup_in_a_mirror_is_in_slices(rig: Rig) -> None:
    client = mirrored(rig)
    log = rig.engine.streams["M"].log
    assert shown(rig) == COUNT + 1
    publish(client, "r", SUB)
    publish(client, "next", subject="s.d")
    sizes = []
    while shown(rig) != COUNT + 3:
        assert rig.turn() <= STEP_UNITS + 2 * (UNITS * SLICE + 1)  # two streams, each a slice
        sizes.append(log.committed.messages)
        if shown(rig) == COUNT + 2:  # with the rollup goes all that it replaces
            assert log.committed.messages == 2
        assert len(sizes) < 1000
    assert len(set(sizes)) > 3
    assert [record.seq for record in log.scan("", 0, limit=10)] == [1, COUNT + 2, COUNT + 3]


def test_rollups_of_many_clients_in_a_mirror_are_in_slices(rig: Rig) -> None:
    """Each is small enough to be done at once, and all of them come in one chunk."""
    client, subjects, each = mirrored(rig), 20, 200
    for n in range(subjects):
        client.send(b"".join(pub(f"s.{n}", b"x") for _ in range(each)))
    clients = [rig.client() for _ in range(subjects)]
    for n, one in enumerate(clients):
        publish(one, "r", SUB, subject=f"s.{n}")
    own, mirror = rig.engine.streams["S"].log, rig.engine.streams["M"].log
    most = 0
    while shown(rig) != COUNT + 1 + subjects * (each + 1):
        most = max(most, rig.turn())
    assert most <= 2 * STEP_UNITS
    assert mirror.committed.messages == own.committed.messages == COUNT + 1 + subjects


def test_mirror_completes_a_rollup_after_a_restart_before_it_answers_as_of_it(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "s", map_size=1 << 28)
    rig = filled(Rig(store=store))
    client = mirrored(rig)
    publish(client, "r", SUB)
    while rig.engine.streams["M"].log.committed.last_seq < COUNT + 2:
        rig.turn()
    rig.turn()
    assert rig.engine.streams["M"].log.committed.messages > 2
    store.close()

    store = LmdbStore(tmp_path / "s", map_size=1 << 28)
    rig = Rig(store=store)
    log = rig.engine.streams["M"].log
    assert log.committed.messages > 2
    while log.committed.messages > 2:
        assert shown(rig) == 0
        rig.turn()
    rig.settle()
    assert shown(rig) == COUNT + 2
    store.close()


def test_mirror_answers_when_a_rollup_has_removed_all_that_it_had_and_should_not(rig: Rig) -> None:
    """The number of messages that proves it is that of the upstream only when the rollup is complete."""
    client = mirrored(rig)
    (ingest,) = rig.engine.streams["M"].ingests
    assert isinstance(ingest, Mirror)
    ingest.pause("held")
    for _ in range(3):
        client.publish("s.c")
    client.publish("s.c", Nats_Rollup="all")
    ingest.resume()
    rig.settle()
    assert rig.engine.streams["M"].log.committed.messages == 1
    assert shown(rig) == COUNT + 5
    assert rig.engine.streams["M"].replicas.leader.is_true_copy


def test_group_that_a_mirror_loses_in_a_rollup_is_removed_again(rig: Rig) -> None:
    client = mirrored(rig)
    publish(client, "r", SUB)
    while rig.engine.streams["M"].log.state.messages > COUNT // 2 or not rig.engine.journals[0].store.pending:
        rig.engine.step(rig.now)
        if rig.engine.streams["M"].log.state.messages > COUNT // 2:
            rig.commit()
    lose_the_open_group(rig)
    rig.settle()
    assert shown(rig) == COUNT + 2
    assert [record.seq for record in rig.engine.streams["M"].log.scan("", 0, limit=10)] == [1, COUNT + 2]


def test_consumer_beside_a_rollup_in_slices_counts_right(rig: Rig) -> None:
    client = rig.client()
    config = {"name": "d", "durable_name": "d", "filter_subject": "s.c", "ack_policy": "explicit"}
    client.api("CONSUMER.CREATE.S.d", {"stream_name": "S", "config": config, "action": "create"})
    publish(client, "r", SUB)
    while not client.answers():
        rig.turn()
        assert rig.engine.streams["S"].consumers.items["d"].left == len(held(rig)) - 1
    assert client.api("CONSUMER.INFO.S.d")["num_pending"] == 1


@pytest.mark.parametrize(
    ("request_", "left"),
    [({"seq": 2001}, 1001), ({"keep": 700}, 700), ({"filter": ">", "seq": 1500}, 1502), ({"seq": 90_000}, 0)],
    ids=str,
)
@pytest.mark.parametrize("holes", [False, True])
def test_purge_by_sequence_is_in_slices_in_memory(request_: dict[str, Any], left: int, holes: bool) -> None:
    rig = filled(Rig())
    client, log = rig.client(), rig.engine.streams["S"].log
    if holes:
        for seq in (2, 3, 900, 1400):
            log.remove(seq)
    client.send(pub("$JS.API.STREAM.PURGE.S", msgspec.json.encode(request_), f"{client.inbox}p"), settle=False)
    found = to_the_end(rig, client)
    assert found["p"]["purged"] == COUNT + 1 - left - 4 * holes
    assert len(held(rig)) == left
    assert [seq for seq, _ in held(rig)] == list(range(COUNT + 2 - left, COUNT + 2))


@pytest.mark.parametrize("limit", [{"max_msgs": 1000}, {"max_bytes": 35_000}], ids=str)
def test_update_with_lower_limits_is_answered_when_they_hold(rig: Rig, limit: dict[str, int]) -> None:
    client, log = rig.client(), rig.engine.streams["S"].log
    config = {"name": "S", "subjects": ["s.>"], "storage": "file", "allow_rollup_hdrs": True, **limit}
    client.send(pub("$JS.API.STREAM.UPDATE.S", msgspec.json.encode(config), f"{client.inbox}u"), settle=False)
    for n in range(10):
        before = log.state.messages
        publish(client, str(n))
        assert log.state.messages <= before  # what is published meanwhile makes it no longer
    found = to_the_end(rig, client, 11)
    state = log.state
    assert found["u"]["state"]["messages"] <= limit.get("max_msgs", COUNT)
    assert found["u"]["state"]["bytes"] <= limit.get("max_bytes", 1 << 20)
    assert state.messages == limit.get("max_msgs", state.messages)
    assert state.last_seq == COUNT + 11
    seqs = [seq for seq, _ in held(rig)]
    assert seqs == list(range(COUNT + 12 - len(seqs), COUNT + 12))


def test_lost_update_with_lower_limits_is_an_error_and_removes_nothing(rig: Rig) -> None:
    client = rig.client()
    config = {"name": "S", "subjects": ["s.>"], "storage": "file", "allow_rollup_hdrs": True, "max_bytes": 35_000}
    client.send(pub("$JS.API.STREAM.UPDATE.S", msgspec.json.encode(config), f"{client.inbox}u"), settle=False)
    lose_the_open_group(rig)
    rig.settle()
    assert "error" in client.answers()["u"]
    assert len(held(rig)) == COUNT + 1


def test_lower_limit_that_a_crash_interrupted_is_enforced_by_the_next_start(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "s", map_size=1 << 28)
    rig = filled(Rig(store=store))
    client = rig.client()
    config = {"name": "S", "subjects": ["s.>"], "storage": "file", "allow_rollup_hdrs": True, "max_bytes": 35_000}
    client.send(pub("$JS.API.STREAM.UPDATE.S", msgspec.json.encode(config), f"{client.inbox}u"), settle=False)
    rig.turn()
    assert not client.answers()
    store.close()

    store = LmdbStore(tmp_path / "s", map_size=1 << 28)
    rig = Rig(store=store)
    rig.settle()
    assert rig.engine.streams["S"].log.committed.bytes <= 35_000
    store.close()


def test_rollup_is_acknowledged_when_a_limit_takes_the_last_of_what_it_replaces() -> None:
    rig = Rig()
    client = rig.client()
    client.create("S", allow_rollup_hdrs=True, max_bytes=100_000)
    client.send(b"".join(pub("s.c", b"x") for _ in range(AT_ONCE)))
    client.send(pub("s.c", b"x" * 99_900, f"{client.inbox}ack", SUB))  # the limit leaves this message alone
    (answer,) = client.messages()
    assert msgspec.json.decode(answer.payload)["seq"] == AT_ONCE + 1
    assert rig.engine.streams["S"].log.state.messages == 1


@pytest.mark.parametrize("what", ["rollup", "purge"])
def test_limit_takes_what_an_interrupted_removal_left_before_other_messages(tmp_path: Path, what: str) -> None:
    store = LmdbStore(tmp_path / "s", map_size=1 << 28)
    rig = filled(Rig(store=store), max_msgs=COUNT + 1)
    client = rig.client()
    if what == "rollup":
        publish(client, "r", SUB)
    else:
        client.send(pub("$JS.API.STREAM.PURGE.S", b'{"filter":"s.c"}', f"{client.inbox}p"), settle=False)
        rig.engine.step(rig.now)
    rig.turn()
    client.send(b"".join(pub("s.b", b"x") for _ in range(1200)), settle=False)  # full again
    rig.commit()
    assert not client.answers()
    assert rig.engine.streams["S"].log.state.messages == COUNT + 1
    store.close()  # what is not committed is lost

    store = LmdbStore(tmp_path / "s", map_size=1 << 28)
    rig = Rig(store=store)
    assert len(held(rig)) > COUNT // 2
    rig.engine.connect(1, "127.0.0.1", rig.now)
    before_any_turn = HELLO + b"".join(pub("s.new", b"new") for _ in range(5))
    rig.engine.receive(1, Parser(Side.CLIENT).feed(before_any_turn), rig.now)
    for _ in range(100):
        rig.engine.step(rig.now)
        rig.commit()
    kept = [subject for _, subject in held(rig)]
    assert kept[0] == "s.a"
    assert kept.count("s.new") == 5
    assert kept.count("s.c") == (what == "rollup")
    store.close()


def test_lost_rollup_beside_a_lowered_limit_removes_nothing(rig: Rig) -> None:
    client = rig.client()
    config = {"name": "S", "subjects": ["s.>"], "storage": "file", "allow_rollup_hdrs": True, "max_msgs": COUNT - 1000}
    client.send(b"".join(pub("s.old", b"x") for _ in range(1500)))  # newer than those of `s.c`
    client.send(pub("$JS.API.STREAM.UPDATE.S", msgspec.json.encode(config), f"{client.inbox}u"), settle=False)
    rig.commit()  # some are removed, and the limit does not hold yet
    publish(client, "r", SUB, subject="s.old")
    lose_the_open_group(rig)
    rig.settle()
    assert "error" in client.answers()["r"]
    kept = [subject for _, subject in held(rig)]
    assert len(kept) == COUNT - 1000
    assert kept.count("s.old") == 1500


# Very many short removals in one turn: the rollups of an atomic batch, and those that a client pipelines.

SUBJECTS, EACH = 600, 3


def with_a_batch_stream(rig: Rig, each: int = EACH, subjects: int = SUBJECTS, **config: Any) -> Client:
    client = rig.client()
    client.create("B", storage="file", allow_rollup_hdrs=True, allow_atomic=True, **config)
    for n in range(subjects):
        client.send(b"".join(pub(f"b.{n}", b"old") for _ in range(each)))
    return client


def send_batch(client: Client, count: int = SUBJECTS) -> None:
    """A batch that rolls up every subject, without a turn of the server."""
    for n in range(1, count + 1):
        commit = "Nats-Batch-Commit: 1\r\n" if n == count else ""
        lines = f"Nats-Batch-Id: b\r\nNats-Batch-Sequence: {n}\r\nNats-Rollup: sub\r\n{commit}"
        reply = f"{client.inbox}{n}" if n == count else ""
        client.send(pub(f"b.{n - 1}", b"new", reply, f"NATS/1.0\r\n{lines}\r\n".encode()), settle=False)


def payloads(rig: Rig) -> list[tuple[str, bytes]]:
    found = rig.engine.streams["B"].log.scan("", 0, limit=10_000)
    return [(record.subject, record.payload) for record in found]


EXPECTED = [(f"b.{n}", b"new") for n in range(SUBJECTS)]


def test_rollups_of_an_atomic_batch_are_in_slices(rig: Rig) -> None:
    client = with_a_batch_stream(rig)
    log = rig.engine.streams["B"].log
    send_batch(client)
    assert log.state.messages >= (EACH + 1) * SUBJECTS - AT_ONCE_IN_BATCH - EACH
    rig.commit()
    new = [subject for subject, payload in payloads(rig) if payload == b"new"]
    assert new == [subject for subject, _ in EXPECTED]  # all of them in one group
    turns = 0
    while not (found := client.answers()):
        assert rig.turn() <= STEP_UNITS + UNITS * SLICE + 1
        turns += 1
    assert turns > 3
    assert found[str(SUBJECTS)]["count"] == SUBJECTS
    assert payloads(rig) == EXPECTED
    assert not msgspec.json.decode(rig.engine.streams["B"].stored()).get("removals")


def test_record_of_a_stream_is_stored_once_for_the_rollups_of_a_group(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = with_a_batch_stream(rig)
    stream, count = rig.engine.streams["B"], 0
    stored = stream.stored

    def counted() -> bytes:
        nonlocal count
        count += 1
        return stored()

    monkeypatch.setattr(stream, "stored", counted)
    send_batch(client)
    turns = 0
    while not client.answers():
        rig.turn()
        turns += 1
    assert 0 < count <= 2 * turns


def test_group_of_a_batch_with_rollups_that_is_lost_leaves_all_as_it_was(rig: Rig) -> None:
    client = with_a_batch_stream(rig)
    before = payloads(rig)
    send_batch(client)
    lose_the_open_group(rig)
    rig.settle()
    assert "error" in client.answers()[str(SUBJECTS)]
    assert payloads(rig) == before


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_batch_with_rollups_that_a_crash_interrupted_is_whole(tmp_path: Path, turns: int) -> None:
    store = LmdbStore(tmp_path / "s", map_size=1 << 28)
    rig = Rig(store=store)
    client = with_a_batch_stream(rig)
    before = payloads(rig)
    send_batch(client)
    for _ in range(turns):
        rig.turn()
    assert not client.answers()
    store.close()  # what is not committed is lost

    store = LmdbStore(tmp_path / "s", map_size=1 << 28)
    rig = Rig(store=store)
    rig.settle()
    assert payloads(rig) == (EXPECTED if turns else before)
    store.close()


def test_pipelined_rollups_are_in_slices(rig: Rig) -> None:
    client = with_a_batch_stream(rig, each=300, subjects=20)
    log = rig.engine.streams["B"].log
    client.send(b"".join(pub(f"b.{n}", b"new", f"{client.inbox}{n}", SUB) for n in range(20)), settle=False)
    found, before, turns = dict[str, Any](), log.state.messages, 0
    assert before >= 19 * 300  # one of them
    while len(found) < 20:
        rig.turn()
        found |= client.answers()
        assert before - log.state.messages <= AT_ONCE
        before = log.state.messages
        turns += 1
        assert turns < 100
    assert turns > 8
    assert payloads(rig) == [(f"b.{n}", b"new") for n in range(20)]


def test_client_in_slices_waits_for_the_commit_of_what_it_removed(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "s", map_size=1 << 28)
    rig = Rig(store=store)
    client = with_a_batch_stream(rig, each=300, subjects=20)
    client.send(b"".join(pub(f"b.{n}", b"new", "", SUB) for n in range(20)), settle=False)
    for _ in range(50):  # turns while a group is on its way to the disk
        rig.engine.step(rig.now)
    (journal,) = rig.engine.journals
    assert MAX_PENDING < journal.store.pending <= 2 * MAX_PENDING + 300
    rig.settle()
    assert payloads(rig) == [(f"b.{n}", b"new") for n in range(20)]
    store.close()


def test_publishes_beside_a_lower_limit_of_each_subject_are_in_slices(rig: Rig) -> None:
    client = with_a_batch_stream(rig, each=200, subjects=30)
    log = rig.engine.streams["B"].log
    config = {"name": "B", "subjects": ["b.>"], "storage": "file", "allow_rollup_hdrs": True, "allow_atomic": True}
    body = msgspec.json.encode({**config, "max_msgs_per_subject": 2})
    client.send(pub("$JS.API.STREAM.UPDATE.B", body), settle=False)
    before = log.state.messages
    client.send(b"".join(pub(f"b.{n}", b"new") for n in range(30)), settle=False)
    assert before - log.state.messages <= 2 * AT_ONCE
    rig.settle()
    assert len(payloads(rig)) == 60


def test_flood_of_messages_with_times_to_live_leaves_groups_small(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "s", map_size=1 << 28)
    rig = Rig(store=store)
    client, count = rig.client(), 3000
    client.create("T", subjects=["t.>"], storage="file", allow_msg_ttl=True)
    header = b"NATS/1.0\r\nNats-TTL: 1h\r\n\r\n"
    client.send(b"".join(pub(f"t.{n}", b"x", "", header) for n in range(count)), settle=False)
    for _ in range(50):  # turns while a group is on its way to the disk
        rig.engine.step(rig.now)
    (journal,) = rig.engine.journals
    assert MAX_PENDING < journal.store.pending <= 2 * MAX_PENDING
    rig.settle()
    assert rig.engine.streams["T"].log.committed.messages == count
    store.close()
