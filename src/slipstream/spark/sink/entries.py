"""Decoder of rows for the Key-Value sink: Arrow record batches to changes of a bucket.

Which column holds what follows from the DataFrame's schema and is checked before any job; what only the rows can show
(a null, an unknown operation) is an error that names the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from slipstream.errors import UsageError
from slipstream.kv.bucket import check_key
from slipstream.spark.options import JETSTREAM_KV, SinkOptions
from slipstream.spark.sink.records import Reject, fail

if TYPE_CHECKING:
    import pyarrow as pa

# The operations of a change feed can be written: a purge and an expired value both delete the key.
_DELETES = {"PUT": False, "DEL": True, "DELETE": True, "PURGE": True, "MAXAGE": True}


class Change(NamedTuple):
    """A new value for a key; None deletes it."""

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns hold what; `operation` and `deleted` are empty if the DataFrame has no such column."""

    key: str
    value: str
    operation: str = ""
    deleted: str = ""

    def changes(self, batch: pa.RecordBatch, *, first: int = 0, reject: Reject = fail) -> Iterator[tuple[int, Change]]:
        """The changes of a batch in row order, each with its row number, counted from `first`.

        `reject` is called for a row that is not a valid change.
        """
        keys: list[str | None] = batch.column(self.key).to_pylist()
        # Strings as binary: in Arrow they are UTF-8 already, the bytes that the bucket stores.
        values: list[bytes | None] = batch.column(self.value).cast("binary").to_pylist()
        marks: list[str | bool | None] = [False] * len(keys)
        if self.operation or self.deleted:
            marks = batch.column(self.operation or self.deleted).to_pylist()
        for row, (key, value, mark) in enumerate(zip(keys, values, marks, strict=True), first):
            try:
                change = self._change(key, value, mark)
            except UsageError as error:
                reject(row, key, value, UsageError(f"row {row}: {error}"))
                continue
            yield row, change

    def _change(self, key: str | None, value: bytes | None, mark: str | bool | None) -> Change:
        if key is None:
            raise UsageError(f"column {self.key!r} must be a key, got null")
        if self.operation:
            if not isinstance(mark, str) or mark.upper() not in _DELETES:
                raise UsageError(
                    f"column {self.operation!r} of key {key!r} must be 'PUT', 'DEL', 'PURGE' or 'MaxAge' (all but "
                    f"'PUT' delete the key), got {mark!r}"
                )
            mark = _DELETES[mark.upper()]
        if mark is None:  # neither true nor false: a guess could be wrong
            raise UsageError(f"column {self.deleted!r} of key {key!r} must be true or false, got null")
        if mark:
            return Change(check_key(key), None)
        if value is None:
            raise UsageError(
                f"column {self.value!r} of key {key!r} must not be null; to delete a key use a boolean column "
                "'deleted' or a column 'operation' with 'DEL'"
            )
        return Change(check_key(key), value)


def layout_of(columns: Mapping[str, str], options: SinkOptions) -> Layout:
    """The layout of a DataFrame with these columns (name to Spark's type name); raises UsageError if there is none."""
    key, value, operation, deleted = (
        options.key_column,
        options.value_column,
        options.operation_column,
        options.deleted_column,
    )
    allowed = {key: ("string",), value: ("binary", "string"), operation: ("string",), deleted: ("boolean",)}
    for name in (key, value):
        if name not in columns:
            raise UsageError(
                f"{JETSTREAM_KV} needs a column {name!r}, got {', '.join(columns) or 'none'}; "
                "rename with select or AS, or name yours by the options keyColumn and valueColumn"
            )
    for name, kind in columns.items():
        if name not in allowed:
            raise UsageError(
                f"{JETSTREAM_KV} columns must be {key!r}, {value!r} and optionally one of {operation!r} and "
                f"{deleted!r}, got {name!r}; put more into the value, such as to_json(struct(...))"
            )
        if kind not in allowed[name]:
            hint = ": use to_json(...) or cast" if name == value else ""
            raise UsageError(f"{JETSTREAM_KV} column {name!r} must be {' or '.join(allowed[name])}, got {kind}{hint}")
    if operation in columns and deleted in columns:
        raise UsageError(f"{JETSTREAM_KV} columns {operation!r} and {deleted!r} are mutually exclusive")
    return Layout(key, value, operation if operation in columns else "", deleted if deleted in columns else "")
