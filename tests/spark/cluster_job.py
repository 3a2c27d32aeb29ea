"""A job on a Spark cluster with workers in processes of their own: reads a stream, writes a stream and a bucket.

Run as a program: `cluster_job.py STREAM FOLDER SERVER...`, for each server in turn. Executors are JVMs beside the
driver's, as on a real cluster.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.sql import SparkSession

from slipstream.spark import into_bucket
from tests.spark.conftest import LONG_TIMEOUTS


def session(folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    return (
        SparkSession.builder.master("local-cluster[2,1,800]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.executor.memory", "800m")
        .config("spark.executor.extraJavaOptions", os.environ.get("SPARK_SUBMIT_OPTS", ""))
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(sys.path))
        .config("spark.local.dir", str(folder / "local"))
        .config(map=LONG_TIMEOUTS)
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.quantile", "0.3")
        .config("spark.speculation.minTaskRuntime", "100ms")
        .getOrCreate()
    )


def slow_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One task is slow in the middle of its rows, so that Spark starts another attempt beside it."""
    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        half = batch.num_rows // 2
        yield batch.slice(0, half)
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            time.sleep(5)
        yield batch.slice(half)


def work(spark: SparkSession, server: str, name: str, folder: Path) -> int:
    """Copy the stream and count its subjects; gives how many rows a batch reads of it."""
    spark.read.format("jetstream").option("servers", server).load(name).limit(1).collect()
    source = spark.readStream.format("jetstream").option("servers", server).option("partitions", 4).load(name)
    rows = source.selectExpr(f"concat('{name}_out.', sequence % 5) AS subject", "data")
    rows = rows.mapInArrow(slow_once, rows.schema)
    sink = rows.writeStream.format("jetstream").option("servers", server).trigger(availableNow=True)
    sink.option("checkpointLocation", str(folder / "copies")).start(f"{name}_out").awaitTermination()
    view = source.groupBy("subject").count().selectExpr("subject AS key", "CAST(count AS STRING) AS value")
    writer = view.writeStream.outputMode("update").foreachBatch(into_bucket(name, {"servers": server}))
    writer = writer.option("checkpointLocation", str(folder / "view")).trigger(availableNow=True)
    writer.start().awaitTermination()
    return spark.read.format("jetstream").option("servers", server).option("partitions", 6).load(name).count()


def main(name: str, path: str, *servers: str) -> None:
    folder = Path(path)
    spark = session(folder)
    for number, server in enumerate(servers):
        rows = work(spark, server, name, folder / str(number))
        print("rows", rows, "executors", spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
