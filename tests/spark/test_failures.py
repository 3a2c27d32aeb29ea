"""What is told of a failed query: the line that says why, short, and whether it may pass."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from slipstream import BlockingJetStream, BucketConfig
from slipstream.spark.failures import (
    BatchStoppedError,
    failure_of,
    is_transient,
    reason_of,
    telling_line,
    with_short_errors,
)
from slipstream.spark.sink.foreach_batch import into_bucket

PY4J = """An error occurred while calling o78.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 2 times
\tat org.apache.spark.Some.where(Some.java:1)
"""


@pytest.mark.parametrize(
    ("text", "line", "transient"),
    [
        (
            "Traceback\nslipstream.errors.ConnectionLostError: the line is cut\n\n=== Streaming Query ===\nplan",
            "slipstream.errors.ConnectionLostError: the line is cut",
            True,
        ),
        (PY4J + "Caused by: java.io.EOFException\n\tat a\n", "java.io.EOFException", True),
        (PY4J + "Caused by: java.io.IOException: Broken pipe", "java.io.IOException: Broken pipe", True),
        (
            PY4J + "Caused by: org.S: Python worker exited unexpectedly (crashed)\nCaused by: java.x.Y",
            "org.S: Python worker exited unexpectedly (crashed)",
            True,
        ),
        (PY4J, "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 2 times", False),
        ("[STREAM_FAILED] terminated with exception: \nCaused by: java.io.EOFException", "java.io.EOFException", True),
        (
            "Caused by: slipstream.errors.UsageError: bad row\nCaused by: x.Y: z",
            "slipstream.errors.UsageError: bad row",
            False,
        ),
        ("", "unknown reason", False),
        # A stray connection on the socket of a Python worker: a length of two gigabytes.
        (
            "x\nCaused by: java.lang.OutOfMemoryError: Java heap space\n"
            "at org.apache.spark.security.SocketAuthHelper.readUtf8(SocketAuthHelper.scala:1)",
            "java.lang.OutOfMemoryError: Java heap space",
            True,
        ),
        (
            "x\nCaused by: java.lang.OutOfMemoryError: Java heap space\nat org.apache.spark.sql.Row.get(Row.scala:1)",
            "java.lang.OutOfMemoryError: Java heap space",
            False,
        ),
    ],
)
def test_telling_line_of_an_exception(text: str, line: str, transient: bool) -> None:
    assert telling_line(text) == line
    assert is_transient(text) is transient
    assert reason_of(text) == line.removeprefix("slipstream.errors.ConnectionLostError: ").removeprefix(
        "slipstream.errors.UsageError: "
    )


@pytest.mark.parametrize("name", ["java.lang.InterruptedException", "SparkException: Job 3 cancelled because x"])
def test_interruption_is_short_and_has_the_words_that_spark_looks_for(name: str) -> None:
    def stopped(*_: object) -> None:
        raise RuntimeError(f"An error occurred\n: {name}\n" + "\tat somewhere\n" * 1_000)

    with pytest.raises(BatchStoppedError) as caught:
        with_short_errors(stopped)(None, 1)  # type: ignore[arg-type]
    assert caught.value.__suppress_context__
    assert len(str(caught.value)) < 200
    # The expression of Spark's StreamExecution, which recurses for every character in between.
    spark_looks_for = r"py4j.protocol.Py4JJavaError: An error occurred while calling((.|\r\n|\r|\n)*)" + (
        r"(java.lang.InterruptedException|java.io.InterruptedIOException)"
    )
    assert re.search(spark_looks_for, str(caught.value))


@pytest.mark.parametrize("any_server", ["real"], indirect=True)
def test_death_of_a_worker_is_reported_in_one_line(
    spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str, tmp_path: Path
) -> None:
    js.create_key_value(BucketConfig(bucket=fresh))

    def die(value):  # type: ignore[no-untyped-def] # Spark cannot read hints that are texts
        os.kill(os.getpid(), signal.SIGKILL)
        return str(value)

    dies = f.udf(die, "string")

    rows = spark.readStream.format("rate").load().select(f.lit("k").alias("key"), dies("value").alias("value"))
    writer = rows.writeStream.foreachBatch(into_bucket(fresh, {"servers": any_server}))
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    deadline = time.monotonic() + 120
    while query.isActive:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    text = failure_of(query)
    assert "Py4JJavaError" not in text  # what Spark would search, character by character
    assert is_transient(text)
