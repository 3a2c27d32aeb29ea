"""Spark Connect and Spark's declarative pipelines: the same sources and sinks. Both need `pyspark[pipelines]`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from fcntl import LOCK_EX, flock
from pathlib import Path

import pytest

from slipstream import BlockingJetStream, BucketConfig, StreamConfig, connect_blocking

ROOT = Path(__file__).resolve().parent.parent.parent
PORT = 15002  # of Spark Connect's server
EXAMPLE = ROOT / "examples" / "declarative"
CONNECT = """
import sys
from pyspark.sql import SparkSession
name, folder, *servers = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
for index, url in enumerate(servers):
    batch = spark.read.format("jetstream").option("servers", url).load(name)
    print("rows", batch.count())
    rows = spark.readStream.format("jetstream").option("servers", url).load(name)
    rows = rows.selectExpr(f"concat('{name}_out.', sequence) AS subject", "data")
    query = rows.writeStream.format("jetstream").option("servers", url)
    query = query.option("checkpointLocation", f"{folder}/{index}").trigger(availableNow=True)
    query.start(f"{name}_out").awaitTermination()
    view = batch.groupBy("subject").count().selectExpr("subject AS key", "CAST(count AS STRING) AS value")
    view.write.format("jetstream_kv").mode("append").option("servers", url).save(name)
    print("keys", spark.read.format("jetstream_kv").option("servers", url).load(name).count())
spark.stop()
"""


pytestmark = pytest.mark.xdist_group("connect")  # one after the other: a server takes a port that it does not choose


@pytest.fixture(autouse=True)
def free_port() -> Iterator[None]:
    """Wait until no other run of these tests has the port, and the server of the last test, which outlives it, left."""
    with Path(tempfile.gettempdir(), f"spark-connect-{PORT}.lock").open("a") as lock:
        flock(lock, LOCK_EX)
        deadline = time.monotonic() + 120
        while not is_free(PORT):
            assert time.monotonic() < deadline, f"port {PORT} of Spark Connect is in use by another program"
            time.sleep(0.2)
        yield


def is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def environment(url: str) -> dict[str, str]:
    return {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "NATS_URL": url}


def publish(js: BlockingJetStream, name: str, prefix: str) -> None:
    js.create_stream(StreamConfig(name=name, subjects=(f"{prefix}.>",), allow_direct=True))
    with js.publisher() as publisher:
        for n in range(100):
            customer = ("ada", "alan", "grace")[n % 3]
            publisher.publish(f"{prefix}.{customer}", b'{"customer": "%s", "amount": %d}' % (customer.encode(), n))


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_connect_reads_and_writes_the_same(our_url: str, real_url: str, fresh: str, tmp_path: Path) -> None:
    urls = (our_url, real_url)
    for url in urls:
        with connect_blocking(url) as client:
            js = client.jetstream()
            publish(js, fresh, fresh)
            js.create_stream(StreamConfig(name=f"{fresh}_out", subjects=(f"{fresh}_out.>",), allow_direct=True))
            js.create_key_value(BucketConfig(bucket=fresh))
    command = [sys.executable, "-W", "ignore", "-c", CONNECT, fresh, str(tmp_path), *urls]
    done = subprocess.run(
        command, env=environment(our_url), cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.count("rows 100") == 2
    assert done.stdout.count("keys 3") == 2
    for url in urls:
        with connect_blocking(url) as client:
            assert client.jetstream().stream(f"{fresh}_out").info().state.messages == 100


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_declarative_pipeline(js: BlockingJetStream, any_server: str, tmp_path: Path) -> None:
    for name in ("ORDERS", "LARGE"):
        if name in list(js.stream_names()):
            js.stream(name).delete()
    publish(js, "ORDERS", "orders")
    js.create_stream(StreamConfig(name="LARGE", subjects=("large.>",), allow_direct=True))
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    settings = project / "spark-pipeline.yml"
    settings.write_text(settings.read_text().replace("/tmp/slipstream-declarative", str(tmp_path / "storage")))
    (tmp_path / "storage").mkdir()
    command = [str(Path(sys.executable).parent / "spark-pipelines"), "run", "--conf", "spark.sql.shuffle.partitions=1"]
    try:
        done = subprocess.run(
            command, env=environment(any_server), cwd=project, capture_output=True, text=True, timeout=800, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert sorted(message.subject for message in js.stream("LARGE").read()) == sorted(
            f"large.{('ada', 'alan', 'grace')[n % 3]}" for n in range(90, 100)
        )
    finally:
        for name in ("ORDERS", "LARGE"):
            js.stream(name).delete()
