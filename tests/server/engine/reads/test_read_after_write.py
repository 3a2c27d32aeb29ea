"""`min_last_seq` on one peer: data, or a late and clear no. Virtual time, so that the delay is exact."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import msgspec
import pytest

from slipstream.server.engine import services
from slipstream.server.engine.reads.direct_get import REJECT_DELAY
from slipstream.server.engine.replication.ingest import HELD, Ingest
from slipstream.wire import Event, Msg, Parser, Side, pub
from tests.server.engine.consumers.kit import Bench, ack_of, seqs
from tests.server.support import SECOND, Client, Rig, headers, sequences, status

DELAY = REJECT_DELAY / SECOND
MESSAGE_GET = "$JS.API.STREAM.MSG.GET.S"
DIRECT_GET = "$JS.API.DIRECT.GET.S"


@pytest.fixture
def client() -> Client:
    """A client of an engine with a stream S of three messages on s.1."""
    client = Rig().client()
    client.create("S", allow_rollup_hdrs=True)
    for n in range(3):
        client.publish("s.1", b"%d" % (n + 1))
    return client


def error(message: Msg) -> dict[str, object]:
    found: dict[str, object] = msgspec.json.decode(message.payload)["error"]
    return found


@pytest.mark.spec("RW-01")
def test_every_publish_is_answered_with_its_sequence(client: Client) -> None:
    assert [client.publish(f"s.{n}")["seq"] for n in range(5)] == [4, 5, 6, 7, 8]
    assert client.publish("s.1", Nats_Msg_Id="a") == {"stream": "S", "seq": 9}
    assert client.publish("s.1", Nats_Msg_Id="a") == {"stream": "S", "seq": 9, "duplicate": True}


@pytest.mark.spec("RW-02")
def test_a_satisfied_minimum_is_answered_at_once(client: Client) -> None:
    for seq in (1, 2, 3):
        (answer,) = client.ask(DIRECT_GET, {"last_by_subj": "s.1", "min_last_seq": seq})
        assert answer.payload == b"3"
        (answer,) = client.ask(MESSAGE_GET, {"seq": 1, "min_last_seq": seq})
        assert b'"seq":1' in answer.payload
    assert sequences(client.direct("S", {"seq": 1, "batch": 5, "min_last_seq": 3})) == [1, 2, 3]
    assert sequences(client.direct("S", {"multi_last": ["s.*"], "min_last_seq": 3})) == [3]


@pytest.mark.spec("RW-02", "RW-03", "RW-05")
@pytest.mark.parametrize(
    "body", [{"seq": 1}, {"last_by_subj": "s.1"}, {"seq": 1, "batch": 5}, {"multi_last": ["s.*"]}], ids=str
)
def test_direct_get_beyond_the_last_sequence_is_rejected_late(client: Client, body: dict[str, object]) -> None:
    assert client.ask(DIRECT_GET, body | {"min_last_seq": 4}) == []
    client.rig.wait(DELAY - 0.001)
    assert client.messages() == []
    client.rig.wait(0.001)
    (answer,) = client.messages()
    assert answer.header == b"NATS/1.0 412 Min Last Sequence\r\n\r\n"
    assert answer.payload == b""


@pytest.mark.spec("RW-02", "RW-04", "RW-05")
def test_message_get_beyond_the_last_sequence_is_rejected_late(client: Client) -> None:
    assert client.ask(MESSAGE_GET, {"seq": 1, "min_last_seq": 4}) == []
    client.rig.wait(DELAY - 0.001)
    assert client.messages() == []
    client.rig.wait(0.001)
    (answer,) = client.messages()
    assert error(answer) == {"code": 412, "err_code": 10180, "description": "min last sequence"}


@pytest.mark.spec("RW-05")
def test_a_waiting_read_is_answered_with_the_data_once_the_sequence_is_committed(client: Client) -> None:
    client.ask(DIRECT_GET, {"last_by_subj": "s.1", "min_last_seq": 5})
    client.ask(MESSAGE_GET, {"last_by_subj": "s.1", "min_last_seq": 4})
    other = client.rig.client()
    client.rig.wait(DELAY / 2)
    other.publish("s.1", b"4")
    (first,) = client.messages()
    assert b'"seq":4' in first.payload
    other.publish("s.1", b"5")
    (second,) = client.messages()
    assert second.payload == b"5"
    client.rig.wait(10)
    assert client.messages() == []  # no rejection comes after the answer


def test_an_uncommitted_message_does_not_satisfy_a_minimum(client: Client) -> None:
    rig = client.rig
    client.send(b"PUB s.1 1\r\n4\r\n", settle=False)
    client.ask(DIRECT_GET, {"last_by_subj": "s.1", "min_last_seq": 4}, settle=False)
    rig.flush()
    assert client.messages() == []
    rig.commit()
    rig.flush()
    (answer,) = client.messages()
    assert answer.payload == b"4"


@pytest.mark.spec("RW-09")
def test_appended_subject_takes_a_body_with_only_a_minimum(client: Client) -> None:
    (answer,) = client.ask(f"{DIRECT_GET}.s.1", {"min_last_seq": 3})
    assert answer.payload == b"3"
    assert client.ask(f"{DIRECT_GET}.s.1", {"min_last_seq": 4}) == []
    client.rig.wait(DELAY)
    (answer,) = client.messages()
    assert status(answer) == (412, "Min Last Sequence")
    (answer,) = client.ask(f"{DIRECT_GET}.s.1", {"min_last_seq": 3, "seq": 1})
    assert status(answer) == (408, "Bad Request")


def test_an_answer_says_as_of_which_sequence_it_is_if_asked(client: Client) -> None:
    created = client.rig.engine.streams["S"].created
    claim = {"Slipstream-Responder": "slipstream", "Slipstream-As-Of": "3", "Slipstream-Created": str(created)}

    def claimed(subject: str, body: dict[str, object]) -> dict[str, str]:
        plain = client.ask(subject, body)
        if not plain:  # it waits, and is rejected
            client.rig.wait(DELAY)
            plain = client.messages()
        answers = client.ask(subject, body | {"as_of": True})
        if not answers:
            client.rig.wait(DELAY)
            answers = client.messages()
        assert [answer.header for answer in answers[:-1]] == [answer.header for answer in plain[:-1]]
        lines = {name: value for name, value in headers(answers[-1]).items() if name.startswith("Slipstream-")}
        bare = b"".join(
            line for line in answers[-1].header.splitlines(keepends=True) if not line.startswith(b"Slipstream-")
        )
        assert bare == plain[-1].header
        return lines

    assert claimed(DIRECT_GET, {"last_by_subj": "s.1"}) == claim
    assert claimed(DIRECT_GET, {"last_by_subj": "s.2", "min_last_seq": 1}) == claim  # 404
    assert claimed(DIRECT_GET, {"seq": 1, "min_last_seq": 4}) == claim  # 412
    assert claimed(DIRECT_GET, {"seq": 1, "batch": 2}) == claim
    assert claimed(DIRECT_GET, {"seq": 9, "batch": 2}) == claim  # 404
    assert claimed(DIRECT_GET, {"multi_last": ["s.>"]}) == claim
    assert claimed(DIRECT_GET, {"multi_last": ["t.>"]}) == claim  # 404
    assert claimed(f"{DIRECT_GET}.s.1", {"min_last_seq": 1}) == claim
    (answer,) = client.ask(f"{DIRECT_GET}.s.1", {"as_of": True})
    assert headers(answer)["Slipstream-As-Of"] == "3"


@pytest.mark.spec("RW-15")
def test_a_rollup_raises_the_last_sequence_and_a_delete_or_purge_does_not(client: Client) -> None:
    client.api("STREAM.MSG.DELETE.S", {"seq": 3})
    client.api("STREAM.PURGE.S", {"keep": 1})
    assert client.api("STREAM.INFO.S")["state"]["last_seq"] == 3
    (answer,) = client.ask(DIRECT_GET, {"last_by_subj": "s.1", "min_last_seq": 3})
    assert answer.payload == b"2"
    assert client.publish("s.1", b"gone", Nats_Rollup="sub")["seq"] == 4
    (answer,) = client.ask(DIRECT_GET, {"last_by_subj": "s.1", "min_last_seq": 4})
    assert answer.payload == b"gone"
    assert client.api("STREAM.INFO.S")["state"]["messages"] == 1


@pytest.mark.spec("RW-18", on="E")
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("get", [DIRECT_GET, MESSAGE_GET])
def test_the_recipe_too_high_a_sequence_then_publish_then_the_same_read(replicas: int, get: str) -> None:
    """And the same for a consumer: made for too high a sequence it delivers nothing, then publish, then it does."""
    bench = Bench(Rig(), num_replicas=replicas)
    client, rig = bench.client, bench.rig
    bench.fill("s.1", "s.1", "s.1")
    group = rig.engine.streams["S"].replicas
    for peer in group.peers[1:]:
        group.hold(peer, rig.now)
    body = {"seq": 4, "min_last_seq": 4}
    assert client.ask(get, body) == []
    rig.wait(DELAY)
    (refused,) = client.messages()
    if get == DIRECT_GET:
        assert status(refused) == (412, "Min Last Sequence")
    else:
        assert error(refused)["err_code"] == 10180
    assert "error" not in bench.create(min_last_seq=4)
    bench.ask_for(9, expires=60 * SECOND)
    rig.wait(10)
    assert client.messages() == []
    ack = client.rig.client().publish("s.1", b"four")
    assert ack["seq"] == 4
    delivered = client.messages()
    assert seqs(delivered) == [1, 2, 3, 4]
    assert [ack_of(message).pending for message in delivered] == [3, 2, 1, 0]
    for _ in range(20):  # whichever replica is asked
        (answer,) = client.ask(get, body)
        assert b"four" in answer.payload or b"Zm91cg==" in answer.payload


def test_a_consumer_of_a_mirror_that_lags_waits_for_the_sequence_it_asks_for() -> None:
    bench = Bench(Rig(), create=False)
    client = bench.client
    client.create("UP")
    client.api("STREAM.CREATE.S", {"name": "S", "storage": "memory", "mirror": {"name": "UP"}})
    (ingest,) = client.rig.engine.streams["S"].ingests
    assert isinstance(ingest, Ingest)
    bench.fill("up.1")
    ingest.pause(HELD)
    bench.fill("up.1", "up.2")
    bench.create(min_last_seq=3)
    bench.ask_for(9, expires=60 * SECOND)
    assert client.messages() == []
    ingest.resume()
    client.rig.settle()
    delivered = client.messages()
    assert [(ack_of(message).seq, ack_of(message).pending) for message in delivered] == [(1, 2), (2, 1), (3, 0)]


def instructions(run: Callable[[], object]) -> int:
    """How many bytecode instructions a call executes: what a read costs, on any machine and however busy it is."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.spec("RW-11")
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_satisfied_min_last_seq_costs_nothing(replicas: int) -> None:
    """Within 3 % of the same read without it, in instructions; `make bench` has the times."""
    rig = Rig()
    client = rig.client()
    client.create("S", num_replicas=replicas)
    for n in range(100):
        client.publish(f"s.{n}", b"x" * 128)

    def requests(body: bytes) -> list[Event]:
        frames = [pub(DIRECT_GET, body % (n + 1), f"{client.inbox}{n}", b"") for n in range(100)]
        return Parser(Side.CLIENT).feed(b"".join(frames))

    def cost(body: bytes) -> int:
        events = requests(body)
        count = instructions(lambda: rig.engine.receive(client.cid, events, rig.now))
        (session,) = rig.engine.take_output()
        assert len(session.out) == 100
        session.out.clear()
        session.set_capacity(rig.engine.settings.max_pending_bytes)
        return count

    cost(b'{"seq":%d}')  # what is done once, and cached, is no part of it
    plain, fresh = cost(b'{"seq":%d}'), cost(b'{"seq":%d,"min_last_seq":100}')
    assert plain > 100 * 100  # the reads were counted, and not only the call
    assert fresh <= 1.03 * plain, (fresh, plain)


def test_too_many_waiting_reads_are_rejected_at_once(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    monkeypatch.setattr(services, "MAX_WAITING", 2)
    assert client.ask(DIRECT_GET, {"seq": 4, "min_last_seq": 4}) == []
    assert client.ask(MESSAGE_GET, {"seq": 4, "min_last_seq": 4}) == []
    (answer,) = client.ask(DIRECT_GET, {"seq": 4, "min_last_seq": 4})
    assert status(answer)[0] == 412
    client.publish("s.1")  # frees both places
    client.take()
    assert client.ask(DIRECT_GET, {"seq": 5, "min_last_seq": 5}) == []


def test_waiting_reads_of_a_deleted_stream_leave_nothing_behind(client: Client) -> None:
    client.ask(DIRECT_GET, {"seq": 4, "min_last_seq": 4})
    client.api("STREAM.DELETE.S")
    client.rig.wait(DELAY)
    assert client.messages() == []
    client.create("S")
    assert client.publish("s.1")["seq"] == 1
