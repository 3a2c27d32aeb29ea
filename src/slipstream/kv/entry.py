"""Entries of a bucket: a key's value, its revision and the operation that wrote it; listings, and where a feed starts.

An entry is one message of the bucket's stream. Puts carry the value as the payload; deletes and purges are *marks*,
messages without a value whose headers name the operation. Servers leave marks of their own where limits remove the
last value of a key. Any mark, also of a kind we do not know, means that the key has no value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import Enum, StrEnum
from typing import Any, Generic, NamedTuple, TypeVar, overload

from slipstream.api import names
from slipstream.api.notebook import facts
from slipstream.api.times import SECOND, to_datetime
from slipstream.api.ttl import time_to_live
from slipstream.codecs.payloads import ANYTHING, JSON, Origin, decode_payload, decode_text
from slipstream.errors import UsageError, WrongLastSequenceError
from slipstream.jetstream.reads.direct_get import StoredMessage, decode_one, match_tail, own_headers, time_of
from slipstream.wire import Headers, Msg

V = TypeVar("V")
T = TypeVar("T")

_MARK = names.KV_OPERATION.encode()
_MARKER = names.MARKER_REASON.encode()
_TTL = names.TTL.encode()


class Operation(StrEnum):
    """What an entry records. `EXPIRED`: the server's limits removed the value and left a marker."""

    PUT = "PUT"
    DELETE = "DEL"
    PURGE = "PURGE"
    EXPIRED = "MaxAge"


# Why a server left a marker of its own (`Nats-Marker-Reason`). An unknown reason still means that the value is gone.
_REASONS = {"MaxAge": Operation.EXPIRED, "Purge": Operation.PURGE, "Remove": Operation.DELETE}


def payload_of(value: bytes | None, operation: Operation) -> bytes:
    """The payload of an entry: empty for a mark, the value for a put. None or "" is not taken for an empty value."""
    if operation is not Operation.PUT:
        return b""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise UsageError(f"value must be bytes, got {type(value).__name__}")
    return bytes(value)


class Entry(NamedTuple, Generic[V]):
    """A value with its key, revision and origin.

    `created` is nanoseconds since the epoch. `delta` is the distance from the newest entry of the key: how many newer
    ones of that key the bucket held when this one was read (the newest: 0), or None where a read cannot know it. It is
    known of `get`, of ranges and snapshots, of `history`, of the newest entries that a watch begins with, and of a
    watch of one key; it may be None in a watch of several keys that returns more than the newest entry of each, and of
    `get(revision=...)`.
    `marker` is the reason if the server wrote the entry itself (empty: a client did). `stream` is the stream that
    answered: a read replica names itself. `expires` is when the TTL of this very entry ends, in nanoseconds since the
    epoch by the server's clock (0: it has none of its own, -1: it is kept even beyond the TTL of its bucket).
    """

    bucket: str
    key: str
    value: V
    revision: int
    created: int
    delta: int | None
    operation: Operation
    marker: str = ""
    stream: str = ""
    expires: int = 0

    @property
    def created_at(self) -> datetime:
        """When it was written, as a datetime in UTC."""
        return to_datetime(self.created)

    @property
    def expires_at(self) -> datetime | None:
        """When its own TTL ends, as a datetime in UTC; None if it has none."""
        return to_datetime(self.expires) if self.expires > 0 else None

    @property
    def is_deleted(self) -> bool:
        """Whether the key has no value as of this entry."""
        return self.operation is not Operation.PUT

    def _repr_html_(self) -> str:
        value = self.value if isinstance(self.value, bytes) else repr(self.value)
        return facts(
            f"{self.key} in bucket {self.bucket}",
            (
                ("Value", None if self.is_deleted else value),
                ("Operation", self.operation),
                ("Revision", self.revision),
                ("Created", self.created_at),
                ("Expires", self.expires_at),
            ),
        )

    def text(self) -> str:
        """The value, if it is bytes, as text in UTF-8; raises MessageDecodeError if it is none."""
        return decode_text(self._stored_value(), origin=self._origin)

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, kind: type[T]) -> T: ...
    @overload
    def json(self, kind: Any) -> Any: ...
    def json(self, kind: Any = ANYTHING) -> Any:
        """The value, if it is bytes, as JSON, as a `kind` with its type checked; raises MessageDecodeError.

        For single reads; a bucket of such values is better opened `with_codec(Json(kind))`.
        """
        return decode_payload(JSON, self.key, self._stored_value(), kind=kind, header=b"", origin=self._origin)

    def _stored_value(self) -> bytes:
        if not isinstance(self.value, bytes):
            raise UsageError(f"value of key {self.key!r} is already decoded, to type {type(self.value).__name__}")
        return self.value

    def _origin(self) -> Origin:
        what = f"the value of key {self.key!r} (bucket {self.bucket!r}, revision {self.revision})"
        return Origin(what, self.key, self.stream, self.revision)


