"""Messages that are published later, by a schedule in their headers: the engine alone, in virtual time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from slipstream.api import format_time
from slipstream.server.engine.ports import Store
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.server.store.memory.store import MemoryStore
from slipstream.wire import Headers, pub
from tests.server.support import SECOND, START, Client, Rig, headers, sequences

HOUR = 3600


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    with tempfile.TemporaryDirectory() as path:
        store = LmdbStore(path, map_size=1 << 26)
        yield store
        store.close()


@pytest.fixture
def client(store: Store) -> Client:
    client = Rig(store=store).client()
    made = client.create("S", allow_msg_schedules=True, allow_msg_ttl=True)
    assert made["config"]["allow_rollup_hdrs"]
    return client


def plan(client: Client, subject: str, pattern: str, payload: bytes = b"x", /, **more: str) -> dict[str, Any]:
    fields = {"Nats-Schedule": pattern, "Nats-Schedule-Target": "s.target"}
    fields |= {name.replace("_", "-"): value for name, value in more.items()}
    (answer,) = client.ask(
        subject, payload, Headers({name: value for name, value in fields.items() if value != "none"})
    )
    decoded: dict[str, Any] = msgspec.json.decode(answer.payload)
    return decoded


def after(client: Client, seconds: float) -> str:
    return f"@at {format_time(client.rig.now + round(seconds * SECOND))}"


def stored(client: Client, pattern: str = ">") -> list[tuple[str, bytes, dict[str, str]]]:
    """Subject, payload and the headers of the publisher of every message."""
    found = []
    for message in client.direct("S", {"seq": 1, "batch": 100, "next_by_subj": pattern}):
        fields = headers(message)
        if "Nats-Sequence" not in fields:
            continue
        subject = fields["Nats-Subject"]
        ours = (
            "Nats-Stream",
            "Nats-Subject",
            "Nats-Sequence",
            "Nats-Time-Stamp",
            "Nats-Num-Pending",
            "Nats-Last-Sequence",
        )
        found.append((subject, message.payload, {name: value for name, value in fields.items() if name not in ours}))
    return found


def test_a_message_for_one_moment_is_published_then_and_its_schedule_leaves(client: Client) -> None:
    assert (
        plan(client, "s.one", after(client, 10), b"hi", Nats_Msg_Id="a", Mine="yes", Nats_Schedule_TTL="5m")["seq"] == 1
    )
    client.rig.wait(9.9)
    ((subject, payload, fields),) = stored(client)
    assert (subject, payload, fields["Nats-Rollup"]) == ("s.one", b"hi", "sub")
    client.rig.wait(0.2)
    assert stored(client) == [
        ("s.target", b"hi", {"Mine": "yes", "Nats-Scheduler": "s.one", "Nats-Schedule-Next": "purge", "Nats-TTL": "5m"})
    ]
    client.rig.wait(HOUR)
    assert client.rig.client().api("STREAM.INFO.S")["state"]["last_seq"] == 2


def test_a_moment_that_is_past_is_now(client: Client) -> None:
    plan(client, "s.one", "@at 2001-02-03T04:05:06+01:00")
    client.rig.wait(1)
    assert [subject for subject, _, _ in stored(client)] == ["s.target"]


def test_an_interval_repeats_until_the_schedule_is_replaced(client: Client) -> None:
    client.rig.wait(0.3)
    plan(client, "s.many", "@every 10s", b"a")
    client.rig.wait(35)
    got = stored(client, "s.target")
    assert [payload for _, payload, _ in got] == [b"a"] * 3
    assert [fields["Nats-Schedule-Next"] for _, _, fields in got] == [
        format_time(START + seconds * SECOND) for seconds in (20, 30, 40)
    ]
    client.publish("s.many", b"over")
    client.rig.wait(100)
    assert len(stored(client, "s.target")) == 3


def test_a_new_schedule_replaces_the_old_one(client: Client) -> None:
    plan(client, "s.one", after(client, 10), b"old")
    plan(client, "s.one", after(client, 20), b"new")
    client.rig.wait(15)
    assert stored(client, "s.target") == []
    client.rig.wait(10)
    assert [payload for _, payload, _ in stored(client)] == [b"new"]


@pytest.mark.parametrize("how", ["purge", "delete", "header"])
def test_a_deleted_schedule_does_not_fire(client: Client, how: str) -> None:
    plan(client, "s.one", after(client, 10))
    if how == "purge":
        client.api("STREAM.PURGE.S", {"filter": "s.one"})
    elif how == "delete":
        client.api("STREAM.MSG.DELETE.S", {"seq": 1})
    else:
        client.publish("s.other", Nats_Scheduler="s.one", Nats_Schedule_Next="purge")
        assert [subject for subject, _, _ in stored(client)] == ["s.other"]
    client.rig.wait(60)
    assert stored(client, "s.target") == []


def test_a_schedule_publishes_the_last_message_of_its_source(client: Client) -> None:
    plan(client, "s.sample", "@every 5s", b"nothing yet", Nats_Schedule_Source="s.sensor", Nats_Schedule_Rollup="sub")
    client.rig.wait(6)
    assert [payload for _, payload, _ in stored(client, "s.target")] == [b"nothing yet"]
    for value in (b"1", b"2"):
        client.publish("s.sensor", value, Unit="mm")
    client.rig.wait(5)
    ((_, payload, fields),) = stored(client, "s.target")
    assert (payload, fields["Unit"], fields["Nats-Rollup"]) == (b"2", "mm", "sub")


def test_a_calendar_in_a_time_zone(client: Client) -> None:
    plan(client, "s.daily", "0 30 7 * * *", Nats_Schedule_Time_Zone="Europe/Berlin")
    client.rig.wait(24 * HOUR)  # from 2023-11-14T22:13:20Z
    ((_, _, fields),) = stored(client.rig.client(), "s.target")
    assert fields["Nats-Schedule-Next"] == "2023-11-16T07:30:00+01:00"


def test_schedules_survive_a_restart_and_missed_ones_fire_once(store: Store) -> None:
    client = Rig(store=store).client()
    client.create("S", allow_msg_schedules=True, storage="file")
    plan(client, "s.one", after(client, 10), b"one", Nats_Schedule_Target="s.t1")
    plan(client, "s.many", "@every 10s", b"many", Nats_Schedule_Target="s.t2")
    client.rig.wait(25)
    assert [payload for _, payload, _ in stored(client, "s.t2")] == [b"many"] * 2
    later = Rig(store=store, now=client.rig.now + HOUR * SECOND).client()
    later.rig.wait(1)
    assert [payload for _, payload, _ in stored(later, "s.t2")] == [b"many"] * 3
    assert len(stored(later, "s.t1")) == 1
    later.rig.wait(10)
    assert len(stored(later, "s.t2")) == 4


def test_enabling_schedules_finds_existing_ones(store: Store) -> None:
    """A snapshot that is put back has messages, and nothing beside them, as well."""
    client = Rig(store=store).client()
    client.create("UP", subjects=["s.>"], allow_msg_schedules=True)
    for i in range(3):
        plan(client, f"s.{i}", after(client, 30 + i), b"%d" % i)
    client.create("S", subjects=[], sources=[{"name": "UP"}])
    client.api("STREAM.DELETE.UP")
    config = client.api("STREAM.INFO.S")["config"] | {"sources": [], "subjects": ["s.>"], "allow_msg_schedules": True}
    assert "error" not in client.api("STREAM.UPDATE.S", config)
    client.rig.wait(60)
    assert [payload for _, payload, _ in stored(client, "s.target")] == [b"0", b"1", b"2"]


def test_one_that_cannot_be_carried_out_is_tried_again(client: Client) -> None:
    plan(client, "s.one", after(client, 5), b"x" * 60)
    client.api("STREAM.UPDATE.S", client.api("STREAM.INFO.S")["config"] | {"max_msg_size": 50})
    client.rig.wait(10)
    assert stored(client, "s.target") == []
    client.api("STREAM.UPDATE.S", client.api("STREAM.INFO.S")["config"] | {"max_msg_size": -1})
    client.rig.wait(2)
    assert len(stored(client, "s.target")) == 1


@pytest.mark.parametrize(
    ("fields", "err_code"),
    [
        ({"Nats-Schedule": "@never"}, 10189),
        ({"Nats-Schedule": "@every 500ms"}, 10189),
        ({"Nats-Schedule": "@every x"}, 10189),
        ({"Nats-Schedule": "@at tomorrow"}, 10189),
        ({"Nats-Schedule": "* * * * *"}, 10189),
        ({"Nats-Schedule": "0 0 0 31 2 *"}, 10189),
        ({"Nats-Schedule": "@every 1s", "Nats-Schedule-Time-Zone": "UTC"}, 10189),
        ({"Nats-Schedule": "@daily", "Nats-Schedule-Time-Zone": "Mars/Base"}, 10223),
        ({"Nats-Schedule-Target": "s.one"}, 10190),
        ({"Nats-Schedule-Target": "s.*"}, 10190),
        ({"Nats-Schedule-Target": "other"}, 10190),
        ({"Nats-Schedule-Target": "none"}, 10190),
        ({"Nats-Schedule-TTL": "soon"}, 10191),
        ({"Nats-Schedule-Rollup": "all"}, 10192),
        ({"Nats-Rollup": "all"}, 10192),
        ({"Nats-Schedule-Source": "s.target"}, 10203),
        ({"Nats-Schedule-Source": "s.one"}, 10203),
        ({"Nats-Schedule-Source": "other"}, 10203),
        ({"Nats-Scheduler": "s.x"}, 10212),
        ({"Nats-Schedule-Next": "purge"}, 10212),
        ({"Nats-Schedule-Next": "2030-01-01T00:00:00Z", "Nats-Scheduler": "s.x"}, 10212),
        ({"Nats-Schedule-Next": "purge", "Nats-Scheduler": "s.plain"}, 10212),
    ],
    ids=str,
)
def test_a_schedule_that_makes_no_sense_is_refused(client: Client, fields: dict[str, str], err_code: int) -> None:
    client.publish("s.plain")
    more = {name: value for name, value in fields.items() if name != "Nats-Schedule"}
    assert plan(client, "s.one", fields.get("Nats-Schedule", "@hourly"), **more)["error"]["err_code"] == err_code
    assert sequences(client.direct("S", {"seq": 1, "batch": 100})) == [1]


def test_only_streams_that_allow_schedules_have_them(client: Client) -> None:
    client.create("T")
    for fields in (
        {"Nats-Schedule": "@hourly", "Nats-Schedule-Target": "t.x"},
        {"Nats-Schedule": "rubbish"},
        {"Nats-Schedule-Time-Zone": ""},
        {"Nats-Schedule-Next": "purge", "Nats-Scheduler": "t.x"},
    ):
        (answer,) = client.ask("t.1", b"", Headers(fields))
        assert b'"err_code":10188' in answer.payload
    refused = client.create("U", allow_msg_schedules=True, discard="new")["error"]
    assert refused["description"] == "message scheduling cannot use discard new"
    client.create("V", allow_msg_schedules=True)
    config = client.api("STREAM.INFO.V")["config"] | {"allow_msg_schedules": False}
    assert client.api("STREAM.UPDATE.V", config)["error"]["description"] == "message schedules can not be disabled"


def test_a_schedule_in_an_atomic_batch(store: Store) -> None:
    client = Rig(store=store).client()
    client.create("S", allow_msg_schedules=True, allow_atomic=True)
    batch = {"Nats-Batch-Id": "b"}
    client.ask("s.1", b"", Headers(batch | {"Nats-Batch-Sequence": "1"}))
    late = {"Nats-Schedule": after(client, 5), "Nats-Schedule-Target": "s.target"}
    (answer,) = client.ask("s.2", b"x", Headers(batch | late | {"Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"}))
    assert b'"count":2' in answer.payload
    client.rig.wait(6)
    assert [subject for subject, _, _ in stored(client)] == ["s.1", "s.target"]


def test_schedule_that_is_due_while_it_replaces_very_many_messages_is_published(client: Client) -> None:
    client.send(b"".join(pub("s.plan", b"x") for _ in range(1200)))
    line = f"NATS/1.0\r\nNats-Schedule: {after(client, 0.001)}\r\nNats-Schedule-Target: s.target\r\n\r\n"
    client.send(pub("s.plan", b"due", "", line.encode()), settle=False)
    client.rig.commit()
    client.rig.now += SECOND // 100
    client.rig.engine.tick(client.rig.now)
    assert client.rig.engine.streams["S"].log.state.messages > 1
    client.rig.settle()
    assert [payload for _, payload, _ in stored(client, "s.target")] == [b"due"]


def test_end_of_a_schedule_that_is_replacing_very_many_messages_is_in_slices(client: Client) -> None:
    log = client.rig.engine.streams["S"].log
    client.send(b"".join(pub("s.plan", b"x") for _ in range(1200)))
    line = b"NATS/1.0\r\nNats-Schedule: @every 1h\r\nNats-Schedule-Target: s.target\r\n\r\n"
    client.send(pub("s.plan", b"x", "", line), settle=False)
    end = b"NATS/1.0\r\nNats-Schedule-Next: purge\r\nNats-Scheduler: s.plan\r\n\r\n"
    client.send(pub("s.other", b"x", f"{client.inbox}end", end), settle=False)
    assert log.state.messages == 1202  # nothing of it in the turn of the publish
    client.rig.settle()
    assert client.answers()["end"]["seq"] == 1202
    assert log.committed.messages == 1
