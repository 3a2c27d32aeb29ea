"""From a stream of orders: a table, a total per customer, and messages of another stream."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import sum as sum_

SERVERS = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
SCHEMA = "customer STRING, amount BIGINT"
spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    messages = spark.readStream.format("jetstream").option("servers", SERVERS).option("stream", "ORDERS").load()
    return messages.selectExpr(f"from_json(CAST(data AS STRING), '{SCHEMA}') AS o", "sequence").selectExpr(
        "o.*", "sequence"
    )


@dp.materialized_view
def per_customer() -> DataFrame:
    return spark.read.table("orders").groupBy("customer").agg(sum_("amount").alias("revenue"))


dp.create_sink("large", "jetstream", {"servers": SERVERS, "stream": "LARGE"})


@dp.append_flow(target="large")
def large_orders() -> DataFrame:
    large = spark.readStream.table("orders").where("amount >= 90")
    return large.selectExpr("concat('large.', customer) AS subject", "to_json(struct(*)) AS data")
