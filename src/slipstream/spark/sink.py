"""`df.write` and `writeStream` with the format `jetstream_kv`: rows become the values of a bucket.

A task commits only after the stream has acknowledged every one of its rows. Writing a row again leaves the same value,
so a task or a micro-batch that is tried again changes nothing. Rows of one write that share a key are written in no
particular order. For streaming queries in update mode see `views.py`: Spark does not let this sink take part in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from slipstream.errors import BucketNotFoundError, UsageError
from slipstream.spark.entries import Layout, layout_of
from slipstream.spark.link import open_jetstream
from slipstream.spark.options import JETSTREAM_KV, SinkOptions, sink_options

if TYPE_CHECKING:
    import pyarrow as pa


class KeyValueDataSource(DataSource):
    """A Key-Value bucket to write to."""

    @classmethod
    def name(cls) -> str:
        return JETSTREAM_KV

    def schema(self) -> StructType:
        # TODO: a bucket as a table, once the key-value client can list entries as of a revision
        raise UsageError(
            f"{JETSTREAM_KV} cannot be read yet, only written; read the bucket's stream instead: "
            "format 'jetstream' with stream 'KV_<bucket>'"
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise UsageError(f"{JETSTREAM_KV} cannot overwrite a bucket: use mode('append'), which replaces key by key")
        return BatchWriter(self._task(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        if overwrite:
            raise UsageError(
                f"{JETSTREAM_KV} takes no output mode 'complete': use 'append', or 'update' with "
                "foreachBatch(slipstream.spark.into_bucket(...)), which writes what changed"
            )
        return StreamWriter(self._task(schema))

    def _task(self, schema: StructType) -> Task:
        options = sink_options(self.options)
        layout = layout_of({field.name: field.dataType.simpleString() for field in schema.fields}, options)
        with open_jetstream(options.connection, os.environ) as js:
            try:
                js.key_value(options.bucket)
            except BucketNotFoundError as error:
                raise UsageError(
                    f"there is no bucket {options.bucket!r}: make it first, with create_key_value or `nats kv add`"
                ) from error
        return Task(options, layout)


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task has stored: how many rows, and the newest revision among them."""

    rows: int
    last_revision: int


@dataclass(frozen=True, slots=True)
class Task:
    """The work of one task."""

    options: SinkOptions
    layout: Layout

    def run(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write every row and wait until each is acknowledged."""
        rows = 0
        with open_jetstream(self.options.connection, os.environ) as js:
            kv = js.key_value(self.options.bucket)
            with kv.writer(timeout=self.options.connection.timeout) as writer:
                for batch in batches:
                    for key, value in self.layout.changes(batch):
                        if value is None:
                            writer.delete(key)
                        else:
                            writer.put(key, value)
                    rows += batch.num_rows
                return Written(rows, writer.flush())


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._task.run(iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._task.run(iterator)
