"""`df.write` and `writeStream` with the format `jetstream`: rows become messages of a stream, each exactly once.

Every row has an id that is the same at every attempt (`records.py`), and how far a batch was written is on record
(`progress.py`). An attempt that is not the first reads what the stream has got of its rows and sends the rest. Attempts
that run side by side (speculative tasks, a worker that outlives its driver) are held apart by the stream's duplicate
window: an attempt looks at the stream again before half of that time has passed since it last did, so that a row is
either found there or refused as a duplicate. Publishes are never kept for a later connection: a lost one is an error.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from slipstream.api import StreamInfo
from slipstream.errors import ApiError, Error, StreamNotFoundError, UsageError
from slipstream.facade._sync.client import JetStream
from slipstream.jetstream.publish.bulk_window import Draft
from slipstream.spark.connect import open_jetstream
from slipstream.spark.options import JETSTREAM, StreamSinkOptions, stream_sink_options
from slipstream.spark.sink.dead_letters import DeadLetters, is_rows_fault
from slipstream.spark.sink.outbox import FastOutbox, Outbox, misfit
from slipstream.spark.sink.progress import Progress, Task, written_ids
from slipstream.spark.sink.records import Record, Shape, id_prefix, records, shape_of
from slipstream.wire import Headers
from slipstream.wire.subjects import matcher

if TYPE_CHECKING:
    import pyarrow as pa

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
_LEAST_LOOK = 0.5
ATOMIC_ROWS = 1_000  # the most that a server takes in one batch
ATOMIC_BYTES = 4 * 1024 * 1024
REMEMBERED = 10_000  # subjects


@dataclass(frozen=True, slots=True)
class Sent(WriterCommitMessage):
    """What a task has done: its rows, those an earlier attempt had written, those it rejected, the newest sequence."""

    partition: int
    rows: int
    found: int
    rejected: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class StreamTask:
    """The work of one task."""

    options: StreamSinkOptions
    shape: Shape

    def run(self, batches: Iterator[pa.RecordBatch], task: Task) -> Sent:
        """Bring every row into the stream, once, and wait until each is acknowledged."""
        options = self.options
        with open_jetstream(options.connection, os.environ, reconnect=False) as js:
            target = check_target(js, options)
            progress = Progress(js, options.progress, options.stream)
            begun = progress.begin(task, target)
            if begun.is_done:
                return Sent(task.partition, 0, 0, 0, target.state.last_seq)
            prefix = id_prefix(*task)
            rejects = DeadLetters(js, options.dead_letter, prefix=prefix, timeout=options.connection.timeout)
            rows = records(batches, self.shape, prefix, rejects.add)
            known = "" if self.shape.has_msg_id else prefix
            is_fast = bool(known) and begun.is_first and uses_fast(options, target)
            sender = _Sender(js, options, target, rejects, prefix=known, begin=begun.begin, is_fast=is_fast)
            if not begun.is_first:
                sender.look()
            sent = sender.send_all(rows)
            rejects.flush()
            if not progress.done(task, begun, target) and is_fast:
                sender.check_all()
            return Sent(task.partition, sent, sender.found, rejects.count, sender.last_seq)


class _Sender:
    """Sends the rows of one attempt, and looks from time to time at what others have sent of them."""

    def __init__(
        self,
        js: JetStream,
        options: StreamSinkOptions,
        target: StreamInfo,
        rejects: DeadLetters,
        *,
        prefix: str,
        begin: int,
        is_fast: bool,
    ) -> None:
        self._js = js
        self._rejects = rejects
        self._stream = js.stream(options.stream)
        self._now = js.client.now
        self._prefix = prefix
        self._begin = self._looked_to = begin
        self._looked_at = self._now()
        self._look_every = max(_LEAST_LOOK, target.config.duplicate_window.total_seconds() / 2)
        self._known: set[str] = set()
        timeout = options.connection.timeout
        outbox: type[Outbox[Record]] = FastOutbox if is_fast else Outbox
        self._outbox = outbox(js, max_in_flight=options.max_in_flight, timeout=timeout)
        self._expected = b"Nats-Expected-Stream: %b\r\nNats-Msg-Id: " % options.stream.encode()
        self._most = js.client.server_info.max_payload
        self._timeout = timeout
        self._subjects = target.config.subjects
        self._listens = [matcher(subject) for subject in self._subjects]
        self._taken: set[str] = set()
        self._batch: list[Record] | None = [] if uses_atomic(options, target) and not is_fast else None
        self._batch_bytes = 0
        self._committed = 0  # the newest sequence of an atomic batch
        self._left_out = 0  # rows that a look has found

    @property
    def found(self) -> int:
        """Rows that were there already. (Fast batches do not tell of them.)"""
        return self._left_out + self._outbox.duplicates

    @property
    def last_seq(self) -> int:
        return max(self._outbox.last_seq, self._committed)

    def look(self) -> None:
        """Note the ids that the stream has got since the last look."""
        self._outbox.flush()  # what is on its way is seen now or by the next look, in any case before half the window
        info = self._stream.info()
        self._looked_at = self._now()
        self._known.update(written_ids(self._stream, info, self._looked_to + 1, self._prefix))
        self._looked_to = max(info.state.last_seq, self._looked_to)

    def send_all(self, blocks: Iterator[list[Record]]) -> int:
        """Send what is not there; gives the number of rows. The first row that is refused is an error that names it."""
        count = 0
        size = self._outbox.block
        for block in blocks:
            count += len(block)
            for at in range(0, len(block), size):
                self._outbox.make_room(size)  # a wait belongs before the look: what is due now is sent at once
                if self._now() - self._looked_at > self._look_every:
                    self.look()
                self._bring(self._due(block[at : at + size]))
        if self._batch:
            self._commit(self._batch)
        self._outbox.flush()
        self._settle()
        return count

    def check_all(self) -> None:
        """Another attempt ran side by side with this one. In a fast batch a row that the other one had on its way
        counts as a duplicate, and what is on its way can be lost with the stream's leader: every row must be seen."""
        rows = self._outbox.acked + self._left_out
        info = self._stream.info()
        missing = rows - len(set(written_ids(self._stream, info, self._begin + 1, self._prefix)))
        if missing > 0:
            raise Error(
                f"another attempt wrote to stream {self._stream.name!r} at the same time, and {missing} of {rows} rows "
                "are not there: the task must be tried again"
            )

    def _bring(self, due: list[Record]) -> None:
        if self._batch is None:
            self._send(due)
        else:
            self._gather(due, self._batch)
        self._settle()

    def _due(self, block: list[Record]) -> list[Record]:
        """The rows that are to be sent."""
        if self._known:
            fresh = [record for record in block if record.msg_id not in self._known]
            self._left_out += len(block) - len(fresh)
            block = fresh
        if self._taken.issuperset([record.subject for record in block]):
            return block
        return [record for record in block if record.subject in self._taken or self._takes(record)]

    def _takes(self, record: Record) -> bool:
        """Whether the stream listens on a row's subject. An answer cannot tell: none comes while its leader changes."""
        if not any(listens(record.subject) for listens in self._listens):
            allowed = UsageError(f"stream {self._stream.name!r} takes {', '.join(self._subjects) or 'no subjects'}")
            self._rejects.add(record.row, record.subject, record.data, refused(record, allowed))
            return False
        self._taken = self._taken if len(self._taken) < REMEMBERED else set()
        self._taken.add(record.subject)
        return True

    def _gather(self, block: list[Record], batch: list[Record]) -> None:
        for record in block:
            batch.append(record)
            self._batch_bytes += len(record.data)
            if len(batch) >= ATOMIC_ROWS or self._batch_bytes >= ATOMIC_BYTES:
                self._commit(batch)

    def _commit(self, batch: list[Record]) -> None:
        """Store rows together. A refusal says nothing about the single rows, and one that another attempt has sent is
        reason enough for it: they are sent one by one then, which names what is wrong and leaves out what is there."""
        try:
            with self._js.atomic_batch(timeout=self._timeout) as atomic:
                for record in batch:
                    headers = Headers.parse(b"NATS/1.0\r\n%b\r\n" % record.headers)
                    expected = self._stream.name
                    atomic.publish(
                        record.subject, record.data, headers=headers, msg_id=record.msg_id, expected_stream=expected
                    )
            self._committed = atomic.ack.seq if atomic.ack else 0
        except (ApiError, UsageError):
            self._send(batch.copy())
        batch.clear()
        self._batch_bytes = 0

    def _send(self, block: list[Record]) -> None:
        """A hot path: 1 µs a row."""
        expected = self._expected
        drafts = [
            (subject, data, b"NATS/1.0\r\n%b%b%b\r\n\r\n" % (headers, expected, msg_id.encode()))
            for _, subject, data, headers, msg_id in block
        ]
        if max([len(data) + len(header) for _, data, header in drafts], default=0) > self._most:
            self._send_fitting(drafts, block)
        else:
            self._outbox.send(drafts, block)

    def _send_fitting(self, drafts: list[Draft], block: list[Record]) -> None:
        """Some are larger than the server takes."""
        for draft, record in zip(drafts, block, strict=True):
            error = misfit(draft, self._most)
            if error is None:
                self._outbox.send([draft], [record])
            else:
                self._rejects.add(record.row, record.subject, record.data, refused(record, error))

    def _settle(self) -> None:
        """A refusal is the row's fault, or an error."""
        for record, error in self._outbox.refused():
            if not is_rows_fault(error):
                raise error
            self._rejects.add(record.row, record.subject, record.data, refused(record, error))


