"""`df.write` and `writeStream` with the format `jetstream_kv`: rows become the values of a bucket.

A task commits only after the stream has acknowledged every one of its rows. Writing a row again leaves the same value,
so a task or a micro-batch that is tried again changes nothing; what a streaming query writes is fenced by its batch
number as well (`fence.py`). Rows of one write that share a key: one of them is kept. For streaming queries in update
mode see `views.py`: Spark does not let this sink take part in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from slipstream.api import GetRequest
from slipstream.errors import BucketNotFoundError, MessageNotFoundError, UsageError, WrongLastSequenceError
from slipstream.facade.blocking import JetStream
from slipstream.jetstream.window import FailedPublish
from slipstream.kv.bucket import STREAM_PREFIX, check_key
from slipstream.spark.entries import Change, Layout, layout_of
from slipstream.spark.fence import Epoch, is_due
from slipstream.spark.latest import MOST_SUBJECTS, latest
from slipstream.spark.link import open_jetstream
from slipstream.spark.options import SinkOptions, sink_options
from slipstream.spark.outbox import Outbox
from slipstream.spark.stream_sink import BATCH_ID, QUERY_ID, current_task

if TYPE_CHECKING:
    import pyarrow as pa

_DELETE = b"KV-Operation: DEL\r\n"
_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task has stored: how many rows it had, how many it left as they were, and the newest revision."""

    rows: int
    unchanged: int
    last_revision: int


@dataclass(frozen=True, slots=True)
class KeyValueTask:
    """The work of one task."""

    options: SinkOptions
    layout: Layout

    def run(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write every row and wait until each is acknowledged."""
        epoch = current_epoch()
        rows = 0
        with open_jetstream(self.options.connection, os.environ, reconnect=False) as js:
            keeper = Keeper(js, self.options, epoch)
            for batch in batches:
                rows = self._one(batch, keeper, rows)
            keeper.flush()
            return Written(rows, keeper.unchanged, keeper.last_revision)

    def _one(self, batch: pa.RecordBatch, keeper: Keeper, first: int) -> int:
        for row, change in enumerate(self.layout.changes(batch, first=first), first):
            try:
                keeper.add(change)
            except UsageError as error:
                raise UsageError(f"row {row}: {error}") from error
        return first + int(batch.num_rows)


class Keeper:
    """Brings changes into the bucket: blindly, or against what the bucket has where that matters."""

    def __init__(self, js: JetStream, options: SinkOptions, epoch: Epoch | None) -> None:
        self._js = js
        self._stream = STREAM_PREFIX + options.bucket
        self._prefix = f"$KV.{options.bucket}."
        self._timeout = options.connection.timeout
        self._outbox = Outbox(js, max_in_flight=options.max_in_flight, timeout=self._timeout)
        self._epoch = epoch
        self._mark = epoch.header() if epoch else b""
        self._only_changed = options.only_changed
        self._is_blind = epoch is None and not options.only_changed
        self._waiting: dict[str, Change] = {}
        self._fresh = 0 if self._is_blind else js.stream(self._stream).info().state.last_seq
        self.unchanged = 0

    @property
    def last_revision(self) -> int:
        return self._outbox.last_seq

    def add(self, change: Change) -> None:
        """Take a change; of several for one key the last one counts."""
        subject = self._prefix + check_key(change.key)
        if self._is_blind:
            self._outbox.send(subject, change.value or b"", self._header(change))
            if self._outbox.has_refused:
                self.flush()
            return
        self._waiting.pop(subject, None)
        self._waiting[subject] = change
        if len(self._waiting) >= MOST_SUBJECTS:
            self._write_waiting()

    def flush(self) -> None:
        """Everything is in the bucket, or an error says which key is not."""
        if self._waiting:
            self._write_waiting()
        self._outbox.flush()
        for failure in self._outbox.refused():
            key = failure.subject.removeprefix(self._prefix)
            raise UsageError(f"key {key!r} was refused: {failure.error}") from failure.error

    def _write_waiting(self) -> None:
        due, self._waiting = self._waiting, {}
        entries = latest(self._js, self._stream, list(due), at_least=self._fresh, timeout=self._timeout)
        for _ in range(_ROUNDS):
            sent: list[str] = []
            base = self._outbox.sent
            for subject, change in due.items():
                entry = entries.get(subject)
                if not is_due(change, entry, self._epoch, only_changed=self._only_changed):
                    self.unchanged += 1
                    continue
                expected = b"Nats-Expected-Last-Subject-Sequence: %d\r\n" % (entry.seq if entry else 0)
                sent.append(subject)
                self._outbox.send(subject, change.value or b"", self._header(change, expected))
            self._outbox.flush()
            stale = [sent[failure.place - base] for failure in self._refused()]
            if not stale:
                return
            due = {subject: due[subject] for subject in stale}
            entries = {}
            for subject in due:  # few: somebody else wrote the same key at this very moment, or a replica was behind
                try:
                    request = GetRequest(last_by_subj=subject)
                    entries[subject] = self._js.stream(self._stream).get_from_leader(request)
                except MessageNotFoundError:
                    continue
        raise UsageError(f"key {next(iter(due.values())).key!r} is changed all the time by somebody else")

    def _refused(self) -> list[FailedPublish]:
        failures = self._outbox.refused()
        for failure in failures:
            if not isinstance(failure.error, WrongLastSequenceError):
                key = failure.subject.removeprefix(self._prefix)
                raise UsageError(f"key {key!r} was refused: {failure.error}") from failure.error
        return failures

    def _header(self, change: Change, expected: bytes = b"") -> bytes:
        lines = self._mark + expected + (_DELETE if change.value is None else b"")
        return b"NATS/1.0\r\n%b\r\n" % lines if lines else b""


def current_epoch() -> Epoch | None:
    """The micro-batch that this task belongs to; None outside of streaming queries."""
    context = current_task()
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    return Epoch(query, int(batch)) if query and batch else None


def key_value_task(options: Mapping[str, str], schema: StructType) -> KeyValueTask:
    """The work of a write with these options, checked against the server."""
    found = sink_options(options)
    layout = layout_of({field.name: field.dataType.simpleString() for field in schema.fields}, found)
    with open_jetstream(found.connection, os.environ) as js:
        try:
            js.key_value(found.bucket)
        except BucketNotFoundError as error:
            raise UsageError(
                f"there is no bucket {found.bucket!r}: make it first, with create_key_value or `nats kv add`"
            ) from error
    return KeyValueTask(found, layout)


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
