"""`spark.read` and `spark.readStream` with the format `jetstream`: sequences of a stream become rows.

The driver asks the stream's leader what there is and cuts it into ranges; executors read their range by batched Direct
Get, complete to its end whichever replica answers. Nothing is acknowledged and nothing kept on the server: the offset
is the sequence, and a range that is read again gives the same rows, or an error that names what is gone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
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
from slipstream.errors import ConnectionLostError, MessageNotFoundError, StreamNotFoundError, UsageError
from slipstream.facade.blocking import Client, JetStream
from slipstream.jetstream.blocking import Stream
from slipstream.jetstream.columns import Columns
from slipstream.spark import plan
from slipstream.spark.link import jetstream, open_client, open_jetstream
from slipstream.spark.offsets import Offset, created_of, offset_of
from slipstream.spark.options import (
    JETSTREAM,
    At,
    SourceOptions,
    batch_options,
    source_options,
    stream_options,
    table_options,
)

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
# `CREATE TABLE ... USING jetstream OPTIONS (...)` hands the options to schema() and to nothing else; the catalog keeps
# the schema, so they travel in the metadata of its columns. No option is a secret.
_STORED_OPTIONS = "slipstream.options"


class JetStreamDataSource(DataSource):
    """A stream as a table."""

    @classmethod
    def name(cls) -> str:
        return JETSTREAM

    def schema(self) -> StructType:
        options = source_options(self.options)
        names = [name for name in COLUMNS if options.include_headers or name != "headers"]
        kept = table_options(self.options)
        metadata = {_STORED_OPTIONS: json.dumps(kept, sort_keys=True)} if kept else {}
        return StructType([StructField(name, COLUMNS[name], True, metadata) for name in names])

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(batch_options(self._given(schema)), columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(stream_options(self._given(schema)), columns_of(schema))

    def _given(self, schema: StructType) -> Mapping[str, str]:
        if "stream" in self.options or "path" in self.options:
            return self.options
        stored = next((f.metadata[_STORED_OPTIONS] for f in schema.fields if _STORED_OPTIONS in f.metadata), "{}")
        return {**json.loads(stored), **self.options}


class BatchReader(DataSourceReader):
    """One read of what the stream has when it is planned."""

    def __init__(self, options: SourceOptions, columns: list[str]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with open_jetstream(options.connection, os.environ) as js:
            stream = js.stream(options.stream)
            info = inspect(stream)
            part = plan.batch_range(options, info, at_time=lambda time: find_time(stream, info, time))
        return partitions_of(options, part, created_of(info))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._columns, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches `(start, end]` of sequences. The driver's copy keeps its client open: Spark polls all the time."""

    def __init__(self, options: SourceOptions, columns: list[str]) -> None:
        self._options = options
        self._columns = columns
        self._target: Offset | None = None
        self._newest: Offset | None = None
        self._open: tuple[Client, JetStream] | None = None

    def initialOffset(self) -> dict[str, Any]:
        options = self._options
        info = self._info()
        start = plan.resolve(options.starting, info, at_time=lambda time: find_time(self._stream(), info, time))
        last = info.state.last_seq
        if options.starting.at is At.SEQUENCE and start > last + 1:
            raise UsageError(
                f"{JETSTREAM} option 'starting' is {start}: stream {options.stream!r} has messages up to {last}, "
                f"so up to {last + 1} is allowed"
            )
        return Offset(start - 1, created_of(info)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_messages_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        info = self._info()
        self._target = Offset(info.state.last_seq, created_of(info))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        info = self._info()
        self._newest = Offset(info.state.last_seq, created_of(info))
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        fail = self._options.fail_on_data_loss
        return plan.next_offset(offset_of(start), info, limit=most, target=self._target, fail=fail).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._newest.to_json() if self._newest is not None else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        info = self._info()
        fail = self._options.fail_on_data_loss
        part = plan.stream_range(offset_of(start), offset_of(end), info, fail=fail)
        return partitions_of(self._options, part, created_of(info))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._columns, partition)

    def stop(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened[0].close()

    def _stream(self) -> Stream:
        if self._open is None:
            client = open_client(self._options.connection, os.environ)
            self._open = client, jetstream(client, self._options.connection)
        return self._open[1].stream(self._options.stream)

    def _info(self) -> StreamInfo:
        try:
            return inspect(self._stream())
        except ConnectionLostError:  # between two micro-batches hours may lie: the server may have been restarted
            self.stop()
            return inspect(self._stream())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}


class RangePartition(InputPartition):
    """A range of the stream that was created at that time."""

    def __init__(self, part: plan.Range, created: str) -> None:
        super().__init__((part.start, part.end))
        self.part = part
        self.created = created


def columns_of(schema: StructType) -> list[str]:
    """The columns that are asked for: ours, or those of a schema that the user gave, which may leave some out."""
    for field in schema.fields:
        if COLUMNS.get(field.name) != field.dataType:
            ours = ", ".join(f"{name} {kind.simpleString()}" for name, kind in COLUMNS.items())
            raise UsageError(f"{JETSTREAM} has no column {field.name} {field.dataType.simpleString()}: it has {ours}")
    return schema.fieldNames()


def inspect(stream: Stream) -> StreamInfo:
    """The stream's info from its leader; raises if it cannot be read."""
    try:
        info = stream.info()
    except StreamNotFoundError as error:
        raise UsageError(f"there is no stream {stream.name!r} on this server, or not in this account") from error
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


def partitions_of(options: SourceOptions, part: plan.Range, created: str) -> list[InputPartition]:
    """One partition per range."""
    parts = plan.split(part.start, part.end, partitions=options.partitions)
    return [RangePartition(one, created) for one in parts]


def read_range(options: SourceOptions, columns: list[str], partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a range. In the end it is shown that nothing was removed from under the read."""
    from slipstream.spark import rows  # pyarrow: planning does without, and every planning is a new process

    if not isinstance(partition, RangePartition):  # Spark makes one up where there are none
        return
    part = partition.part
    with open_jetstream(options.connection, os.environ) as js:
        stream = js.stream(options.stream)
        proof = plan.Proof(part, filtered=bool(options.subject))
        chunks = stream.read_columns(start=part.start, end=part.end, subject=options.subject)
        yield from rows.batches(_watched(chunks, proof), columns)
        info = inspect(stream)
    plan.check_same(info, partition.created)
    missing = proof.missing(plan.first_seq(info))
    if missing is not None and options.fail_on_data_loss:
        raise plan.lost(options.stream, missing.start, missing.end)


def _watched(chunks: Iterable[Columns], proof: plan.Proof) -> Iterator[Columns]:
    for chunk in chunks:
        proof.saw(chunk.seqs[0], chunk.seqs[-1], len(chunk.seqs))
        yield chunk
