"""Class-data archive of Spark's JVM, which halves its start: made once, used by every later run of a pipeline.

A JVM writes the archive when it ends, some ten seconds after Spark has stopped; this waits for that. An archive fits
one version of Java and of Spark, and a JVM that it does not fit ignores it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from slipstream.errors import Error
from slipstream.spark.pipelines.connection import connection_options, create_declared, open_connection
from slipstream.spark.pipelines.reader import parse
from slipstream.spark.pipelines.runner import Runner
from slipstream.spark.pipelines.spark_session import JVM_OPTIONS, archive_path
from slipstream.spark.pipelines.state import StateFolder

DUMP_TIMEOUT = 300.0  # seconds
_QUIET = "-Xlog:disable -Xlog:all=off"
# Something of all that pipelines do, so that its classes are in the archive.
_PIPELINE = """
[pipeline]
name = "warm"
dead_letter = "DEAD"
[spark]
master = "local[2]"
conf = { "spark.sql.shuffle.partitions" = 1 }
[streams.IN]
subjects = "in.>"
[streams.OUT]
subjects = "out.>"
[buckets.view]
[sources.rows]
stream = "IN"
format = "json"
schema = "n BIGINT, word STRING"
[steps.sums]
sql = "SELECT word, count(*) AS rows, sum(n) AS total FROM rows WHERE n > 1 GROUP BY word"
[outputs.view]
from = "sums"
bucket = "view"
key = "word"
[outputs.out]
from = "rows"
stream = "OUT"
subject = "concat('out.', word)"
[outputs.files]
from = "rows"
path = "files"
"""


def warm() -> Path:
    """Run a small pipeline in a JVM that records the classes it loads; returns the archive."""
    target = archive_path()
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".{os.getpid()}.part")
    os.environ[JVM_OPTIONS] = f"{_QUIET} -XX:ArchiveClassesAtExit={part}"
    with tempfile.TemporaryDirectory(prefix="slipstream-", ignore_cleanup_errors=True) as folder:
        pipeline = parse(_PIPELINE, file=str(Path(folder, "warm.toml")))
        with connection_options(pipeline, StateFolder(pipeline)) as connection, open_connection(connection) as js:
            create_declared(js, pipeline)
            for n in range(20):
                js.publish(f"in.{n}", b'{"n": %d, "word": "w%d"}' % (n, n % 3))
        with Path(folder, "out").open("w", encoding="utf-8") as out:
            Runner(pipeline, once=True, out=out, plain=True).run()
        _wait_for_jvm()
    if not part.exists():
        raise Error("the JVM has written no class-data archive: it needs Java 17 or newer, with HotSpot")
    part.replace(target)
    return target


def _wait_for_jvm() -> None:
    """End the JVM, and wait until it has written the archive."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None, "the pipeline has started it"
    gateway.shutdown()
    gateway.proc.stdin.close()  # by which the JVM knows that it is no longer needed
    try:
        gateway.proc.wait(DUMP_TIMEOUT)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        raise Error(f"the JVM did not write the archive within {DUMP_TIMEOUT:g} s") from None
