"""One Spark session for the whole run, and streams to read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from slipstream import BlockingJetStream, connect_blocking
from slipstream.spark.pipelines.spark_session import CHECKPOINT_FILES, DIRECT_FILES, SECOND_CHECKSUMS, compiled_workers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if uses_session(item):
            item.add_marker(pytest.mark.spark)
        # A JVM that starts on a busy machine takes its time.
        if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))
    # Tests with JVMs of their own take longest. They begin, so that two processes end at the same time.
    items.sort(key=lambda item: item.get_closest_marker("spark") is None or uses_session(item))


def uses_session(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and "spark" in item.fixturenames


# Spark's own limits, which a machine with too much to do passes: 15 s for a Python process to connect to its JVM, a
# minute between two signs of life of a worker of a cluster, two of an executor. No promise of ours depends on them.
LONG_TIMEOUTS: dict[str, bool | float | int | str | None] = {
    "spark.python.authenticate.socketTimeout": "300s",
    "spark.worker.timeout": "600",
    "spark.network.timeout": "600s",
}


# How pipelines start Spark (`pipelines/spark_session.py` has the reasons): a worker that is forked has imported what it
# needs, and two processes of Hadoop instead of nine write a file of a checkpoint. The tests that start a JVM of their
# own without a pipeline (a cluster, spark-submit, Spark Connect, secrets) run with Spark's own settings.
LESS_CPU: dict[str, bool | float | int | str | None] = {
    "spark.python.daemon.module": "slipstream.spark.worker_start.daemon",
    CHECKPOINT_FILES: DIRECT_FILES,
    SECOND_CHECKSUMS: "false",
}


def start_session(folder: Path) -> SparkSession:
    """Two cores; a task may be tried twice, so that retries can be tested."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local[2,2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.log.level", "OFF")
        .config(map=LESS_CPU)
        .config(map=LONG_TIMEOUTS)
    )
    with compiled_workers():
        return builder.getOrCreate()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def js(any_server: str) -> Iterator[BlockingJetStream]:
    """JetStream of the server at hand."""
    with connect_blocking(any_server) as client:
        yield client.jetstream()
