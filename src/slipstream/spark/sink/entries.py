"""Arrow record batches become changes of a bucket: a key with a value, or with None where it is to be deleted.

Which column is what is settled once, from the DataFrame's schema, before any job; what only the rows can show (a null,
a word that is no operation) is an error that names the row.
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

# What a change feed gives can be written: of a purge and of a value that expired the key's end is what counts.
_DELETES = {"PUT": False, "DEL": True, "DELETE": True, "PURGE": True, "MAXAGE": True}


class Change(NamedTuple):
    """A new value for a key, or None: delete it."""

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns hold what; `operation` and `deleted` are empty where the DataFrame has no such column."""

    key: str
    value: str
    operation: str = ""
    deleted: str = ""

    def changes(self, batch: pa.RecordBatch, *, first: int = 0, reject: Reject = fail) -> Iterator[tuple[int, Change]]:
        """What the rows of a batch ask for, in their order and with their number; `first` is that of the first one.

        A row that asks for nothing sensible is told to `reject`.
        """
        keys: list[str | None] = batch.column(self.key).to_pylist()
        # Binary also where it is text: Arrow's strings are UTF-8, as the bytes are that a bucket holds.
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
            raise UsageError(f"column {self.key!r} is null, a key is needed")
        if self.operation:
            if not isinstance(mark, str) or mark.upper() not in _DELETES:
                raise UsageError(
                    f"column {self.operation!r} of key {key!r} is {mark!r}: 'PUT', 'DEL', 'PURGE' or 'MaxAge' is "
                    "allowed (all but 'PUT' delete the key)"
                )
            mark = _DELETES[mark.upper()]
        if mark is None:  # neither, and a guess could be the wrong one
            raise UsageError(f"column {self.deleted!r} of key {key!r} is null: true or false is allowed")
        if mark:
            return Change(check_key(key), None)
        if value is None:
            raise UsageError(
                f"column {self.value!r} of key {key!r} is null; to delete a key say so in a boolean column 'deleted' "
                "or a column 'operation' with 'DEL'"
            )
        return Change(check_key(key), value)


def layout_of(columns: Mapping[str, str], options: SinkOptions) -> Layout:
    """The layout of a DataFrame with these columns (name to Spark's type name); raises if it cannot be written."""
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
                f"{JETSTREAM_KV} needs a column {name!r}, there are {', '.join(columns) or 'none'}; "
                "rename with select or AS, or name yours by the options keyColumn and valueColumn"
            )
    for name, kind in columns.items():
        if name not in allowed:
            raise UsageError(
                f"{JETSTREAM_KV} does not know what to do with column {name!r}: {key!r}, {value!r} and one of "
                f"{operation!r} and {deleted!r} are allowed; put more into the value, such as to_json(struct(...))"
            )
        if kind not in allowed[name]:
            hint = ": use to_json(...) or cast" if name == value else ""
            raise UsageError(f"{JETSTREAM_KV} column {name!r} is {kind}, {' or '.join(allowed[name])} is allowed{hint}")
    if operation in columns and deleted in columns:
        raise UsageError(f"{JETSTREAM_KV} is given both {operation!r} and {deleted!r}: one of them is allowed")
    return Layout(key, value, operation if operation in columns else "", deleted if deleted in columns else "")