def refused(record: Record, error: Error) -> UsageError:
    """The refusal, with the row that it is about."""
    return UsageError(f"row {record.row} (subject {record.subject!r}) was refused: {error}")


def uses_atomic(options: StreamSinkOptions, target: StreamInfo) -> bool:
    """Whether rows go in atomic batches: where the stream takes them, unless the user says otherwise."""
    if options.atomic == "true" and not target.config.allow_atomic:
        raise UsageError(
            f"{JETSTREAM} option 'atomic' is true, but stream {options.stream!r} does not take atomic batches: set "
            "allow_atomic in its configuration (nats-server 2.12 or newer), or leave the option out"
        )
    return options.atomic != "false" and target.config.allow_atomic


def uses_fast(options: StreamSinkOptions, target: StreamInfo) -> bool:
    """Whether rows go in fast batches, which have one ack for many: where the stream takes them, unless the user says
    otherwise."""
    if options.batched == "true" and not target.config.allow_batched:
        raise UsageError(
            f"{JETSTREAM} option 'batched' is true, but stream {options.stream!r} does not take fast batches: set "
            "allow_batched in its configuration (nats-server 2.14 or newer), or leave the option out"
        )
    return options.batched != "false" and options.atomic != "true" and target.config.allow_batched


def check_target(js: JetStream, options: StreamSinkOptions) -> StreamInfo:
    """The stream's info; raises if it cannot be written to."""
    try:
        info = js.stream(options.stream).info()
    except StreamNotFoundError as error:
        raise UsageError(f"there is no stream {options.stream!r}: make it first, with create_stream") from error
    if info.config.mirror is not None or info.config.sealed:
        kind = "a mirror" if info.config.mirror is not None else "sealed"
        raise UsageError(f"stream {options.stream!r} is {kind}: only its origin can be written to")
    if info.config.no_ack:
        raise UsageError(f"stream {options.stream!r} has no_ack set: rows that nobody acknowledges can be lost")
    uses_atomic(options, info)
    uses_fast(options, info)
    return info


