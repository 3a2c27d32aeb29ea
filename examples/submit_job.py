"""A job for `spark-submit`: counts the messages of a stream by subject into a Key-Value bucket.

    spark-submit --master 'local[2]' examples/submit_job.py nats://127.0.0.1:4222 ORDERS counts

The same file runs on a cluster (`--master spark://host:7077`), whose machines have the package and reach the servers.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(servers: str, stream: str, bucket: str) -> None:
    spark = SparkSession.builder.appName("counts").getOrCreate()
    messages = spark.read.format("jetstream").option("servers", servers).load(stream)
    counts = messages.groupBy("subject").count().selectExpr("subject AS key", "CAST(count AS STRING) AS value")
    counts.write.format("jetstream_kv").mode("append").option("servers", servers).save(bucket)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
