"""Schemas of sources as Spark columns, and the functions that decode binary records, by format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.spark.pipelines.formats import avro, protobuf
from slipstream.spark.pipelines.model import Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column

BINARY = {"avro": "Avro", "protobuf": "Protobuf"}  # formats that Spark reads by way of JSON, and their names


def spark_schema(source: Source) -> str:
    """The columns of a decoded source as Spark's DDL; raises UsageError if its schema has none."""
    if source.format == "avro":
        return avro.spark_schema(source.schema)
    if source.format == "protobuf":
        return protobuf.spark_schema(source.descriptor, source.message)
    return source.schema


def record_to_json(source: Source) -> Callable[[Column], Column]:
    """A Spark function from the bytes of a record to JSON, null if they are not a record."""
    if source.format == "avro":
        return avro.avro_to_json(source.schema)
    return protobuf.protobuf_to_json(source.descriptor, source.message)
