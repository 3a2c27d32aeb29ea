"""A stored message becomes an entry of a bucket: key, value, revision, what was done to it, and who answered."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from slipstream.api import names
from slipstream.errors import UsageError
from slipstream.wire import Headers

V = TypeVar("V")

_MARK = names.KV_OPERATION.encode()
_MARKER = names.MARKER_REASON.encode()


class Operation(StrEnum):
    """What an entry records. `EXPIRED`: the server's limits removed the value and left a marker."""

    PUT = "PUT"
    DELETE = "DEL"
    PURGE = "PURGE"
    EXPIRED = "MaxAge"


# Why a server left a marker of its own (`Nats-Marker-Reason`). A reason we do not know also means: no value any more.
_REASONS = {"MaxAge": Operation.EXPIRED, "Purge": Operation.PURGE, "Remove": Operation.DELETE}


def payload_of(value: bytes | None, operation: Operation) -> bytes:
    """What is stored for an entry. A mark has no value; a put has one, and no other type that is empty or false."""
    if operation is not Operation.PUT:
        return b""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise UsageError(f"a value of type {type(value).__name__}: bytes are allowed")
    return bytes(value)


class Entry(NamedTuple, Generic[V]):
    """A value with where it comes from.

    `created` is nanoseconds since the epoch; `delta` is the distance from the newest value of the key (itself: 0).
    `marker` is the reason when the server itself recorded the entry (empty: a client did). `stream` is who answered: a
    read replica names itself.
    """

    bucket: str
    key: str
    value: V
    revision: int
    created: int
    delta: int
    operation: Operation
    marker: str = ""
    stream: str = ""

    @property
    def is_deleted(self) -> bool:
        """Whether the key has no value as of this entry."""
        return self.operation is not Operation.PUT


class Mark(NamedTuple):
    """What a header block says of an entry."""

    operation: Operation = Operation.PUT
    marker: str = ""


_PUT = Mark()


def has_mark(header: bytes) -> bool:
    """Whether a header block can hold a mark: most hold none, and need not be read."""
    return _MARK in header or _MARKER in header


def mark_of(header: bytes) -> Mark:
    """What a header block says. Any value of `KV-Operation` but PUT means deleted, also one we do not know."""
    if not header or not has_mark(header):
        return _PUT
    headers = Headers.parse(header)
    reason = headers.get(names.MARKER_REASON) or ""
    value = headers.get(names.KV_OPERATION)
    if value is not None and value != Operation.PUT:
        operation = Operation.PURGE if value == Operation.PURGE else Operation.DELETE
    elif reason and value is None:
        operation = _REASONS.get(reason, Operation.EXPIRED)
    else:
        operation = Operation.PUT
    return Mark(operation, reason)


def marks_of(headers: list[bytes]) -> list[tuple[int, Mark]]:
    """What header blocks say, with their places; nothing of those of plain puts, which are told by one look at all."""
    if not has_mark(b"".join(headers)):
        return []
    return [(at, mark_of(header)) for at, header in enumerate(headers) if has_mark(header)]


def operation_of(header: bytes) -> Operation:
    """What was done, by the header block alone."""
    return mark_of(header).operation


class Listing(NamedTuple):
    """A part of the keys of a bucket: those that have a value, and those that have none (any more)."""

    live: list[str]
    gone: list[str]


def listing_of(entries: Iterable[Entry[V]]) -> Listing:
    """The keys of entries, each as its last one says."""
    live = {entry.key: entry.operation is Operation.PUT for entry in entries}
    return Listing([key for key, is_live in live.items() if is_live], [key for key in live if not live[key]])
