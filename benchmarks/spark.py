"""Messages into Spark and out of it: our source and sink, nats-py in the same session, and the same rows in Parquet.

One real nats-server with 128-byte messages, one `local[2]` session; the best of three runs each, after one that does
not count: in the first runs the JVM still compiles, whichever source they measure.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import Row, row, table
from slipstream import StreamConfig, connect_blocking
from tests.servers import real_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES = 1_000_000
PEER_MESSAGES = 200_000
PEER_TASKS = 2
SINK_ROWS = 400_000
PEER_ROWS = 20_000
FETCH = 1_000
STREAM = "SPARK"
SINK = "SINK"


def run() -> list[Row]:
    """Measure all."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    with real_server() as url, tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        fill(url)
        spark = session()
        try:
            return measure(spark, url, Path(folder, "rows.parquet"))
        finally:
            spark.stop()


def fill(url: str) -> None:
    with connect_blocking(url) as client:
        js = client.jetstream()
        js.create_stream(StreamConfig(name=STREAM, subjects=("spark.>",), allow_direct=True))
        js.create_stream(StreamConfig(name=SINK, subjects=("sink.>",), allow_direct=True, allow_batched=True))
        subjects = [f"spark.{n}" for n in range(1000)]
        with js.publisher(timeout=60) as publisher:
            for n in range(MESSAGES):
                publisher.publish(subjects[n % 1000], b"x" * 128)


def session() -> SparkSession:
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def measure(spark: SparkSession, url: str, parquet: Path) -> list[Row]:
    def stream(**options: str) -> DataFrame:
        return spark.read.format("jetstream").option("servers", url).options(**options).load(STREAM)

    stream().limit(1).collect()  # the workers are there, and Spark's code is loaded
    counted = rate(MESSAGES, lambda: stream(columns="sequence").count())  # a count needs no more
    peer = rate(PEER_MESSAGES, lambda: by_nats_py(spark, url).count())
    acking = rate(PEER_MESSAGES, lambda: by_nats_py(spark, url, acks=True).count())
    stream().write.parquet(str(parquet))
    every_column = rate(MESSAGES, lambda: drain(stream()))
    from_parquet = rate(MESSAGES, lambda: drain(spark.read.parquet(str(parquet))))
    into_stream(spark, url, 1_000)
    written = rate(SINK_ROWS, lambda: into_stream(spark, url, SINK_ROWS))
    per_row = rate(PEER_ROWS, lambda: publish_by_nats_py(spark, url, PEER_TASKS))
    one_loop = rate(PEER_ROWS // PEER_TASKS, lambda: publish_by_nats_py(spark, url, 1))
    return [
        row("Spark: messages counted, nats-py in mapInPandas", counted, acking, target=8),
        row("Spark: messages counted, nats-py without acks, on uvloop", counted, peer, target=8),
        row(
            "Spark: every column read, the same rows in Parquet",
            every_column,
            from_parquet,
            target=0.15,
            against="Parquet",
        ),
        row("Spark sink: rows published exactly once, nats-py row by row", written, one_loop, target=20),
        row("Spark sink: the same, nats-py in as many tasks", written, per_row),
    ]


def rate(rows: int, work: Callable[[], int]) -> float:
    """Rows per second of the best of three runs, after one that does not count."""
    rates = []
    for _ in range(4):
        begin = time.perf_counter()
        assert work() in (rows, 0)
        rates.append(rows / (time.perf_counter() - begin))
    return max(rates[1:])


def drain(df: DataFrame) -> int:
    """Read every row and column, and keep nothing. (A count of Parquet would read its footers only.)"""
    df.write.format("noop").mode("overwrite").save()
    return 0


def by_nats_py(spark: SparkSession, url: str, *, acks: bool = False) -> DataFrame:
    """What one would write without us: a pull consumer per task and large fetches.

    With acks, which a job that must not lose messages needs, on asyncio as it comes; or at its best, with neither.
    """
    share = PEER_MESSAGES // PEER_TASKS

    async def fetch_all(start: int) -> list[bytes]:
        import nats
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        client = await nats.connect(url)
        policy = ConsumerConfig(
            ack_policy=AckPolicy.EXPLICIT if acks else AckPolicy.NONE,
            max_ack_pending=FETCH if acks else None,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=start,
        )
        consumer = await client.jetstream().pull_subscribe("spark.>", stream=STREAM, config=policy)
        found: list[bytes] = []
        while len(found) < share:
            messages = await consumer.fetch(min(FETCH, share - len(found)), timeout=10)
            found += [message.data for message in messages]
            for message in messages if acks else ():
                await message.ack()
        await client.close()
        return found

    def fetch(tasks: Iterator[Any]) -> Iterator[Any]:
        import pandas as pd
        import uvloop

        run = asyncio.run if acks else uvloop.run
        for task in tasks:
            for number in task["id"]:
                yield pd.DataFrame({"data": run(fetch_all(int(number) * share + 1))})

    return spark.range(0, PEER_TASKS, 1, PEER_TASKS).mapInPandas(fetch, "data binary")


def messages(spark: SparkSession, count: int, tasks: int = PEER_TASKS) -> DataFrame:
    """Rows to publish, all different."""
    return spark.range(0, count, 1, tasks).selectExpr(
        "concat('sink.', id % 1000) AS subject", "CAST(lpad(CAST(id AS STRING), 128, 'x') AS BINARY) AS data"
    )


def into_stream(spark: SparkSession, url: str, count: int) -> int:
    messages(spark, count).write.format("jetstream").mode("append").option("servers", url).save(SINK)
    return count


def publish_by_nats_py(spark: SparkSession, url: str, tasks: int) -> int:
    """What one would write without us: a connection per task, each row published and its ack awaited."""

    async def publish_all(rows: Iterator[Any]) -> None:
        import nats

        client = await nats.connect(url)
        js = client.jetstream()
        for one in rows:
            await js.publish(one.subject, bytes(one.data))
        await client.close()

    def publish(rows: Iterator[Any]) -> None:
        import uvloop

        uvloop.run(publish_all(rows))

    count = PEER_ROWS // PEER_TASKS * tasks
    messages(spark, count, tasks).foreachPartition(publish)
    return count


def main() -> None:
    print(table(run()))


if __name__ == "__main__":
    main()
