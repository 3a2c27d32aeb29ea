"""Spark sink `jetstream`: rows as messages of a stream, each exactly once, for `df.write` and `writeStream`.

Theory of operation. Spark may run a task more than once: one attempt after another (a retry, or a restarted driver,
possibly days later) or two at the same time (speculation, or a worker that outlives its driver). Three things keep a
row from being stored twice or not at all:

1. The row's id (`records.py`), a digest of its content, is the same in every attempt and is its `Nats-Msg-Id`.
2. A progress record per task (`progress.py`), changed by compare-and-set, has the target's last sequence from before
   the first row was sent (`begin`). No row of the task can be in the stream before it.
3. The ids in the target stream itself. An attempt reads them from a sequence on and leaves out the rows it finds.

                   begin()                     all rows acked, done()
    no record ----------------> BEGUN(begin, n) --------------------> DONE: later attempts write nothing
                                 |         ^
                                 +---------+
                        begin() by attempt n + 1: read the ids after `begin`, send the missing rows

One attempt after another is covered by 2 and 3 alone, however late the second one is. Attempts at the same time need
the stream's duplicate window too: what the other attempt sends after our last look at the stream is rejected as a
duplicate as long as it is in the window. So an attempt looks again (`_Sender.look`) before half of the window has
passed since its last look, after waiting for its own publishes: each of its rows is either found or in the window.

Fast batches (`allow_batched`) need one more step, because in a cluster a row counts as a duplicate from the moment
that another attempt has sent it, even if the leader then loses it. Only a first attempt uses them. A second attempt
leaves its mark in the progress record, so that `done()` of the first one fails; the first one then counts its ids in
the stream (`_Sender.check_all`) before it reports success.

A lost connection begins another attempt of this kind inside the same task (`RetryingConnection`): it starts from the
record, looks which rows are in the stream, and sends the unconfirmed ones again (`replay.py`). The client itself never
resends a publish. docs/design/exactly-once.md has the reasons, and what is not covered.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from slipstream.api import StreamInfo
from slipstream.errors import ApiError, Error, StreamNotFoundError, UsageError
from slipstream.facade._sync.client import JetStream
from slipstream.jetstream.publish.bulk_window import Draft
from slipstream.spark.connect import RetryingConnection
from slipstream.spark.micro_batch import BATCH_ID, QUERY_ID
from slipstream.spark.options import JETSTREAM, StreamSinkOptions, stream_sink_options
from slipstream.spark.sink.dead_letters import DeadLetters, is_bad_row
from slipstream.spark.sink.outbox import FastOutbox, Outbox, size_error
from slipstream.spark.sink.progress import Progress, Task, written_ids
from slipstream.spark.sink.records import Record, Shape, id_prefix, records, shape_of
from slipstream.spark.sink.replay import Replay
from slipstream.wire import Headers
from slipstream.wire.subjects import matcher

if TYPE_CHECKING:
    import pyarrow as pa

_MIN_LOOK = 0.5  # seconds
ATOMIC_ROWS = 1_000  # the most that a server accepts in one batch
ATOMIC_BYTES = 4 * 1024 * 1024
MAX_SUBJECTS = 10_000  # that are remembered as accepted


@dataclass(frozen=True, slots=True)
class Sent(WriterCommitMessage):
    """The result of a task: its rows, those that were in the stream already, the rejected ones, the newest sequence."""

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
        """Publish every row exactly once, and wait until each is acknowledged; a server that is away is waited for."""
        options, prefix = self.options, id_prefix(*task)
        rejects = DeadLetters(options.dead_letter, prefix=prefix, timeout=options.connection.timeout)
        rows = Replay(records(batches, self.shape, prefix, rejects.add), lambda record: len(record.data))
        with RetryingConnection(options.connection, os.environ, reconnect=False) as server:
            work = _TaskRows(rows, rejects, server.succeeded)
            return server.run(lambda js: self._attempt(js, work, task))

    def _attempt(self, js: JetStream, work: _TaskRows, task: Task) -> Sent:
        """Write all rows, or those that an earlier attempt has left; raises if the connection is lost."""
        options, rows, rejects = self.options, work.rows, work.rejects
        rejects.attach(js)
        target = check_target(js, options)
        progress = Progress(js, options.progress, options.stream)
        begun = progress.begin(task, target)
        if begun.is_done:
            return Sent(task.partition, rows.count, rows.count, rejects.count, target.state.last_seq)
        known = "" if self.shape.has_msg_id else id_prefix(*task)
        is_fast = bool(known) and begun.is_first and uses_fast_batches(options, target)
        work.used_fast_batches |= is_fast
        sender = _Sender(js, options, target, work, prefix=known, begin=begun.begin, is_fast=is_fast)
        if not begun.is_first:
            sender.look()
        sender.send_all()
        if work.used_fast_batches and not is_fast:  # on an earlier connection
            sender.check_all()
        if not progress.done(task, begun, target) and is_fast:
            sender.check_all()
        return Sent(task.partition, rows.count, sender.found, rejects.count, sender.last_seq)


@dataclass(slots=True)
class _TaskRows:
    """What a task keeps while its connections come and go."""

    rows: Replay[Record]
    rejects: DeadLetters
    confirmed: Callable[[], None]  # is called when all rows so far are stored
    refused: set[int] = field(default_factory=set)  # numbers of the rows that the stream has rejected
    used_fast_batches: bool = False


class _Sender:
    """Sends the rows of one attempt, and looks from time to time which of them other attempts have sent."""

    def __init__(
        self,
        js: JetStream,
        options: StreamSinkOptions,
        target: StreamInfo,
        work: _TaskRows,
        *,
        prefix: str,
        begin: int,
        is_fast: bool,
    ) -> None:
        self._js = js
        self._work = work
        self._stream = js.stream(options.stream)
        self._now = js.client.now
        self._prefix = prefix
        self._begin = self._looked_to = begin
        self._looked_at = self._now()
        self._look_every = max(_MIN_LOOK, target.config.duplicate_window.total_seconds() / 2)
        self._known: set[str] = set()
        timeout = options.connection.timeout
        outbox: type[Outbox[Record]] = FastOutbox if is_fast else Outbox
        self._outbox = outbox(js, max_in_flight=options.max_in_flight, timeout=timeout)
        self._expected = b"Nats-Expected-Stream: %b\r\nNats-Msg-Id: " % options.stream.encode()
        self._max_payload = js.client.server_info.max_payload
        self._timeout = timeout
        self._subjects = target.config.subjects
        self._matchers = [matcher(subject) for subject in self._subjects]
        self._accepted: set[str] = set()
        self._batch: list[Record] | None = [] if uses_atomic(options, target) and not is_fast else None
        self._batch_bytes = 0
        self._committed = 0  # the newest sequence of an atomic batch
        self._skipped = 0  # rows that a look has found

    @property
    def found(self) -> int:
        """Rows that were in the stream already. (Fast batches do not count them.)"""
        return self._skipped + self._outbox.duplicates

    @property
    def last_seq(self) -> int:
        return max(self._outbox.last_seq, self._committed)

    def look(self) -> None:
        """Read the ids that were stored since the last look."""
        self._outbox.flush()  # own publishes are then seen by this look or the next, within half the window
        info = self._stream.info()
        self._looked_at = self._now()
        self._known.update(written_ids(self._stream, info, self._looked_to + 1, self._prefix))
        self._looked_to = max(info.state.last_seq, self._looked_to)

    def send_all(self) -> None:
        """Send the rows that are not in the stream yet."""
        rows, size = self._work.rows, self._outbox.block
        for block in rows:
            for at in range(0, len(block), size):
                self._outbox.wait_for_window(size)  # before the look: rows that it does not find are sent at once
                if self._now() - self._looked_at > self._look_every:
                    self.look()
                self._send_or_batch(self._due(block[at : at + size]))
            self._work.rejects.send()
            if rows.is_full:
                self._confirm()
        self._confirm()

    def _confirm(self) -> None:
        """Wait until every row so far is stored or a dead letter: no later attempt of this task needs them."""
        if self._batch:
            self._commit(self._batch)
        self._outbox.flush()
        self._handle_rejections()
        self._work.rejects.flush()
        self._work.rows.confirm()
        self._work.confirmed()

    def check_all(self) -> None:
        """Check that every row is in the stream, if another attempt may have run at the same time. In a fast batch a
        row that the other attempt had in flight counts as a duplicate, and may yet be lost with the stream's leader."""
        rows = self._work.rows.count - len(self._work.refused)
        info = self._stream.info()
        missing = rows - len(set(written_ids(self._stream, info, self._begin + 1, self._prefix)))
        if missing > 0:
            raise Error(
                f"another attempt wrote to stream {self._stream.name!r} at the same time, and {missing} of {rows} rows "
                "are missing: the task must be retried"
            )

    def _send_or_batch(self, due: Sequence[Record]) -> None:
        if self._batch is None:
            self._send(due)
        else:
            self._gather(due, self._batch)
        self._handle_rejections()

    def _due(self, block: Sequence[Record]) -> Sequence[Record]:
        """The rows that are to be sent: neither found in the stream nor rejected by their subject."""
        if self._known:
            fresh = [record for record in block if record.msg_id not in self._known]
            self._skipped += len(block) - len(fresh)
            block = fresh
        if self._accepted.issuperset([record.subject for record in block]):
            return block
        return [record for record in block if record.subject in self._accepted or self._accepts(record)]

    def _accepts(self, record: Record) -> bool:
        """Whether the stream listens on a row's subject. A missing answer would not tell: there is none either while
        the stream's leader changes."""
        if not any(matches(record.subject) for matches in self._matchers):
            error = UsageError(f"stream {self._stream.name!r} has the subjects {', '.join(self._subjects) or '(none)'}")
            self._reject(record, error)
            return False
        self._accepted = self._accepted if len(self._accepted) < MAX_SUBJECTS else set()
        self._accepted.add(record.subject)
        return True

    def _reject(self, record: Record, error: Error) -> None:
        """The row is a dead letter; raises if there is no subject for these."""
        self._work.rejects.add(record.row, record.subject, record.data, rejection(record, error))
        self._work.refused.add(record.row)

    def _gather(self, block: Sequence[Record], batch: list[Record]) -> None:
        for record in block:
            batch.append(record)
            self._batch_bytes += len(record.data)
            if len(batch) >= ATOMIC_ROWS or self._batch_bytes >= ATOMIC_BYTES:
                self._commit(batch)

    def _commit(self, batch: list[Record]) -> None:
        """Store rows as an atomic batch. A rejection does not tell which row is bad, and one duplicate is enough for
        it: then the rows are sent one by one, which names the bad row and drops duplicates."""
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

    def _send(self, block: Sequence[Record]) -> None:
        """Publish rows. A hot path: 1 µs a row."""
        expected = self._expected
        drafts = [
            (subject, data, b"NATS/1.0\r\n%b%b%b\r\n\r\n" % (headers, expected, msg_id.encode()))
            for _, subject, data, headers, msg_id in block
        ]
        if max([len(data) + len(header) for _, data, header in drafts], default=0) > self._max_payload:
            self._send_fitting(drafts, block)
        else:
            self._outbox.send(drafts, block)

    def _send_fitting(self, drafts: list[Draft], block: Sequence[Record]) -> None:
        """Publish rows of which some are larger than the server accepts."""
        for draft, record in zip(drafts, block, strict=True):
            error = size_error(draft, self._max_payload)
            if error is None:
                self._outbox.send([draft], [record])
            else:
                self._reject(record, error)

    def _handle_rejections(self) -> None:
        """Rejected rows are dead letters if the row itself is bad; any other error is raised."""
        for record, error in self._outbox.refused():
            if not is_bad_row(error):
                raise error
            self._reject(record, error)


