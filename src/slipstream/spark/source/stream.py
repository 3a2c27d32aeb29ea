"""Spark source `jetstream`: a stream as a table, for `spark.read` and `spark.readStream`.

The driver asks the stream's leader for its first and last sequence and cuts what is between into ranges; each executor
reads a range by batched Direct Get, complete to its end whichever replica answers. Nothing is acknowledged and no
consumer is created: the offset is the sequence, and a range that is read again gives the same rows, or an error that
names the messages that were removed.

A server that is away is waited for, on the driver and by the tasks: a task goes on behind the last message that it has
handed to Spark.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from slipstream.api import StreamInfo
from slipstream.errors import Error, MessageNotFoundError, StreamNotFoundError, UsageError
from slipstream.facade._sync.client import JetStream
from slipstream.jetstream._sync.stream import Stream
from slipstream.jetstream.reads.columns import Columns, Part
from slipstream.spark.connect import RetryingConnection
from slipstream.spark.options import (
    JETSTREAM,
    At,
    SourceOptions,
    batch_options,
    source_options,
    stream_options,
    table_options,
)
from slipstream.spark.source import plan
from slipstream.spark.source.offsets import Offset, created_of, offset_of
from slipstream.spark.source.pushdown import ColumnNames, narrow
from slipstream.wire.subjects import matcher, subset_of

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: dict[str, DataType] = {
    "subject": StringType(),
    "sequence": LongType(),
    "timestamp": TimestampType(),
    "timestamp_ns": LongType(),
    "headers": MapType(StringType(), ArrayType(StringType())),
    "data": BinaryType(),
}
PARTS = {
    "subject": Part.SUBJECT,
    "sequence": Part.NOTHING,
    "timestamp": Part.TIME,
    "timestamp_ns": Part.TIME,
    "headers": Part.HEADER,
    "data": Part.DATA,
}
# `CREATE TABLE ... USING jetstream OPTIONS (...)` passes the options to schema() only; the catalog keeps the schema, so
# they travel in the metadata of its columns. No option is a secret.
_STORED_OPTIONS = "slipstream.options"
_READ_ONLY = ("sequence", "timestamp", "timestamp_ns")  # columns that the server sets
_CLOCK_SKEW = 60_000_000_000  # nanoseconds by which clocks may differ
_STATE_INTERVAL = 0.1  # seconds between two requests for the info of an idle stream
_PROBE_TIMEOUT = 1.0  # seconds
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
_log = logging.getLogger("slipstream.spark")

T = TypeVar("T")


class JetStreamDataSource(DataSource):
    """A stream as a table, to read and to write."""

    @classmethod
    def name(cls) -> str:
        return JETSTREAM

    def schema(self) -> StructType:
        options = source_options(self.options)
        return schema_of({name: COLUMNS[name] for name in options.columns}, table_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = batch_options(stored_options(self.options, schema, "stream"))
        kind = PushdownBatchReader if is_pushdown(options) else BatchReader
        return kind(options, columns_of(schema, COLUMNS, JETSTREAM))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = stream_options(stored_options(self.options, schema, "stream"))
        return StreamReader(options, columns_of(schema, COLUMNS, JETSTREAM))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from slipstream.spark.sink.stream import StreamBatchWriter, stream_task

        if overwrite:
            raise UsageError(f"{JETSTREAM} cannot overwrite a stream: use mode('append')")
        if read_only := [name for name in schema.fieldNames() if name in _READ_ONLY]:
            raise UsageError(
                f"{JETSTREAM} does not write the columns {', '.join(map(repr, read_only))}: select subject, data and, "
                "if wanted, headers and msg_id (INSERT INTO a table of this format is not supported)"
            )
        return StreamBatchWriter(stream_task(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from slipstream.spark.sink.stream import StreamWriter, stream_task

        if overwrite:
            raise UsageError(
                f"{JETSTREAM} does not support output mode 'complete', which rewrites every row: use 'append'"
            )
        return StreamWriter(stream_task(self.options, schema, is_streaming=True))


def is_pushdown(options: SourceOptions) -> bool:
    """Whether the user wants filters pushed down, and Spark will call `pushFilters`.

    Spark does so if spark.sql.python.filterPushdown.enabled is set, in a worker process of its own; a reader that has
    the method while it is off fails every query. It is off by default here because Spark 4.3.0 keeps pushed filters
    with the DataFrame, not with the scan: of two scans with different filters, both read the rows of the second one,
    without an error.
    """
    if not options.push_filters:
        return False
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or (main is not None and main.name == _PUSHDOWN_WORKER)


def schema_of(columns: Mapping[str, DataType], kept: Mapping[str, str]) -> StructType:
    """The columns as a schema; `kept` are the options that a table with this schema will need."""
    metadata = {_STORED_OPTIONS: json.dumps(kept, sort_keys=True)} if kept else {}
    return StructType([StructField(name, kind, True, metadata) for name, kind in columns.items()])


def stored_options(options: Mapping[str, str], schema: StructType, name: str) -> Mapping[str, str]:
    """The options, with those that a table has kept in its schema."""
    if name in options or "path" in options:
        return options
    stored = next((f.metadata[_STORED_OPTIONS] for f in schema.fields if _STORED_OPTIONS in f.metadata), "{}")
    return {**json.loads(stored), **options}


class BatchReader(DataSourceReader):
    """One read of the messages that the stream has when the read is planned."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._bounds = plan.ReadBounds()

    def partitions(self) -> list[InputPartition]:
        connection = self._options.connection
        with RetryingConnection(connection, os.environ, retry_for=connection.plan_retry_for) as server:
            return server.run(self._plan)

    def _plan(self, js: JetStream) -> list[InputPartition]:
        options = self._options
        stream = js.stream(options.stream)
        info = inspect(stream)

        def at_time(time: int) -> int:
            return find_time(stream, info, time)

        part = plan.batch_range(options, info, at_time=at_time, skipped=_skipped(options.stream))
        return partitions_of(options, plan.narrowed(part, self._bounds, at_time=at_time), created_of(info))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._columns, partition)


