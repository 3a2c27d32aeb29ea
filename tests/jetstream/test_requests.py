"""Requests and their decoders, without a server."""

from __future__ import annotations

from datetime import timedelta

import pytest

from slipstream.api import GetRequest, PubAck, StreamConfig, decode_pub_ack
from slipstream.errors import (
    ApiError,
    AuthorizationError,
    ConnectionLostError,
    MessageNotFoundError,
    NoRespondersError,
    NoStreamError,
    RemoteProtocolError,
    StreamNotFoundError,
    UsageError,
    WrongLastSequenceError,
)
from slipstream.jetstream import requests
from slipstream.jetstream.publish.ack_window import AckWindow, PublishAcks
from slipstream.jetstream.publish.sent import Sent
from slipstream.wire import Headers, Msg
from tests.client.test_session import connected

NO_RESPONDERS = b"NATS/1.0 503\r\nNats-Subject: orders.new\r\n\r\n"


def reply(payload: bytes, header: bytes = b"", token: str = "1") -> Msg:
    return Msg(f"_INBOX.x.{token}", b"1", "", header, payload)


def test_expectations_travel_as_headers_behind_the_users_own() -> None:
    call = requests.publish(
        "orders.new",
        b"{}",
        headers={"A": ["1", "2"]},
        msg_id="m1",
        expected_stream="ORDERS",
        expected_last_seq=0,
        expected_last_subject_seq=5,
        expected_last_msg_id="m0",
        ttl=timedelta(seconds=1.5),
        rollup="sub",
    )
    assert Headers.parse(call.header).items() == [
        ("A", "1"),
        ("A", "2"),
        ("Nats-Msg-Id", "m1"),
        ("Nats-Expected-Stream", "ORDERS"),
        ("Nats-Expected-Last-Sequence", "0"),
        ("Nats-Expected-Last-Subject-Sequence", "5"),
        ("Nats-Expected-Last-Msg-Id", "m0"),
        ("Nats-TTL", "1500ms"),
        ("Nats-Rollup", "sub"),
    ]


def test_a_plain_publish_has_no_header_block() -> None:
    assert requests.publish("a", b"x").header == b""


@pytest.mark.parametrize("subject", ["", "a b", "a.*", "a.>", "a..b"])
def test_a_subject_that_cannot_be_published_to_is_rejected(subject: str) -> None:
    with pytest.raises(UsageError):
        requests.publish(subject, b"")


def test_a_ttl_under_a_second_is_rejected() -> None:
    with pytest.raises(UsageError, match="ttl must be at least 1 second"):
        requests.publish("a", b"", ttl=timedelta(milliseconds=10))


@pytest.mark.spec("RW-01", on="C")
def test_an_ack_carries_stream_and_sequence() -> None:
    ack = requests.decode_publish(reply(b'{"stream":"ORDERS","seq":7,"duplicate":true,"domain":"hub"}'))
    assert (ack.stream, ack.seq, ack.duplicate, ack.domain) == ("ORDERS", 7, True, "hub")


