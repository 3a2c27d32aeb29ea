"""Registration of the formats `jetstream` and `jetstream_kv` with a Spark session.

Spark finds the formats by itself, too; but two things are wrong with what it finds. It runs their Python in processes
of their own, since it has one daemon of workers per environment. And all queries share one map of environment
variables, a plain `HashMap`, to which each query adds some when its source starts. If two of them start at once, the
map can end up with fewer entries than it counts: from then on every task of every query fails with
`java.io.OptionalDataException` (seen with Spark 4.3.0). In a map that has these variables from the beginning nothing
is added, only replaced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What Spark sets for each Python process, whatever it is for (PythonStreamingSourceRunner sets no others).
_VARIABLES = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")


def register(spark: SparkSession) -> None:
    """Register the formats, so that any number of queries can use them at once. A session of Spark Connect is left as
    it is: its server plans the reads."""
    from pyspark.sql.utils import is_remote

    from slipstream.spark.source.kv import KeyValueDataSource
    from slipstream.spark.source.stream import JetStreamDataSource

    if is_remote():
        return
    for name in _VARIABLES:
        spark.sparkContext.environment.setdefault(name, "")
    for source in (JetStreamDataSource, KeyValueDataSource):
        spark.dataSource.register(source)
