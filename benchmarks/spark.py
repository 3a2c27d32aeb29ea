"""One million messages into Spark: our source, nats-py inside mapInPandas, and the same rows in Parquet.

One real nats-server with 128-byte messages, one `local[2]` session that has warmed up, the better of two runs each.
"""

from __future__ import annotations

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
PEER_MESSAGES = 60_000
PEER_TASKS = 2
FETCH = 1_000
STREAM = "SPARK"


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
    def stream() -> DataFrame:
        return spark.read.format("jetstream").option("servers", url).load(STREAM)

    stream().limit(1).collect()  # the workers are there, and Spark's code is loaded
    counted = rate(MESSAGES, lambda: stream().count())
    peer = rate(PEER_MESSAGES, lambda: by_nats_py(spark, url).count())
    stream().write.parquet(str(parquet))
    every_column = rate(MESSAGES, lambda: drain(stream()))
    from_parquet = rate(MESSAGES, lambda: drain(spark.read.parquet(str(parquet))))
    return [
        row("Spark: messages counted, nats-py in mapInPandas", counted, peer, target=8),
        row("Spark: every column read, the same rows in Parquet", every_column, from_parquet, target=0.1),
    ]


def rate(rows: int, work: Callable[[], int]) -> float:
    """Rows per second of the better of two runs."""
    best = 0.0
    for _ in range(2):
        begin = time.perf_counter()
        assert work() in (rows, 0)
        best = max(best, rows / (time.perf_counter() - begin))
    return best


def drain(df: DataFrame) -> int:
    """Read every row and column, and keep nothing. (A count of Parquet would read its footers only.)"""
    df.write.format("noop").mode("overwrite").save()
    return 0


def by_nats_py(spark: SparkSession, url: str) -> DataFrame:
    """What one would write without us, at its best: a pull consumer per task, large fetches, uvloop, no acks.

    With acks, which a job that must not lose messages needs, it is slower; that would be the easier peer.
    """
    share = PEER_MESSAGES // PEER_TASKS

    async def fetch_all(start: int) -> list[bytes]:
        import nats
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        client = await nats.connect(url)
        policy = ConsumerConfig(
            ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=start
        )
        consumer = await client.jetstream().pull_subscribe("spark.>", stream=STREAM, config=policy)
        found: list[bytes] = []
        while len(found) < share:
            found += [message.data for message in await consumer.fetch(min(FETCH, share - len(found)), timeout=10)]
        await client.close()
        return found

    def fetch(tasks: Iterator[Any]) -> Iterator[Any]:
        import pandas as pd  # type: ignore[import-untyped]
        import uvloop

        for task in tasks:
            for number in task["id"]:
                yield pd.DataFrame({"data": uvloop.run(fetch_all(int(number) * share + 1))})

    return spark.range(0, PEER_TASKS, 1, PEER_TASKS).mapInPandas(fetch, "data binary")


def main() -> None:
    print(table(run()))


if __name__ == "__main__":
    main()
