"""Arrow record batches of a bucket's entries: every entry, or the state of the bucket.

A state (as of now, or as of a revision) is computed from all entries that the bucket still has. As of a revision it is
exact for a key unless the bucket's history no longer reaches back that far; such keys are reported, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import pyarrow as pa

from slipstream.jetstream.reads.columns import Columns
from slipstream.kv.entry import Operation, operation_of
from slipstream.kv.snapshot import why_lost
from slipstream.spark.source.rows import MAX_BYTES, MAX_ROWS, TIME, regroup


class Row(NamedTuple):
    """An entry; `delta` is the number of newer entries of its key, None if unknown."""

    key: str
    value: bytes
    operation: str
    revision: int
    time: int
    delta: int | None


_COLUMNS: dict[str, tuple[pa.DataType, Callable[[Sequence[Row]], pa.Array]]] = {
    "key": (pa.string(), lambda rows: pa.array([row.key for row in rows], pa.string())),
    "value": (
        pa.binary(),
        lambda rows: pa.array([row.value if row.operation == "PUT" else None for row in rows], pa.binary()),
    ),
    "operation": (pa.string(), lambda rows: pa.array([row.operation for row in rows], pa.string())),
    "revision": (pa.int64(), lambda rows: pa.array([row.revision for row in rows], pa.int64())),
    "created": (TIME, lambda rows: pa.array([row.time // 1000 for row in rows], pa.int64()).cast(TIME)),
    "delta": (pa.int64(), lambda rows: pa.array([row.delta for row in rows], pa.int64())),
}


@dataclass(frozen=True, slots=True)
class KeyHistory:
    """The entries that the bucket still has of a key, oldest first."""

    rows: list[Row]

    def at(self, revision: int) -> Row | None:
        """The entry as of a revision."""
        return next((row for row in reversed(self.rows) if row.revision <= revision), None)


def entries(chunks: Iterable[Columns], prefix: str) -> Iterator[list[Row]]:
    """Entries in the order of their revisions, chunk by chunk; `prefix` is the part of the subjects before the keys."""
    cut = len(prefix)
    for chunk in chunks:
        operations = (operation_of(header).value if header else Operation.PUT.value for header in chunk.headers)
        rows = zip(chunk.subjects, chunk.data, operations, chunk.seqs, chunk.times, strict=True)
        yield [Row(subject[cut:], data, word, seq, time, None) for subject, data, word, seq, time in rows]


def feed(chunks: Iterable[Columns], prefix: str, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Record batches of every entry, for a change feed."""
    for rows in entries(regroup(chunks, max_rows=MAX_ROWS, max_bytes=MAX_BYTES), prefix):
        yield record_batch(rows, names)


def by_key(chunks: Iterable[Columns], prefix: str) -> dict[str, KeyHistory]:
    """All entries, grouped by key."""
    kept: dict[str, KeyHistory] = {}
    for rows in entries(chunks, prefix):
        for row in rows:
            found = kept.get(row.key)
            if found is None:
                kept[row.key] = KeyHistory([row])
            elif row.revision > found.rows[-1].revision:
                found.rows.append(row)
    return kept


def state(kept: Iterable[KeyHistory], *, as_of: int, include_deletes: bool) -> Iterator[Row]:
    """The newest entry of each key as of a revision (0: now), without deleted keys unless they are included."""
    for one in kept:
        row = one.at(as_of) if as_of else one.rows[-1]
        if row is not None and (include_deletes or row.operation == Operation.PUT):
            yield row._replace(delta=0)


def history(kept: Iterable[KeyHistory], *, first: int, last: int) -> Iterator[Row]:
    """Every entry between two revisions, each with the number of newer entries of its key."""
    for one in kept:
        newest = len(one.rows) - 1
        for index, row in enumerate(one.rows):
            if first <= row.revision <= last:
                yield row._replace(delta=newest - index)


def unknown_keys(kept: dict[str, KeyHistory], *, as_of: int, history: int) -> list[str]:
    """Keys whose value as of a revision is unknown, because the bucket no longer has that entry or may have lost it.

    A key whose entries are all newer did not exist then, unless older entries were dropped: because there were more
    than the bucket keeps, or by a purge. Keys without any entry left are covered by `check_past`.
    """
    return [
        key
        for key, one in kept.items()
        if one.rows[0].revision > as_of and why_lost(key, len(one.rows), one.rows[0].operation, history=history)
    ]


def batches(rows: Iterable[Row], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Record batches of a bounded size."""
    rows = iter(rows)
    while piece := list(islice(rows, MAX_ROWS)):
        while piece:
            size = count = 0
            for row in piece:
                size += len(row.value) + len(row.key)
                if count and size > MAX_BYTES:
                    break
                count += 1
            yield record_batch(piece[:count], names)
            piece = piece[count:]


def record_batch(rows: Sequence[Row], names: Sequence[str]) -> pa.RecordBatch:
    """One batch with the columns of these names."""
    return pa.RecordBatch.from_arrays([_COLUMNS[name][1](rows) for name in names], schema=arrow_schema(names))


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The types of the columns."""
    return pa.schema([pa.field(name, _COLUMNS[name][0]) for name in names])
