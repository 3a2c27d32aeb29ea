"""Sinks for streaming queries in update mode, by `foreachBatch`: a Key-Value view, or messages of a stream.

Spark 4.3 does not offer update mode, in which a query emits only the rows that changed, to Python sinks, but to
`foreachBatch`. Each micro-batch is written as a batch write, acknowledged before it commits, and knows its number: a
retried one is published once (a stream), and an older one never replaces a newer (a bucket).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from slipstream.spark.failures import with_short_errors
from slipstream.spark.option_reader import DEFAULT_RETRY_FOR
from slipstream.spark.options import sink_options, stream_sink_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

COUNT = "rows"  # the column that a task returns


def into_bucket(bucket: str, options: Mapping[str, str] | None = None) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that puts the rows of each micro-batch into the bucket; `options` are the format's.

        view.writeStream.outputMode("update").foreachBatch(into_bucket("customers", {"servers": url})).start()

    A retried micro-batch writes the same values, so the view comes out the same.
    """
    settings = waiting(options, bucket=bucket)
    sink_options(settings)  # a mistake is raised now, not in the first micro-batch

    def write(batch: DataFrame, batch_id: int) -> None:  # noqa: ARG001 - Spark passes both
        write_to_bucket(batch, settings)

    return with_short_errors(write)


def into_stream(stream: str, options: Mapping[str, str] | None = None) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that publishes each row of each micro-batch to the stream, exactly once.

    To write more than once in one micro-batch, give each write its own name with the option `writeId`.
    """
    settings = waiting(options, stream=stream)
    stream_sink_options(settings)

    def write(batch: DataFrame, batch_id: int) -> None:
        write_to_stream(batch, {**settings, "batchId": str(batch_id)})

    return with_short_errors(write)


def write_to_bucket(rows: DataFrame, options: Mapping[str, str]) -> int:
    """Put the rows of a micro-batch into a bucket; returns how many there were."""
    from slipstream.spark.sink.kv import key_value_task  # pyspark: not where a pipeline's file is merely read

    task = key_value_task(options, rows.schema)
    return _run(rows, task.run)


def write_to_stream(rows: DataFrame, options: Mapping[str, str]) -> int:
    """Publish the rows of a micro-batch, whose number is the option `batchId`; returns how many there were."""
    from slipstream.spark.sink.stream import StreamBatchWriter, stream_task

    writer = StreamBatchWriter(stream_task(options, rows.schema))
    return _run(rows, writer.write)


def _run(rows: DataFrame, work: Callable[[Iterator[pa.RecordBatch]], object]) -> int:
    """Run a task over each partition; returns the number of rows, rejected ones and those of a repeated task included.
    `rows.write` would start two Python processes for each micro-batch to plan it, a third of the batch's time."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as arrow

        count = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal count
            for batch in batches:
                count += batch.num_rows
                yield batch

        source = counted()
        work(source)
        for _ in source:  # of a task that was done before
            pass
        yield arrow.RecordBatch.from_pydict({COUNT: arrow.array([count], arrow.int64())})

    return sum(row[0] for row in rows.mapInArrow(run, f"{COUNT} BIGINT").collect())


def waiting(options: Mapping[str, str] | None, **target: str) -> dict[str, str]:
    """The options of the write. To Spark each micro-batch is a batch write, whose planning waits for a server that is
    away only if that is asked for; a streaming query always waits."""
    found = {**(options or {}), **target}
    if "retryfor" not in map(str.lower, found):
        found["retryFor"] = str(DEFAULT_RETRY_FOR)
    return found
