"""The small bodies: acks and refusals become values and exceptions, anything else is the peer's mistake."""

from __future__ import annotations

import sys

import msgspec
import pytest

from slipstream.api import (
    ErrorBody,
    GetRequest,
    PubAck,
    StoredBody,
    decode_get_request,
    decode_pub_ack,
    decode_response,
    encode_json,
)
from slipstream.api.names import api_prefix
from slipstream.errors import (
    ApiError,
    MessageNotFoundError,
    RemoteProtocolError,
    StreamNotFoundError,
    WrongLastSequenceError,
)

DEEP = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("body", "ack"),
    [
        (b'{"stream":"ORIGIN","seq":1}', PubAck("ORIGIN", 1)),
        (b'{"stream":"ORIGIN","seq":1,"duplicate": true}', PubAck("ORIGIN", 1, duplicate=True)),
        (b'{"stream":"S","domain":"hub","seq":7,"future":{}}', PubAck("S", 7, domain="hub")),
        (b'{"stream":"S","seq":9,"batch":"b","count":3}', PubAck("S", 9, batch="b", count=3)),
        (b'{"stream":"S","seq":18446744073709551615}', PubAck("S", 2**64 - 1)),
    ],
)
def test_acks_of_nats_server(body: bytes, ack: PubAck) -> None:
    assert decode_pub_ack(body) == ack
    assert decode_pub_ack(encode_json(ack)) == ack


def test_a_refused_publish_raises_its_error() -> None:
    body = b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"},"stream":"S","seq":0}'
    with pytest.raises(WrongLastSequenceError, match="wrong last sequence: 5") as caught:
        decode_pub_ack(body)
    assert (caught.value.code, caught.value.err_code) == (400, 10071)


@pytest.mark.parametrize(
    "body",
    [b"", b"+ACK", b"{}", b"[]", b"null", b'{"seq":1}', b'{"stream":5,"seq":1}', b'{"stream":"S","seq":"1"}', b"{",
     DEEP, b'{"stream":"\xff","seq":1}', b'{"error":5}'],
)  # fmt: skip
def test_what_is_no_ack_is_the_peers_mistake(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="expected a publish ack"):
        decode_pub_ack(body)


def test_a_response_is_its_object_or_raises_its_error() -> None:
    assert decode_response(b'{"type":"t","total":1,"streams":["S"]}') == {"type": "t", "total": 1, "streams": ["S"]}
    assert decode_response(b'{"error":null,"success":true}') == {"error": None, "success": True}
    with pytest.raises(StreamNotFoundError, match="stream not found"):
        decode_response(b'{"type":"t","error":{"code":404,"err_code":10059,"description":"stream not found"}}')
    with pytest.raises(MessageNotFoundError, match="no message found"):
        decode_response(b'{"type":"t","error":{"code":404,"err_code":10037,"description":"no message found"}}')
    with pytest.raises(ApiError) as caught:
        decode_response(b'{"error":{"code":599,"err_code":99999,"description":"new"}}')
    assert (type(caught.value), caught.value.code, caught.value.err_code) == (ApiError, 599, 99999)


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"nonsense", b'{"error":5}', b'{"error":{"code":"x"}}', DEEP])
def test_what_is_no_response_is_the_peers_mistake(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="expected a JetStream API response"):
        decode_response(body)


def test_an_error_body_is_its_exception_and_back() -> None:
    error = ErrorBody(404, 10059, "gone").exception()
    assert isinstance(error, StreamNotFoundError)
    assert ErrorBody(error.code, error.err_code, error.description) == ErrorBody(404, 10059, "gone")
    assert encode_json(ErrorBody(404, 10059, "gone")) == b'{"code":404,"err_code":10059,"description":"gone"}'


def test_get_requests_both_ways() -> None:
    assert encode_json(GetRequest()) == b"{}"
    request = GetRequest(seq=5, next_by_subj="a.>", batch=100, max_bytes=1, min_last_seq=9, multi_last=("a", "b"))
    assert decode_get_request(encode_json(request)) == request
    assert decode_get_request(b'{"last_by_subj":"a","unheard_of":1}') == GetRequest(last_by_subj="a")
    for body in (b'{"seq":"5"}', b"", b"[]", b'{"last_by_subj":"\xff"}'):
        with pytest.raises(msgspec.DecodeError):
            decode_get_request(body)


def test_a_get_request_that_is_nested_deeply_is_rejected_or_the_field_ignored() -> None:
    # Before 3.14 Python counts levels, from then on it measures the stack: 100,000 levels of a skipped field fit.
    try:
        request = decode_get_request(DEEP)
    except msgspec.DecodeError:
        assert sys.version_info < (3, 14)
    else:
        assert sys.version_info >= (3, 14)
        assert request == GetRequest()
    with pytest.raises(msgspec.DecodeError):  # a null has the whole body built, which needs more
        decode_get_request(b'{"seq":null,' + DEEP[1:])


def test_a_stored_message_is_base64_on_the_wire() -> None:
    body = b'{"subject":"a","seq":1,"hdrs":"TkFUUy8xLjANCg0K","data":"aGk=","time":"1970-01-01T00:00:01.000000002Z"}'
    stored = msgspec.json.decode(body, type=StoredBody)
    assert (stored.hdrs, stored.data, stored.time_ns) == (b"NATS/1.0\r\n\r\n", b"hi", 1_000_000_002)
    assert encode_json(stored) == body


def test_the_prefix_of_the_api() -> None:
    assert api_prefix() == "$JS.API"
    assert api_prefix(domain="hub") == "$JS.hub.API"
    assert api_prefix(prefix="my.js.", domain="hub") == "my.js"