def rejection(record: Record, error: Error) -> UsageError:
    """The error for a rejected row, which names the row."""
    return UsageError(f"row {record.row} (subject {record.subject!r}) was rejected: {error}")


def uses_atomic(options: StreamSinkOptions, target: StreamInfo) -> bool:
    """Whether rows are sent in atomic batches: only if the option says so. Rows with acks of their own are exactly once
    as well, and atomic batches take 2.7 times as long; who sets `allow_atomic` for another publisher wants neither."""
    if options.atomic == "true" and not target.config.allow_atomic:
        raise UsageError(
            f"{JETSTREAM} option 'atomic' is true, but stream {options.stream!r} does not allow atomic batches: set "
            "allow_atomic in its configuration (nats-server 2.12 or newer), or leave the option out"
        )
    return options.atomic == "true"


def uses_fast_batches(options: StreamSinkOptions, target: StreamInfo) -> bool:
    """Whether rows are sent in fast batches, with one ack for many rows: if the stream allows them, unless the options
    say otherwise."""
    if options.batched == "true" and not target.config.allow_batched:
        raise UsageError(
            f"{JETSTREAM} option 'batched' is true, but stream {options.stream!r} does not allow fast batches: set "
            "allow_batched in its configuration (nats-server 2.14 or newer), or leave the option out"
        )
    return options.batched != "false" and options.atomic != "true" and target.config.allow_batched