def stream_task(options: Mapping[str, str], schema: StructType) -> StreamTask:
    """The work of a write with these options, checked against the server."""
    found = stream_sink_options(options)
    shape = shape_of({field.name: field.dataType.simpleString() for field in schema.fields})
    if found.batched == "true" and shape.has_msg_id:
        raise UsageError(
            f"{JETSTREAM} option 'batched' is true, but there is a column 'msg_id': fast batches are for rows whose "
            "ids are the sink's; leave the option or the column out"
        )
    with open_jetstream(found.connection, os.environ) as js:
        check_target(js, found)
        Progress(js, found.progress, found.stream).prepare()
    return StreamTask(found, shape)


def current_task() -> TaskContext:
    """The task that this worker runs."""
    context = TaskContext.get()
    if context is None:
        raise UsageError("rows are written by tasks of Spark only")
    return context


class StreamBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame. With the option `writeId` a write that is run again leaves out what it wrote before."""

    def __init__(self, task: StreamTask) -> None:
        self._is_named = bool(task.options.write_id)
        self._task = task if self._is_named else replace(task, options=_with_id(task.options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        context, options = current_task(), self._task.options
        if options.batch_id is None:
            return self._task.run(iterator, Task(f"write-{options.write_id}", 0, context.partitionId()))
        query = context.getLocalProperty(QUERY_ID)
        if not query:
            raise UsageError("option 'batchId' is for foreachBatch of a streaming query; there is none")
        writer = f"{query}-{options.write_id}" if self._is_named else query
        return self._task.run(iterator, Task(writer, options.batch_id, context.partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark gives them
        """Nobody will try it again, unless it has a name: then a second run must find the records."""
        options = self._task.options
        if self._is_named or options.batch_id is not None:
            return
        with open_jetstream(options.connection, os.environ) as js:
            Progress(js, options.progress, options.stream).forget(f"write-{options.write_id}")


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def __init__(self, task: StreamTask) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        context = current_task()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if not query or not batch:
            raise UsageError(f"Spark does not say which batch this is: {QUERY_ID} is {query!r}, {BATCH_ID} {batch!r}")
        return self._task.run(iterator, Task(query, int(batch), context.partitionId()))


def _with_id(options: StreamSinkOptions) -> StreamSinkOptions:
    return replace(options, write_id=uuid.uuid4().hex)
