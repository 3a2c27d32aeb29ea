"""A session with event log and UI that reads and writes on servers with a secret, and prints all it can be asked for.

Run as a program: `secret_job.py SERVER FOLDER`, with the server's secret in the environment variables SECRET and
NATS_TOKEN. A second server, with a secret of its own, is where the context `prod` says.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from slipstream.spark import into_bucket

PAGES = ("jobs/", "stages/", "storage/", "environment/", "executors/", "SQL/", "StreamingQuery/")
API = ("environment", "sql?details=true&planDescription=true", "jobs", "stages", "executors")


def session(folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    (folder / "events").mkdir()
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "true")
        .config("spark.ui.port", "0")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", str(folder / "events"))
        .config("spark.eventLog.compress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "INFO")
        .getOrCreate()
    )


def work(spark: SparkSession, options: dict[str, str], folder: Path, table: str) -> None:
    """Read and write in every way."""
    batch = spark.read.format("jetstream").options(**options).load("IN")
    batch.explain("extended")
    print("rows", batch.count())
    pairs = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TABLE {table} USING jetstream OPTIONS (stream 'IN', {pairs})")
    spark.sql(f"SELECT count(*) FROM {table}").show()
    spark.sql(f"DESCRIBE TABLE EXTENDED {table}").show(truncate=False)
    source = spark.readStream.format("jetstream").options(**options).load("IN")
    copies = source.selectExpr("concat('out.', sequence) AS subject", "data")
    sink = copies.writeStream.format("jetstream").options(**options).trigger(availableNow=True)
    sink.option("checkpointLocation", str(folder / "copies")).start("OUT").awaitTermination()
    view = source.groupBy("subject").count().selectExpr("subject AS key", "CAST(count AS STRING) AS value")
    writer = view.writeStream.outputMode("update").foreachBatch(into_bucket("view", options)).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "view")).start().awaitTermination()
    spark.read.format("jetstream_kv").options(**options).load("view").show()


def refused(spark: SparkSession, server: str, secret: str) -> None:
    """Secrets where they do not belong: none of these may repeat them."""
    for name in ("token", "password", "nkey", "unknownOption"):
        try:
            spark.read.format("jetstream").option("servers", server).option(name, secret).load("IN").count()
        except PySparkException as error:
            print("refused", error)
    try:
        url = server.replace("nats://", f"nats://me:{secret}@")
        spark.read.format("jetstream").option("servers", url).load("IN").count()
    except PySparkException as error:
        print("refused", error)


def show_ui(spark: SparkSession) -> None:
    """Every page, and what the REST API says."""
    base = spark.sparkContext.uiWebUrl
    assert base is not None
    base = f"http://127.0.0.1:{base.rpartition(':')[2]}"
    api = f"api/v1/applications/{spark.sparkContext.applicationId}"
    for path in (*PAGES, *(f"{api}/{one}" for one in API)):
        with urllib.request.urlopen(f"{base}/{path}", timeout=30) as answer:
            text = answer.read().decode()
            print("page", path, len(text))
            print(text)
    for execution in json.loads(urllib.request.urlopen(f"{base}/{api}/sql", timeout=30).read()):
        with urllib.request.urlopen(f"{base}/SQL/execution/?id={execution['id']}", timeout=30) as answer:
            print(answer.read().decode())


def main(server: str, name: str) -> None:
    folder, secret = Path(name), os.environ.pop("SECRET")
    spark = session(folder)
    work(spark, {"servers": server}, folder / "checkpoint" / "env", "by_env")
    work(spark, {"context": "prod"}, folder / "checkpoint" / "context", "by_context")
    refused(spark, server, secret)
    show_ui(spark)
    spark.stop()
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
