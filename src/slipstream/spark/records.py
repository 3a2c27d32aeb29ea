"""Arrow record batches become messages to publish: subject, data, headers and an id that is the same at every attempt.

The id is made of what the row holds, not of its place: a task that is tried again may get the same rows in another
order (a shuffle gives no order), and an id of the place would then name another row, which the stream would drop as a
duplicate. Rows of one task that hold the same are told apart by how many of them came before.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

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
_RESERVED = ("Nats-Msg-Id", "Nats-Expected-", "Nats-Batch-")
_REMEMBERED = 10_000


class Record(NamedTuple):
    """One message; `row` is its place in the task. `headers` are lines of a header block, without the id."""

    row: int
    subject: str
    data: bytes
    headers: bytes
    msg_id: str


@dataclass(frozen=True, slots=True)
class Shape:
    """Which of the columns there are."""

    has_headers: bool = False
    has_msg_id: bool = False


def shape_of(columns: Mapping[str, str]) -> Shape:
    """The shape of a DataFrame with these columns (name to Spark's type name); raises if it cannot be written."""
    for name in ("subject", "data"):
        if name not in columns:
            raise UsageError(
                f"{JETSTREAM} needs a column {name!r}, there are {', '.join(columns) or 'none'}; "
                "rename with select or AS (columns are subject, data and, if wanted, headers and msg_id)"
            )
    for name, kind in columns.items():
        allowed = _TYPES.get(name)
        if allowed is None:
            raise UsageError(
                f"{JETSTREAM} does not know what to do with column {name!r}: subject, data, headers and msg_id are "
                "allowed; put more into the data, such as to_json(struct(...))"
            )
        if kind not in allowed:
            raise UsageError(f"{JETSTREAM} column {name!r} is {kind}, {' or '.join(allowed)} is allowed")
    return Shape("headers" in columns, "msg_id" in columns)


def id_prefix(writer: str, batch: int, partition: int) -> str:
    """What the ids of a task's rows begin with, whichever attempt it is."""
    return _short(f"{writer}/{batch}/{partition}".encode(), 9) + "."


Reject = Callable[[int, "str | None", "bytes | None", UsageError], None]


def fail(row: int, name: str | None, data: bytes | None, reason: UsageError) -> None:  # noqa: ARG001
    """A row that cannot be written ends the write."""
    raise reason


def records(batches: Iterable[pa.RecordBatch], shape: Shape, prefix: str, reject: Reject = fail) -> Iterator[Record]:
    """Every row, checked; what is wrong with a row, which the reason names, is told to `reject`."""
    known: set[str] = set()
    seen: dict[bytes, int] = {}
    first = 0
    for batch in batches:
        size = batch.num_rows
        subjects: list[str | None] = batch.column("subject").to_pylist()
        # Binary also where it is text: Arrow's strings are UTF-8, as the bytes are that a message holds.
        payloads: list[bytes | None] = batch.column("data").cast("binary").to_pylist()
        headers = batch.column("headers").to_pylist() if shape.has_headers else [None] * size
        ids: list[str | None] = batch.column("msg_id").to_pylist() if shape.has_msg_id else [None] * size
        for row, (subject, data, pairs, given) in enumerate(zip(subjects, payloads, headers, ids, strict=True), first):
            try:
                if subject is None or subject not in known:
                    subject = _subject(subject, row)
                    known = known if len(known) < _REMEMBERED else set()
                    known.add(subject)
                if data is None:
                    raise UsageError(f"row {row} (subject {subject!r}): column 'data' is null, bytes are needed")
                block = _header_lines(pairs, row, subject) if pairs else b""
                msg_id = _given_id(given, row, subject) if given is not None else ""
            except UsageError as error:
                reject(row, subject, data, error)
                continue
            if not msg_id:
                content = blake2b(data, digest_size=12, key=b"row")
                content.update(b"\0%b\0%b" % (subject.encode(), block))
                digest = content.digest()
                count = seen[digest] = seen.get(digest, -1) + 1
                msg_id = prefix + urlsafe_b64encode(digest).decode() + (f".{count}" if count else "")
            yield Record(row, subject, data, block, msg_id)
        first += size


def _subject(subject: str | None, row: int) -> str:
    if subject is None:
        raise UsageError(f"row {row}: column 'subject' is null, a subject is needed")
    try:
        return check_subject(subject)
    except UsageError as error:
        raise UsageError(f"row {row}: {error}") from error


def _given_id(msg_id: str, row: int, subject: str) -> str:
    if not msg_id or not msg_id.isprintable() or msg_id != msg_id.strip():
        raise UsageError(
            f"row {row} (subject {subject!r}): column 'msg_id' is {msg_id!r}: printable text that is not empty is "
            "allowed"
        )
    return msg_id


def _header_lines(pairs: list[tuple[str, str | list[str] | None]], row: int, subject: str) -> bytes:
    """A map of Arrow as lines of a header block."""
    headers = Headers()
    try:
        for name, value in pairs:
            if name.startswith(_RESERVED):
                raise UsageError(f"header {name!r} is the sink's own; for an id use the column 'msg_id'")
            for one in value if isinstance(value, list) else [value]:
                headers.add(name, one)  # type: ignore[arg-type]  # a null is refused there
    except UsageError as error:
        raise UsageError(f"row {row} (subject {subject!r}): column 'headers': {error}") from error
    return headers.encode()[len(b"NATS/1.0\r\n") : -2]


def _short(data: bytes, size: int) -> str:
    return urlsafe_b64encode(blake2b(data, digest_size=size).digest()).decode()
