"""Direct Get and Message Get, row by row of the requirements, on the engine alone."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipstream.api import parse_time
from slipstream.server.engine.jobs import RECEIVE_UNITS
from slipstream.server.engine.reads import direct_get
from slipstream.server.engine.reads.direct_get import ReplicaPeer
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.wire import Headers, Msg
from tests.server.support import SECOND, START, Client, Rig, headers, sequences, status


@pytest.fixture
def client() -> Client:
    """A client of an engine with a stream S of six messages: s.1 to s.3, twice, a second apart."""
    rig = Rig()
    client = rig.client()
    client.create("S")
    for n in range(6):
        client.publish(f"s.{n % 3 + 1}", b"payload %d" % (n + 1))
        rig.wait(1)
    return client


def one(messages: list[Msg]) -> Msg:
    (message,) = messages
    return message


@pytest.mark.spec("DG-01")
def test_allow_direct_is_carried_by_create_update_and_info() -> None:
    client = Rig().client()
    assert client.create("A", allow_direct=False)["config"]["allow_direct"] is False
    assert client.api("STREAM.INFO.A")["config"]["allow_direct"] is False
    updated = client.api(
        "STREAM.UPDATE.A", {"name": "A", "subjects": ["a.>"], "storage": "memory", "allow_direct": True}
    )
    assert updated["config"]["allow_direct"] is True
    assert client.api("STREAM.INFO.A")["config"]["allow_direct"] is True
    client.publish("a.1")
    assert one(client.direct("A", {"seq": 1})).payload == b"x"


@pytest.mark.spec("DG-02")
def test_a_limit_per_subject_turns_direct_get_on_even_against_an_explicit_false() -> None:
    client = Rig().client()
    assert client.create("A", allow_direct=False, max_msgs_per_subject=1)["config"]["allow_direct"] is True
    assert client.create("B", allow_direct=False)["config"]["allow_direct"] is False
    edit = {"name": "B", "subjects": ["b.>"], "storage": "memory", "max_msgs_per_subject": 5, "allow_direct": False}
    assert client.api("STREAM.UPDATE.B", edit)["config"]["allow_direct"] is True
    assert client.create("C", allow_direct=True)["config"]["allow_direct"] is True


@pytest.mark.spec("DG-04")
def test_without_allow_direct_there_are_no_responders() -> None:
    client = Rig().client()
    client.create("A", allow_direct=False)
    client.publish("a.1")
    for subject in ("$JS.API.DIRECT.GET.A", "$JS.API.DIRECT.GET.A.a.1", "$JS.API.DIRECT.GET.NONE"):
        answer = one(client.ask(subject, b""))
        assert answer.header == b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % subject.encode()
    edit = {"name": "A", "subjects": ["a.>"], "storage": "memory"}
    client.api("STREAM.UPDATE.A", edit | {"allow_direct": True})
    assert one(client.direct("A", {"seq": 1})).payload == b"x"
    client.api("STREAM.UPDATE.A", edit | {"allow_direct": False})
    assert status(one(client.direct("A", {"seq": 1})))[0] == 503


@pytest.mark.spec("DG-08")
def test_message_get_sees_every_acknowledged_write_at_once(client: Client) -> None:
    for n in range(7, 20):
        ack = client.publish("s.1", b"%d" % n)
        answer = client.api("STREAM.MSG.GET.S", {"seq": ack["seq"]})
        assert answer["type"] == "io.nats.jetstream.api.v1.stream_msg_get_response"
        assert msgspec.convert(answer["message"]["data"], bytes, strict=False) == b"%d" % n


def test_message_get_takes_the_forms_of_direct_get_but_no_batch(client: Client) -> None:
    get = "STREAM.MSG.GET.S"
    assert client.api(get, {"last_by_subj": "s.2"})["message"]["seq"] == 5
    assert client.api(get, {"next_by_subj": "s.2"})["message"]["seq"] == 2
    assert client.api(get, {"seq": 3, "next_by_subj": "s.*"})["message"]["seq"] == 3
    assert client.api(get, {"start_time": "2023-11-14T22:13:22Z"})["message"]["seq"] == 3
    for body in ({"seq": 1, "batch": 2}, {"seq": 1, "max_bytes": 2}, {"seq": 1, "last_by_subj": "s.1"}, {}, b""):
        assert client.api(get, body)["error"] == {"code": 400, "err_code": 10003, "description": "bad request"}
    assert client.api(get, {"seq": 99})["error"] == {"code": 404, "err_code": 10037, "description": "no message found"}
    unknown = client.api(get, {"seq": 1, "foo": 2})["error"]
    assert unknown == {"code": 400, "err_code": 10025, "description": 'invalid JSON: json: unknown field "foo"'}
    assert client.api("STREAM.MSG.GET.NONE", {"seq": 1})["error"]["err_code"] == 10059


@pytest.mark.spec("DG-09")
def test_direct_gets_are_not_counted_as_api_requests(client: Client) -> None:
    before = client.api("INFO")["api"]["total"]
    for _ in range(5):
        client.direct("S", {"seq": 1})
        client.ask("$JS.API.DIRECT.GET.S.s.1")
    assert client.api("INFO")["api"]["total"] == before + 1
    client.api("STREAM.MSG.GET.S", {"seq": 1})
    assert client.api("INFO")["api"]["total"] == before + 3


@pytest.mark.spec("DG-10")
def test_a_message_is_found_by_its_sequence(client: Client) -> None:
    for seq in range(1, 7):
        answer = one(client.direct("S", {"seq": seq}))
        assert answer.payload == b"payload %d" % seq
        assert headers(answer)["Nats-Sequence"] == str(seq)
    client.api("STREAM.MSG.DELETE.S", {"seq": 3})
    assert status(one(client.direct("S", {"seq": 3}))) == (404, "Message Not Found")


@pytest.mark.spec("DG-11")
def test_the_last_message_of_a_subject_or_wildcard_is_found(client: Client) -> None:
    assert one(client.direct("S", {"last_by_subj": "s.2"})).payload == b"payload 5"
    assert one(client.direct("S", {"last_by_subj": "s.*"})).payload == b"payload 6"
    assert one(client.direct("S", {"last_by_subj": ">"})).payload == b"payload 6"
    assert status(one(client.direct("S", {"last_by_subj": "s.9"})))[0] == 404


@pytest.mark.spec("DG-12")
def test_the_first_message_of_a_subject_is_found(client: Client) -> None:
    assert one(client.direct("S", {"next_by_subj": "s.3"})).payload == b"payload 3"
    assert one(client.direct("S", {"next_by_subj": "s.*"})).payload == b"payload 1"
    assert status(one(client.direct("S", {"next_by_subj": "s.9"})))[0] == 404


@pytest.mark.spec("DG-13")
def test_the_next_message_of_a_subject_from_a_sequence_on_is_found(client: Client) -> None:
    assert one(client.direct("S", {"seq": 1, "next_by_subj": "s.3"})).payload == b"payload 3"
    assert one(client.direct("S", {"seq": 3, "next_by_subj": "s.3"})).payload == b"payload 3"
    assert one(client.direct("S", {"seq": 4, "next_by_subj": "s.3"})).payload == b"payload 6"
    assert status(one(client.direct("S", {"seq": 7, "next_by_subj": "s.3"})))[0] == 404


@pytest.mark.spec("DG-14")
def test_a_batch_gives_up_to_so_many_messages_from_a_sequence_on(client: Client) -> None:
    assert sequences(client.direct("S", {"seq": 2, "batch": 3})) == [2, 3, 4]
    assert sequences(client.direct("S", {"seq": 2, "batch": 30})) == [2, 3, 4, 5, 6]
    assert sequences(client.direct("S", {"seq": 2, "batch": 30, "next_by_subj": "s.1"})) == [4]
    assert sequences(client.direct("S", {"batch": 30, "next_by_subj": "s.*"})) == [1, 2, 3, 4, 5, 6]
    assert sequences(client.direct("S", {"seq": 1, "batch": 1, "next_by_subj": "s.2"})) == [2]
    answer = one(client.direct("S", {"seq": 7, "batch": 3}))
    assert status(answer) == (404, "Message Not Found")


def test_a_batch_of_many_chunks_is_complete_and_in_order() -> None:
    rig = Rig()
    client = rig.client()
    client.create("S")
    for n in range(2000):
        client.send(b"PUB s.%d 1\r\nx\r\n" % (n % 7), settle=False)
    rig.settle()
    answers = client.direct("S", {"seq": 1, "batch": 1500})
    assert sequences(answers) == list(range(1, 1501))
    assert [int(headers(a)["Nats-Num-Pending"]) for a in answers[:-1]] == list(range(1999, 499, -1))
    assert headers(answers[-1])["Nats-Num-Pending"] == "500"


@pytest.mark.spec("DG-15")
def test_max_bytes_ends_a_batch_after_the_message_that_reaches_it(client: Client) -> None:
    size = len("s.1") + len(b"payload 1")
    for fits in range(1, 6):
        answers = client.direct("S", {"seq": 1, "batch": 6, "max_bytes": fits * size})
        assert sequences(answers) == list(range(1, fits + 1))
        assert headers(answers[-1])["Nats-Num-Pending"] == str(6 - fits)
    assert sequences(client.direct("S", {"seq": 1, "batch": 6, "max_bytes": 1})) == [1]


@pytest.mark.spec("DG-15")
def test_without_max_bytes_the_servers_bound_on_pending_bytes_ends_a_batch() -> None:
    client = Rig(max_pending_bytes=400_000).client()
    client.create("S")
    for _ in range(10):
        client.publish("s.1", b"x" * 60_000)
    answers = client.direct("S", {"seq": 1, "batch": 10})
    assert sequences(answers) == [1, 2, 3, 4, 5, 6, 7]
    assert headers(answers[-1])["Nats-Num-Pending"] == "3"


@pytest.mark.spec("DG-16")
def test_appended_subject_is_the_last_message_of_that_subject(client: Client) -> None:
    assert one(client.ask("$JS.API.DIRECT.GET.S.s.2")).payload == b"payload 5"
    client.create("DEEP", subjects=["a.b.c.*"])
    client.publish("a.b.c.d", b"deep")
    assert one(client.ask("$JS.API.DIRECT.GET.DEEP.a.b.c.d")).payload == b"deep"
    assert status(one(client.ask("$JS.API.DIRECT.GET.DEEP.a.b.c"))) == (404, "Message Not Found")


# F18: a body beside the subject
@pytest.mark.spec("DG-17")
def test_appended_subject_with_a_payload_is_a_bad_request(client: Client) -> None:
    chosen = ({"seq": 1}, {"last_by_subj": "s.1"}, {"next_by_subj": "s.1"}, {"batch": 1}, {"multi_last": ["s.1"]})
    harmless: tuple[dict[str, object], ...] = (
        {},
        {"foo": 1},
        {"max_bytes": 4},
        {"no_hdr": True},
        {"batch": 0},
        {"min_last_seq": 1, "max_bytes": 4},
    )
    wrong = ({"min_last_seq": -1}, {"min_last_seq": 2**64}, {"min_last_seq": "1"}, {"min_last_seq": None}, [1])
    for body in (*chosen, *harmless, *wrong):
        answer = one(client.ask("$JS.API.DIRECT.GET.S.s.1", msgspec.json.encode(body)))
        assert status(answer) == (408, "Bad Request"), body
    assert status(one(client.ask("$JS.API.DIRECT.GET.S.s.1", b"nonsense"))) == (408, "Malformed Request")


@pytest.mark.spec("DG-19")
def test_every_message_of_a_batch_has_the_pending_count_and_the_last_sequence(client: Client) -> None:
    answers = client.direct("S", {"seq": 1, "batch": 2, "next_by_subj": "s.2"})
    assert [headers(a).get("Nats-Sequence") for a in answers] == ["2", "5", None]
    assert [headers(a)["Nats-Num-Pending"] for a in answers] == ["1", "0", "0"]
    assert [headers(a)["Nats-Last-Sequence"] for a in answers] == ["0", "2", "5"]


@pytest.mark.spec("DG-20")
def test_a_batch_ends_with_an_empty_message_that_counts_what_is_left_in_both_headers(client: Client) -> None:
    end = client.direct("S", {"seq": 1, "batch": 4})[-1]
    assert status(end) == (204, "EOB")
    assert end.payload == b""
    assert end.header == (
        b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 2\r\nNats-Last-Sequence: 4\r\nNats-Pending-Messages: 2\r\n\r\n"
    )


@pytest.mark.spec("DG-20")
def test_the_end_of_a_batch_counts_messages_published_during_it() -> None:
    rig = Rig()
    client, other = rig.client(), rig.client()
    client.create("S")
    for _ in range(600):
        client.send(b"PUB s.1 1\r\nx\r\n", settle=False)
    rig.settle()
    assert client.ask("$JS.API.DIRECT.GET.S", {"seq": 1, "batch": 550}, settle=False) == []
    rig.engine.step(rig.now)  # a first chunk of 512
    other.send(b"PUB s.1 1\r\ny\r\n", settle=False)
    rig.commit()
    rig.settle()
    answers = client.messages()
    assert len(answers) == 551
    assert headers(answers[-1])["Nats-Num-Pending"] == "51"


@pytest.mark.spec("DG-22")
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", (408, "Empty Request")),
        (b"{}", (408, "Empty Request")),
        (b'{"batch":5}', (408, "Empty Request")),
        (b'{"multi_last":[]}', (408, "Empty Request")),
        (b"nonsense", (408, "Malformed Request")),
        (b'{"seq":"1"}', (408, "Malformed Request")),
        (b'{"seq":-1}', (408, "Malformed Request")),
        (b'{"start_time":"soon"}', (408, "Malformed Request")),
        (b'{"seq":1,"last_by_subj":"s.1"}', (408, "Bad Request")),
        (b'{"seq":1,"start_time":"2020-01-01T00:00:00Z"}', (408, "Bad Request")),
        (b'{"last_by_subj":"s.1","next_by_subj":"s.1"}', (408, "Bad Request")),
        (b'{"last_by_subj":"s.1","batch":2}', (408, "Bad Request")),
        (b'{"multi_last":["s.1"],"next_by_subj":"s.1"}', (408, "Bad Request")),
        (b'{"multi_last":["s.1"],"up_to_seq":1,"up_to_time":"2020-01-01T00:00:00Z"}', (408, "Bad Request")),
        (b'{"seq":99}', (404, "Message Not Found")),
        (b'{"multi_last":["s.9"]}', (404, "No Results")),
    ],
)
def test_failed_requests_get_a_status_line_without_body(client: Client, body: bytes, expected: tuple[int, str]) -> None:
    answer = one(client.direct("S", body))
    assert status(answer) == expected
    assert answer.header == f"NATS/1.0 {expected[0]} {expected[1]}\r\n\r\n".encode()
    assert answer.payload == b""


@pytest.mark.spec("DG-23")
def test_a_reply_carries_the_messages_own_headers_and_then_ours(client: Client) -> None:
    (ack,) = client.ask("s.h", b"body", Headers([("A", "1"), ("A", "2"), ("Nats-Msg-Id", "m")]))
    assert ack.payload == b'{"stream":"S","seq":7}'
    answer = one(client.direct("S", {"seq": 7}))
    assert answer.payload == b"body"
    items = Headers.parse(answer.header).items()
    assert items[:3] == [("A", "1"), ("A", "2"), ("Nats-Msg-Id", "m")]
    assert items[3:6] == [("Nats-Stream", "S"), ("Nats-Subject", "s.h"), ("Nats-Sequence", "7")]
    assert items[6][0] == "Nats-Time-Stamp"
    assert parse_time(items[6][1]) == START + 6 * SECOND
    plain = one(client.direct("S", {"seq": 7, "no_hdr": True}))
    assert (plain.header, plain.payload) == (b"", b"body")


@pytest.mark.spec("DG-25")
def test_multi_last_gives_the_last_message_of_each_subject_and_the_responders_last_sequence(client: Client) -> None:
    answers = client.direct("S", {"multi_last": ["s.1", "s.3"]})
    assert sequences(answers) == [4, 6]
    assert [headers(a)["Nats-Num-Pending"] for a in answers] == ["1", "0", "0"]
    assert [headers(a)["Nats-Last-Sequence"] for a in answers] == ["0", "4", "6"]
    assert headers(answers[-1])["Nats-UpTo-Sequence"] == "6"
    assert sequences(client.direct("S", {"multi_last": ["s.*"], "up_to_seq": 4})) == [2, 3, 4]
    assert headers(client.direct("S", {"multi_last": ["s.*"], "up_to_seq": 4})[-1])["Nats-UpTo-Sequence"] == "4"
    assert sequences(client.direct("S", {"multi_last": ["s.*"], "up_to_time": "2023-11-14T22:13:23Z"})) == [1, 2, 3]
    assert status(one(client.direct("S", {"multi_last": ["s.*"], "up_to_time": "2020-01-01T00:00:00Z"})))[0] == 404
    assert sequences(client.direct("S", {"multi_last": ["s.*"], "seq": 5})) == [5, 6]


@pytest.mark.spec("DG-25")
def test_multi_last_can_be_read_in_batches(client: Client) -> None:
    first = client.direct("S", {"multi_last": ["s.*"], "batch": 2})
    assert sequences(first) == [4, 5]
    assert headers(first[-1])["Nats-Num-Pending"] == "1"
    rest = client.direct("S", {"multi_last": ["s.*"], "batch": 2, "seq": 6, "up_to_seq": 6})
    assert sequences(rest) == [6]


@pytest.mark.spec("DG-25")
def test_a_batch_can_start_at_a_time(client: Client) -> None:
    third = {"start_time": "2023-11-14T22:13:22Z"}
    assert sequences(client.direct("S", third | {"batch": 2})) == [3, 4]
    assert sequences(client.direct("S", third | {"batch": 9, "next_by_subj": "s.1"})) == [4]
    assert one(client.direct("S", third)).payload == b"payload 3"
    assert status(one(client.direct("S", {"start_time": "2033-01-01T00:00:00Z", "batch": 1})))[0] == 404


@pytest.mark.spec("DG-25")
def test_more_than_1024_subjects_are_too_many_for_multi_last() -> None:
    rig = Rig()
    client = rig.client()
    client.create("S")
    for n in range(1024):
        client.send(b"PUB s.%d 1\r\nx\r\n" % n, settle=False)
    rig.settle()
    assert len(client.direct("S", {"multi_last": ["s.*"]})) == 1025
    client.publish("s.one-more")
    assert status(one(client.direct("S", {"multi_last": ["s.*"]}))) == (413, "Too Many Results")


def test_a_batch_waits_while_its_reader_does_not_keep_up_and_others_go_on() -> None:
    rig = Rig()
    slow, quick = rig.client(), rig.client()
    slow.create("S")
    for _ in range(1000):
        slow.send(b"PUB s.1 1\r\nx\r\n", settle=False)
    rig.settle()
    rig.engine.congested(slow.cid, True)
    assert slow.direct("S", {"seq": 1, "batch": 1000}) == []
    assert len(quick.direct("S", {"seq": 1, "batch": 1000})) == 1001
    rig.engine.congested(slow.cid, False)
    rig.settle()
    assert len(slow.messages()) == 1001


def test_a_batch_ends_when_its_reader_unsubscribes() -> None:
    rig = Rig()
    client = rig.client()
    client.create("S")
    for _ in range(1000):
        client.send(b"PUB s.1 1\r\nx\r\n", settle=False)
    rig.settle()
    client.ask("$JS.API.DIRECT.GET.S", {"seq": 1, "batch": 1000}, settle=False)
    rig.engine.disconnect(client.cid)
    assert rig.engine.step(rig.now) is False
    assert not rig.engine.take_output()


def test_too_many_batches_at_once_are_refused(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    monkeypatch.setattr("slipstream.server.engine.jobs.MAX_JOBS", 1)
    assert client.ask("$JS.API.DIRECT.GET.S", {"seq": 1, "batch": 2}, settle=False) == []
    client.ask("$JS.API.DIRECT.GET.S", {"seq": 1, "batch": 2}, settle=False)
    client.ask("$JS.API.DIRECT.GET.S", {"multi_last": ["s.*"]}, settle=False)
    client.rig.settle()
    answers = client.messages()
    assert [status(a)[0] for a in answers] == [429, 429, 0, 0, 204]


def test_a_batch_for_several_readers_waits_for_the_slowest(client: Client) -> None:
    other = client.rig.client()
    other.send(b"SUB %b> 7\r\n" % client.inbox.encode())
    client.rig.engine.congested(other.cid, True)
    assert client.direct("S", {"seq": 1, "batch": 4}) == []
    client.rig.engine.congested(other.cid, False)
    client.rig.settle()
    assert len(client.messages()) == 5


def test_a_batch_reaches_several_subscribers_of_its_reply_alike(client: Client) -> None:
    other = client.rig.client()
    other.send(b"SUB %b> 7\r\n" % client.inbox.encode())
    answers = client.direct("S", {"seq": 1, "batch": 4})
    copies = other.messages()
    assert sequences(answers) == sequences(copies) == [1, 2, 3, 4]
    assert [a.header for a in answers] == [c.header for c in copies]


def test_multi_last_of_subjects_that_are_overwritten_meanwhile_leaves_none_out() -> None:
    """The newest messages are looked up first and sent in chunks; a replaced one is looked up again."""
    client = Rig().client()
    client.create("S", max_msgs_per_subject=1)
    for n in range(1000):
        client.publish(f"s.{n}", b"old")
    rig = client.rig
    client.ask("$JS.API.DIRECT.GET.S", {"multi_last": ["s.*"]}, settle=False)
    rig.engine.step(rig.now)  # the first chunk
    client.send(b"PUB s.0 3\r\nnew\r\nPUB s.999 3\r\nnew\r\n", settle=False)
    rig.commit()
    rig.settle()
    *messages, end = client.messages()
    found = {headers(message)["Nats-Subject"]: message.payload for message in messages}
    assert len(messages) == len(found) == 1000
    assert (found["s.0"], found["s.999"]) == (b"old", b"new")
    assert headers(end)["Nats-Num-Pending"] == "0"


@pytest.mark.parametrize("more", [{"multi_last": ["s.*"]}, {"batch": 1000}, {"batch": 1000, "next_by_subj": "s.*"}])
@pytest.mark.parametrize("storage", ["memory", "file"])
def test_batch_of_a_stream_that_is_deleted_meanwhile_does_not_claim_to_be_complete(
    more: dict[str, Any], storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_get, "CHUNK", 1)
    rig = Rig()
    client, other = rig.client(), rig.client()
    client.create("S", storage=storage)
    for n in range(100):
        client.publish(f"s.{n}")
    client.ask("$JS.API.DIRECT.GET.S", {"seq": 1} | more, settle=False)
    rig.engine.step(rig.now)  # the first chunk
    other.api("STREAM.DELETE.S")
    *messages, end = client.messages()
    assert 0 < len(messages) < 100
    assert status(end) == (503, "Stream Deleted")


def test_multi_last_of_a_subject_that_is_written_all_the_time_comes_to_its_end() -> None:
    """The message that a search finds is overwritten before the search is over, whenever it is repeated."""
    client = Rig().client()
    client.create("S", max_msgs_per_subject=1)
    for n in range(6_000):
        client.send(b"PUB s.%d.x 3\r\nold\r\n" % n, settle=False)
    client.send(b"PUB s.1.hot 3\r\nold\r\n")
    rig, writer = client.rig, client.rig.client()
    client.ask("$JS.API.DIRECT.GET.S", {"multi_last": ["s.*.hot"]}, settle=False)
    answers: list[Msg] = []
    for _ in range(100):
        writer.send(b"PUB s.1.hot 3\r\nnew\r\n", settle=False)
        rig.engine.step(rig.now)
        rig.commit()
        rig.flush()
        answers += client.messages()
        if len(answers) == 2:
            break
    message, end = answers
    assert message.payload == b"new"
    assert headers(end)["Nats-Num-Pending"] == "0"


def test_reads_that_are_released_after_their_clients_left_keep_no_snapshots(tmp_path: Path) -> None:
    """Otherwise there are as many as there may be soon, and no search is possible any more."""
    rig = Rig(store=LmdbStore(tmp_path, map_size=1 << 26))
    client = rig.client()
    client.create("S", storage="file")
    for n in range(1, 140):
        other = rig.client()
        other.ask("$JS.API.DIRECT.GET.S", {"multi_last": ["s.*"], "min_last_seq": n})
        rig.engine.disconnect(other.cid)
        client.publish("s.1")
    message, end = client.direct("S", {"multi_last": ["s.*"]})
    assert sequences([message]) == [139]
    assert status(end)[0] == 204


def overwritten_during(request: dict[str, int], overwritten: list[int], *, created: int = 0) -> list[Msg]:
    """The answers to a multi-subject get of 1,000 subjects with one message each, some of them overwritten (and others
    created) after its first chunk."""
    client = Rig().client()
    client.create("S", max_msgs_per_subject=1)
    for n in range(1000):
        client.publish(f"s.{n}", b"old")
    rig = client.rig
    client.ask("$JS.API.DIRECT.GET.S", {"multi_last": ["s.*"], **request}, settle=False)
    rig.engine.step(rig.now)
    for n in (*overwritten, *range(1000, 1000 + created)):
        client.send(b"PUB s.%d 3\r\nnew\r\n" % n, settle=False)
    rig.commit()
    rig.settle()
    return client.messages()


@pytest.mark.spec("DG-25")
def test_multi_last_from_a_sequence_on_sends_nothing_below_it_when_a_message_is_overwritten_meanwhile() -> None:
    *messages, end = overwritten_during({"seq": 400}, [998])
    assert sequences(messages) == [*range(400, 999), 1000, 1001]
    assert headers(end)["Nats-Num-Pending"] == "0"


@pytest.mark.spec("DG-25")
def test_multi_last_that_cannot_be_completed_because_of_new_subjects_is_too_many_results() -> None:
    """What was overwritten cannot be found among more than 1,024 subjects: an end of the batch would claim that the
    answer is complete."""
    *messages, end = overwritten_during({}, [998], created=100)
    assert len(messages) == 999
    assert status(end) == (413, "Too Many Results")


@pytest.mark.spec("DG-25")
@pytest.mark.parametrize("limit", [{"batch": 999}, {"max_bytes": 7_800}], ids=str)
def test_multi_last_at_its_limit_counts_what_was_overwritten_meanwhile(limit: dict[str, int]) -> None:
    *messages, end = overwritten_during(limit, [600])
    assert "s.600" not in [headers(message)["Nats-Subject"] for message in messages]
    assert len(messages) < 1000
    assert headers(end)["Nats-Num-Pending"] == str(1000 - len(messages))


def test_multi_last_ignores_empty_filters_and_no_hdr(client: Client) -> None:
    assert status(one(client.direct("S", {"multi_last": [""]}))) == (404, "No Results")
    message, _ = client.direct("S", {"multi_last": ["", "s.1"], "no_hdr": True})
    assert headers(message)["Nats-Subject"] == "s.1"


def test_patterns_of_a_multi_subject_get_are_bounded() -> None:
    client = Rig().client()
    client.create("S")
    client.publish("s.1")
    (answer,) = client.direct("S", {"multi_last": [f"s.{at}" for at in range(8193)]})
    assert status(answer) == (413, "Too Many Subjects, at most 8192")
    found = client.direct("S", {"multi_last": [f"s.{at}" for at in range(8192)]})
    assert sequences(found) == [1]


def test_wildcards_of_a_multi_subject_get_are_bounded() -> None:
    client = Rig().client()
    client.create("S")
    client.publish("s.1.x")
    tokens = [f"s.{at}.*.x" for at in range(4096)]
    assert status(client.direct("S", {"multi_last": tokens})[-1]) == (404, "No Results")
    (answer,) = client.direct("S", {"multi_last": [*tokens, "s.1.*"]})
    assert status(answer) == (413, "Too Many Subjects, wildcards with at most 16384 tokens")
    stars = [f"{'.'.join(mixed)}.{at}" for at, mixed in enumerate(product("s*", repeat=7))]
    (answer,) = client.direct("S", {"multi_last": stars})
    assert status(answer) == (413, "Too Many Subjects, wildcards matched in at most 128 steps")
    assert sequences(client.direct("S", {"multi_last": [*stars[:32], "*.1.x"]})) == [1]


def test_an_invalid_pattern_among_many_matches_nothing_and_costs_nothing() -> None:
    client = Rig().client()
    client.create("S")
    client.publish("s.1.x")
    client.publish("s.2.y")
    patterns = [f"*.*.z{at}" for at in range(200)] + ["s.>.x", "s..x", "*.1.*"]
    assert sequences(client.direct("S", {"multi_last": patterns})) == [1]


MORE: list[dict[str, Any]] = [
    {"no_hdr": True}, {"as_of": True}, {"max_bytes": 5}, {"multi_last": []}, {"multi_last": ["s.1"]},
    {"last_by_subj": "s.2"}, {"next_by_subj": "s.2"}, {"batch": -1}, {"batch": 2}, {"batch": None},
    {"up_to_seq": 4}, {"up_to_seq": -4}, {"up_to_time": "never"}, {"start_time": ""}, {"start_time": None},
    {"min_last_seq": 6}, {"min_last_seq": -1}, {"min_last_seq": 2**64}, {"unknown": 1},
]  # fmt: skip
ONE_MESSAGE: list[Any] = [
    *({"seq": seq} for seq in (0, 1, 2, 6, 7, -1, 2**63, 2**64 - 1, 2**64, 1.0, "2", None)),
    *({"last_by_subj": subject} for subject in ("s.2", "s.9", "s.*", ">", "s", "", "é", None)),
    *({"seq": 2} | more for more in MORE),
    {"last_by_subj": "s.1", "min_last_seq": 3, "no_hdr": True},
    {"seq": None, "last_by_subj": "s.1"},
    b'{"seq":2', b'{"seq":2}{}', b'{"seq":2,"seq":3}', b"[]", b"2", b"null", b'{"seq":2}\xff', b"[" * 10_000,
]  # fmt: skip


def test_requests_for_one_message_take_a_shorter_way_to_the_same_answer(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.publish("s.1", b"with headers", A="b")
    client.rig.wait(1)
    bodies = [*ONE_MESSAGE, {"seq": 7}, {"last_by_subj": "s.1", "as_of": True}]

    def answers() -> list[list[tuple[bytes, bytes]]]:
        return [[(found.header, found.payload) for found in client.direct("S", body)] for body in bodies]

    short = answers()
    monkeypatch.setattr(ReplicaPeer, "_answer_plain", lambda *_: False)
    assert short == answers()
    assert short[2][0][1] == b"payload 2"


def test_gets_after_the_first_skip_the_matcher_until_a_subscription_matches(client: Client) -> None:
    router = client.rig.engine.account().router
    subject = "$JS.API.DIRECT.GET.S"
    assert subject not in router.sole_receivers
    client.direct("S", {"seq": 1})
    assert router.sole_receivers[subject] is client.rig.engine.streams["S"].replicas.leader
    client.send(b"SUB %b 7\r\n" % subject.encode())
    assert subject not in router.sole_receivers
    client.send(b"PUB %b %bx 9\r\n%b\r\n" % (subject.encode(), client.inbox.encode(), b'{"seq":1}'))
    assert sorted(message.payload for message in client.messages()) == [b"payload 1", b'{"seq":1}']
    client.send(b"UNSUB 7\r\n")
    client.direct("S", {"seq": 1})
    client.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "storage": "memory", "allow_direct": False})
    assert status(one(client.direct("S", {"seq": 1})))[0] == 503


def test_the_group_of_several_replicas_is_never_passed_over(client: Client) -> None:
    router = client.rig.engine.account().router
    client.create("R", num_replicas=3)
    client.publish("r.1")
    for _ in range(3):
        assert sequences(client.direct("R", {"seq": 1})) == [1]
    assert "$JS.API.DIRECT.GET.R" not in router.sole_receivers


def test_pipelined_gets_past_the_matcher_still_come_in_slices(client: Client) -> None:
    client.direct("S", {"seq": 1})
    client.take()
    frame = b"PUB $JS.API.DIRECT.GET.S %bx 9\r\n%b\r\n" % (client.inbox.encode(), b'{"seq":%d}')
    count = 3 * RECEIVE_UNITS
    client.send(b"".join(frame % (n % 6 + 1) for n in range(count)), settle=False)
    assert client.cid in client.rig.engine.held_back
    client.rig.settle()
    assert sequences(client.messages()) == [n % 6 + 1 for n in range(count)]


def test_an_answer_for_a_client_without_headers_has_none(client: Client) -> None:
    plain = client.rig.client(b'CONNECT {"verbose":false,"headers":false}\r\n')
    for _ in range(2):
        answer = one(plain.direct("S", {"seq": 2}))
        assert answer == Msg(f"{plain.inbox}{plain._asked}", b"inbox", "", b"", b"payload 2")
    client.direct("S", {"seq": 2})
    client.send(b'CONNECT {"verbose":false,"headers":false}\r\n')  # a client may say so later
    assert one(client.direct("S", {"seq": 2})).header == b""
