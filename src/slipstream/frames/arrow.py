"""Arrow tables of messages and of entries, and data frames made of them.

A table is built from record batches, one of some thousand rows at a time, so that a payload column may be larger
than the 2 GiB that one Arrow array of binaries can address, and a long read does not hold its Python objects: what
stays in memory is the Arrow data. Times and sequences are one buffer each; a stream's times are stored as nanoseconds
and become timestamps without a copy. pyarrow is imported when the first table is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from slipstream.errors import UsageError
from slipstream.extras import needed_by
from slipstream.frames.decoding import JsonDecoder
from slipstream.frames.options import FrameOptions
from slipstream.wire import Headers

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

MESSAGE_COLUMNS = ("subject", "sequence", "timestamp", "headers", "data")
ENTRY_COLUMNS = ("key", "value", "revision", "created", "operation")
BATCH_ROWS = 2_000  # their objects are still in the cache of the processor; 50,000 cost up to twice as much
BATCH_BYTES = 256 * 1024 * 1024  # of payloads, far below the 2 GiB of one array


class ColumnsLike(Protocol):
    """Messages as columns (`slipstream.jetstream.reads.columns.Columns`)."""

    @property
    def subjects(self) -> list[str]: ...
    @property
    def seqs(self) -> list[int]: ...
    @property
    def times(self) -> list[int]: ...
    @property
    def headers(self) -> list[bytes]: ...
    @property
    def data(self) -> list[bytes]: ...


def arrow() -> Any:
    """The module pyarrow; raises MissingExtraError where it is not installed."""
    with needed_by("a data frame", "arrow"):
        import pyarrow
    return pyarrow


class TableBuilder:
    """Takes messages or entries, and gives the table."""

    def __init__(
        self, *, columns: Sequence[str] | None = None, schema: Any = None, errors: str = "raise", entries: bool = False
    ) -> None:
        """`entries`: of a bucket instead of messages."""
        pa = arrow()
        known = ENTRY_COLUMNS if entries else MESSAGE_COLUMNS
        payload = "value" if entries else "data"
        if errors not in ("raise", "null"):
            raise UsageError(f"errors must be 'raise' or 'null', got {errors!r}")
        if columns is None:
            columns = [name for name in known if schema is None or name not in (payload, "headers")]
        if isinstance(columns, str) or not all(name in known for name in columns) or len({*columns}) != len(columns):
            raise UsageError(f"columns must be different ones of {', '.join(known)}, got {columns!r}")
        self.columns: tuple[str, ...] = tuple(columns)
        self._decoder = None if schema is None else JsonDecoder(pa, schema, self.columns, errors=errors)
        self._pa = pa
        self._types = _types(pa)
        self._payload = payload
        self._pending: list[list[Any]] = [[], [], [], [], []]
        self._size = 0
        self._batches: list[Any] = []
        self._order = known
        fields = [pa.field(name, self._types[name]) for name in self.columns]
        self.schema: Any = pa.schema(fields + ([] if self._decoder is None else self._decoder.fields))

    def add_columns(self, columns: ColumnsLike) -> None:
        """Add messages."""
        self._add((columns.subjects, columns.seqs, columns.times, columns.headers, columns.data), columns.data)

    def add_messages(self, messages: Iterable[Any]) -> None:
        """Add stored messages, or messages of a consumer."""
        for message in messages:
            headers = message.header if isinstance(getattr(message, "header", None), bytes) else message.headers
            self._row((message.subject, message.seq, message.time, headers, bytes(message.data)))

    def add_entries(self, entries: Iterable[Any]) -> None:
        """Add entries of a bucket. Values must be bytes: a bucket with a codec has objects."""
        for entry in entries:
            value = entry.value
            if value is not None and not isinstance(value, bytes):
                raise UsageError(
                    f"value of key {entry.key!r} must be bytes, got {type(value).__name__}: open the bucket "
                    f"without its codec"
                )
            self._row((entry.key, value or b"", entry.revision, entry.created, str(entry.operation)), 1)

    def _row(self, row: tuple[Any, ...], payload: int = 4) -> None:
        for column, value in zip(self._pending, row, strict=True):
            column.append(value)
        self._size += len(row[payload])
        if len(self._pending[0]) >= BATCH_ROWS or self._size >= BATCH_BYTES:
            self._flush()

    def _add(self, columns: tuple[list[Any], ...], payloads: list[bytes]) -> None:
        size = sum(map(len, payloads))
        if size > BATCH_BYTES and len(payloads) > 1:
            half = len(payloads) // 2
            self._add(tuple(column[:half] for column in columns), payloads[:half])
            self._add(tuple(column[half:] for column in columns), payloads[half:])
            return
        if self._size + size > BATCH_BYTES:
            self._flush()
        for column, more in zip(self._pending, columns, strict=True):
            column.extend(more)
        self._size += size
        if len(self._pending[0]) >= BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._pending[0]:
            return
        pa, found = self._pa, dict(zip(self._order, self._pending, strict=True))
        arrays = [_BUILD[name](pa, found[name], self._types[name]) for name in self.columns]
        if self._decoder is not None:
            names = found["subject"] if self._payload == "data" else found["key"]
            seqs = found["sequence"] if self._payload == "data" else found["revision"]
            arrays += self._decoder.decode(found[self._payload], names, seqs)
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self.schema))
        self._pending = [[], [], [], [], []]
        self._size = 0

    def table(self) -> pa.Table:
        """Everything that was added."""
        self._flush()
        return self._pa.Table.from_batches(self._batches, schema=self.schema)


def _types(pa: Any) -> dict[str, Any]:
    time = pa.timestamp("ns", tz="UTC")
    return {
        "subject": pa.string(),
        "sequence": pa.uint64(),
        "timestamp": time,
        "headers": pa.map_(pa.string(), pa.list_(pa.string())),
        "data": pa.binary(),
        "key": pa.string(),
        "value": pa.binary(),
        "revision": pa.uint64(),
        "created": time,
        "operation": pa.string(),
    }


def _plain(pa: Any, values: list[Any], kind: Any) -> Any:
    return pa.array(values, kind)


def _time(pa: Any, values: list[int], kind: Any) -> Any:
    return pa.array(values, pa.int64()).view(kind)  # the same buffer


def _headers(pa: Any, blocks: list[Any], kind: Any) -> Any:
    """A map per message: names with all their values, in order; an empty map for a message without headers."""
    names: list[str] = []
    values: list[list[str]] = []
    if not any(blocks):  # the common case: offsets that are all zero
        counts = pa.Array.from_buffers(pa.int32(), len(blocks) + 1, [None, pa.py_buffer(bytes(4 * len(blocks) + 4))])
    else:
        sizes = [0]
        for block in blocks:
            found: dict[str, list[str]] = {}
            if block:
                for name, value in (Headers.parse(block) if isinstance(block, bytes) else block).items():
                    found.setdefault(name, []).append(value)
            names += found
            values += found.values()
            sizes.append(len(found))
        counts = pa.array(accumulate(sizes), pa.int32())
    return pa.MapArray.from_arrays(counts, pa.array(names, kind.key_type), pa.array(values, kind.item_type))


_BUILD: dict[str, Callable[[Any, list[Any], Any], Any]] = {
    **dict.fromkeys(("subject", "sequence", "data", "key", "value", "revision", "operation"), _plain),
    "timestamp": _time,
    "created": _time,
    "headers": _headers,
}


def to_arrow(rows: Any, *, columns: Sequence[str] | None = None, schema: Any = None, errors: str = "raise") -> pa.Table:
    """A table of messages or entries: of `Columns`, of an iterable of them, of messages, or of entries (also a bucket's
    snapshot). The options are those of FrameOptions."""
    if hasattr(rows, "subjects") and hasattr(rows, "seqs"):
        builder = TableBuilder(columns=columns, schema=schema, errors=errors)
        builder.add_columns(rows)
        return builder.table()
    is_mapping = hasattr(rows, "values")  # a snapshot, also of a bucket without keys
    items = list(rows.values() if is_mapping else rows)
    first = items[0] if items else None
    names_entry = is_mapping or bool({*(columns or ())} & {"key", "value", "revision"})
    is_entry = hasattr(first, "revision") or (first is None and names_entry)
    builder = TableBuilder(columns=columns, schema=schema, errors=errors, entries=is_entry)
    if is_entry:
        builder.add_entries(items)
    elif hasattr(first, "seqs"):
        for item in items:
            builder.add_columns(item)
    elif first is None or (hasattr(first, "subject") and hasattr(first, "seq")):
        builder.add_messages(items)
    else:
        raise UsageError(f"rows must be messages, entries or columns, got {type(first).__name__}")
    return builder.table()


def to_pandas(rows: Any, **options: Unpack[FrameOptions]) -> pd.DataFrame:
    """The same as a pandas data frame, its columns backed by Arrow."""
    return pandas_of(to_arrow(rows, **options))


def to_polars(rows: Any, **options: Unpack[FrameOptions]) -> pl.DataFrame:
    """The same as a polars data frame."""
    return polars_of(to_arrow(rows, **options))


def pandas_of(table: pa.Table) -> pd.DataFrame:
    """A table as a pandas data frame. Columns stay Arrow's: a payload is bytes, a missing number no float."""
    try:
        import pandas
    except ImportError as error:
        raise UsageError("to_pandas needs pandas: pip install pandas") from error
    return table.to_pandas(types_mapper=pandas.ArrowDtype)


def polars_of(table: pa.Table) -> pl.DataFrame:
    """A table as a polars data frame."""
    try:
        import polars
    except ImportError as error:
        raise UsageError("to_polars needs polars: pip install polars") from error
    frame = polars.from_arrow(table)
    assert isinstance(frame, polars.DataFrame)
    return frame
