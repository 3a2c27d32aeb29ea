"""Orders go in as messages, a table of customers comes out: `make demo`, or `python -m examples.demo [ORDERS]`.

An embedded server takes 100,000 generated orders. A Spark streaming query counts and sums them per customer in SQL and
keeps the result in a Key-Value bucket, which is then read back with read-after-write and checked against plain Python.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path

from slipstream import BlockingJetStream, BucketConfig, Server, StreamConfig, connect_blocking

ORDERS = 100_000
CUSTOMERS = ["ada", "alan", "barbara", "claude", "donald", "edsger", "grace", "john", "leslie", "margaret"]
ITEMS = {"book": 1_990, "lamp": 4_550, "chair": 12_900, "desk": 38_000, "pen": 250}

VIEW = """
    SELECT customer AS key, to_json(struct(count(*) AS orders, sum(amount) AS revenue)) AS value
    FROM orders
    GROUP BY customer
"""

Totals = dict[str, tuple[int, int]]  # customer: orders, revenue in cents


def publish_orders(js: BlockingJetStream, orders: int) -> Totals:
    """Send the orders, each acknowledged by the stream, and add them up in plain Python."""
    chance = random.Random(2026)
    totals: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    with js.publisher() as publisher:
        for _ in range(orders):
            customer, (item, price) = chance.choice(CUSTOMERS), chance.choice(list(ITEMS.items()))
            amount = price * chance.randint(1, 5)
            order = {"customer": customer, "item": item, "amount": amount}
            publisher.publish(f"orders.{customer}", json.dumps(order).encode())
            count, revenue = totals[customer]
            totals[customer] = count + 1, revenue + amount
    return totals


def keep_view(url: str, checkpoint: Path) -> tuple[int, float]:
    """Run the streaming query over what is in the stream; its rows, and the seconds that its micro-batches took."""
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import col, from_json

    from slipstream.spark import into_bucket

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={quiet_logs(checkpoint.parent)}")
        .getOrCreate()
    )
    messages = (
        spark.readStream.format("jetstream")
        .option("servers", url)
        .option("maxMessagesPerTrigger", 25_000)
        .load("ORDERS")
    )
    order = from_json(col("data").cast("string"), "customer STRING, item STRING, amount BIGINT")
    messages.select(order.alias("order")).select("order.*").createOrReplaceTempView("orders")
    query = (
        spark.sql(VIEW)
        .writeStream.outputMode("update")
        .foreachBatch(into_bucket("customers", {"servers": url}))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = sum(progress["numInputRows"] for progress in query.recentProgress)
    millis = sum(progress["durationMs"]["triggerExecution"] for progress in query.recentProgress)
    spark.stop()
    return rows, millis / 1000


def read_view(js: BlockingJetStream) -> Totals:
    """The view as any client sees it, at least as new as the bucket's last write, whichever replica answers."""
    customers = js.key_value("customers")
    newest = customers.status().stream_info.state.last_seq
    view: Totals = {}
    for key in sorted(customers.keys(min_last_revision=newest)):
        value = json.loads(customers.get(key, min_last_revision=newest).value)
        view[key] = value["orders"], value["revenue"]
    return view


def quiet_logs(folder: Path) -> Path:
    """Spark's logging reduced to errors."""
    settings = folder / "log4j2.properties"
    settings.write_text("""
        rootLogger.level = error
        rootLogger.appenderRef.console.ref = console
        appender.console.type = Console
        appender.console.name = console
        logger.repl.name = org.apache.spark.repl.Main
        logger.repl.level = error
    """)
    return settings


def main(orders: int = ORDERS) -> int:
    if not os.environ.get("JAVA_HOME") and not shutil.which("java"):
        print("error: Spark needs Java 17 or newer; install one or set JAVA_HOME", file=sys.stderr)
        return 1
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark's workers run the system's Python
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    begin = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="slipstream-demo-") as folder,
        Server(data_dir=Path(folder, "server")) as server,
        connect_blocking(server.url) as client,
    ):
        js = client.jetstream()
        js.create_stream(StreamConfig(name="ORDERS", subjects=("orders.>",), allow_direct=True))
        js.create_key_value(BucketConfig(bucket="customers"))
        print(f"publishing {orders:,} orders to an embedded server, {server.url} ...", flush=True)
        start = time.perf_counter()
        expected = publish_orders(js, orders)
        publishing = time.perf_counter() - start
        print("counting and summing them per customer in Spark ...", flush=True)
        rows, querying = keep_view(server.url, Path(folder, "checkpoint"))
        view = read_view(js)

    print(f"\n{'customer':<12}{'orders':>10}{'revenue':>18}")
    for customer, (count, revenue) in view.items():
        print(f"{customer:<12}{count:>10,}{revenue / 100:>18,.2f}")
    print(f"\n{orders:,} messages published, stored on disk and acknowledged: {orders / publishing:,.0f} a second")
    print(f"{rows:,} rows through Spark into the view: {rows / querying:,.0f} a second")
    print(f"{time.perf_counter() - begin:.1f} seconds in total")
    if view != expected:
        print(f"error: the view is wrong, expected {dict(expected)}", file=sys.stderr)
        return 1
    print("the view equals the sum of the orders")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2])))
