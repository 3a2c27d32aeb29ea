"""Arrow record batches of stored messages.

Every batch has the types that Spark requires (microseconds in UTC, plain strings and binaries) and stays below a
maximum of rows and bytes, however large the chunks off the wire are; only a single message may be larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from slipstream.jetstream.reads.columns import Columns
from slipstream.wire import Headers

MAX_ROWS = 20_000
MAX_BYTES = 32 * 1024 * 1024
_SUBJECT = 64  # bytes, an estimate: counting them would cost more than it helps
TIME = pa.timestamp("us", tz="UTC")
_HEADERS = pa.map_(pa.string(), pa.list_(pa.string()))
_NO_HEADERS = pa.scalar(0, pa.int32())


def batches(
    chunks: Iterable[Columns], names: Sequence[str], *, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES
) -> Iterator[pa.RecordBatch]:
    """Record batches with the columns of these names, in the order of the messages."""
    schema = arrow_schema(names)
    build = [_COLUMNS[name][1] for name in names]
    for chunk in regroup(chunks, max_rows=max_rows, max_bytes=max_bytes):
        yield pa.RecordBatch.from_arrays([column(chunk) for column in build], schema=schema)


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The types of the columns, as Spark requires them."""
    return pa.schema([pa.field(name, _COLUMNS[name][0]) for name in names])


def regroup(chunks: Iterable[Columns], *, max_rows: int, max_bytes: int) -> Iterator[Columns]:
    """The same messages in chunks that are neither tiny nor above the limits."""
    pending, size = _empty(), 0
    for chunk in chunks:
        for piece, weight in _pieces(chunk, max_rows, max_bytes):
            if pending.seqs and (len(pending.seqs) + len(piece.seqs) > max_rows or size + weight > max_bytes):
                yield pending
                pending, size = _empty(), 0
            pending.subjects.extend(piece.subjects)
            pending.seqs.extend(piece.seqs)
            pending.times.extend(piece.times)
            pending.headers.extend(piece.headers)
            pending.data.extend(piece.data)
            size += weight
    if pending.seqs:
        yield pending


def _empty() -> Columns:
    return Columns([], [], [], [], [], "")


def _pieces(chunk: Columns, max_rows: int, max_bytes: int) -> Iterator[tuple[Columns, int]]:
    """A chunk with its size in bytes, halved until it is within the limits."""
    rows = len(chunk.seqs)
    weight = sum(map(len, chunk.data)) + sum(map(len, chunk.headers)) + rows * _SUBJECT
    if rows > 1 and (rows > max_rows or weight > max_bytes):
        half = rows // 2
        subjects, seqs, times, headers, data, stream = chunk
        rest = Columns(subjects[half:], seqs[half:], times[half:], headers[half:], data[half:], stream)
        yield from _pieces(chunk.cut(half), max_rows, max_bytes)
        yield from _pieces(rest, max_rows, max_bytes)
    elif rows:
        yield chunk, weight


def _headers(chunk: Columns) -> pa.Array:
    """A map per message: names with all their values, in order; an empty map for a message without headers."""
    names: list[str] = []
    values: list[list[str]] = []
    if any(chunk.headers):
        counts = [0]
        for header in chunk.headers:
            found: dict[str, list[str]] = {}
            if header:
                for name, value in Headers.parse(header).items():
                    found.setdefault(name, []).append(value)
            names += found
            values += found.values()
            counts.append(len(found))
        begins = pa.array(accumulate(counts), pa.int32())
    else:  # the common case: no message has headers
        begins = pa.repeat(_NO_HEADERS, len(chunk.headers) + 1)
    return pa.MapArray.from_arrays(begins, pa.array(names, pa.string()), pa.array(values, _HEADERS.item_type))


_COLUMNS: dict[str, tuple[pa.DataType, Callable[[Columns], pa.Array]]] = {
    "subject": (pa.string(), lambda chunk: pa.array(chunk.subjects, pa.string())),
    "sequence": (pa.int64(), lambda chunk: pa.array(chunk.seqs, pa.int64())),
    "timestamp": (TIME, lambda chunk: pc.divide(pa.array(chunk.times, pa.int64()), 1000).cast(TIME)),
    "timestamp_ns": (pa.int64(), lambda chunk: pa.array(chunk.times, pa.int64())),
    "headers": (_HEADERS, _headers),
    "data": (pa.binary(), lambda chunk: pa.array(chunk.data, pa.binary())),
}
COLUMNS = tuple(_COLUMNS)