@pytest.mark.parametrize(
    ("payload", "header", "error"),
    [
        (b"", NO_RESPONDERS, NoStreamError),
        (b"", b"NATS/1.0 409 Something\r\n\r\n", RemoteProtocolError),
        (b"hello", b"", RemoteProtocolError),
        (
            b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"}}',
            b"",
            WrongLastSequenceError,
        ),
        (b'{"error":{"code":500,"err_code":1,"description":"new trouble"}}', b"", ApiError),
    ],
)
def test_a_reply_that_is_not_an_ack_is_raised(payload: bytes, header: bytes, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        requests.decode_publish(reply(payload, header))
    assert type(caught.value) is error


def test_no_responders_names_the_subject_that_was_asked() -> None:
    with pytest.raises(NoStreamError, match=r"orders\.new"):
        requests.decode_publish(reply(b"", NO_RESPONDERS))


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a*", "a>", "a/b", "a\\b", "x" * 256])
def test_invalid_stream_names_are_rejected_before_anything_is_sent(name: str) -> None:
    api = requests.Api()
    for make in (api.stream_info, api.delete_stream, api.direct_subject):
        with pytest.raises(UsageError, match="stream name"):
            make(name)


def test_requests_go_to_the_subjects_of_the_api() -> None:
    api = requests.Api("$JS.hub.API")
    assert api.create_stream(StreamConfig(name="S")).subject == "$JS.hub.API.STREAM.CREATE.S"
    assert api.update_stream(StreamConfig(name="S")).subject == "$JS.hub.API.STREAM.UPDATE.S"
    assert api.stream_info("S").payload == b""
    assert api.stream_info("S", subjects_filter=">", deleted_details=True).payload == (
        b'{"subjects_filter":">","deleted_details":true}'
    )
    assert api.delete_stream("S").subject == "$JS.hub.API.STREAM.DELETE.S"
    assert api.message_get("S", GetRequest(seq=1)).payload == b'{"seq":1}'
    assert api.direct_subject("S", "a.b") == "$JS.hub.API.DIRECT.GET.S.a.b"


def test_stream_info_is_read_without_the_responses_own_fields() -> None:
    body = (
        b'{"type":"t","total":1,"offset":0,"limit":1024,"did_create":true,"config":{"name":"S","new_field":[1]},'
        b'"created":"2026-11-15T08:03:38Z","state":{"messages":2,"last_seq":5}}'
    )
    info = requests.Api().stream_info("S").decode(reply(body))
    assert (info.config.name, info.state.messages, info.state.last_seq) == ("S", 2, 5)
    assert info.unknown == {}
    assert info.config.unknown == {"new_field": [1]}


def test_errors_of_the_api_are_raised_as_their_own_class() -> None:
    body = b'{"type":"t","error":{"code":404,"err_code":10059,"description":"stream not found"}}'
    with pytest.raises(StreamNotFoundError) as caught:
        requests.Api().stream_info("S").decode(reply(body))
    assert (caught.value.code, caught.value.err_code) == (404, 10059)


def test_a_stored_message_of_message_get_is_unpacked() -> None:
    body = (
        b'{"type":"t","message":{"subject":"a","seq":3,"hdrs":"TkFUUy8xLjANCkE6IDENCg0K","data":"aGVsbG8=",'
        b'"time":"2026-11-15T08:03:38.5Z"}}'
    )
    found = requests.Api().message_get("S", GetRequest(seq=3)).decode(reply(body))
    assert (found.subject, found.seq, found.data, found.stream) == ("a", 3, b"hello", "S")
    assert found.headers["A"] == "1"


def test_message_get_without_a_message_says_not_found() -> None:
    body = b'{"type":"t","error":{"code":404,"err_code":10037,"description":"no message found"}}'
    with pytest.raises(MessageNotFoundError):
        requests.Api().message_get("S", GetRequest(seq=3)).decode(reply(body))
    assert not isinstance(ApiError.of(503, 10008, "ask again"), MessageNotFoundError)


@pytest.mark.parametrize(
    ("payload", "header", "error"),
    [
        (b"nonsense", b"", RemoteProtocolError),
        (b'{"config":{"name":5}}', b"", RemoteProtocolError),
        (b"", NO_RESPONDERS, NoRespondersError),
        (b"", b"NATS/1.0 408 x\r\n\r\n", RemoteProtocolError),
    ],
)
def test_malformed_answers_are_protocol_errors(payload: bytes, header: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        requests.Api().stream_info("S").decode(reply(payload, header))


def test_a_delete_that_was_not_done_is_an_error() -> None:
    with pytest.raises(RemoteProtocolError):
        requests.Api().delete_stream("S").decode(reply(b'{"success":false}'))
    requests.Api().delete_stream("S").decode(reply(b'{"success":true}'))


def published(acks: PublishAcks, window: AckWindow, *subjects: str) -> None:
    """Publishes in flight, with the tokens from 1 on."""
    for position, subject in enumerate(subjects):
        acks.register(position + 1, (window, Sent(position, subject)))
        window.sent += 1


def test_the_window_counts_acks_and_keeps_failures_with_their_position() -> None:
    acks, window = PublishAcks(), AckWindow(2)
    published(acks, window, "a", "b")
    assert not window.takes_next()
    acks.deliver(reply(b'{"stream":"S","seq":1,"duplicate":true}', token="1"))
    assert window.takes_next()
    acks.deliver(reply(b"", NO_RESPONDERS, token="2"))
    assert window.is_empty()
    assert (window.acked, window.duplicates, window.sent) == (1, 1, 2)
    assert [(f.position, f.subject, type(f.error)) for f in window.failures] == [(1, "b", NoStreamError)]
    assert window.last_ack is not None


def test_publishes_in_flight_when_the_connection_is_lost_fail() -> None:
    acks, window = PublishAcks(), AckWindow(5)
    published(acks, window, "a", "a", "a")
    assert window.in_flight == 3
    assert window.forget(ConnectionLostError("gone")) == [1, 2, 3]
    assert window.is_empty()
    assert [f.position for f in window.failures] == [0, 1, 2]


def ack(token: int, body: bytes, *, size: int | None = None) -> bytes:
    return b"MSG _INBOX.x.%d 1 %d\r\n%b\r\n" % (token, len(body) if size is None else size, body)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"stream":"S","seq":7}', PubAck("S", 7)),
        (b'{"stream":"S", "seq":7}', PubAck("S", 7)),
        (b'{"stream":"S", "domain":"hub", "seq":7,"duplicate": true}', PubAck("S", 7, "hub", True)),
    ],
)
def test_acks_are_read_out_of_received_bytes_as_they_are_decoded(body: bytes, expected: PubAck) -> None:
    noted: list[tuple[PubAck, str, bytes]] = []
    for note in (None, lambda *of: noted.append(of)):
        acks, window = PublishAcks(), AckWindow(5, note)
        acks.attach(b"MSG _INBOX.x.")
        published(acks, window, "a")
        data = ack(1, body)
        assert acks.scan(data, 0) == (len(data), 1)
        assert window.last_ack == expected == decode_pub_ack(body)
        assert (window.acked, window.duplicates, window.in_flight) == (1, expected.duplicate, 0)
        assert acks.scan(data, 0) == (0, 0)  # it has its answer
    assert noted == [(expected, "a", b"")]


