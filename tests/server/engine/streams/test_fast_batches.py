"""Fast batches in virtual time: what is reported is durable, what is left alone ends, and all of it is bounded.

What each message is answered is compared with nats-server in `tests/conformance/test_fast_batches.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import CorruptRecordError
from slipstream.server.engine.streams import fast_batches
from slipstream.server.engine.streams.fast_batches import APPEND, COMMIT, END, PING, START
from slipstream.server.store.memory.log import MemoryLog
from slipstream.wire import Headers, pub
from tests.server.support import Client, Rig, sequences


@pytest.fixture
def client() -> Client:
    return connected()


def connected(**config: Any) -> Client:
    client = Rig().client()
    client.create("S", allow_batched=True, **config)
    client.send(b"SUB fast.> 7\r\n")
    client.take()
    return client


def send(
    client: Client,
    number: int,
    operation: int,
    *,
    name: str = "b",
    mode: str = "fail",
    settle: bool = True,
    **more: str,
) -> list[Any]:
    """A message of a batch; what is answered at once."""
    header = Headers({key.replace("_", "-"): value for key, value in more.items()}).encode() if more else b""
    client.send(pub("s.1", b"x", f"fast.{name}.3.{mode}.{number}.{operation}.$FI", header), settle=settle)
    return [msgspec.json.decode(message.payload) for message in client.messages()]


def left(client: Client) -> list[int]:
    return sequences(client.direct("S", {"seq": 1, "batch": 1000}))


def test_a_message_is_there_before_its_batch_ends(client: Client) -> None:
    assert send(client, 1, START) == [{"type": "ack", "seq": 0, "msgs": 3}]
    assert left(client) == [1]
    assert send(client, 2, APPEND) == []
    assert send(client, 3, APPEND) == [{"type": "ack", "seq": 3, "msgs": 3}]
    assert send(client, 4, COMMIT) == [{"stream": "S", "seq": 4, "batch": "b", "count": 4}]
    assert client.rig.engine.batch_usage.fast == 0


def test_acknowledged_numbers_are_durable(client: Client) -> None:
    send(client, 1, START)
    send(client, 2, APPEND)
    assert send(client, 3, APPEND, settle=False) == []
    client.rig.flush()
    assert client.messages() == []
    client.rig.settle()
    (report,) = client.messages()
    assert msgspec.json.decode(report.payload)["seq"] == 3


def test_a_lost_group_is_reported_and_ends_the_batch(client: Client) -> None:
    send(client, 1, START)
    send(client, 2, APPEND)
    send(client, 3, APPEND, settle=False)
    (journal,) = client.rig.engine.journals
    client.rig.engine.failed(journal, OSError("no space left on device"), client.rig.now)
    client.rig.settle()
    (answer,) = client.messages()
    assert msgspec.json.decode(answer.payload)["error"]["err_code"] == 10077
    assert left(client) == [1, 2]
    assert client.rig.engine.batch_usage.fast == 0
    assert send(client, 4, APPEND)[0]["error"]["err_code"] == 10208


def test_a_batch_that_is_left_alone_ends(client: Client) -> None:
    send(client, 1, START)
    for number in range(2, 5):
        client.rig.wait(9)
        send(client, number, APPEND)  # each message gives it ten more seconds
    client.rig.wait(9)
    assert send(client, 4, PING) == [{"type": "ack", "seq": 3, "msgs": 3}]  # and so does a question
    client.rig.wait(9)
    assert client.rig.engine.batch_usage.fast == 1
    client.rig.wait(2)
    assert client.messages() == []
    assert client.rig.engine.batch_usage.fast == 0
    assert send(client, 5, COMMIT)[0]["error"]["err_code"] == 10208
    assert left(client) == [1, 2, 3, 4]


def test_how_many_may_be_open_is_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_batches, "MAX_OPEN", 2)
    send(client, 1, START, name="one")
    send(client, 1, START, name="two")
    assert send(client, 1, START, name="three")[0]["error"]["err_code"] == 10211
    monkeypatch.setattr(fast_batches, "MAX_OPEN", 1000)
    monkeypatch.setattr(fast_batches, "MAX_OPEN_TOTAL", 2)
    assert send(client, 1, COMMIT, name="three")[0]["error"]["err_code"] == 10211
    assert send(client, 2, COMMIT, name="one")[0]["count"] == 2
    assert send(client, 1, COMMIT, name="three")[0]["count"] == 1


def test_deleting_the_stream_or_disabling_batches_ends_them(client: Client) -> None:
    send(client, 1, START)
    config = {"name": "S", "subjects": ["s.>"], "storage": "memory", "allow_direct": True}
    client.api("STREAM.UPDATE.S", config)
    assert client.rig.engine.batch_usage.fast == 0
    assert send(client, 2, COMMIT)[0]["error"]["err_code"] == 10205
    client.api("STREAM.UPDATE.S", config | {"allow_batched": True})
    assert send(client, 2, COMMIT)[0]["error"]["err_code"] == 10208
    send(client, 1, START)
    client.api("STREAM.DELETE.S")
    assert client.rig.engine.batch_usage.fast == 0


def test_a_sealed_stream_takes_none(client: Client) -> None:
    config = {"name": "S", "subjects": ["s.>"], "allow_batched": True, "storage": "memory", "sealed": True}
    client.api("STREAM.UPDATE.S", config)
    assert send(client, 1, START)[0]["error"]["err_code"] == 10109


def test_counters_count_in_a_batch() -> None:
    client = connected(allow_msg_counter=True)
    client.send(pub("s.1", b"", "fast.b.3.fail.1.0.$FI", Headers({"Nats-Incr": "2"}).encode()))
    client.send(pub("s.1", b"", "fast.b.3.fail.2.2.$FI", Headers({"Nats-Incr": "3"}).encode()))
    client.take()
    (message,) = client.direct("S", {"last_by_subj": "s.1"})
    assert msgspec.json.decode(message.payload) == {"val": "5"}


def test_the_messages_of_a_batch_survive_a_restart(client: Client) -> None:
    """The batch itself is not: nothing waits in it."""
    send(client, 1, START, Nats_Msg_Id="a")
    send(client, 2, APPEND, Nats_Msg_Id="b")
    again = Rig(store=client.rig.store, now=client.rig.now).client()
    again.send(b"SUB fast.> 7\r\n")
    again.take()
    assert left(again) == [1, 2]
    assert send(again, 3, COMMIT)[0]["error"]["err_code"] == 10208
    assert send(again, 1, COMMIT, Nats_Msg_Id="b") == [
        {"stream": "S", "seq": 2, "duplicate": True, "batch": "b", "count": 1}
    ]


@given(st.text(max_size=80), st.integers(-2, 2**65), st.integers(-1, 6), st.sampled_from(["ok", "fail", "x"]))
def test_a_reply_subject_gives_its_parts_or_nothing(name: str, number: int, operation: int, mode: str) -> None:
    part = fast_batches.parse(f"inbox.{name}.20.{mode}.{number}.{operation}.$FI")
    if part is not None:
        assert part.batch == name.rpartition(".")[2]
        assert (part.flow, part.gaps, part.number, part.operation) == (20, mode == "ok", number, operation)
        assert 1 <= number < 2**64 - 1
        assert part.operation != START or part.number == 1
        assert part.operation not in (APPEND, END) or part.number > 1
    else:
        allowed = (START, COMMIT, PING) if number == 1 else (APPEND, COMMIT, END, PING)
        assert mode == "x" or not 1 <= number < 2**64 - 1 or operation not in allowed


@given(st.text(max_size=60))
def test_any_reply_subject_can_be_parsed(reply: str) -> None:
    fast_batches.parse(reply + fast_batches.SUFFIX)


def test_a_damaged_record_is_reported_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    client = connected(discard="new", max_msgs_per_subject=1, max_bytes=300)
    for subject in ("s.k", "s.z"):
        client.publish(subject, b"o" * 100)
    plain = MemoryLog.peek

    def peek(log: MemoryLog, seq: int) -> Any:
        if seq == 1:
            raise CorruptRecordError("record 1 does not match its checksum")
        return plain(log, seq)

    monkeypatch.setattr(MemoryLog, "peek", peek)
    send(client, 1, START)
    client.send(pub("s.k", b"y" * 90, "fast.b.3.fail.2.1.$FI"))  # would replace the damaged one
    told = [msgspec.json.decode(message.payload) for message in client.messages()]
    assert [one.get("type") for one in told] == ["err", None]
    assert told[1]["count"] == 1
