"""Spark sink `jetstream_kv`: rows as values of a bucket, for `df.write` and `writeStream`.

A task commits only after the stream has acknowledged all of its rows. Writing a row again leaves the same value, so a
retried task or micro-batch changes nothing; the rows of a streaming query are fenced by their batch number as well
(`fence.py`). Of rows of one write that share a key, one is kept. For streaming queries in update mode, which Spark does
not offer to this sink, see `foreach_batch.py`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from slipstream.api import GetRequest
from slipstream.errors import Error, MessageNotFoundError, UsageError, WrongLastSequenceError
from slipstream.facade._sync.client import JetStream
from slipstream.jetstream.publish.bulk_window import Draft
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.spark.connect import RetryingConnection
from slipstream.spark.micro_batch import micro_batch
from slipstream.spark.options import SinkOptions, sink_options
from slipstream.spark.sink.dead_letters import DeadLetters, is_bad_row
from slipstream.spark.sink.entries import Change, Layout, layout_of
from slipstream.spark.sink.fence import Epoch, is_due
from slipstream.spark.sink.outbox import Outbox, size_error
from slipstream.spark.sink.replay import Replay
from slipstream.spark.sink.stream import current_task
from slipstream.spark.source.kv_location import origin_of

if TYPE_CHECKING:
    import pyarrow as pa

_DELETE = b"KV-Operation: DEL\r\n"
_ROUNDS = 20
MAX_KEYS = 1_000  # read together, or sent
MAX_BYTES = 4 * 1024 * 1024
Item = tuple[int, Change]  # a row number and its change


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The result of a task: its rows, the unchanged and rejected ones among them, and the newest revision."""

    rows: int
    unchanged: int
    rejected: int
    last_revision: int


