"""A Spark session with the settings that a first program forgets: the Python of workers, Java, and quiet logs."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from slipstream.extras import needed_by
from slipstream.spark.formats import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(
    master: str = "local[*]", *, name: str = "slipstream", conf: Mapping[str, str] | None = None, verbose: bool = False
) -> SparkSession:
    """Start Spark, or return the session that is already running.

    Workers run the Python of this process (else they run the system's, which lacks the package: Spark then says that
    there is no format `jetstream`), Java is looked for where neither JAVA_HOME nor the PATH has it, a local master
    listens on the loopback interface only, the formats are registered (`register`), a repeated micro-batch has its rows
    in the same partitions, and neither warnings nor progress bars are printed unless `verbose` is set. Settings of the
    environment or `conf` take precedence.
    """
    from slipstream.spark.pipelines.spark_session import (
        ADAPTIVE,
        compiled_workers,
        find_java,
        silence_context_loggers,
        use_archive,
    )

    with needed_by("Spark", "spark"):
        from pyspark.sql import SparkSession

    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)  # else Spark finds two versions of Python
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    use_archive()
    builder = SparkSession.builder.master(master).appName(name).config(ADAPTIVE, "false")
    if not verbose:
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
        silence_context_loggers()
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    with compiled_workers():
        spark = builder.getOrCreate()
    register(spark)
    return spark
