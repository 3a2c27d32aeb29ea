"""Direct Get replies, byte by byte, without a server."""

from __future__ import annotations

import pytest

from slipstream.errors import (
    BadRequestError,
    ConnectionLostError,
    DirectGetNotAllowedError,
    MessageNotFoundError,
    RemoteProtocolError,
    StaleReadError,
    TooManyResultsError,
)
from slipstream.jetstream.reads.direct_get import BatchItem, EndOfBatch, Replies, decode, decode_one
from slipstream.wire import Msg

DOCUMENT = (
    b"NATS/1.0\r\nNats-Stream: KV_mykv1\r\nNats-Subject: $KV.mykv1.mykey1\r\nNats-Sequence: 1\r\n"
    b"Nats-Time-Stamp: 2022-08-06 00:29:27.587861324 +0000 UTC\r\n\r\n"
)
EOB = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 7\r\nNats-Last-Sequence: 3\r\n\r\n"


def reply(header: bytes, payload: bytes = b"") -> Msg:
    return Msg("_INBOX.x.1", b"1", "", header, payload)


def batched(seq: int, *, own: bytes = b"", time: bytes = b"2026-11-15T08:03:38.88Z") -> bytes:
    return (
        b"NATS/1.0\r\n%bNats-Stream: ORDERS\r\nNats-Subject: orders.%d\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n"
        b"Nats-Num-Pending: 9\r\nNats-Last-Sequence: %d\r\n\r\n" % (own, seq, seq, time, seq - 1)
    )


@pytest.mark.spec("DG-23", on="C")
@pytest.mark.parametrize("time", [b"2022-08-06T00:29:27.587861324Z", b"2022-08-06 00:29:27.587861324 +0000 UTC"])
def test_both_time_formats_are_read_to_the_nanosecond(time: bytes) -> None:
    for header in (DOCUMENT.replace(b"2022-08-06 00:29:27.587861324 +0000 UTC", time), batched(4, time=time)):
        found = decode_one(reply(header, b"hello"), asked="x")
        assert found.time == 1659745767587861324
        assert found.data == b"hello"


def test_the_example_of_the_document_is_read() -> None:
    found = decode_one(reply(DOCUMENT, b"hello"), asked="x")
    assert (found.stream, found.subject, found.seq, found.data) == ("KV_mykv1", "$KV.mykv1.mykey1", 1, b"hello")
    assert found.header == b""
    assert found.headers.items() == []


def test_trailing_zeros_of_a_time_may_be_cut_or_missing() -> None:
    for text, nanos in ((b"2026-11-15T08:03:38.88Z", 880_000_000), (b"2026-11-15T08:03:38Z", 0)):
        assert decode_one(reply(batched(1, time=text)), asked="x").time % 1_000_000_000 == nanos


def test_a_message_keeps_its_own_headers_and_only_those() -> None:
    own = b"A: 1\r\nB: x\r\nA: 2\r\n"
    found = decode_one(reply(batched(5, own=own)), asked="x")
    assert found.header == b"NATS/1.0\r\n" + own + b"\r\n"
    assert found.headers.get_all("A") == ["1", "2"]


def test_headers_that_imitate_the_server_do_not_fool_the_reader() -> None:
    own = b"Status: 204\r\nNats-Stream: FAKE\r\nNats-Subject: fake\r\nNats-Sequence: 99\r\nNats-Time-Stamp: never\r\n"
    item = decode(reply(batched(5, own=own)), asked="x")
    assert isinstance(item, BatchItem)
    assert (item.message.stream, item.message.subject, item.message.seq) == ("ORDERS", "orders.5", 5)
    assert item.message.headers.get("Nats-Sequence") == "99"


def test_another_order_of_the_servers_headers_is_read_by_name() -> None:
    header = (
        b"NATS/1.0\r\nMine: 1\r\nNats-Sequence: 4\r\nNats-Time-Stamp: 2026-11-15T08:03:38Z\r\nNats-Num-Pending: 2\r\n"
        b"Nats-Subject: a.b\r\nNats-Stream: S\r\nNats-Last-Sequence: 3\r\n\r\n"
    )
    item = decode(reply(header, b"x"), asked="x")
    assert isinstance(item, BatchItem)
    assert (item.message.subject, item.message.seq, item.message.stream, item.pending) == ("a.b", 4, "S", 2)
    assert item.message.headers.items() == [("Mine", "1")]


