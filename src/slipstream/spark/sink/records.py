"""Decoder of rows for the stream sink: Arrow record batches to messages with ids that are the same at every attempt.

The id is a digest of the row's content, not of its position: a retried task may get the same rows in another order (a
shuffle does not order them), and an id by position would then belong to another row, which the stream would drop as a
duplicate. Equal rows of one task are numbered.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from slipstream.errors import UsageError
from slipstream.spark.options import JETSTREAM
from slipstream.wire import Headers, check_subject

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES = {
    "subject": ("string",),
    "data": ("binary", "string"),
    "headers": ("map<string,array<string>>", "map<string,string>"),
    "msg_id": ("string",),
}
# Instructions of the publish that first stored a message, which a copy of the message must not repeat.
_OF_THE_PUBLISH = ("Nats-Msg-Id", "Nats-Expected-", "Nats-Batch-")
_REMEMBERED = 10_000
_DIGEST = 12  # bytes
BLOCK = 1_000  # rows that are handled together

_Pairs = list[tuple[str, str | list[str] | None]]


class Record(NamedTuple):
    """One message; `row` is its index in the task. `headers` are lines of a header block, without the id."""

    row: int
    subject: str
    data: bytes
    headers: bytes
    msg_id: str


_new_record: Callable[[tuple[object, ...]], Record] = partial(tuple.__new__, Record)


@dataclass(frozen=True, slots=True)
class Shape:
    """Which of the optional columns a DataFrame has."""

    has_headers: bool = False
    has_msg_id: bool = False


def shape_of(columns: Mapping[str, str]) -> Shape:
    """The shape of a DataFrame with these columns (name to Spark's type name); raises UsageError if there is none."""
    for name in ("subject", "data"):
        if name not in columns:
            raise UsageError(
                f"{JETSTREAM} needs a column {name!r}, got {', '.join(columns) or 'none'}; "
                "rename with select or AS (columns are subject, data and optionally headers and msg_id)"
            )
    for name, kind in columns.items():
        allowed = _TYPES.get(name)
        if allowed is None:
            raise UsageError(
                f"{JETSTREAM} columns must be subject, data and optionally headers and msg_id, got {name!r}; put more "
                "into the data, such as to_json(struct(...))"
            )
        if kind not in allowed:
            raise UsageError(f"{JETSTREAM} column {name!r} must be {' or '.join(allowed)}, got {kind}")
    return Shape("headers" in columns, "msg_id" in columns)


def id_prefix(writer: str, batch: int, partition: int) -> str:
    """The prefix of the ids of a task's rows, the same for every attempt."""
    return _short(f"{writer}/{batch}/{partition}".encode(), 9) + "."


Reject = Callable[[int, "str | None", "bytes | None", UsageError], None]


def fail(row: int, name: str | None, data: bytes | None, reason: UsageError) -> None:  # noqa: ARG001
    """A row that cannot be written ends the write."""
    raise reason


def records(
    batches: Iterable[pa.RecordBatch], shape: Shape, prefix: str, reject: Reject = fail
) -> Iterator[list[Record]]:
    """Every row, checked, in blocks. `reject` is called for a bad row, with a reason that names it."""
    maker = _Maker(shape, prefix, reject)
    for batch in batches:
        for at in range(0, batch.num_rows, BLOCK):
            yield maker.records(batch.slice(at, BLOCK))


class _Maker:
    """Makes records block by block; it remembers valid subjects, and the digests of earlier rows."""

    def __init__(self, shape: Shape, prefix: str, reject: Reject) -> None:
        self._shape = shape
        self._prefix = prefix
        self._reject = reject
        self._known: set[str] = set()  # subjects
        self._seen: dict[bytes, int] = {}  # digest of a row -> how many equal rows followed it
        self._row = 0

    def records(self, block: pa.RecordBatch) -> list[Record]:
        subjects: list[str | None] = block.column("subject").to_pylist()
        # Strings as binary: in Arrow they are UTF-8 already, the bytes of the message.
        payloads: list[bytes | None] = block.column("data").cast("binary").to_pylist()
        first, self._row = self._row, self._row + len(subjects)
        is_plain = not self._shape.has_headers and not self._shape.has_msg_id
        if is_plain and None not in payloads and self._known.issuperset(subjects):
            return self._plain(first, cast("list[str]", subjects), cast("list[bytes]", payloads))
        empty: list[Any] = [None] * len(subjects)
        headers = block.column("headers").to_pylist() if self._shape.has_headers else empty
        ids: list[str | None] = block.column("msg_id").to_pylist() if self._shape.has_msg_id else empty
        found: list[Record] = []
        for row, (subject, data, pairs, msg_id) in enumerate(zip(subjects, payloads, headers, ids, strict=True), first):
            try:
                found.append(self._record(row, subject, data, pairs, msg_id))
            except UsageError as error:
                self._reject(row, subject, data, error)
        return found

    def _plain(self, first: int, subjects: list[str], payloads: list[bytes]) -> list[Record]:
        """Records of rows without anything to check, the common case: 2 µs a row, most of it for the digest."""
        digests = [
            blake2b(b"%b\0%b\0" % (data, subject.encode()), digest_size=_DIGEST).digest()
            for subject, data in zip(subjects, payloads, strict=True)
        ]
        fresh = dict.fromkeys(digests, 0)
        if len(fresh) == len(digests) and self._seen.keys().isdisjoint(fresh):
            self._seen |= fresh
            ids = [self._prefix + b2a_base64(digest, newline=False).decode() for digest in digests]
        else:
            ids = [self._id(digest) for digest in digests]
        rows = range(first, self._row)
        return list(map(_new_record, zip(rows, subjects, payloads, repeat(b""), ids, strict=False)))

    def _record(
        self, row: int, subject: str | None, data: bytes | None, pairs: _Pairs | None, msg_id: str | None
    ) -> Record:
        if subject is None or subject not in self._known:
            subject = _subject(subject, row)
            self._known = self._known if len(self._known) < _REMEMBERED else set()
            self._known.add(subject)
        if data is None:
            raise UsageError(f"row {row} (subject {subject!r}): column 'data' must be bytes, got null")
        block = _header_lines(pairs, row, subject) if pairs else b""
        if msg_id is not None:
            return Record(row, subject, data, block, _checked_id(msg_id, row, subject))
        content = b"%b\0%b\0%b" % (data, subject.encode(), block)
        return Record(row, subject, data, block, self._id(blake2b(content, digest_size=_DIGEST).digest()))

    def _id(self, digest: bytes) -> str:
        count = self._seen[digest] = self._seen.get(digest, -1) + 1
        return self._prefix + b2a_base64(digest, newline=False).decode() + (f".{count}" if count else "")


def _subject(subject: str | None, row: int) -> str:
    if subject is None:
        raise UsageError(f"row {row}: column 'subject' must be a subject, got null")
    try:
        return check_subject(subject)
    except UsageError as error:
        raise UsageError(f"row {row}: {error}") from error


def _checked_id(msg_id: str, row: int, subject: str) -> str:
    if not msg_id or not msg_id.isprintable() or msg_id != msg_id.strip():
        raise UsageError(
            f"row {row} (subject {subject!r}): column 'msg_id' must be printable text that is not empty, got {msg_id!r}"
        )
    return msg_id


def _header_lines(pairs: _Pairs, row: int, subject: str) -> bytes:
    """The lines of a header block, from a map of Arrow."""
    headers = Headers()
    try:
        for name, value in pairs:
            if name.startswith(_OF_THE_PUBLISH):
                continue
            for one in value if isinstance(value, list) else [value]:
                headers.add(name, one)  # type: ignore[arg-type]  # a null is rejected there
    except UsageError as error:
        raise UsageError(f"row {row} (subject {subject!r}): column 'headers': {error}") from error
    return headers.encode()[len(b"NATS/1.0\r\n") : -2]


def _short(data: bytes, size: int) -> str:
    return urlsafe_b64encode(blake2b(data, digest_size=size).digest()).decode()