class PushdownBatchReader(BatchReader):
    """A batch reader that takes pushed-down filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._bounds = narrow(filters, ColumnNames(), self._options.subjects)
        if self._bounds.subjects:
            self._options = replace(self._options, subjects=self._bounds.subjects)
        return filters  # Spark applies all of them to the rows again: the read is only narrower


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches `(start, end]` of sequences. The driver's copy keeps its connection open, since Spark polls it."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._target: Offset | None = None
        self._newest: Offset | None = None
        self._end: Offset | None = None  # of the batch that was planned last
        self._initial: set[Offset] = set()  # where the first batch of the query may begin
        self._server: RetryingConnection | None = None  # of the driver's copy
        self._polled: tuple[float, StreamInfo] | None = None
        self._probed = 0.0

    def initialOffset(self) -> dict[str, Any]:
        options = self._options
        info = self._info()
        start = plan.resolve(options.starting, info, at_time=lambda time: self._find_time(info, time))
        last = info.state.last_seq
        if options.starting.at is At.SEQUENCE and start > last + 1:
            raise UsageError(
                f"{JETSTREAM} option 'starting' must be at most {last + 1}, got {start}: stream {options.stream!r} has "
                f"messages up to {last}"
            )
        if options.starting.at is At.TIME and options.starting.value > time.time_ns() + _CLOCK_SKEW:
            raise UsageError(
                f"{JETSTREAM} option 'starting' must not be a time in the future: messages until then would be read; "
                "use 'latest', or a filter on the column timestamp"
            )
        found = Offset(start - 1, created_of(info))
        self._initial.add(found)
        return found.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_messages_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        info = self._info()
        self._target = Offset(info.state.last_seq, created_of(info))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._next(offset_of(start), offset_of(start), limit)

    def _next(self, start: Offset, begin: Offset, limit: ReadLimit) -> dict[str, Any]:
        """The end of the batch behind `start`, of which there is what is behind `begin`."""
        info = self._recent(begin)
        self._newest = Offset(info.state.last_seq, created_of(info))
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        if self._options.max_bytes_per_trigger:
            by_bytes = plan.rows_within(self._options.max_bytes_per_trigger, info)
            most = min(most, by_bytes) if most else by_bytes
        fail = self._options.fail_on_data_loss
        end = plan.next_offset(begin, info, limit=most, target=self._target, fail=fail)
        if start in self._initial and end != start:
            end = end._replace(begin=start.seq)
        self._end = end
        if end.skipped > begin.skipped:
            _skipped(self._options.stream)(plan.Range(begin.seq + 1, begin.seq + end.skipped - begin.skipped))
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The newest offset, for reports only. Spark offers Python sources neither metrics nor a description of their
        own, but shows this value in `query.lastProgress`: so it names the stream, and says how much is still to be read
        behind the batch."""
        if self._newest is None or self._end is None:
            return None
        is_same = self._newest.created == self._end.created
        behind = max(self._newest.seq - (self._end.seq if is_same else 0), 0)
        found: dict[str, Any] = {**self._newest.to_json(), "stream": self._options.stream, "lag_messages": behind}
        if not behind:
            return {**found, "lag_seconds": 0.0}
        with suppress(Error):  # a report must not end the query: then it is without the age
            found["lag_seconds"] = self._age_behind(self._end) if is_same else 0.0
        return found

    def _age_behind(self, end: Offset) -> float:
        """The age of the oldest message behind an offset, by the clocks of server and driver."""

        def oldest(stream: Stream) -> list[int]:
            found = []
            for subject in self._options.subjects or (">",):
                with suppress(MessageNotFoundError):  # removed meanwhile, or of other subjects
                    found.append(stream.get_next(subject, seq=end.seq + 1).time)
            return found

        times = self._ask(oldest)
        return round(max(time.time() - min(times) / 1e9, 0.0), 3) if times else 0.0

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        start, begin = self._beginning(start, end)
        return self._partitions(start, end, begin=begin)

    def _beginning(self, start: dict[str, Any], end: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """The offset that a batch is read behind, and the sequence that its partitions are cut from."""
        found, begin = offset_of(start), offset_of(end).begin
        if begin is None or found not in self._initial:
            return start, found.seq + 1
        # The first batch of the query, whose beginning Spark has asked for again: messages may have been removed since
        # it was planned, or with `latest`, have arrived.
        is_latest = self._options.starting.at is At.LATEST
        return (found._replace(seq=begin).to_json() if is_latest else start), begin + 1

    def _partitions(self, start: dict[str, Any], end: dict[str, Any], *, begin: int) -> list[InputPartition]:
        """The batch begins at `begin`, and what there is of it behind `start`."""
        info = self._info()
        fail = self._options.fail_on_data_loss
        part = plan.stream_range(offset_of(start), offset_of(end), info, fail=fail)
        if offset_of(end).created != created_of(info):  # the stream was recreated since, and the user accepts the loss
            _skipped(self._options.stream)(plan.Range(offset_of(start).seq + 1, offset_of(end).seq))
        is_same = offset_of(start).created == created_of(info)
        return partitions_of(self._options, part, created_of(info), begin=begin if is_same else 0)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._columns, partition)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    def _recent(self, start: Offset) -> StreamInfo:
        """The stream's info. While the stream is idle, its leader is asked ten times a second; in between, the next
        message is asked for, by a Direct Get that any replica answers."""
        now = time.monotonic()
        if self._polled is not None:
            asked, info = self._polled
            is_idle = start.seq == info.state.last_seq and start.created == created_of(info)
            is_recent = now - asked < max(self._options.poll_interval, _STATE_INTERVAL)
            is_probed = now - self._probed < self._options.poll_interval
            if is_idle and is_recent and (is_probed or not self._has_message(start.seq + 1)):
                return info
        info = self._info()
        self._polled = time.monotonic(), info
        self._probed = time.monotonic()
        return info

    def _has_message(self, seq: int) -> bool:
        """Whether the stream has a message at or after a sequence, as far as that can be told at once. What goes wrong
        here is reported by the next request for the stream's info."""
        timeout = min(self._options.connection.timeout, _PROBE_TIMEOUT)
        if self._server is None:
            return False
        try:
            self._server.jetstream().stream(self._options.stream).get_next(">", seq=seq, timeout=timeout)
        except Error:
            return False
        finally:
            self._probed = time.monotonic()
        return True

    def _info(self) -> StreamInfo:
        return self._ask(inspect)

    def _find_time(self, info: StreamInfo, time: int) -> int:
        return self._ask(lambda stream: find_time(stream, info, time))

    def _ask(self, request: Callable[[Stream], T]) -> T:
        """The answer to a request, from a server that may be away for a while."""
        if self._server is None:
            self._server = RetryingConnection(self._options.connection, os.environ)
        return self._server.run(lambda js: request(js.stream(self._options.stream)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_server": None, "_polled": None}


class RangePartition(InputPartition):
    """A range of sequences, of the stream that was created at this time."""

    def __init__(self, part: plan.Range, created: str) -> None:
        super().__init__((part.start, part.end))
        self.part = part
        self.created = created


def columns_of(schema: StructType, columns: Mapping[str, DataType], fmt: str) -> tuple[str, ...]:
    """The names of the columns to read: a schema of the user may have some of ours, with our types."""
    for field in schema.fields:
        if columns.get(field.name) != field.dataType:
            ours = ", ".join(f"{name} {kind.simpleString()}" for name, kind in columns.items())
            raise UsageError(f"{fmt} has no column {field.name} {field.dataType.simpleString()}; it has {ours}")
    return tuple(schema.fieldNames())


def inspect(stream: Stream) -> StreamInfo:
    """The stream's info from its leader; raises UsageError if the stream cannot be read."""
    try:
        info = stream.info()
    except StreamNotFoundError as error:
        raise UsageError(f"stream {stream.name!r} does not exist on this server, or not in this account") from error
    plan.check_readable(info)
    return info


def find_time(stream: Stream, info: StreamInfo, time: int) -> int:
    """The first sequence stored at `time` or later."""
    last = info.state.last_seq

    def probe(seq: int) -> tuple[int, int] | None:
        try:
            found = stream.get_next(">", seq=seq, min_last_seq=last)
        except MessageNotFoundError:
            return None
        return found.seq, found.time

    return plan.find_time(time, plan.first_seq(info), last, probe)


def partitions_of(options: SourceOptions, part: plan.Range, created: str, *, begin: int = 0) -> list[InputPartition]:
    """One partition per range. With `begin`, where the batch began when it was planned first: what was removed since
    moves no message to another partition, by whose number a sink knows what it has written."""
    if part.start > part.end:
        return []
    parts = plan.split(begin or part.start, part.end, partitions=options.partitions)
    return [RangePartition(plan.Range(max(one.start, part.start), one.end), created) for one in parts]


def read_range(options: SourceOptions, columns: tuple[str, ...], partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a range. After the last one it is checked that no message was removed during the read."""
    from slipstream.spark.source import rows

    if not isinstance(partition, RangePartition):  # Spark passes an empty one where we have none
        return
    part, wire_parts = partition.part, reduce(or_, (PARTS[name] for name in columns), Part.NOTHING)
    if part.start > part.end:  # it was all removed
        return
    with RetryingConnection(options.connection, os.environ) as server:
        completeness = plan.RangeCompleteness(part, filtered=bool(options.subjects))
        read = partial(read_resuming, server, options.stream, part)
        yield from rows.batches(read_filtered(read, options.subjects, completeness, wire_parts), columns)
        info = server.run(lambda js: inspect(js.stream(options.stream)))
    plan.check_same(info, partition.created)
    missing = completeness.missing(plan.first_seq(info))
    if missing is not None:
        if options.fail_on_data_loss:
            raise plan.lost(options.stream, missing.start, missing.end)
        _skipped(options.stream)(missing)


Read = Callable[[str, Part], Iterator[Columns]]  # of a range, by a filter and the parts of messages that are wanted


def read_resuming(
    server: RetryingConnection, name: str, part: plan.Range, subject: str, parts: Part
) -> Iterator[Columns]:
    """The messages of a range that match a filter; after an outage the read goes on behind the last chunk.

    A stream that was recreated during the outage has other messages: the caller compares its creation time in the end.
    """
    start = part.start
    while start <= part.end:
        try:
            stream = server.jetstream().stream(name)
            for chunk in stream.read_columns(start=start, end=part.end, subject=subject, parts=parts):
                server.succeeded()
                yield chunk
                start = chunk.seqs[-1] + 1
        except Error as error:
            server.failed(error)
        else:
            return


def read_filtered(
    read: Read,
    subjects: tuple[str, ...],
    completeness: plan.RangeCompleteness | None = None,
    parts: Part = Part.ALL,
) -> Iterator[Columns]:
    """The messages of a range that match any of the filters, each once.

    There is one read per filter; a later one leaves out the messages that an earlier filter matches.
    """
    filters = [one for one in subjects if not any(one != other and subset_of(one, other) for other in subjects)]
    earlier: list[Callable[[str], bool]] = []
    for subject in dict.fromkeys(filters) or [""]:
        wanted = parts | Part.SUBJECT if earlier else parts
        for chunk in read(subject, wanted):
            if completeness is not None:
                completeness.received(chunk.seqs[0], chunk.seqs[-1], len(chunk.seqs))
            yield without(chunk, earlier) if earlier else chunk
        earlier.append(matcher(subject))


def without(chunk: Columns, matchers: list[Callable[[str], bool]]) -> Columns:
    """The messages of a chunk whose subject none of the matchers accepts."""
    kept = [i for i, subject in enumerate(chunk.subjects) if not any(known(subject) for known in matchers)]
    if len(kept) == len(chunk.seqs):
        return chunk
    columns = (chunk.subjects, chunk.seqs, chunk.times, chunk.headers, chunk.data)
    subjects, seqs, times, headers, data = ([column[i] for i in kept] for column in columns)
    return Columns(subjects, seqs, times, headers, data, chunk.stream)  # type: ignore[arg-type]


def _skipped(stream: str) -> Callable[[plan.Range], None]:
    """A function that logs the loss of a range that the user accepts."""

    def log(part: plan.Range) -> None:
        count = part.end - part.start + 1
        _log.warning("stream %s: skipped %d lost messages, sequences %d to %d", stream, count, part.start, part.end)

    return log
