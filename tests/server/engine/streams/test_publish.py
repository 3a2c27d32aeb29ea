"""Publishing into a stream: acks, demands in headers, duplicates, limits, expiry. The engine alone, in virtual time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slipstream.server.engine.streams import dedupe
from slipstream.server.engine.streams.publish_headers import parse_publish_headers
from slipstream.wire import Headers, pub
from tests.server.support import Client, Rig, headers, sequences


@pytest.fixture
def client() -> Client:
    return Rig().client()


def refused(answer: dict[str, Any], code: int, err_code: int, text: str, stream: str = "S") -> bool:
    error = {"code": code, "err_code": err_code, "description": text}
    return answer == {"error": error, "stream": stream, "seq": 0}


def left(client: Client, stream: str = "S") -> list[int]:
    """The sequences a stream holds."""
    return sequences(client.direct(stream, {"seq": 1, "batch": 1000}))


def test_the_ack_is_written_as_nats_server_writes_it(client: Client) -> None:
    client.create("S")
    (ack,) = client.ask("s.1", b"x")
    assert ack.payload == b'{"stream":"S","seq":1}'
    header = Headers({"Nats-Msg-Id": "a"})
    client.ask("s.1", b"x", header)
    (ack,) = client.ask("s.1", b"x", header)
    assert ack.payload == b'{"stream":"S","seq":2,"duplicate": true}'
    (ack,) = client.ask("s.1", b"x", Headers({"Nats-Expected-Last-Sequence": "7"}))
    text = b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 2"},"stream":"S","seq":0}'
    assert ack.payload == text


def test_a_publish_without_reply_is_stored_without_ack(client: Client) -> None:
    client.create("S")
    client.take()
    client.send(b"PUB s.1 2\r\nhi\r\n")
    assert client.messages() == []
    assert left(client) == [1]


def test_a_stream_with_no_ack_stores_without_answering(client: Client) -> None:
    client.create("S", no_ack=True)
    assert client.ask("s.1", b"x") == []
    assert client.ask("s.1", b"x", Headers({"Nats-Expected-Last-Sequence": "9"})) == []
    assert left(client) == [1]


def test_subscribers_receive_the_messages_that_a_stream_stores(client: Client) -> None:
    client.create("S")
    client.send(b"SUB s.* 9\r\n")
    client.take()
    client.send(b"PUB s.1 2\r\nhi\r\n")
    (seen,) = client.messages()
    assert (seen.subject, seen.sid, seen.payload) == ("s.1", b"9", b"hi")
    assert left(client) == [1]


def test_expected_sequences_are_checked_against_earlier_publishes(client: Client) -> None:
    client.create("S")
    publish = client.publish
    assert refused(publish("s.1", Nats_Expected_Stream="Z"), 400, 10060, "expected stream does not match")
    assert publish("s.1", Nats_Expected_Stream="S")["seq"] == 1
    assert refused(publish("s.1", Nats_Expected_Last_Sequence="0"), 400, 10071, "wrong last sequence: 1")
    assert refused(publish("s.1", Nats_Expected_Last_Sequence="abc"), 400, 10071, "wrong last sequence: 1")
    assert publish("s.1", Nats_Expected_Last_Sequence="1", Nats_Msg_Id="b")["seq"] == 2
    assert refused(publish("s.1", Nats_Expected_Last_Msg_Id="z"), 400, 10070, "wrong last msg ID: b")
    assert publish("s.1", Nats_Expected_Last_Msg_Id="b")["seq"] == 3
    assert refused(publish("s.1", Nats_Expected_Last_Msg_Id="b"), 400, 10070, "wrong last msg ID: ")
    assert refused(publish("s.2", Nats_Expected_Last_Subject_Sequence="3"), 400, 10071, "wrong last sequence: 0")
    assert publish("s.2", Nats_Expected_Last_Subject_Sequence="0")["seq"] == 4
    assert publish("s.2", Nats_Expected_Last_Subject_Sequence="4")["seq"] == 5
    other = {"Nats_Expected_Last_Subject_Sequence_Subject": "s.*"}
    assert publish("s.3", Nats_Expected_Last_Subject_Sequence="5", **other)["seq"] == 6
    assert refused(
        publish("s.3", Nats_Expected_Last_Subject_Sequence="5", **other), 400, 10071, "wrong last sequence: 6"
    )
    text = "missing sequence for expected last sequence per subject"
    assert refused(publish("s.3", **other), 400, 10193, text)


def test_expected_sequences_hold_within_one_group(client: Client) -> None:
    """The second of two publishes in one turn is judged by the first, though nothing is committed yet."""
    client.create("S")
    block = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 0\r\n\r\n"
    frame = b"HPUB s.1 %b%%d %d %d\r\n%bx\r\n" % (client.inbox.encode(), len(block), len(block) + 1, block)
    client.take()
    client.send(frame % 1 + frame % 2)
    first, second = client.messages()
    assert first.payload == b'{"stream":"S","seq":1}'
    assert b"wrong last sequence: 1" in second.payload


def test_a_duplicate_is_acked_with_the_first_sequence_until_the_window_has_passed(client: Client) -> None:
    client.create("S", duplicate_window=2_000_000_000)
    assert client.publish("s.1", Nats_Msg_Id="a") == {"stream": "S", "seq": 1}
    client.rig.wait(1)
    assert client.publish("s.2", Nats_Msg_Id="a") == {"stream": "S", "seq": 1, "duplicate": True}
    client.rig.wait(1)
    assert client.publish("s.1", Nats_Msg_Id="a") == {"stream": "S", "seq": 2}


def test_the_duplicate_window_survives_a_restart(client: Client) -> None:
    client.create("S", duplicate_window=2_000_000_000)
    client.publish("s.1", Nats_Msg_Id="old")
    client.rig.wait(1.5)
    client.publish("s.1", Nats_Msg_Id="new")
    again = Rig(store=client.rig.store, now=client.rig.now + 1_000_000_000).client()
    assert again.publish("s.1", Nats_Msg_Id="new") == {"stream": "S", "seq": 2, "duplicate": True}
    assert again.publish("s.1", Nats_Msg_Id="old") == {"stream": "S", "seq": 3}
    last = Rig(store=client.rig.store, now=again.rig.now).client()
    assert last.publish("s.1", Nats_Expected_Last_Msg_Id="old")["seq"] == 4


def test_the_duplicate_window_is_bounded_by_messages_too(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    monkeypatch.setattr(dedupe, "MAX_DISTANCE", 10)
    client.create("S")
    for n in range(50):
        client.publish("s.1", Nats_Msg_Id=f"id-{n}")
    assert len(client.rig.engine.streams["S"].duplicates) == 10
    assert client.publish("s.1", Nats_Msg_Id="id-49")["duplicate"] is True
    again = Rig(store=client.rig.store, now=client.rig.now)
    assert len(again.engine.streams["S"].duplicates) == 10
    assert client.publish("s.1", Nats_Msg_Id="id-30") == {"stream": "S", "seq": 51}


def test_a_publish_drops_a_bounded_number_of_expired_ids(client: Client) -> None:
    """It dropped all of them, in quadratic time: half a minute for 300,000 ids."""
    client.create("S", duplicate_window=2_000_000_000)
    window = client.rig.engine.streams["S"].duplicates
    client.publish("s.1", Nats_Msg_Id="id-0")
    for n in range(1, 5000):
        window.add(f"id-{n}", n + 1, client.rig.now)
    client.rig.wait(2)
    assert client.publish("s.1", Nats_Msg_Id="id-0") == {"stream": "S", "seq": 2}
    assert 5000 - 2 * dedupe.DROPPED_AT_ONCE <= len(window) < 5000
    assert not any(window.find(f"id-{n}", client.rig.now) for n in range(1, 5000))
    assert len(window) == 1
    assert client.publish("s.1", Nats_Msg_Id="id-0") == {"stream": "S", "seq": 2, "duplicate": True}


def test_ids_too_far_behind_are_forgotten_though_few_are_dropped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedupe, "MAX_DISTANCE", 1000)
    window = dedupe.DuplicateWindow(1_000_000_000)
    for n in range(1, 901):
        window.add(str(n), n, now=n)
    window.add("far", 1500, now=1000)
    assert len(window) > 500
    found = [window.find(str(n), 1000) for n in range(1, 901)]
    assert found == [0] * 500 + list(range(501, 901))
    window.take_back(900)  # the group of the last one is lost: what was not dropped yet is known again
    assert window.find("far", 1000) == 0
    assert window.find("501", 1000) == 501
    window.add("new", 901, now=1001)
    assert [window.find(msg_id, 1001) for msg_id in ("501", "900", "new")] == [501, 900, 901]


def test_shorter_duplicate_window_that_is_lost_with_its_group_forgets_no_id(client: Client) -> None:
    client.create("S", duplicate_window=120_000_000_000)
    assert client.publish("s.1", Nats_Msg_Id="a")["seq"] == 1
    client.publish("s.1", Nats_Msg_Id="b")
    client.rig.wait(5)
    config = {"name": "S", "subjects": ["s.>"], "storage": "memory", "duplicate_window": 1_000_000_000}
    update = pub("$JS.API.STREAM.UPDATE.S", msgspec.json.encode(config))
    again = pub("s.1", b"x", "", Headers({"Nats-Msg-Id": "a"}).encode())
    client.send(update + again, settle=False)
    assert client.rig.engine.streams["S"].log.state.last_seq == 3  # the id was outside the window
    (journal,) = client.rig.engine.journals
    journal.seal()
    client.rig.engine.failed(journal, OSError("no space left on device"), client.rig.now)
    client.rig.settle()
    assert client.publish("s.1", Nats_Msg_Id="a") == {"stream": "S", "seq": 1, "duplicate": True}


def test_shorter_duplicate_window_forgets_ids_once_it_is_durable() -> None:
    window = dedupe.DuplicateWindow(0)
    assert not window.configure(100)
    for n in range(50):
        window.add(str(n), n + 1, now=n)
    assert window.configure(10)
    assert [window.find(str(n), 50) for n in (39, 40, 41)] == [0, 0, 42]
    assert len(window) == 50
    window.add("20", 51, now=50)  # outside the shorter window: stored again
    window.configure(100)  # what made it shorter was lost
    window.take_back(50)
    assert [window.find(str(n), 50) for n in (0, 20, 49)] == [1, 21, 50]
    window.configure(10)
    window.settle(10)
    assert [window.find(str(n), 50) for n in (20, 40, 41)] == [0, 0, 42]
    assert len(window) == 9


def test_rollups_keep_only_themselves(client: Client) -> None:
    client.create("S", allow_rollup_hdrs=True)
    for n in range(6):
        client.publish(f"s.{n % 2}")
    assert client.publish("s.1", Nats_Rollup="sub")["seq"] == 7
    assert left(client) == [1, 3, 5, 7]
    assert client.publish("s.9", Nats_Rollup="all")["seq"] == 8
    assert left(client) == [8]
    assert refused(client.publish("s.1", Nats_Rollup="foo"), 500, 10111, 'rollup value invalid: "foo"')
    client.create("N")
    assert refused(client.publish("n.1", Nats_Rollup="sub"), 500, 10111, "rollup not permitted", "N")


def test_a_message_over_the_streams_size_is_refused(client: Client) -> None:
    client.create("S", max_msg_size=40)
    assert client.publish("s.1", b"x" * 40)["seq"] == 1
    text = "message size exceeds maximum allowed"
    assert refused(client.publish("s.1", b"x" * 41), 400, 10054, text)
    assert refused(client.publish("s.1", b"x" * 20, A="b" * 20), 400, 10054, text)


def test_headers_of_disabled_features_are_rejected(client: Client) -> None:
    client.create("S")
    assert refused(client.publish("s.1", Nats_TTL="5s"), 400, 10166, "per-message TTL is disabled")
    assert refused(client.publish("s.1", Nats_TTL="x"), 400, 10165, "invalid per-message TTL")
    assert refused(client.publish("s.1", Nats_Batch_Id="b"), 400, 10174, "atomic publish is disabled")
    assert refused(client.publish("s.1", Nats_Incr="1"), 400, 10168, "message counters is disabled")
    assert refused(client.publish("s.1", Nats_Schedule="@hourly"), 400, 10188, "message schedules is disabled")
    source = "message stream source header is not allowed"
    assert refused(client.publish("s.1", Nats_Stream_Source="X 1"), 400, 10227, source)
    assert client.api("STREAM.INFO.S")["state"]["messages"] == 0


def test_max_msgs_drops_the_oldest_or_refuses_the_newest(client: Client) -> None:
    client.create("S", max_msgs=3)
    for _ in range(5):
        client.publish("s.1")
    assert left(client) == [3, 4, 5]
    client.create("N", max_msgs=2, discard="new")
    assert [client.publish("n.1")["seq"] for _ in range(2)] == [1, 2]
    assert refused(client.publish("n.1"), 503, 10077, "maximum messages exceeded", "N")
    assert left(client, "N") == [1, 2]


def test_max_bytes_drops_the_oldest_or_refuses_the_newest(client: Client) -> None:
    size = 22 + len("s.1") + 1 + 8
    client.create("S", max_bytes=3 * size)
    for _ in range(5):
        client.publish("s.1")
    assert left(client) == [3, 4, 5]
    assert client.api("STREAM.INFO.S")["state"]["bytes"] == 3 * size
    client.create("N", max_bytes=2 * size, discard="new")
    client.publish("n.1")
    client.publish("n.1")
    assert refused(client.publish("n.1"), 503, 10077, "maximum bytes exceeded", "N")


def test_max_msgs_per_subject_drops_the_oldest_of_that_subject(client: Client) -> None:
    client.create("S", max_msgs_per_subject=2)
    for n in range(7):
        client.publish(f"s.{n % 2}")
    assert left(client) == [4, 5, 6, 7]
    client.create("N", max_msgs_per_subject=1, discard="new", discard_new_per_subject=True)
    client.publish("n.1")
    assert refused(client.publish("n.1"), 503, 10077, "maximum messages per subject exceeded", "N")
    assert client.publish("n.2")["seq"] == 2


def test_a_full_stream_accepts_a_message_that_replaces_one_on_its_subject(client: Client) -> None:
    client.create("S", max_msgs=2, max_msgs_per_subject=1, discard="new")
    client.publish("s.1")
    client.publish("s.2")
    assert refused(client.publish("s.3"), 503, 10077, "maximum messages exceeded")
    assert client.publish("s.1")["seq"] == 3
    assert left(client) == [2, 3]


def test_stream_that_discards_new_messages_and_is_beyond_a_lowered_limit_keeps_what_it_has(client: Client) -> None:
    config = client.create("S", max_msgs_per_subject=1, discard="new")["config"]
    for n in range(5):
        client.publish(f"s.{n}")
    for limit in ({"max_msgs": 3}, {"max_bytes": 40}):
        assert "error" not in client.api("STREAM.UPDATE.S", {**config, **limit})
        client.publish("s.4")  # takes the place of an older message, which is the only one that may leave
        assert left(client)[:4] == [1, 2, 3, 4]
        assert "error" in client.publish("s.new")
    assert left(client) == [1, 2, 3, 4, 7]


def test_messages_leave_when_they_are_too_old(client: Client) -> None:
    client.create("S", max_age=10_000_000_000)
    client.publish("s.1")
    client.rig.wait(4)
    client.publish("s.2")
    client.rig.wait(5.9)
    assert left(client) == [1, 2]
    client.rig.wait(0.2)
    assert left(client) == [2]
    client.rig.wait(4)
    state = client.api("STREAM.INFO.S")["state"]
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (0, 3, 2)
    assert client.publish("s.1")["seq"] == 3


def test_messages_expire_by_age_after_a_restart(client: Client) -> None:
    client.create("S", max_age=10_000_000_000)
    client.publish("s.1")
    again = Rig(store=client.rig.store, now=client.rig.now + 9_000_000_000).client()
    assert left(again) == [1]
    again.rig.wait(1.1)
    assert again.api("STREAM.INFO.S")["state"]["messages"] == 0


def test_a_large_stream_expires_in_slices(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    monkeypatch.setattr("slipstream.server.engine.streams.expiry.RANGE", 10)
    client.create("S", max_age=1_000_000_000)
    for _ in range(35):
        client.publish("s.1")
    client.rig.now += 1_000_000_000
    client.rig.engine.tick(client.rig.now)
    client.rig.engine.step(client.rig.now)
    assert client.rig.engine.streams["S"].log.state.messages == 25
    client.rig.settle()
    assert client.api("STREAM.INFO.S")["state"]["messages"] == 0


def test_time_never_goes_back_within_a_stream(client: Client) -> None:
    client.create("S")
    client.publish("s.1")
    client.rig.now -= 5_000_000_000
    client.publish("s.1")
    times = [message["time"] for seq in (1, 2) for message in [client.api("STREAM.MSG.GET.S", {"seq": seq})["message"]]]
    assert times[0] == times[1]


def test_first_seq_is_where_a_stream_starts_counting(client: Client) -> None:
    client.create("S", first_seq=1000)
    assert client.publish("s.1")["seq"] == 1000


def test_a_subject_that_looks_like_a_filter_is_stored_as_it_is(client: Client) -> None:
    """As on nats-server: whoever asks for it asks for everything that the filter covers, itself among that."""
    client.create("S", max_msgs_per_subject=2, allow_rollup_hdrs=True)
    for subject in ("s.a", "s.*", "s.*", "s.*", "s.x.>", "s.a"):
        assert "seq" in client.publish(subject)
    assert left(client) == [1, 3, 4, 5, 6]  # the limit is that of the very subject
    (got,) = client.direct("S", {"last_by_subj": "s.x.>"})
    assert (headers(got)["Nats-Subject"], headers(got)["Nats-Sequence"]) == ("s.x.>", "5")
    assert client.publish("s.x.>", Nats_Expected_Last_Subject_Sequence="5")["seq"] == 7
    found = client.api("STREAM.INFO.S", {"subjects_filter": ">"})["state"]["subjects"]
    assert found == {"s.*": 2, "s.a": 2, "s.x.>": 2}
    assert client.publish("s.*", Nats_Rollup="sub")["seq"] == 8
    assert left(client) == [5, 7, 8]


@pytest.mark.parametrize("number", ["9" * 5000, "²"])
def test_numbers_that_are_none_are_refused_and_not_stumbled_over(client: Client, number: str) -> None:
    client.create("S", allow_atomic=True)
    for name in ("Nats_Expected_Last_Sequence", "Nats_Expected_Last_Subject_Sequence"):
        assert refused(client.publish("s.1", **{name: number}), 400, 10071, "wrong last sequence: 0")
    batch = {"Nats_Batch_Id": "b", "Nats_Batch_Sequence": "1", "Nats_Required_Api_Level": number}
    assert client.publish("s.1", **batch)["error"]["err_code"] == 10185
    assert client.publish("s.1")["seq"] == 1


def test_the_first_line_of_a_header_counts_also_if_it_is_empty() -> None:
    """As in the duplicate window after a restart, which is read from the messages, and as on nats-server."""
    header = b"NATS/1.0\r\nNats-Msg-Id: \r\nNats-Msg-Id: one\r\nNats-Expected-Last-Sequence: 3\r\n\r\n"
    found = parse_publish_headers(header)
    assert (found.msg_id, found.last_seq) == ("", 3)
    assert dedupe.message_id(header) == ""
    header = b"NATS/1.0\r\nNats-Msg-Id: one\r\nNats-Msg-Id: \r\nNats-Msg-Id: two\r\n\r\n"
    assert parse_publish_headers(header).msg_id == dedupe.message_id(header) == "one"


@pytest.mark.parametrize(
    "line", ["Nats-Schedule: nonsense", "Nats-Rollup: bad", "Nats-Expected-Stream: OTHER", "Nats-Batch-Id: b", "A: b"]
)
def test_header_that_is_too_long_is_rejected_before_it_is_taken_apart(client: Client, line: str) -> None:
    client.create("S", allow_rollup_hdrs=True, allow_atomic=True)
    header = f"NATS/1.0\r\n{line}\r\n".encode() + b"Nats-Rollup:\r\n" * 5000 + b"\r\n"
    client.take()
    client.send(pub("s.1", b"x", f"{client.inbox}a", header))
    (answer,) = client.messages()
    assert msgspec.json.decode(answer.payload)["error"]["err_code"] == 10097