@pytest.mark.spec("DG-20", on="C")
@pytest.mark.parametrize("name", [b"Nats-Num-Pending", b"Nats-Pending-Messages"])
def test_the_end_of_a_batch_is_read_with_either_name_of_the_number_left(name: bytes) -> None:
    end = decode(reply(EOB.replace(b"Nats-Num-Pending", name)), asked="x")
    assert end == EndOfBatch(pending=7, last_seq=3, up_to_seq=-1)


def test_the_end_of_a_multi_subject_get_carries_the_responders_last_sequence() -> None:
    end = decode(reply(EOB[:-2] + b"Nats-UpTo-Sequence: 12\r\n\r\n"), asked="x")
    assert end == EndOfBatch(7, 3, 12)


@pytest.mark.spec("DG-22", "RW-03", on="C")
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (b"404 Message Not Found", MessageNotFoundError),
        (b"408 Empty Request", BadRequestError),
        (b"412 Min Last Sequence", StaleReadError),
        (b"503", DirectGetNotAllowedError),
        (b"413 Too Many Results", TooManyResultsError),
        (b"500 Oh No", RemoteProtocolError),
    ],
)
def test_each_status_is_an_error_of_its_own(status: bytes, error: type[Exception]) -> None:
    with pytest.raises(error, match="the question") as caught:
        decode_one(reply(b"NATS/1.0 " + status + b"\r\n\r\n"), asked="the question", min_last_seq=9)
    assert type(caught.value) is error
    if isinstance(caught.value, StaleReadError):
        assert caught.value.min_last_seq == 9


@pytest.mark.parametrize(
    "header",
    [b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nNats-Subject: a\r\nNats-Sequence: 1\r\nNats-Time-Stamp: soon\r\n\r\n"],
)
def test_a_reply_without_the_servers_headers_is_a_protocol_error(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_one(reply(header), asked="x")


def test_the_end_of_a_batch_is_no_answer_to_a_single_get() -> None:
    with pytest.raises(RemoteProtocolError, match="end of a batch"):
        decode_one(reply(EOB), asked="x")


def test_a_subject_that_is_not_utf_8_does_not_stop_the_reader() -> None:
    header = batched(5).replace(b"orders.5", b"orders.\xff")
    assert decode_one(reply(header), asked="x").subject == "orders.\ufffd"


def test_an_invalid_time_is_a_protocol_error() -> None:
    with pytest.raises(RemoteProtocolError, match="time must be RFC 3339"):
        decode_one(reply(batched(5, time=b"tomorrow")), asked="x")


def test_a_message_that_was_stored_with_a_status_line_is_a_message() -> None:
    forged = batched(5).replace(b"NATS/1.0\r\n", b"NATS/1.0 204 EOB\r\nNats-UpTo-Sequence: 99\r\n", 1)
    for header in (forged, forged.replace(b"Nats-Last-Sequence: 4\r\n", b"Nats-Last-Sequence: 4\r\nNew: 1\r\n")):
        item = decode(reply(header, b"x"), asked="x")
        assert isinstance(item, BatchItem)
        assert (item.message.seq, item.message.data) == (5, b"x")


def test_few_replies_are_taken_until_the_last() -> None:
    replies = Replies("x")
    assert not replies.ready()
    assert replies.deliver(reply(batched(5))) is False
    replies.fail(ConnectionLostError("gone"))
    assert replies.ready()
    assert isinstance(replies.error, ConnectionLostError)


def test_a_time_with_an_invalid_date_is_a_protocol_error() -> None:
    with pytest.raises(RemoteProtocolError, match="month"):
        decode_one(reply(batched(5, time=b"2026-99-15T08:03:38.5Z")), asked="x")
