"""A streaming query in update mode becomes a Key-Value view or messages of a stream, by `foreachBatch`.

Spark 4.3 lets no Python sink take part in update mode, the one in which a query hands over just the rows that changed;
`foreachBatch` may. Each micro-batch is written as a batch write, acknowledged before it commits, and knows its number:
what is tried again is written once (a stream), and an older batch never replaces a newer (a bucket).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slipstream.spark.failures import told_shortly
from slipstream.spark.options import JETSTREAM, JETSTREAM_KV, sink_options, stream_sink_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def into_bucket(bucket: str, options: Mapping[str, str] | None = None) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that puts the rows of each micro-batch into the bucket; `options` are the format's.

        view.writeStream.outputMode("update").foreachBatch(into_bucket("customers", {"servers": url})).start()

    A micro-batch that is tried again writes the same values again, so the view comes out the same.
    """
    given = {**(options or {}), "bucket": bucket}
    sink_options(given)  # a mistake is known now, not in the first micro-batch

    def write(batch: DataFrame, batch_id: int) -> None:  # noqa: ARG001 - Spark gives both
        batch.write.format(JETSTREAM_KV).mode("append").options(**given).save()

    return told_shortly(write)


def into_stream(stream: str, options: Mapping[str, str] | None = None) -> Callable[[DataFrame, int], None]:
    """The same for a stream: each row of each micro-batch is published exactly once.

    To write more than once in one micro-batch, give each write a name of its own by the option `writeId`.
    """
    given = {**(options or {}), "stream": stream}
    stream_sink_options(given)

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.write.format(JETSTREAM).mode("append").options(**given).option("batchId", str(batch_id)).save()

    return told_shortly(write)
