"""Preparation of Spark for a pipeline's queries, in the background: the Python processes and classes that they need.

The first query in a JVM waits for Python processes that look up the format, build the source and plan the read, for a
worker with its packages, and for the JVM to load what it runs. The deep check keeps one core busy meanwhile, so an
empty read of a source runs on the other one. It changes nothing, and what goes wrong here is told by the query itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from slipstream.spark.options import JETSTREAM
from slipstream.spark.pipelines.model import Pipeline

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def prepare(spark: SparkSession, pipeline: Pipeline, connection: Mapping[str, str]) -> None:
    """Begin to prepare; returns at once."""
    stream = next((source.stream for source in pipeline.sources if source.stream), "")
    threading.Thread(target=_prepare, args=(spark, stream, dict(connection)), daemon=True).start()


def _prepare(spark: SparkSession, stream: str, connection: Mapping[str, str]) -> None:
    if not stream:
        return
    with suppress(Exception):  # such as: the stream is created later
        reader = spark.read.format(JETSTREAM).options(**connection).option("starting", "latest")
        reader.load(stream).select("data").mapInArrow(_same, "data BINARY").collect()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches
