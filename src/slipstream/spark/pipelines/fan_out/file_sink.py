"""Spark's own file sink for one batch of an output, outside of a query of its own.

The sink keeps in the output's folder which of its batches are complete, so that a repeated one is skipped: the same
class, folder and numbers as those of a query of the output's own, so that either continues what the other has written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipstream.spark.pipelines.build import METRICS, counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from slipstream.spark.pipelines.model import Output


def file_format(spark: SparkSession, name: str) -> Any:
    """Spark's reader and writer of files in a format; raises what Py4J does if the format is not of that kind."""
    # No public API writes a batch to a file sink; PySpark itself reaches the JVM this way.
    java: Any = spark._jvm
    sources = java.org.apache.spark.sql.execution.datasources.DataSource
    found = sources.lookupDataSource(name, spark._jsparkSession.sessionState().conf()).newInstance()
    return found.fallbackFileFormat().newInstance()


def write_files(rows: DataFrame, output: Output, path: str, batch: int) -> int:
    """Write the rows of one of the output's batches, unless that was done; returns how many there were."""
    spark = rows.sparkSession
    java: Any = spark._jvm
    utils = java.org.apache.spark.api.python.PythonUtils
    sinks = java.org.apache.spark.sql.execution.streaming.sinks
    columns, options = utils.toSeq(list(output.partition_by)), utils.toScalaMap({})
    sink = sinks.FileStreamSink(spark._jsparkSession, path, file_format(spark, output.format), columns, options)
    watched = counted(rows)
    sink.addBatch(batch, watched._jdf)
    found = watched._jdf.queryExecution().observedMetrics().get(METRICS)
    return int(found.get().getLong(0)) if found.isDefined() else 0
