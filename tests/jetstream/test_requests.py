"""Requests and their decoders, without a server."""

from __future__ import annotations

from datetime import timedelta

import pytest

from slipstream.api import GetRequest, StreamConfig
from slipstream.errors import (
    ApiError,
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
from slipstream.jetstream.publish.ack_window import AckWindow
from slipstream.wire import Headers, Msg

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


def test_the_window_counts_acks_and_keeps_failures_with_their_position() -> None:
    window = AckWindow(2)
    window.sending("1", "a")
    window.sending("2", "b")
    assert not window.has_capacity()
    assert window.deliver(reply(b'{"stream":"S","seq":1,"duplicate":true}', token="1"))
    assert window.has_capacity()
    assert window.deliver(reply(b"", NO_RESPONDERS, token="2"))
    assert window.is_empty()
    assert (window.acked, window.duplicates, window.sent) == (1, 1, 2)
    assert [(f.position, f.subject, type(f.error)) for f in window.failures] == [(1, "b", NoStreamError)]
    assert window.last_ack is not None


def test_publishes_in_flight_when_the_connection_is_lost_fail() -> None:
    window = AckWindow(5)
    for token in "123":
        window.sending(token, "a")
    assert window.in_flight == 3
    assert window.forget(ConnectionLostError("gone")) == ["1", "2", "3"]
    assert window.is_empty()
    assert [f.position for f in window.failures] == [0, 1, 2]


def test_an_ack_that_arrives_before_its_publish_is_recorded_counts() -> None:
    window = AckWindow(2)
    assert window.deliver(reply(b'{"stream":"S","seq":1}', token="1"))
    assert window.acked == 0
    window.sending("1", "a")
    assert (window.acked, window.sent, window.is_empty()) == (1, 1, True)
    window.sending("2", "a")
    assert window.fewer_than(2)
    assert not window.fewer_than(1)


@pytest.mark.parametrize("seq", [-1, 2**64, 1.5, "1", None, True])
def test_an_invalid_sequence_is_rejected(seq: object) -> None:
    with pytest.raises(UsageError, match="end must be"):
        requests.check_seq(seq, "end")  # type: ignore[arg-type]


def test_sequences_are_allowed_up_to_64_bits() -> None:
    assert requests.check_seq(0, "end") == 0
    assert requests.check_seq(2**64 - 1, "seq", least=1) == 2**64 - 1
    with pytest.raises(UsageError, match="from 1 to 18446744073709551615"):
        requests.check_seq(0, "seq", least=1)
