"""Rows of outputs as the sinks take them: keys, subjects, and values that keep what the columns hold."""

from __future__ import annotations

import json

from pyspark.sql import SparkSession

from slipstream.spark.pipelines.build import output_rows
from slipstream.spark.pipelines.model import Output


def test_values_keep_microseconds_and_nulls(spark: SparkSession) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        frame = spark.sql(
            "SELECT 'k' AS id, TIMESTAMP '2026-01-31 12:00:00.123456' AS at, CAST(NULL AS INT) AS gone, "
            "TIMESTAMP_NTZ '2026-01-31 12:00:00.000001' AS local, named_struct('x', CAST(NULL AS STRING)) AS inner, "
            "1 AS `odd.name`"
        )
        bucket = Output(name="b", view="v", kind="bucket", target="b", mode="update", key=("id",))
        stream = Output(name="s", view="v", kind="stream", target="S", mode="append", subject="concat('s.', id)")
        (entry,) = output_rows(frame, bucket).collect()
        (message,) = output_rows(frame, stream).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")
    expected = {
        "at": "2026-01-31T12:00:00.123456Z",
        "gone": None,
        "local": "2026-01-31T12:00:00.000001",
        "inner": {"x": None},
        "odd.name": 1,
    }
    assert (entry.key, json.loads(bytes(entry.value))) == ("k", expected)
    assert (message.subject, json.loads(bytes(message.data))) == ("s.k", {"id": "k", **expected})
