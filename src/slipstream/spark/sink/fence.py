"""Fence of the Key-Value sink: decides whether a change may replace the newest entry of its key.

Entries that a streaming query writes carry its id and the number of the micro-batch. A change is dropped if the entry
is of a later micro-batch of the same query: a worker that outlived its driver must not put an old value over a new one.
Changes are written by compare-and-set on the entry that the decision was made for, so there is no race in between.
"""

from __future__ import annotations

from typing import NamedTuple

from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.kv.entry import Operation, operation_of
from slipstream.spark.sink.entries import Change
from slipstream.wire import Headers

EPOCH = "Slipstream-Epoch"
_EPOCH = EPOCH.encode()


class Epoch(NamedTuple):
    """A micro-batch of a query."""

    query: str
    batch: int

    def header(self) -> bytes:
        """As a line of a header block."""
        return f"{EPOCH}: {self.query} {self.batch}\r\n".encode()


def epoch_of(header: bytes) -> Epoch | None:
    """The epoch that an entry was written in; None if it was not written by a streaming query."""
    if _EPOCH not in header:
        return None
    query, _, batch = (Headers.parse(header).get(EPOCH) or "").rpartition(" ")
    return Epoch(query, int(batch)) if query and batch.isascii() and batch.isdigit() else None


def is_due(change: Change, entry: StoredMessage | None, epoch: Epoch | None, *, only_changed: bool) -> bool:
    """Whether the change is to be written over the entry (None: the key has no entry)."""
    if entry is None:  # a delete marker would only add an entry to a key without any
        return change.value is not None or not only_changed
    if epoch is not None:
        written = epoch_of(entry.header)
        if written is not None and written.query == epoch.query and written.batch > epoch.batch:
            return False
    if not only_changed:
        return True
    is_deleted = operation_of(entry.header) is not Operation.PUT
    return not is_deleted if change.value is None else is_deleted or entry.data != change.value
