"""Progress records of the stream sink, without Spark: what a retry finds when servers are lost."""

from __future__ import annotations

from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from slipstream import StreamConfig, connect_blocking
from slipstream.spark.connect import RetryingConnection
from slipstream.spark.option_reader import Connection
from slipstream.spark.sink.progress import Progress, Task
from slipstream.spark.sink.stream import stream_task
from tests.cluster import Cluster

ROWS = StructType([StructField("subject", StringType()), StructField("data", BinaryType())])
TASK = Task("query", 3, 0)


def test_a_retry_finds_the_record_of_a_stream_with_replicas_when_a_server_is_lost(cluster: Cluster, fresh: str) -> None:
    records = f"KV_{fresh}"
    with connect_blocking(cluster.urls, timeout=20) as client:
        js = client.jetstream()
        js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), num_replicas=3))
        stream_task({"stream": fresh, "progress": fresh, "servers": ",".join(cluster.urls)}, ROWS)
        assert js.stream(records).info().config.num_replicas == 3
        progress, target = Progress(js, fresh, fresh), js.stream(fresh).info()
        assert progress.begin(TASK, target).is_first
        cluster.wait_until_level(records, 1)
        leader = cluster.leader(records)
    cluster.kill(leader)
    try:
        cluster.wait_for_other_leader(records, leader)
        others = [cluster.url(name) for name in cluster.others(leader)]
        # As a task asks: nats-server gives no answer at all to a request that arrives between two leaders.
        with RetryingConnection(Connection(servers=tuple(others)), {}, reconnect=False) as server:
            again = server.run(lambda js: Progress(js, fresh, fresh).begin(TASK, target))
        assert not again.is_first
        assert again.begin == 0
    finally:
        cluster.start(leader)


def test_a_progress_bucket_that_exists_keeps_its_replicas(cluster: Cluster, fresh: str) -> None:
    with connect_blocking(cluster.urls, timeout=20) as client:
        js = client.jetstream()
        js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), num_replicas=3))
        js.create_key_value(fresh, replicas=1)
        stream_task({"stream": fresh, "progress": fresh, "servers": ",".join(cluster.urls)}, ROWS)
        assert js.stream(f"KV_{fresh}").info().config.num_replicas == 1