def check_target(js: JetStream, options: StreamSinkOptions) -> StreamInfo:
    """The stream's info; raises UsageError if the stream cannot be written to."""
    try:
        info = js.stream(options.stream).info()
    except StreamNotFoundError as error:
        raise UsageError(f"stream {options.stream!r} does not exist: create it first, with create_stream") from error
    if info.config.mirror is not None or info.config.sealed:
        kind = "a mirror" if info.config.mirror is not None else "sealed"
        raise UsageError(f"stream {options.stream!r} is {kind} and cannot be written to")
    if info.config.no_ack:
        raise UsageError(f"stream {options.stream!r} has no_ack set: rows without acknowledgement can be lost")
    uses_atomic(options, info)
    uses_fast_batches(options, info)
    return info


def stream_task(options: Mapping[str, str], schema: StructType, *, is_streaming: bool = False) -> StreamTask:
    """The work of a write with these options, checked against the server.

    Spark calls this for every micro-batch of a streaming query, so there a server that is away is waited for.
    """
    found = stream_sink_options(options)
    shape = shape_of({field.name: field.dataType.simpleString() for field in schema.fields})
    if found.batched == "true" and shape.has_msg_id:
        raise UsageError(
            f"{JETSTREAM} option 'batched' and column 'msg_id' are mutually exclusive: fast batches need ids "
            "generated by the sink"
        )

    def prepare(js: JetStream) -> None:
        target = check_target(js, found)
        Progress(js, found.progress, found.stream).prepare(target.config.num_replicas)

    retry_for = None if is_streaming else found.connection.plan_retry_for
    with RetryingConnection(found.connection, os.environ, retry_for=retry_for) as server:
        server.run(prepare)
    return StreamTask(found, shape)


