"""A streaming query that keeps a count and a sum per letter in a bucket; run as a program, so that it can be killed."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from slipstream.spark import into_bucket

VIEW = """
    SELECT split_part(subject, '.', 2) AS key, concat(count(*), ':', sum(CAST(CAST(data AS STRING) AS BIGINT))) AS value
    FROM {messages}
    GROUP BY 1
"""


def start(spark: SparkSession, server: str, stream: str, checkpoint: Path, *, limit: int) -> StreamingQuery:
    """Bring the bucket of the same name up to date with the stream, in micro-batches of `limit`."""
    reader = spark.readStream.format("jetstream").option("servers", server).option("maxMessagesPerTrigger", limit)
    view = spark.sql(VIEW, messages=reader.load(stream))
    writer = view.writeStream.outputMode("update").foreachBatch(into_bucket(stream, {"servers": server}))
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


if __name__ == "__main__":
    from tests.spark.conftest import start_session

    url, name, folder, most = sys.argv[1:]
    session = start_session(Path(folder).parent)
    start(session, url, name, Path(folder), limit=int(most)).awaitTermination()