@pytest.mark.parametrize(
    "data",
    [
        ack(2, b'{"stream":"S","seq":7}'),  # of another sink
        ack(1, b'{"error":{"code":400},"stream":"S","seq":0}'),
        ack(1, b'{"stream":"S","seq":7,"val":"1"}'),
        ack(1, b'{"stream":"S","seq":7}\r\nMSG _INBOX.x.2 1 0\r\n'),  # a payload that imitates two frames
        ack(1, b'{"stream":"S","seq":7}', size=21),
        ack(1, b'{"stream":"S","seq":7}')[:-1],
        b"H" + ack(1, b'{"stream":"S","seq":7}'),
        ack(1, b'{"stream":"\xff","seq":7}'),
        ack(1, b'{"stream":"S","seq":7}').replace(b".1 1 ", b".1 2 "),  # the copy of a subscription to `>`
    ],
)
def test_whatever_is_no_ordinary_ack_is_left_to_the_parser(data: bytes) -> None:
    acks, window = PublishAcks(), AckWindow(5)
    acks.attach(b"MSG _INBOX.x.")
    published(acks, window, "a")
    assert acks.scan(data, 0) == (0, 0)
    assert (window.acked, window.in_flight) == (0, 1)


def test_acks_of_many_publishers_are_told_apart() -> None:
    acks, windows = PublishAcks(), [AckWindow(5), AckWindow(5)]
    acks.attach(b"MSG _INBOX.x.")
    for token in range(1, 7):
        acks.register(token, (windows[token % 2], Sent(token // 2, "a")))
    data = b"".join(ack(token, b'{"stream":"S","seq":%d}' % token) for token in (4, 1, 6, 2))
    assert acks.scan(data, 0) == (len(data), 4)
    assert [(window.acked, window.in_flight) for window in windows] == [(3, 0), (1, 2)]
    assert [window.last_ack for window in windows] == [PubAck("S", 2), PubAck("S", 1)]


def test_a_rejected_subject_fails_its_own_publishes_only() -> None:
    acks, window = PublishAcks(), AckWindow(5)
    published(acks, window, "a", "b", "a")
    assert not acks.deny(AuthorizationError("not allowed"), "a")
    assert [(failed.position, failed.subject) for failed in window.failures] == [(0, "a"), (2, "a")]
    assert (window.in_flight, acks.awaits(1), acks.awaits(2)) == (1, False, True)


def test_a_message_to_the_token_of_the_finder_does_not_end_it() -> None:
    session, acks, window = connected(), PublishAcks(), AckWindow(5)
    token = session.requests.start_one("a", b"", acks, (window, Sent(0, "a")), b"")
    session.received(b"MSG _INBOX.N.%b 1 2\r\nhi\r\n" % acks.token.encode(), 0)
    session.received(ack(token, b'{"stream":"S","seq":7}').replace(b".x.", b".N."), 0)
    assert (window.acked, window.in_flight) == (1, 0)


def test_a_lost_connection_fails_the_publishes_of_all_windows_and_the_next_one_opens_anew() -> None:
    acks, windows = PublishAcks(), [AckWindow(5), AckWindow(5)]
    acks.token = "1"
    for token, window in enumerate(windows, 2):
        acks.register(token, (window, Sent(0, "a", sent_at=0.0 if token == 2 else None)))
    acks.fail(ConnectionLostError("gone"))
    assert [(len(window.in_doubt), len(window.failures)) for window in windows] == [(1, 0), (0, 1)]
    assert (acks.token, acks.awaits(2), acks.awaits(3)) == ("", False, False)


@pytest.mark.parametrize("seq", [-1, 2**64, 1.5, "1", None, True])
def test_an_invalid_sequence_is_rejected(seq: object) -> None:
    with pytest.raises(UsageError, match="end must be"):
        requests.check_seq(seq, "end")  # type: ignore[arg-type]


def test_sequences_are_allowed_up_to_64_bits() -> None:
    assert requests.check_seq(0, "end") == 0
    assert requests.check_seq(2**64 - 1, "seq", least=1) == 2**64 - 1
    with pytest.raises(UsageError, match="from 1 to 18446744073709551615"):
        requests.check_seq(0, "seq", least=1)
