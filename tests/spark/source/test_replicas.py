"""Spark reads everything whichever replica answers: on our server and on a real cluster, while replicas are held."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from slipstream import BlockingClient, BlockingJetStream, StreamConfig, connect_blocking
from slipstream.api import StreamSource
from slipstream.errors import Error
from slipstream.spark.option_reader import Connection
from slipstream.spark.options import StreamSinkOptions
from slipstream.spark.sink.progress import Progress, Task
from slipstream.spark.sink.records import Shape
from slipstream.spark.sink.stream import StreamTask
from slipstream.testing import TestServer
from tests.cluster import Cluster, wait_for

ROWS = 2_000


def replicated(js: BlockingJetStream, name: str) -> None:
    js.create_stream(StreamConfig(name=name, subjects=(f"{name}.>",), num_replicas=3, allow_direct=True))


def publish(js: BlockingJetStream, name: str, count: int) -> int:
    with js.publisher(timeout=20) as publisher:
        for n in range(count):
            publisher.publish(f"{name}.{n % 3}", str(n).encode())
    return js.stream(name).info().state.last_seq


def batch(spark: SparkSession, servers: str, name: str) -> list[int]:
    reader = spark.read.format("jetstream").option("servers", servers).option("partitions", "6")
    return sorted(row.sequence for row in reader.option("columns", "sequence").load(name).collect())


def streamed(spark: SparkSession, servers: str, name: str, folder: Path) -> list[int]:
    seen: list[int] = []
    reader = spark.readStream.format("jetstream").option("servers", servers).option("partitions", "3")
    source = reader.option("maxMessagesPerTrigger", "3000").option("columns", "sequence").load(name)
    query = source.writeStream.foreachBatch(lambda rows, _: seen.extend(row.sequence for row in rows.collect()))
    query.option("checkpointLocation", str(folder)).trigger(availableNow=True).start().awaitTermination()
    return sorted(seen)


@pytest.mark.spec("SP-03")
def test_a_held_replica_of_ours_costs_no_row(spark: SparkSession, tmp_path: Path) -> None:
    with TestServer() as server, connect_blocking(server.url) as client:
        js = client.jetstream()
        replicated(js, "S")
        publish(js, "S", ROWS)
        with server.held("S"):
            last = publish(js, "S", ROWS)
            behind = [replica for replica in server.replicas("S") if replica.last_seq < last]
            assert behind, "no replica is behind: nothing is shown"
            assert batch(spark, server.url, "S") == list(range(1, last + 1))
            assert streamed(spark, server.url, "S", tmp_path) == list(range(1, last + 1))


@contextmanager
def unsteady(cluster: Cluster, stream: str) -> Iterator[None]:
    """Replication to one follower stands still again and again; never so long that leadership moves."""
    leader = cluster.leader(stream)
    follower = cluster.others(leader)[0]
    done = threading.Event()

    def hold() -> None:
        while not done.is_set():
            cluster.hold_replica(leader, follower)
            done.wait(2.0)
            cluster.release_replica(leader, follower)
            done.wait(0.1)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=20)


@pytest.mark.spec("SP-03")
@pytest.mark.timeout(900)
def test_a_held_replica_of_a_real_cluster_costs_no_row(
    spark: SparkSession, cluster: Cluster, fresh: str, tmp_path: Path
) -> None:
    servers = ",".join(cluster.urls)
    with connect_blocking(cluster.urls) as client:
        js = client.jetstream()
        replicated(js, fresh)
        cluster.wait_for_direct(fresh)
        publish(js, fresh, 10)
        batch(spark, servers, fresh)  # the workers are there: reads below take a second or two
        with unsteady(cluster, fresh):
            last = 0
            for _ in range(4):
                last = publish(js, fresh, ROWS)
                found = batch(spark, servers, fresh)
                assert found == list(range(1, last + 1))
            assert streamed(spark, servers, fresh, tmp_path) == list(range(1, last + 1))


@pytest.mark.spec("SP-03")
def test_a_mirror_that_is_behind_costs_no_row(spark: SparkSession, tmp_path: Path) -> None:
    """A mirror with `mirror_direct` answers for its origin; held, it lacks the newest."""
    with TestServer() as server, connect_blocking(server.url) as client:
        js = client.jetstream()
        js.create_stream(StreamConfig(name="S", subjects=("S.>",), allow_direct=True))
        publish(js, "S", ROWS)
        js.create_stream(StreamConfig(name="M", mirror=StreamSource(name="S"), mirror_direct=True, allow_direct=True))
        server.hold_mirror("M")
        last = publish(js, "S", ROWS)
        assert batch(spark, server.url, "S") == list(range(1, last + 1))
        assert streamed(spark, server.url, "S", tmp_path) == list(range(1, last + 1))


def with_new_leader(client: BlockingClient, stream: str, rows: pa.RecordBatch, at: int) -> Iterator[pa.RecordBatch]:
    """The rows. When `at` of them are on their way, the stream's leader is told to step down."""
    yield rows.slice(0, at)
    client.publish(f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}", reply=client.new_inbox())
    client.flush(timeout=10)
    yield rows.slice(at)


def is_written(options: StreamSinkOptions, rows: pa.RecordBatch, task: Task) -> bool:
    with suppress(Error):
        StreamTask(options, Shape()).run(iter([rows]), task)
        return True
    return False


@pytest.mark.spec("SP-05")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("retry_for", [0.0, 60.0], ids=["tasks fail", "tasks wait"])
def test_fast_batches_are_there_once_while_the_leader_of_a_real_cluster_changes(
    cluster: Cluster, fresh: str, retry_for: float
) -> None:
    """Tasks of the sink without Spark: a new attempt follows one that fails, within the task or after it."""
    with connect_blocking(cluster.urls) as client:
        js = client.jetstream()
        js.create_stream(
            StreamConfig(name=fresh, subjects=(f"{fresh}.>",), num_replicas=3, allow_direct=True, allow_batched=True)
        )
        cluster.wait_for_direct(fresh)
        connection = Connection(servers=tuple(cluster.urls), timeout=2.0, retry_for=retry_for)
        options = StreamSinkOptions(stream=fresh, connection=connection)
        Progress(js, options.progress, fresh).prepare(1)
        rows = pa.RecordBatch.from_pylist(
            [{"subject": f"{fresh}.{n % 3}", "data": b"%0200d" % n} for n in range(2 * ROWS)]
        )
        failed = 0
        for batch in range(6):
            task = Task(fresh, batch, 0)
            with suppress(Error):
                failed += 1
                at = rows.num_rows * batch // 6
                StreamTask(options, Shape()).run(with_new_leader(client, fresh, rows, at), task)
                failed -= 1
            wait_for(partial(is_written, options, rows, task), f"an attempt that succeeds at {task}")
        if retry_for:
            assert not failed
        else:
            assert failed, "no attempt failed when the leader changed: nothing is shown"
        ids = Counter(str(message.headers.get("Nats-Msg-Id")) for message in js.stream(fresh).read())
        assert len(ids) == 6 * rows.num_rows
        assert set(ids.values()) == {1}
