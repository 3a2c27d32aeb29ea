"""Atomic batches in virtual time: one group or nothing, bounds, and what a crash or a pause leaves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slipstream.server.engine.streams import atomic_batches
from tests.server.support import Client, Rig, sequences


@pytest.fixture
def client() -> Client:
    client = Rig().client()
    client.create("S", allow_atomic=True)
    return client


def send(client: Client, number: int, *, name: str = "b", commit: str = "", **headers: str) -> Any:
    if commit:
        headers["Nats_Batch_Commit"] = commit
    block = {"Nats_Batch_Id": name, "Nats_Batch_Sequence": str(number)} | headers
    (answer,) = client.ask("s.1", b"x", _headers(block))
    return msgspec.json.decode(answer.payload) if answer.payload else None


def _headers(block: dict[str, str]) -> Any:
    from slipstream.wire import Headers

    return Headers({name.replace("_", "-"): value for name, value in block.items()})


def left(client: Client) -> list[int]:
    return sequences(client.direct("S", {"seq": 1, "batch": 1000}))


def test_messages_of_a_batch_become_visible_together(client: Client) -> None:
    assert [send(client, n) for n in (1, 2)] == [None, None]
    assert left(client) == []
    assert send(client, 3, commit="1") == {"stream": "S", "seq": 3, "batch": "b", "count": 3}
    assert left(client) == [1, 2, 3]


def test_a_batch_is_one_group(client: Client) -> None:
    """The ack is not there before the commit, and a group that is lost takes all of them."""
    for n in (1, 2):
        send(client, n)
    client.take()
    block = _headers({"Nats_Batch_Id": "b", "Nats_Batch_Sequence": "3", "Nats_Batch_Commit": "1"}).encode()
    frame = b"HPUB s.1 %b9 %d %d\r\n%bx\r\n" % (client.inbox.encode(), len(block), len(block) + 1, block)
    client.send(frame, settle=False)
    client.rig.flush()
    assert client.messages() == []
    (journal,) = client.rig.engine.journals
    client.rig.engine.failed(journal, OSError("no space left on device"), client.rig.now)
    client.rig.settle()
    (answer,) = client.messages()
    assert msgspec.json.decode(answer.payload)["error"]["err_code"] == 10077
    assert left(client) == []
    assert send(client, 1, commit="1")["seq"] == 1


def test_a_batch_that_times_out_is_abandoned_with_an_advisory(client: Client) -> None:
    client.send(b"SUB $JS.EVENT.ADVISORY.> 8\r\n")
    send(client, 1)
    client.rig.wait(9)
    send(client, 2)  # each message gives it ten more seconds
    client.rig.wait(9)
    assert client.messages() == []
    client.rig.wait(2)
    (told,) = client.messages()
    advisory = msgspec.json.decode(told.payload)
    assert told.subject == "$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.S"
    assert (advisory["batch"], advisory["reason"], advisory["stream"]) == ("b", "timeout", "S")
    assert send(client, 3, commit="1")["error"]["err_code"] == 10176
    assert client.rig.engine.batch_usage.batches == client.rig.engine.batch_usage.bytes == 0


def test_staged_messages_are_bounded_for_the_whole_server(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_batches, "MAX_OPEN_TOTAL", 2)
    client.create("T", allow_atomic=True)
    assert send(client, 1, name="one") is None
    assert send(client, 1, name="two") is None
    assert send(client, 1, name="three")["error"]["err_code"] == 10210
    assert send(client, 2, name="one", commit="1")["count"] == 2
    assert send(client, 1, name="three") is None
    monkeypatch.setattr(atomic_batches, "MAX_WAITING_BYTES", client.rig.engine.batch_usage.bytes + 10)
    assert send(client, 2, name="three")["error"]["err_code"] == 10210
    assert client.rig.engine.batch_usage.batches == 1
    client.api("STREAM.DELETE.S")
    assert client.rig.engine.batch_usage.batches == client.rig.engine.batch_usage.bytes == 0


def test_a_thousand_messages_are_the_most(client: Client) -> None:
    for n in range(1, 1001):
        assert send(client, n) is None
    assert send(client, 1001)["error"]["err_code"] == 10199
    for n in range(1, 1001):
        send(client, n)
    assert send(client, 1001, commit="eob") == {"stream": "S", "seq": 1000, "batch": "b", "count": 1000}


def test_a_level_that_this_server_has_is_not_stored(client: Client) -> None:
    assert send(client, 1, commit="1", Nats_Required_Api_Level="2")["count"] == 1
    (message,) = client.direct("S", {"seq": 1})
    assert b"Required" not in message.header
    assert send(client, 1, commit="1", Nats_Required_Api_Level="99")["error"]["err_code"] == 10185


def test_two_batches_may_be_under_way_beside_ordinary_messages(client: Client) -> None:
    send(client, 1, name="one", Nats_Msg_Id="a")
    send(client, 1, name="two", Nats_Msg_Id="a")
    assert client.publish("s.2")["seq"] == 1
    assert send(client, 2, name="two", commit="1")["seq"] == 3
    assert send(client, 2, name="one", commit="1")["error"]["err_code"] == 10201


def test_no_answer_comes_from_a_stream_that_does_not_acknowledge() -> None:
    client = Rig().client()
    client.create("S", allow_atomic=True, no_ack=True)
    block = _headers({"Nats_Batch_Id": "b", "Nats_Batch_Sequence": "1"})
    assert client.ask("s.1", b"x", block) == []
    block = _headers({"Nats_Batch_Id": "b", "Nats_Batch_Sequence": "2", "Nats_Batch_Commit": "1"})
    assert client.ask("s.1", b"x", block) == []
    assert left(client) == [1, 2]


def test_a_sealed_stream_takes_no_batches(client: Client) -> None:
    config = {"name": "S", "subjects": ["s.>"], "allow_atomic": True, "storage": "memory", "sealed": True}
    client.api("STREAM.UPDATE.S", config)
    assert send(client, 1)["error"]["err_code"] == 10109


def test_a_fast_batch_on_a_stream_without_them_is_rejected(client: Client) -> None:
    client.send(b"SUB fast.> 7\r\n")
    client.take()
    client.send(b"PUB s.1 fast.b.10.fail.1.0.$FI 1\r\nx\r\n")
    (answer,) = client.messages()
    assert msgspec.json.decode(answer.payload)["error"] == {
        "code": 400, "err_code": 10205, "description": "batch publish is disabled",
    }  # fmt: skip
