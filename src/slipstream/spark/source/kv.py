"""Spark source `jetstream_kv`: a bucket as a table of its keys or entries, for `spark.read` and `spark.readStream`.

A batch read gives the keys with their values as of now or as of a revision, or every entry that the bucket still has
(`history`); `readStream` is the change feed. A state of the bucket is read by one task: the newest entry of a key is
known only after all entries were read, and keys may change during the read.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructType, TimestampType

from slipstream.api import StreamInfo
from slipstream.errors import HistoryLostError, MessageNotFoundError, UsageError
from slipstream.facade._sync.client import JetStream
from slipstream.jetstream._sync.stream import Stream
from slipstream.jetstream.reads.columns import Columns, Part
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.kv.snapshot import check_past
from slipstream.spark.connect import RetryingConnection
from slipstream.spark.micro_batch import micro_batch
from slipstream.spark.options import (
    JETSTREAM_KV,
    KvSourceOptions,
    SourceOptions,
    kv_batch_options,
    kv_source_options,
    kv_stream_options,
    kv_table_options,
)
from slipstream.spark.source import plan
from slipstream.spark.source.kv_location import inspect_bucket, prefix_of
from slipstream.spark.source.offsets import created_of, offset_of
from slipstream.spark.source.pushdown import ColumnNames, narrow
from slipstream.spark.source.stream import (
    RangePartition,
    StreamReader,
    columns_of,
    find_time,
    inspect,
    is_pushdown,
    read_filtered,
    read_resuming,
    schema_of,
    stored_options,
)

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: dict[str, DataType] = {
    "key": StringType(),
    "value": BinaryType(),
    "operation": StringType(),
    "revision": LongType(),
    "created": TimestampType(),
    "delta": LongType(),
}
_MAX_NAMED = 5  # keys in an error
_log = logging.getLogger("slipstream.spark")

PASSES = 4  # over the entries added during a read, before missing keys are read one by one


class KeyValueDataSource(DataSource):
    """A Key-Value bucket as a table, to read and to write."""

    @classmethod
    def name(cls) -> str:
        return JETSTREAM_KV

    def schema(self) -> StructType:
        kv_source_options(self.options)
        return schema_of(COLUMNS, kv_table_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = kv_batch_options(stored_options(self.options, schema, "bucket"))
        kind = PushdownBucketReader if is_pushdown(options.feed) else BucketReader
        return kind(options, columns_of(schema, COLUMNS, JETSTREAM_KV))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = kv_stream_options(stored_options(self.options, schema, "bucket"))
        names = columns_of(schema, COLUMNS, JETSTREAM_KV)

        def find_prefix(js: JetStream) -> str:
            return prefix_of(js, options.bucket, inspect_bucket(js.stream(options.feed.stream), options.bucket))

        with RetryingConnection(options.feed.connection, os.environ) as server:
            prefix = server.run(find_prefix)
        return FeedReader(replace(options.feed, subjects=options.subjects(prefix)), names, prefix)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from slipstream.spark.sink.kv import KeyValueBatchWriter, key_value_task

        if overwrite:
            raise UsageError(f"{JETSTREAM_KV} cannot overwrite a bucket: use mode('append'), which replaces key by key")
        return KeyValueBatchWriter(key_value_task(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from slipstream.spark.sink.kv import KeyValueStreamWriter, key_value_task

        if overwrite:
            raise UsageError(
                f"{JETSTREAM_KV} does not support output mode 'complete': use 'append', or 'update' with "
                "foreachBatch(slipstream.spark.into_bucket(...)), which writes only changes"
            )
        return KeyValueStreamWriter(key_value_task(self.options, schema, is_streaming=True))


class BucketPartition(InputPartition):
    """The whole bucket: the revisions of a history, and the prefix of the keys in the subjects."""

    def __init__(self, part: plan.Range, created: str, prefix: str) -> None:
        super().__init__((part.start, part.end))
        self.part = part
        self.created = created
        self.prefix = prefix


class BucketReader(DataSourceReader):
    """One read of a bucket."""

    def __init__(self, options: KvSourceOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._is_empty = False

    def partitions(self) -> list[InputPartition]:
        connection = self._options.feed.connection
        with RetryingConnection(connection, os.environ, retry_for=connection.plan_retry_for) as server:
            return server.run(self._plan)

    def _plan(self, js: JetStream) -> list[InputPartition]:
        options, feed = self._options, self._options.feed
        stream = js.stream(feed.stream)
        info = inspect_bucket(stream, options.bucket)
        last = info.state.last_seq
        if options.as_of > last:
            raise UsageError(
                f"{JETSTREAM_KV} option 'asOfRevision' must be at most {last}, the last revision of bucket "
                f"{options.bucket!r}, got {options.as_of}"
            )
        self._check_past(info)
        part = plan.Range(1, last)
        if options.history:
            lenient = replace(feed, fail_on_data_loss=False)  # entries that the history dropped are not lost
            part = plan.batch_range(lenient, info, at_time=lambda time: find_time(stream, info, time))
        prefix = prefix_of(js, options.bucket, info)
        return [] if self._is_empty else [BucketPartition(part, created_of(info), prefix)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, BucketPartition):
            return
        if self._options.snapshots and (task := micro_batch(TaskContext.get())):
            yield from self._snapshot(partition, *task)
        else:
            yield from self._read_rows(partition)

    def _snapshot(self, partition: BucketPartition, query: str, batch: int) -> Iterator[pa.RecordBatch]:
        """The state of the bucket as of a micro-batch of a query, the same for all of its tasks and attempts."""
        from slipstream.spark.source import kv_rows, kv_snapshots

        options = self._options

        def info() -> StreamInfo:
            with RetryingConnection(options.feed.connection, os.environ) as server:
                return server.run(lambda js: inspect_bucket(js.stream(options.feed.stream), options.bucket))

        def read() -> Iterator[pa.RecordBatch]:
            # A bucket that was created again since the query was planned is simply the bucket now.
            return self._read_rows(BucketPartition(partition.part, created_of(info()), partition.prefix))

        what = f"{options.bucket} {options.keys} {options.include_deletes} {self._names}"
        folder = kv_snapshots.snapshot_folder(options.snapshots, query, what)
        schema = kv_rows.arrow_schema(self._names)
        yield from kv_snapshots.snapshot(folder, batch, lambda: kv_snapshots.state_of(info()), read, schema)

    def _read_rows(self, partition: BucketPartition) -> Iterator[pa.RecordBatch]:
        from slipstream.spark.source import kv_rows

        options = self._options

        def read_all(js: JetStream) -> tuple[dict[str, kv_rows.KeyHistory], StreamInfo]:
            stream = js.stream(options.feed.stream)
            kept = kv_rows.by_key(read_consistent(stream, options, partition), partition.prefix)
            return kept, inspect_bucket(stream, options.bucket)

        with RetryingConnection(options.feed.connection, os.environ) as server:
            kept, info = server.run(read_all)
        if options.as_of:
            self._check_past(info)  # again: entries may have been removed during the read
            size = info.config.max_msgs_per_subject
            self._check_known(kv_rows.unknown_keys(kept, as_of=options.as_of, history=size))
        rows = (
            kv_rows.history(kept.values(), first=partition.part.start, last=partition.part.end)
            if options.history
            else kv_rows.state(kept.values(), as_of=options.as_of, include_deletes=options.include_deletes)
        )
        yield from kv_rows.batches(rows, self._names)

    def _check_past(self, info: StreamInfo) -> None:
        """Raise or warn if keys may have been removed without a trace, so that it is unknown which."""
        options = self._options
        if not options.as_of:
            return
        try:
            check_past(options.bucket, options.as_of, info)
        except HistoryLostError as error:
            if options.feed.fail_on_data_loss:
                raise plan.DataLossError(
                    f"{error}; set the option failOnDataLoss to false to read the known keys",
                    stream=options.feed.stream,
                ) from error
            _log.warning("%s: reading the known keys", error)

    def _check_known(self, keys: list[str]) -> None:
        if not keys:
            return
        some = ", ".join(map(repr, sorted(keys)[:_MAX_NAMED])) + (", ..." if len(keys) > _MAX_NAMED else "")
        text = (
            f"bucket {self._options.bucket!r} as of revision {self._options.as_of}: its history does not reach back "
            f"that far for {len(keys)} keys ({some})"
        )
        if self._options.feed.fail_on_data_loss:
            raise plan.DataLossError(
                f"{text}; set the option failOnDataLoss to false to leave them out, or keep more history",
                stream=self._options.feed.stream,
            )
        _log.warning("%s: leaving them out", text)


class PushdownBucketReader(BucketReader):
    """A bucket reader that takes pushed-down filters on keys. Others must not narrow the read, because the newest entry
    of a key depends on all of its revisions."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        options = self._options
        names = ColumnNames(subject="key", sequence="revision", times=("created", ""))
        found = narrow(filters, names, options.keys)  # filters of keys: their prefix is not known yet
        self._is_empty = found.is_empty
        if found.subjects:
            self._options = replace(options, keys=found.subjects)
        return filters


