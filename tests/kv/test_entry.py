"""Entries: the operation that headers name, payloads, listings."""

from __future__ import annotations

import pytest

from slipstream.errors import MessageNotFoundError, UsageError
from slipstream.kv.entry import Entry, Operation, decode_entry, listing_of, mark_of, marks_of, operation_of, payload_of
from slipstream.wire import Msg


@pytest.mark.parametrize(
    ("header", "operation"),
    [
        (b"", Operation.PUT),
        (b"NATS/1.0\r\nA: b\r\n\r\n", Operation.PUT),
        (b"NATS/1.0\r\nX: KV-Operation\r\n\r\n", Operation.PUT),
        (b"NATS/1.0\r\nKV-Operation: PUT\r\n\r\n", Operation.PUT),
        (b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n", Operation.DELETE),
        (b"NATS/1.0\r\nKV-Operation: PURGE\r\n\r\n", Operation.PURGE),
        (b"NATS/1.0\r\nKV-Operation: NEW\r\n\r\n", Operation.DELETE),
        (b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 1s\r\n\r\n", Operation.EXPIRED),
        (b"NATS/1.0\r\nNats-Marker-Reason: Purge\r\n\r\n", Operation.PURGE),
        (b"NATS/1.0\r\nNats-Marker-Reason: Remove\r\n\r\n", Operation.DELETE),
        (b"NATS/1.0\r\nNats-Marker-Reason: Whatever\r\n\r\n", Operation.EXPIRED),
    ],
)
def test_any_operation_but_put_means_deleted(header: bytes, operation: Operation) -> None:
    assert operation_of(header) is operation
    assert Entry("b", "k", b"v", 3, 5, 0, *mark_of(header)).is_deleted is (operation is not Operation.PUT)


def test_marks_are_found_among_plain_puts() -> None:
    mark = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"
    assert marks_of([b"", b"NATS/1.0\r\nA: b\r\n\r\n"]) == []
    assert [(at, found.operation) for at, found in marks_of([b"", mark, b""])] == [(1, Operation.DELETE)]


def test_a_put_has_its_value_as_payload_and_a_mark_has_none() -> None:
    assert payload_of(b"v", Operation.PUT) == b"v"
    assert payload_of(None, Operation.DELETE) == b""
    with pytest.raises(UsageError, match="value must be bytes, got str"):
        payload_of("v", Operation.PUT)  # type: ignore[arg-type]


def test_a_listing_counts_the_last_entry_of_each_key() -> None:
    entries = [
        Entry("b", "a", b"", 1, 0, 0, Operation.DELETE),
        Entry("b", "c", b"", 2, 0, 0, Operation.PUT),
        Entry("b", "a", b"", 3, 0, 0, Operation.PUT),
        Entry("b", "c", b"", 4, 0, 0, Operation.PURGE),
    ]
    assert listing_of(entries) == (["a"], ["c"])


SIGNED = (
    b"Nats-Stream: KV_b\r\nNats-Subject: $KV.b.k\r\nNats-Sequence: 7\r\nNats-Time-Stamp: 1970-01-01T00:00:01Z\r\n\r\n"
)


def decoded(header: bytes, payload: bytes = b"") -> Entry[bytes]:
    msg = Msg("_INBOX.1", b"1", "", header, payload)
    return decode_entry(msg, bucket="b", key="k", subject="$KV.b.k")


@pytest.mark.parametrize(
    ("own", "mark"),
    [
        (b"", (Operation.PUT, "")),
        (b"A: b\r\n", (Operation.PUT, "")),
        (b"KV-Operation: DEL\r\n", (Operation.DELETE, "")),
        (b"Nats-Marker-Reason: MaxAge\r\n", (Operation.EXPIRED, "MaxAge")),
        (b"Nats-Stream: forged\r\n", (Operation.PUT, "")),  # only the server's headers, which stand last, count
    ],
)
def test_the_reply_to_a_direct_get_is_an_entry(own: bytes, mark: tuple[Operation, str]) -> None:
    assert decoded(b"NATS/1.0\r\n" + own + SIGNED, b"v") == Entry("b", "k", b"v", 7, 10**9, 0, *mark, "KV_b")


def test_a_reply_with_headers_in_another_order_gives_the_same_entry() -> None:
    lines = SIGNED.split(b"\r\n")
    other_order = b"\r\n".join([lines[2], lines[0], lines[3], lines[1], b"", b""])
    own = b"NATS/1.0\r\nKV-Operation: DEL\r\n"
    assert decoded(own + other_order) == decoded(own + SIGNED)


def test_an_error_in_the_reply_to_a_direct_get_is_raised() -> None:
    with pytest.raises(MessageNotFoundError):
        decoded(b"NATS/1.0 404 Message Not Found\r\n\r\n")
