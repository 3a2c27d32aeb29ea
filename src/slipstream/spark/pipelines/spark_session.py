"""Spark session of a pipeline: a JVM to run on, settings for small streaming jobs, and quiet logs."""

from __future__ import annotations

import os
import re
import shutil
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.errors import UsageError
from slipstream.spark.pipelines.model import Pipeline
from slipstream.spark.pipelines.state import WAREHOUSE, StateFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_ATTEMPTS = 4
JVM_DIR = Path("/usr/lib/jvm")
_LOGS = """
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.context.name = org.apache.spark.SparkContext
logger.context.level = off
logger.stream.name = org.apache.spark.sql.execution.streaming
logger.stream.level = off
logger.files.name = org.apache.spark.sql.execution.datasources
logger.files.level = off
logger.executor.name = org.apache.spark.executor
logger.executor.level = off
logger.scheduler.name = org.apache.spark.scheduler
logger.scheduler.level = off
"""


def start_spark(pipeline: Pipeline, master: str, state: StateFolder) -> SparkSession:
    """Start Spark, with settings for small streaming jobs and the pipeline's own on top."""
    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark's workers run the system's Python
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark import SparkConf, SparkContext
    from pyspark.core.context import Py4JError  # type: ignore[attr-defined]
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from slipstream.spark.pipelines.build import spark_message

    state.path.mkdir(parents=True, exist_ok=True)
    logs = state.path / "log4j2.properties"
    logs.write_text(_LOGS, "utf-8")
    conf = {
        "spark.app.name": f"slipstream pipeline {pipeline.name}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
        WAREHOUSE: str(state.warehouse),
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logs}",
    }
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if re.fullmatch(r"local\[[\d*]+\]", master):
        master = f"{master[:-1]},{TASK_ATTEMPTS}]"  # as on a cluster: a task that fails is retried
    settings = SparkConf().setMaster(master).setAll([*{**conf, **pipeline.conf}.items()])
    # The context is created in another thread: in the main thread Spark installs its own SIGINT handler, and Ctrl-C
    # would raise KeyboardInterrupt anywhere instead of stopping the run in order. The session must be this thread's.
    try:
        with ThreadPoolExecutor(1) as starter:
            starter.submit(SparkContext.getOrCreate, settings).result()
        return SparkSession.builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise UsageError(f"Spark did not start with master {master!r}: {spark_message(error)}") from error


def find_java() -> None:
    """Set JAVA_HOME to an installed JVM if neither it nor the PATH names one. Raises UsageError if there is none."""
    if home := os.environ.get("JAVA_HOME"):
        if shutil.which("java", path=Path(home, "bin")) is None:
            raise UsageError(f"Spark needs Java 17 or newer, and JAVA_HOME has none: {home}")
        return
    if shutil.which("java"):
        return
    installed = sorted(JVM_DIR.glob("*/bin/java"))
    if not installed:
        raise UsageError(f"Spark needs Java 17 or newer, and there is none on the PATH or in {JVM_DIR}: set JAVA_HOME")
    os.environ["JAVA_HOME"] = str(installed[-1].parent.parent)