class FeedReader(StreamReader):
    """The change feed. Entries that the bucket's history dropped are not lost: a newer entry of the key follows.

    Below the first entry they cannot be told apart from entries that a purge or a TTL removed; but only those can
    leave a bucket empty.
    """

    def __init__(self, options: SourceOptions, columns: tuple[str, ...], prefix: str) -> None:
        super().__init__(options, columns)
        self._prefix = prefix
        self._fixed: StreamInfo | None = None  # the info that the current plan is made from

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with self._fixed_info(self._recent(offset_of(start))) as info:
            return self._next(offset_of(start), offset_of(_after_dropped(start, info)), limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with self._fixed_info(self._info()) as info:
            start, begin = self._beginning(start, end)
            return self._partitions(_after_dropped(start, info), end, begin=begin)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from slipstream.spark.source import kv_rows

        if not isinstance(partition, RangePartition):
            return
        options = self._options
        if partition.part.start > partition.part.end:  # it was all dropped
            return
        with RetryingConnection(options.connection, os.environ) as server:
            read = partial(read_resuming, server, options.stream, partition.part)
            yield from kv_rows.feed(read_filtered(read, options.subjects), self._prefix, self._columns)
            plan.check_same(server.run(lambda js: inspect(js.stream(options.stream))), partition.created)

    @contextlib.contextmanager
    def _fixed_info(self, info: StreamInfo) -> Iterator[StreamInfo]:
        """Make a whole plan from one info: between two requests the bucket may drop more entries."""
        self._fixed = info
        try:
            yield info
        finally:
            self._fixed = None

    def _info(self) -> StreamInfo:
        return self._fixed or super()._info()


def _after_dropped(start: dict[str, Any], info: StreamInfo) -> dict[str, Any]:
    begin, last = offset_of(start), plan.first_seq(info) - 1
    if begin.created != created_of(info) or not info.state.messages or begin.seq >= last:
        return start
    return begin._replace(seq=last).to_json()


def read_consistent(stream: Stream, options: KvSourceOptions, partition: BucketPartition) -> Iterator[Columns]:
    """Every entry of the bucket, as of one moment.

    A key that is written during the read may disappear before the read reaches it and be appended after its end. So
    the entries added meanwhile are read as well, pass after pass, until the leader reports none: then the newest entry
    per key is the state of that moment. Where writers outrun the reader, the keys not seen so far are read one by one
    in the end: each value is then one that its key had during the read.
    """
    start, seen, subjects = 1, set[str](), options.subjects(partition.prefix)
    for _ in range(PASSES):
        info = inspect_bucket(stream, options.bucket)
        plan.check_same(info, partition.created)
        if start > info.state.last_seq:
            return
        end = info.state.last_seq
        read = partial(_read_columns, stream, plan.Range(start, end))
        for chunk in read_filtered(read, subjects):
            seen.update(chunk.subjects)
            yield chunk
        start = end + 1
    yield from _read_missing(stream, subjects, seen)


def _read_columns(stream: Stream, part: plan.Range, subject: str, parts: Part) -> Iterator[Columns]:
    return stream.read_columns(start=part.start, end=part.end, subject=subject, parts=parts)


def _read_missing(stream: Stream, subjects: Iterable[str], seen: set[str]) -> Iterator[Columns]:
    found: list[StoredMessage] = []
    for pattern in subjects:
        for subject in stream.subjects(pattern):
            if subject not in seen:
                seen.add(subject)
                with contextlib.suppress(MessageNotFoundError):  # removed meanwhile
                    found.append(stream.get_last(subject))
    if found:
        found.sort(key=lambda message: message.seq)
        yield Columns.of(found, stream.name)
