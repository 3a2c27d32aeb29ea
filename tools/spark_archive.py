"""Make Spark's processes start in half the time, for the tests: an archive of the JVM's classes, bytecode for Python.

    python tools/spark_archive.py .venv/spark.jsa

Does only what is not done yet. Every test that starts a process of Spark gains some seconds by it.

The archive holds what the JVM loads of Spark's jars at every start (`tests/conftest.py` hands it over). A JVM that
finds it missing, or made by another Java or of other jars, starts as it would without one. It is class data sharing of
the JVM, no part of Spark: <https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html>.

Spark's Python workers import pyspark and py4j from zip files in the installed package, which hold sources only: each
worker and each streaming query would compile them anew, 0.6 s of a core every time. The bytecode is added to those
files.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A JVM that lives for seconds is done before what the second compiler makes of its code is of use. It starts a process,
# chmod or readlink, for each file of a checkpoint: with VFORK without a helper process in between.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Djdk.lang.Process.launchMechanism=VFORK"
DUMP = 180.0  # seconds
UNCHECKED = (1).to_bytes(4, "little")  # PEP 552: bytecode that is not compared with its source


def load_classes(folder: Path) -> None:
    """Something of all that tests do with Spark: batches, streams, views, files."""
    from pyspark.sql import SparkSession

    from slipstream import BucketConfig, StreamConfig, connect_blocking
    from slipstream.server import Server

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    with Server() as server, connect_blocking(server.url) as client:
        js = client.jetstream()
        js.create_stream(StreamConfig(name="A", subjects=("a.>",), allow_direct=True))
        js.create_stream(StreamConfig(name="B", subjects=("b.>",), allow_direct=True))
        js.create_key_value(BucketConfig(bucket="view"))
        for n in range(20):
            js.publish(f"a.{n % 3}", b'{"n": %d}' % n)
        read = spark.read.format("jetstream").option("servers", server.url)
        stream = spark.readStream.format("jetstream").option("servers", server.url)
        rows = "subject", "from_json(CAST(data AS STRING), 'n BIGINT').n AS n", "from_csv('1', 'a INT').a AS a"
        for name, frame in ("batch", read.load("A")), ("stream", stream.load("A")):
            frame.selectExpr(*rows).createOrReplaceTempView(name)
        spark.sql("SELECT subject, sum(n), count(*) FROM batch WHERE n > 1 GROUP BY subject ORDER BY 2").toPandas()
        queries = {
            "parquet": spark.table("stream").writeStream.option("path", str(folder / "files")),
            "jetstream": spark.sql("SELECT 'b.x' AS subject, CAST(n AS STRING) AS data FROM stream")
            .writeStream.option("servers", server.url)
            .option("stream", "B"),
            "view": spark.sql("SELECT subject AS key, count(*) AS value FROM stream GROUP BY subject")
            .writeStream.outputMode("update")
            .foreachBatch(collect),
        }
        for name, query in queries.items():
            named = query if name == "view" else query.format(name)
            started = named.option("checkpointLocation", str(folder / name)).trigger(availableNow=True).start()
            started.awaitTermination(60)
        spark.read.parquet(str(folder / "files")).collect()
        spark.read.format("jetstream_kv").option("servers", server.url).load("view").collect()
    spark.stop()


def collect(frame: DataFrame, _: int) -> None:
    """A micro-batch, as a pipeline's output takes it."""
    frame.collect()


def dump(path: Path) -> None:
    """Load, and have the JVM write down what it loaded when it ends."""
    from pyspark import SparkContext

    os.environ["SPARK_SUBMIT_OPTS"] = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={path.resolve()}"
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        load_classes(Path(folder))
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()  # by which the JVM knows that it is not needed any more
    try:
        gateway.proc.wait(DUMP)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()


def bytecode(source: bytes, installed: Path) -> bytes:
    """A module's bytecode, from the cache of its installed twin where that is the same module."""
    cached = Path(importlib.util.cache_from_source(str(installed)))
    if cached.exists() and installed.read_bytes() == source:
        code = cached.read_bytes()[16:]
    else:
        code = marshal.dumps(compile(source, str(installed), "exec", dont_inherit=True))
    return importlib.util.MAGIC_NUMBER + UNCHECKED + importlib.util.source_hash(source) + code


def compile_workers(package: Path) -> None:
    """Add bytecode to the zip files that workers of an installed pyspark import from, pyspark and py4j."""
    for path in (package / "python" / "lib").glob("*.zip"):
        _compile_zip(path, package.parent)


def _compile_zip(path: Path, site_packages: Path) -> None:
    """Add bytecode beside each source but those of tests."""
    with ZipFile(path) as old:
        names = old.namelist()
    if any(name.endswith(".pyc") for name in names):
        return
    part = path.with_suffix(".part")
    shutil.copy2(path, part)
    with ZipFile(part, "a") as new:
        for name in names:
            if name.endswith(".py") and "/tests/" not in name:
                new.writestr(f"{name}c", bytecode(new.read(name), site_packages / name))
    part.replace(path)


def main(path: Path) -> int:
    """Make both. Whatever goes wrong costs time in tests and nothing else."""
    try:
        import pyspark

        compile_workers(Path(pyspark.__file__).parent)
    except Exception as error:
        print(f"no bytecode for Spark's workers ({type(error).__name__}): its tests start more slowly")
    if path.exists():
        return 0
    part = path.with_suffix(".part")
    try:
        dump(part)
        part.replace(path)
    except Exception as error:
        print(f"no archive of Spark's classes ({type(error).__name__}): its tests start more slowly")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
