"""A stored message becomes an entry of a bucket: key, value, revision and what was done to it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from slipstream.api import names
from slipstream.jetstream.direct import StoredMessage
from slipstream.wire import Headers

_OPERATION = names.KV_OPERATION.encode()


class Operation(StrEnum):
    """What an entry records."""

    PUT = "PUT"
    DELETE = "DEL"
    PURGE = "PURGE"


class Entry(NamedTuple):
    """A value with where it comes from.

    `created` is nanoseconds since the epoch; `delta` is the distance from the newest value of the key (itself: 0).
    """

    bucket: str
    key: str
    value: bytes
    revision: int
    created: int
    delta: int
    operation: Operation

    @property
    def is_deleted(self) -> bool:
        """Whether the key has no value as of this entry."""
        return self.operation is not Operation.PUT


def operation_of(header: bytes) -> Operation:
    """What a header block says. Any value of `KV-Operation` but PUT means deleted, also one we do not know."""
    if _OPERATION not in header:
        return Operation.PUT
    value = Headers.parse(header).get(names.KV_OPERATION)
    if value is None or value == Operation.PUT:
        return Operation.PUT
    return Operation.PURGE if value == Operation.PURGE else Operation.DELETE


def entry_of(bucket: str, key: str, message: StoredMessage, *, delta: int = 0) -> Entry:
    """The entry that a stored message is."""
    return Entry(bucket, key, message.data, message.seq, message.time, delta, operation_of(message.header))