def with_deltas(entries: Sequence[Entry[V]]) -> list[Entry[V]]:
    """Entries in the order of revisions, none of a key missing behind another one of it, each with its delta."""
    newer: Counter[str] = Counter()
    counted: list[Entry[V]] = []
    for entry in reversed(entries):
        counted.append(entry._replace(delta=newer[entry.key]))
        newer[entry.key] += 1
    return counted[::-1]


class Mark(NamedTuple):
    """The operation of an entry, as its headers name it."""

    operation: Operation = Operation.PUT
    marker: str = ""


_PUT = Mark()


def has_mark(header: bytes) -> bool:
    """Whether a header block may hold a mark: most do not, and need no parsing."""
    return _MARK in header or _MARKER in header


def mark_of(header: bytes) -> Mark:
    """The operation that a header block names. Any `KV-Operation` but PUT means deleted, also one we do not know."""
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
    """The marks among header blocks, each with its index. One search over all of them finds that there is none."""
    if not headers or not has_mark(b"".join(set(headers))):  # of a headers-only consumer many are the same
        return []
    return [(at, mark_of(header)) for at, header in enumerate(headers) if has_mark(header)]


def expiry_of(header: bytes, created: int) -> int:
    """When the TTL that a header block sets for its entry ends; 0 if it sets none, -1 for `never`."""
    if _TTL not in header:
        return 0
    try:
        seconds = time_to_live(header)
    except ValueError:  # written before the stream allowed TTLs: the server ignores it too
        return 0
    return created + seconds * SECOND if seconds > 0 else seconds


def expiries_of(headers: list[bytes], created: list[int]) -> list[tuple[int, int]]:
    """The ends of TTLs among header blocks, each with its index."""
    if not headers or _TTL not in b"".join(set(headers)):
        return []
    ends = ((at, expiry_of(header, created[at])) for at, header in enumerate(headers))
    return [(at, expires) for at, expires in ends if expires]


def operation_of(header: bytes) -> Operation:
    """The operation alone."""
    return mark_of(header).operation


def last_sequence_of(error: WrongLastSequenceError) -> int:
    """The newest revision of the key for which the leader rejected a write; 0 if its text does not say it."""
    return error.last_seq or 0


def entry_of(message: StoredMessage, bucket: str, cut: int) -> Entry[bytes]:
    """The entry that a message of the bucket's stream is; the key is its subject without the first `cut` characters."""
    operation, marker = mark_of(message.header)
    key = message.subject[cut:]
    expires = expiry_of(message.header, message.time)
    return Entry(bucket, key, message.data, message.seq, message.time, 0, operation, marker, message.stream, expires)


def decode_entry(msg: Msg, *, bucket: str, key: str, subject: str) -> Entry[bytes]:
    """The entry in the reply to a Direct Get of one key. Raises the error that the server sent instead.

    The hot path of `get`: the usual reply (the server's headers in their order, for that subject) becomes an entry in
    one step. Every other form, and every error, is left to `decode_one`.
    """
    header = msg.header
    tail = match_tail(header)
    if tail is None or tail[2] != subject.encode():
        return entry_of(decode_one(msg, asked=subject), bucket, len(subject) - len(key))
    stream, _, seq, time, _, _ = tail.groups()
    operation, marker, created, expires = Operation.PUT, "", time_of(time, subject), 0
    if tail.start() > len("NATS/1.0"):  # it was stored with headers
        own = own_headers(header, tail)
        operation, marker = mark_of(own)
        expires = expiry_of(own, created)
    name = stream.decode(errors="replace")
    return Entry(bucket, key, msg.payload, int(seq), created, 0, operation, marker, name, expires)


class Listing(NamedTuple):
    """Some keys of a bucket: those that have a value, and those that were deleted."""

    live: list[str]
    deleted: list[str]


def listing_of(entries: Iterable[Entry[V]]) -> Listing:
    """The keys of entries, each by its last entry."""
    live = {entry.key: entry.operation is Operation.PUT for entry in entries}
    return Listing([key for key, is_live in live.items() if is_live], [key for key in live if not live[key]])


class From(Enum):
    """The kinds of starting points of a feed."""

    LATEST = "latest"  # the newest entry of each key, then every change
    ALL = "all"  # all entries that are kept, then every change
    NEW = "new"  # changes only
    REVISION = "revision"  # all entries that are kept from a revision on, then every change


class Start(NamedTuple):
    """Where a feed starts; `revision` is for `From.REVISION`."""

    kind: From
    revision: int = 0


LATEST = Start(From.LATEST)
ALL = Start(From.ALL)
NEW = Start(From.NEW)