def current_task() -> TaskContext:
    """The task that this worker runs."""
    context = TaskContext.get()
    if context is None:
        raise UsageError("rows can be written by Spark tasks only")
    return context


class StreamBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame. With the option `writeId`, a write that is run again leaves out the rows it wrote before."""

    def __init__(self, task: StreamTask) -> None:
        self._is_named = bool(task.options.write_id)
        self._task = task if self._is_named else replace(task, options=_with_id(task.options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        context, options = current_task(), self._task.options
        if options.batch_id is None:
            return self._task.run(iterator, Task(f"write-{options.write_id}", 0, context.partitionId()))
        query = context.getLocalProperty(QUERY_ID)
        if not query:
            raise UsageError("option 'batchId' applies to foreachBatch of a streaming query only")
        writer = f"{query}-{options.write_id}" if self._is_named else query
        return self._task.run(iterator, Task(writer, options.batch_id, context.partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark passes them
        """Discard the records: the write will not be retried, unless it has a name that a second run may use."""
        options = self._task.options
        if self._is_named or options.batch_id is not None:
            return
        with RetryingConnection(options.connection, os.environ) as server:
            server.run(lambda js: Progress(js, options.progress, options.stream).forget(f"write-{options.write_id}"))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def __init__(self, task: StreamTask) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        context = current_task()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if not query or not batch:
            raise UsageError(
                f"Spark did not provide the batch of this task: {QUERY_ID} is {query!r}, {BATCH_ID} is {batch!r}"
            )
        return self._task.run(iterator, Task(query, int(batch), context.partitionId()))


def _with_id(options: StreamSinkOptions) -> StreamSinkOptions:
    return replace(options, write_id=uuid.uuid4().hex)
