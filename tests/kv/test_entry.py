"""Entries: the operation that headers name, payloads, listings."""

from __future__ import annotations

import pytest

from slipstream.errors import UsageError
from slipstream.kv.entry import Entry, Operation, listing_of, mark_of, marks_of, operation_of, payload_of


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