@dataclass(frozen=True, slots=True)
class KeyValueTask:
    """The work of one task. `write` is unique to this write."""

    options: SinkOptions
    layout: Layout
    write: str

    def run(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write every row and wait until each is acknowledged; a server that is away is waited for."""
        epoch, connection = current_epoch(), self.options.connection
        prefix = self._dead_letter_prefix(epoch, current_task().partitionId())
        work = _TaskChanges(
            self.layout, batches, DeadLetters(self.options.dead_letter, prefix=prefix, timeout=connection.timeout)
        )
        with RetryingConnection(connection, os.environ, reconnect=False) as server:
            server.run(lambda js: self._attempt(js, work, epoch, server.succeeded))
        return Written(work.rows, work.unchanged, work.rejects.count, work.last_revision)

    def _attempt(self, js: JetStream, work: _TaskChanges, epoch: Epoch | None, confirmed: Callable[[], None]) -> None:
        """Write all changes, or those that were not confirmed on an earlier connection."""
        work.rejects.attach(js)
        writer = BucketWriter(js, self.options, epoch, work.rejects)
        for block in work.changes:
            for row, change in block:
                writer.add(change, row)
            work.rejects.send()
            if work.changes.is_full:
                work.confirm(writer)
                confirmed()
        work.confirm(writer)

    def _dead_letter_prefix(self, epoch: Epoch | None, partition: int) -> str:
        """The prefix of the ids of its dead letters: the same for every attempt, unique to this task."""
        name = f"{epoch.query}/{epoch.batch}" if epoch else self.write
        return f"{name}/{self.options.bucket}/{partition}"


class _TaskChanges:
    """What a task keeps while its connections come and go: its changes, dead letters and statistics."""

    def __init__(self, layout: Layout, batches: Iterator[pa.RecordBatch], rejects: DeadLetters) -> None:
        self.rejects = rejects
        self.changes = Replay(self._blocks(layout, batches), lambda item: len(item[1].value or b""))
        self.rows = self.unchanged = self.last_revision = 0

    def _blocks(self, layout: Layout, batches: Iterator[pa.RecordBatch]) -> Iterator[list[Item]]:
        for batch in batches:
            first, self.rows = self.rows, self.rows + batch.num_rows
            yield list(layout.changes(batch, first=first, reject=self.rejects.add))

    def confirm(self, writer: BucketWriter) -> None:
        """Wait until every change so far is stored or a dead letter: no later attempt of this task needs them."""
        writer.flush()
        self.rejects.flush()
        self.changes.confirm()
        self.unchanged, writer.unchanged = self.unchanged + writer.unchanged, 0
        self.last_revision = max(self.last_revision, writer.last_revision)


class BucketWriter:
    """Writes changes to the bucket: blindly, or by compare-and-set where the bucket's entries matter."""

    def __init__(self, js: JetStream, options: SinkOptions, epoch: Epoch | None, rejects: DeadLetters) -> None:
        origin = origin_of(js, options.bucket)
        self._rejects = rejects
        self._stream = origin.stream
        self._prefix, self._put_prefix = origin.address.prefix, origin.address.put_prefix
        self._timeout = options.connection.timeout
        self._outbox: Outbox[Item] = Outbox(js, max_in_flight=options.max_in_flight, timeout=self._timeout)
        self._drafts: list[Draft] = []  # to be sent together,
        self._items: list[Item] = []  # and their changes
        self._max_payload = js.client.server_info.max_payload
        self._epoch = epoch
        self._mark = epoch.header() if epoch else b""
        self._only_changed = options.only_changed
        self._is_blind = epoch is None and not options.only_changed
        self._waiting: dict[str, Item] = {}
        self._min_last_seq = origin.info.state.last_seq
        self._gathered = 0  # bytes
        self.unchanged: int = 0

    @property
    def last_revision(self) -> int:
        return self._outbox.last_seq

    def add(self, change: Change, row: int = 0) -> None:
        """Add a change; of several for one key the last one counts."""
        if self._is_blind:
            self._gather(row, change, b"")
            if len(self._drafts) >= MAX_KEYS or self._gathered > MAX_BYTES:
                self._send()
            return
        subject = self._prefix + change.key
        self._waiting.pop(subject, None)
        self._waiting[subject] = (row, change)
        if len(self._waiting) >= MAX_KEYS:
            self._write_waiting()

    def flush(self) -> None:
        """Write every change; raises an error that names the key if one is rejected."""
        if self._waiting:
            self._write_waiting()
        self._send()
        self._outbox.flush()
        self._stale()

    def _write_waiting(self) -> None:
        due, self._waiting = self._waiting, {}
        entries = self._read(list(due))
        for _ in range(_ROUNDS):
            for subject, (row, change) in due.items():
                entry = entries.get(subject)
                if is_due(change, entry, self._epoch, only_changed=self._only_changed):
                    expected = entry.seq if entry else 0
                    self._gather(row, change, b"Nats-Expected-Last-Subject-Sequence: %d\r\n" % expected)
                else:
                    self.unchanged += 1
            self._send()
            self._outbox.flush()
            due = self._stale()
            if not due:
                return
            entries = {}
            for subject in due:  # few: another writer has just changed the key, or a replica was behind
                try:
                    request = GetRequest(last_by_subj=subject)
                    entries[subject] = self._stream.get_from_leader(request)
                except MessageNotFoundError:
                    continue
        raise UsageError(f"key {next(iter(due.values()))[1].key!r} is changed again and again by another writer")

    def _read(self, subjects: list[str]) -> dict[str, StoredMessage]:
        """The entries of these keys, not older than when this task began."""
        return self._stream.get_last_many(subjects, min_last_seq=self._min_last_seq, timeout=self._timeout)

    def _gather(self, row: int, change: Change, expected: bytes) -> None:
        draft: Draft = (self._put_prefix + change.key, change.value or b"", self._header(change, expected))
        error = size_error(draft, self._max_payload)
        if error is not None:
            self._rejects.add(row, change.key, change.value, _rejection(row, change, error))
            return
        self._drafts.append(draft)
        self._items.append((row, change))
        self._gathered += len(draft[1])

    def _send(self) -> None:
        drafts, items = self._drafts, self._items
        self._drafts, self._items, self._gathered = [], [], 0
        self._outbox.send(drafts, items)
        if self._is_blind:
            self._stale()

    def _stale(self) -> dict[str, Item]:
        """The changes that were rejected because the key has changed; other rejections are dead letters, or raised."""
        found = {}
        for (row, change), error in self._outbox.refused():
            if isinstance(error, WrongLastSequenceError):
                found[self._prefix + change.key] = (row, change)
            elif is_bad_row(error):
                self._rejects.add(row, change.key, change.value, _rejection(row, change, error))
            else:
                raise error
        return found

    def _header(self, change: Change, expected: bytes = b"") -> bytes:
        lines = self._mark + expected + (_DELETE if change.value is None else b"")
        return b"NATS/1.0\r\n%b\r\n" % lines if lines else b""


def _rejection(row: int, change: Change, error: Error) -> UsageError:
    return UsageError(f"row {row}: key {change.key!r} was rejected: {error}")


def current_epoch() -> Epoch | None:
    """The micro-batch of this task; None outside of streaming queries."""
    found = micro_batch(current_task())
    return Epoch(*found) if found else None


def key_value_task(options: Mapping[str, str], schema: StructType, *, is_streaming: bool = False) -> KeyValueTask:
    """The work of a write with these options, checked against the server.

    Spark calls this for every micro-batch of a streaming query, so there a server that is away is waited for.
    """
    found = sink_options(options)
    layout = layout_of({field.name: field.dataType.simpleString() for field in schema.fields}, found)
    retry_for = None if is_streaming else found.connection.plan_retry_for
    with RetryingConnection(found.connection, os.environ, retry_for=retry_for) as server:
        server.run(lambda js: origin_of(js, found.bucket))
    return KeyValueTask(found, layout, uuid.uuid4().hex)


class KeyValueBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, task: KeyValueTask) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._task.run(iterator)


class KeyValueStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def __init__(self, task: KeyValueTask) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._task.run(iterator)
