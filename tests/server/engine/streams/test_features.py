"""The newer abilities of streams: what a configuration may ask for, what a batch may hold, what a source brings."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slipstream.errors import CorruptRecordError
from slipstream.server.engine.ports import Record
from slipstream.server.store.memory.log import MemoryLog
from slipstream.wire import Headers
from tests.server.support import SECOND, Client, Rig, sequences


@pytest.fixture
def client() -> Client:
    return Rig().client()


def refusal(answer: dict[str, Any]) -> tuple[int, str]:
    return answer["error"]["err_code"], answer["error"]["description"]


@pytest.mark.parametrize(
    ("config", "err_code", "text"),
    [
        ({"allow_msg_counter": True, "discard": "new"}, 10052, "counter stream cannot use discard new"),
        ({"allow_msg_counter": True, "allow_msg_ttl": True}, 10052, "counter stream cannot use message TTLs"),
        ({"allow_msg_counter": True, "retention": "interest"}, 10052, "counter stream can only use limits retention"),
        ({"allow_msg_counter": True, "allow_msg_schedules": True}, 10052,
         "counter stream cannot use message schedules"),
        ({"discard_new_per_subject": True}, 10052,
         "discard new per subject requires discard new policy to be set"),
        ({"discard_new_per_subject": True, "discard": "new"}, 10052,
         "discard new per subject requires max msgs per subject > 0"),
        ({"subject_delete_marker_ttl": -1}, 10052, "subject delete marker TTL must not be negative"),
        ({"subject_delete_marker_ttl": 1000}, 10052, "subject delete marker TTL must be at least 1 second"),
        ({"subject_delete_marker_ttl": SECOND, "pedantic": True}, 10052,
         "subject delete marker cannot be set if message TTLs are disabled"),
        ({"subject_delete_marker_ttl": SECOND, "pedantic": True, "allow_msg_ttl": True}, 10052,
         "subject delete marker cannot be set if roll-ups are disabled"),
        ({"persist_mode": "async"}, 10052, "async persist mode is only supported on file storage"),
        ({"persist_mode": "async", "storage": "file", "num_replicas": 3}, 10052,
         "async persist mode is not supported on replicated streams"),
        ({"persist_mode": "async", "storage": "file", "allow_atomic": True}, 10052,
         "async persist mode is not supported with atomic batch publish"),
        ({"subject_transform": {"src": "a..b", "dest": "x"}}, 10155, "stream transform source: invalid subject a..b"),
        ({"subject_transform": {"src": "a.*", "dest": "x.$2"}}, 10156,
         "stream transform: invalid mapping destination: wildcard index out of range in $2: [2]"),
        ({"republish": {"dest": "s.x.>"}}, 10052, "stream configuration for republish destination forms a cycle"),
        ({"republish": {"src": "a", "dest": "x.>"}}, 10052,
         "stream configuration for republish with transform from 'a' to 'x.>' not valid"),
        ({"republish": {"dest": "x.>"}, "pedantic": True}, 10157, "pedantic mode: republish source can not be empty"),
        ({"max_consumers": -9, "pedantic": True}, 10157, "pedantic mode: max_consumers must be set to -1"),
    ],
)  # fmt: skip
def test_incompatible_features_are_rejected(client: Client, config: dict[str, Any], err_code: int, text: str) -> None:
    assert refusal(client.create("S", **config)) == (err_code, text)


def test_a_republish_of_everything_follows_the_transform(client: Client) -> None:
    made = client.create(
        "S", republish={"src": ">", "dest": ">"}, subject_transform={"src": "s.>", "dest": "elsewhere.>"}
    )
    assert made["config"]["republish"] == {"src": "elsewhere.>", "dest": "elsewhere.>"}
    client.send(b"SUB elsewhere.> 7\r\n")
    client.take()
    client.send(b"PUB s.1 1\r\nx\r\n")
    (told,) = client.messages()
    assert told.subject == "elsewhere.1"


@pytest.mark.parametrize(
    ("first", "then", "text"),
    [
        ({"allow_msg_ttl": True}, {}, "message TTL status can not be disabled"),
        ({"allow_msg_counter": True}, {}, "stream configuration update can not change message counter setting"),
        ({"storage": "file", "persist_mode": "async"}, {"storage": "file"},
         "stream configuration update can not change persist mode"),
    ],
)  # fmt: skip
def test_updates_of_fixed_features_are_rejected(
    client: Client, first: dict[str, Any], then: dict[str, Any], text: str
) -> None:
    client.create("S", **first)
    config = {"name": "S", "subjects": ["s.>"], "allow_direct": True, "storage": "memory"} | then
    assert refusal(client.api("STREAM.UPDATE.S", config)) == (10052, text)


@pytest.mark.parametrize(
    ("config", "level"),
    [
        ({}, "0"),
        ({"allow_msg_ttl": True}, "1"),
        ({"allow_atomic": True}, "2"),
        ({"storage": "file", "persist_mode": "async"}, "2"),
        ({"storage": "file", "persist_mode": "default"}, "0"),
    ],
)
def test_the_level_that_a_stream_needs_is_in_its_metadata(client: Client, config: dict[str, Any], level: str) -> None:
    made = client.create("S", metadata={"mine": "1", "_nats.ver": "x"}, **config)
    expected = {"_nats.level": "5", "_nats.req.level": level, "_nats.ver": "2.15.1", "mine": "1"}
    assert made["config"]["metadata"] == expected
    (listed,) = client.api("STREAM.LIST")["streams"]
    assert listed["config"]["metadata"] == {"_nats.req.level": level, "mine": "1"}


def batch(client: Client, *messages: dict[str, str], payload: bytes = b"x") -> dict[str, Any]:
    for n, more in enumerate(messages, 1):
        block = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": str(n)} | {
            name.replace("_", "-"): value for name, value in more.items()
        }
        if n == len(messages):
            block["Nats-Batch-Commit"] = "1"
        (answer,) = client.ask("s.1", payload, Headers(block))
        if answer.payload:
            decoded: dict[str, Any] = msgspec.json.decode(answer.payload)
            return decoded
    raise AssertionError("a batch without an answer")


@pytest.mark.parametrize(
    ("messages", "err_code"),
    [
        (({}, {"Nats_Expected_Last_Msg_Id": "x"}), 10177),
        (({}, {"Nats_Expected_Stream": "other"}), 10060),
        (({"Nats_TTL": "abc"},), 10165),
        (({"Nats_Msg_Id": "m"}, {"Nats_Msg_Id": "m"}), 10201),
        (({"Nats_Stream_Source": "X 1"},), 10227),
        (({"Nats_Schedule": "@hourly"},), 10188),
        (({"Nats_Incr": "1"},), 10168),
        (({"Nats_Expected_Last_Sequence": "7"},), 10071),
        (({}, {"Nats_Expected_Last_Sequence": "2"}), 10164),
        (({}, {"Nats_Expected_Last_Subject_Sequence": "1"}), 10164),
        (({"Nats_Expected_Last_Subject_Sequence": "9"},), 10071),
        (({"Nats_Expected_Last_Subject_Sequence_Subject": "s.2"},), 10193),
        (({}, {"Nats_Rollup": "sub"}), 10111),
        (({}, {"Nats_Rollup": "all"}), 10111),
        (({"Nats_Rollup": "x"},), 10111),
    ],
)
def test_one_bad_message_refuses_the_whole_batch(
    client: Client, messages: tuple[dict[str, str], ...], err_code: int
) -> None:
    client.create("S", allow_atomic=True, allow_rollup_hdrs=True, allow_msg_ttl=True)
    client.publish("s.1")
    assert batch(client, *messages)["error"]["err_code"] == err_code
    assert sequences(client.direct("S", {"seq": 1, "batch": 10})) == [1]


def test_a_batch_of_counters_adds_up_and_needs_increments(client: Client) -> None:
    client.create("S", allow_atomic=True, allow_msg_counter=True)
    assert batch(client, {"Nats_Incr": "2"}, {"Nats_Incr": "3"}, payload=b"")["seq"] == 2
    assert client.publish("s.1", b"", Nats_Incr="1")["val"] == "6"
    assert batch(client, {"Nats_Incr": "2"}, {}, payload=b"")["error"]["err_code"] == 10169


@pytest.mark.parametrize(
    ("config", "count", "text"),
    [
        ({"max_msgs": 2}, 3, "maximum messages exceeded"),
        ({"max_bytes": 300}, 5, "maximum bytes exceeded"),
        ({"max_msgs_per_subject": 1, "discard_new_per_subject": True}, 2, "maximum messages per subject exceeded"),
    ],
)
def test_a_full_stream_rejects_the_whole_batch(client: Client, config: dict[str, Any], count: int, text: str) -> None:
    client.create("S", allow_atomic=True, discard="new", **config)
    assert batch(client, *[{}] * count)["error"]["description"] == text
    assert batch(client, {})["seq"] == 1


def test_a_counter_of_another_stream_is_taken_in_as_a_difference(client: Client) -> None:
    client.create("ORIGIN", allow_msg_counter=True, subjects=["o.>"])
    client.create("S", allow_msg_counter=True, sources=[{"name": "ORIGIN"}], subjects=["s.>"])
    client.publish("o.1", b"", Nats_Incr="5")
    client.publish("o.1", b"", Nats_Incr="-2")
    client.rig.settle()
    (last,) = client.direct("S", {"last_by_subj": "o.1"})
    assert last.payload == b'{"val":"3"}'
    headers = dict(Headers.parse(last.header).items())
    assert headers["Nats-Incr"] == "-2"
    assert headers["Nats-Counter-Sources"] == '{"ORIGIN":{"o.1":"3"}}'


def test_a_damaged_message_leaves_with_its_neighbours(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create("S", allow_msg_ttl=True, max_age=10 * SECOND)
    for _ in range(3):
        client.publish("s.1")
    real = MemoryLog.get

    def get(log: MemoryLog, seq: int) -> Record | None:
        if seq == 2 and real(log, seq) is not None:
            error = CorruptRecordError("record 2 does not match its checksum")
            error.seq = 2
            raise error
        return real(log, seq)

    def scan(log: MemoryLog, pattern: str, seq: int, *, limit: int, max_bytes: int = 0) -> list[Record]:  # noqa: ARG001
        found: list[Record] = []
        for at in range(max(seq, log.committed.first_seq), log.committed.last_seq + 1):
            try:
                record = get(log, at)
            except CorruptRecordError:
                if not found:
                    raise
                break
            if record is not None and len(found) < limit:
                found.append(record)
        return found

    monkeypatch.setattr(MemoryLog, "get", get)
    monkeypatch.setattr(MemoryLog, "scan", scan)
    client.rig.wait(9)
    assert client.api("STREAM.INFO.S")["state"]["messages"] == 3
    client.rig.wait(2)
    assert client.api("STREAM.INFO.S")["state"]["messages"] == 0
