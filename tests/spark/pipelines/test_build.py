"""Rows of outputs as the sinks take them: keys, subjects, and values that keep what the columns hold."""

from __future__ import annotations

import json
from dataclasses import replace

from pyspark.sql import SparkSession

from slipstream.kv.codecs import Base64Keys
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


def test_keys_are_fields_of_structs_lists_and_any_text(spark: SparkSession) -> None:
    names = ("Ada Lovelace", "a@b.com", "ü/?>*", "x" * 60)
    frame = spark.createDataFrame(
        [((name,), "eu", number, number % 2 == 0) for number, name in enumerate(names)],
        "customer STRUCT<name: STRING>, region STRING, n INT, gone BOOLEAN",
    )
    output = Output(
        name="b", view="v", kind="bucket", target="b", mode="append", key=("region", "customer.name"),
        key_codec="base64", deleted="gone",
    )  # fmt: skip
    rows = output_rows(frame, output).collect()
    codec = Base64Keys()
    assert [row.key for row in rows] == [codec.encode_key(f"eu.{name}") for name in names]
    assert [codec.decode_key(row.key) for row in rows] == [f"eu.{name}" for name in names]
    assert [row.deleted for row in rows] == [True, False, True, False]
    assert json.loads(bytes(rows[1].value)) == {"customer": {"name": "a@b.com"}, "n": 1}
    plain = output_rows(frame, replace(output, key_codec="none"), beside="n").collect()
    assert (plain[1].key, plain[1].n) == ("eu.a@b.com", 1)
    assert "n" not in json.loads(bytes(plain[1].value))
