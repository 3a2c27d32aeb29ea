"""Records that fail their checksum, and a store that refuses: an error for that message, never wrong data."""

from __future__ import annotations

import pytest

from slipstream.errors import CorruptRecordError, StoreError
from slipstream.server.engine.ports import Record
from slipstream.server.store.memory.log import MemoryLog
from tests.server.support import Client, Rig, sequences, status


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Sequences whose records are damaged."""
    bad: set[int] = set()
    real = MemoryLog.get

    def get(log: MemoryLog, seq: int) -> Record | None:
        if seq in bad:
            raise CorruptRecordError(f"record {seq} does not match its checksum")
        return real(log, seq)

    monkeypatch.setattr(MemoryLog, "get", get)
    return bad


@pytest.fixture
def client() -> Client:
    client = Rig().client()
    client.create("S")
    for n in range(10):
        client.publish("s.1", b"%d" % (n + 1), Nats_Msg_Id=f"id-{n + 1}")
    return client


def test_a_damaged_message_is_reported_and_the_others_are_served(client: Client, damaged: set[int]) -> None:
    damaged.add(4)
    (answer,) = client.direct("S", {"seq": 4})
    assert status(answer) == (500, "Message Corrupt")
    error = client.api("STREAM.MSG.GET.S", {"seq": 4})["error"]
    assert (error["code"], error["description"]) == (500, "record 4 does not match its checksum")
    assert [m.payload for m in client.direct("S", {"seq": 5})] == [b"5"]


def test_a_batch_ends_with_an_error_at_a_damaged_message_and_not_before(client: Client, damaged: set[int]) -> None:
    damaged.add(6)
    answers = client.direct("S", {"seq": 1, "batch": 100})
    assert sequences(answers) == [1, 2, 3, 4, 5]
    assert status(answers[-1]) == (500, "Message Corrupt")
    assert sequences(client.direct("S", {"seq": 7, "batch": 100})) == [7, 8, 9, 10]
    damaged.add(10)
    (answer,) = client.direct("S", {"multi_last": ["s.*"]})
    assert status(answer) == (500, "Message Corrupt")


def test_a_server_starts_on_damaged_messages(client: Client, damaged: set[int]) -> None:
    damaged.update((3, 10))
    again = Rig(store=client.rig.store, now=client.rig.now).client()
    assert again.publish("s.1", Nats_Msg_Id="id-9")["duplicate"] is True
    assert again.publish("s.1", Nats_Msg_Id="id-2")["duplicate"] is True
    assert again.publish("s.1", Nats_Msg_Id="id-3")["seq"] == 11  # its id was lost with it


def test_for_a_message_that_goes_while_a_batch_is_under_way_the_one_before_it_is_sent(client: Client) -> None:
    rig = client.rig
    client.send(b"PUB s.2 1\r\nx\r\n")
    client.ask("$JS.API.DIRECT.GET.S", {"multi_last": ["s.*"]}, settle=False)
    client.send(b'PUB $JS.API.STREAM.MSG.DELETE.S 10\r\n{"seq":10}\r\n', settle=False)
    rig.commit()
    rig.settle()
    assert sequences(client.messages()) == [11, 9]


def test_a_store_that_refuses_is_an_error_for_the_publisher_only(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise StoreError("the store is full")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryLog, "append", full)
        error = {"code": 503, "err_code": 10077, "description": "the store is full"}
        assert client.publish("s.1") == {"error": error, "stream": "S", "seq": 0}
        patch.setattr(MemoryLog, "purge", lambda *_, **__: full())
        assert client.api("STREAM.PURGE.S")["error"] == error
    assert client.publish("s.1")["seq"] == 11
