"""Buckets that are not where a bucket usually is: replicas, subjects of their own, domains."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from slipstream import BlockingJetStream, BucketConfig, BucketSource, Server, StreamConfig, connect_blocking
from slipstream.api import ExternalStream, StreamSource, SubjectTransform
from slipstream.errors import Error, UsageError
from slipstream.spark.options import SinkOptions
from slipstream.spark.sink.dead_letters import DeadLetters
from slipstream.spark.sink.entries import Change
from slipstream.spark.sink.fence import Epoch
from slipstream.spark.sink.kv import BucketWriter
from slipstream.spark.source.kv_location import MAX_HOPS, origin_of, prefix_of
from tests.ports import free_port
from tests.servers import real_server

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def read(spark: SparkSession, server: str, bucket: str, **options: object) -> list[tuple[Any, ...]]:
    given = {key: str(value) for key, value in options.items()}
    df = spark.read.format("jetstream_kv").option("servers", server).options(**given).load(bucket)
    return [tuple(row) for row in df.select("key", "value", "revision").orderBy("revision").collect()]


def write(df: DataFrame, server: str, bucket: str, **options: str) -> None:
    df.write.format("jetstream_kv").mode("append").option("servers", server).options(**options).save(bucket)


def wait_for(js: BlockingJetStream, bucket: str, revision: int) -> None:
    """A replica has caught up."""
    deadline = time.monotonic() + 20
    while js.stream(f"KV_{bucket}").info().state.last_seq < revision:
        assert time.monotonic() < deadline, "the replica does not get on"
        time.sleep(0.02)


def fill(js: BlockingJetStream, config: BucketConfig) -> None:
    """Revisions: 1 a=1, 2 b.x=1, 3 a=2, 4 b.x deleted."""
    kv = js.create_key_value(config)
    kv.put("a", b"1")
    kv.put("b.x", b"1")
    kv.put("a", b"2")
    kv.delete("b.x")


def check_reads(spark: SparkSession, server: str, bucket: str, folder: Path) -> None:
    """Every kind of read finds what `fill` has written."""
    assert read(spark, server, bucket) == [("a", b"2", 3)]
    assert read(spark, server, bucket, includeDeletes="true") == [("a", b"2", 3), ("b.x", None, 4)]
    past = [("a", b"1", 1), ("b.x", b"1", 2), ("a", b"2", 3), ("b.x", None, 4)]
    assert read(spark, server, bucket, history="true") == past
    assert read(spark, server, bucket, history="true", keys="b.*") == past[1::2]
    assert read(spark, server, bucket, asOfRevision=2) == past[:2]
    seen: list[tuple[Any, ...]] = []
    feed = spark.readStream.format("jetstream_kv").option("servers", server).load(bucket)
    query = feed.writeStream.foreachBatch(
        lambda batch, _: seen.extend(tuple(row) for row in batch.select("key", "value", "revision").collect())
    )
    query.option("checkpointLocation", str(folder)).trigger(availableNow=True).start().awaitTermination()
    assert sorted(seen, key=lambda row: row[2]) == past


@pytest.mark.spec("SP-06")
class TestReads:
    def test_of_a_replica(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str, tmp_path: Path
    ) -> None:
        fill(js, BucketConfig(bucket=fresh, history=5))
        js.create_key_value(BucketConfig(bucket=f"{fresh}copy", history=5, mirror=fresh))
        wait_for(js, f"{fresh}copy", 4)
        check_reads(spark, any_server, f"{fresh}copy", tmp_path)
        spark.conf.set(PUSHDOWN, "true")
        try:
            df = spark.read.format("jetstream_kv").option("servers", any_server).load(f"{fresh}copy")
            assert [row.value for row in df.where("key = 'a'").collect()] == [b"2"]
            assert df.where("key LIKE 'c.%'").count() == 0
        finally:
            spark.conf.unset(PUSHDOWN)

    def test_of_a_bucket_with_subjects_of_its_own_and_of_its_replicas(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str, tmp_path: Path
    ) -> None:
        fill(js, BucketConfig(bucket=fresh, history=5, subject_prefix=f"{fresh}.cfg"))
        check_reads(spark, any_server, fresh, tmp_path / "own")
        for name, origin in (("copy", fresh), ("copycopy", f"{fresh}copy")):
            js.create_key_value(BucketConfig(bucket=fresh + name, history=5, mirror=origin))
            wait_for(js, fresh + name, 4)
            assert read(spark, any_server, fresh + name, history="true", keys="a") == [("a", b"1", 1), ("a", b"2", 3)]
        check_reads(spark, any_server, f"{fresh}copycopy", tmp_path / "copy")

    def test_of_streams_that_take_more_than_keys_or_say_too_little(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        more = (f"$KV.{fresh}.>", f"{fresh}.more")
        js.create_stream(StreamConfig(name=f"KV_{fresh}", subjects=more, allow_direct=True))
        js.publish(f"$KV.{fresh}.a", b"1")
        assert read(spark, any_server, fresh) == [("a", b"1", 1)]
        two = (f"{fresh}.x.>", f"{fresh}.y.>")
        js.create_stream(StreamConfig(name=f"KV_{fresh}two", subjects=two, allow_direct=True))
        with pytest.raises(PySparkException, match=r"cannot find the keys of bucket .* must be .*, got .*\.x\.>"):
            read(spark, any_server, f"{fresh}two")

    def test_of_replicas_whose_configuration_does_not_tell(self, js: BlockingJetStream, fresh: str) -> None:
        def place(bucket: str) -> str:
            return prefix_of(js, bucket, js.stream(f"KV_{bucket}").info())

        config = BucketConfig(bucket=fresh, stream=f"{fresh}_CFG", subject_prefix=f"{fresh}.cfg")
        origin = js.create_key_value(config)
        source = BucketSource(bucket=fresh, stream=f"{fresh}_CFG")
        js.create_stream(BucketConfig(bucket=f"{fresh}copy", mirror=source).stream_config())
        assert place(f"{fresh}copy") == f"{fresh}.cfg."
        origin.put("a", b"1")
        wait_for(js, f"{fresh}copy", 1)
        assert place(f"{fresh}copy") == f"{fresh}.cfg."
        renamed = tuple(SubjectTransform(src=f"{fresh}.cfg.{key}", dest=f"elsewhere.{key}") for key in "ab")
        mirror = StreamSource(name=f"{fresh}_CFG", subject_transforms=renamed)
        js.create_stream(StreamConfig(name=f"KV_{fresh}odd", mirror=mirror, allow_direct=True))
        wait_for(js, f"{fresh}odd", 1)
        with pytest.raises(UsageError, match=rf"whose keys are below '{fresh}\.cfg\.', but it has no such subjects"):
            place(f"{fresh}odd")


@pytest.mark.spec("SP-07")
class TestWrites:
    def test_through_a_replica_go_to_its_origin(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        fill(js, BucketConfig(bucket=fresh, history=5))
        js.create_key_value(BucketConfig(bucket=f"{fresh}copy", mirror=fresh))
        write(spark.createDataFrame([("z", "1")], "key STRING, value STRING"), any_server, f"{fresh}copy")
        changes = spark.createDataFrame([("z", "1"), ("a", "3")], "key STRING, value STRING")
        write(changes, any_server, f"{fresh}copy", onlyChanged="true")
        origin = js.key_value(fresh)
        assert origin.get("z", min_last_revision=6).revision == 5
        assert origin.get("a", min_last_revision=6).value == b"3"
        wait_for(js, f"{fresh}copy", 6)

    def test_through_a_replica_are_compared_with_its_origin(self, js: BlockingJetStream, fresh: str) -> None:
        # A replica may lag, here for ever: what counts is what the origin has.
        kv = js.create_key_value(BucketConfig(bucket=fresh, history=5))
        js.create_stream(
            StreamConfig(
                name=f"KV_{fresh}copy",
                mirror=StreamSource(name=f"KV_{fresh}", filter_subject=f"$KV.{fresh}.never"),
                allow_direct=True,
            )
        )
        kv.put("a", b"1")
        for batch, expected in ((6, b"6"), (5, b"6")):
            rejects = DeadLetters("", prefix="", timeout=5.0)
            keeper = BucketWriter(js, SinkOptions(bucket=f"{fresh}copy"), Epoch("q", batch), rejects)
            keeper.add(Change("a", b"%d" % batch))
            keeper.flush()
            assert kv.get("a", min_last_revision=2).value == expected

    def test_to_subjects_of_its_own(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        kv = js.create_key_value(BucketConfig(bucket=fresh, subject_prefix=f"{fresh}.cfg"))
        js.create_key_value(BucketConfig(bucket=f"{fresh}copy", mirror=fresh))
        row = spark.createDataFrame([("a.b", "1")], "key STRING, value STRING")
        for n, bucket in enumerate((fresh, f"{fresh}copy"), 1):
            write(row, any_server, bucket)
            assert kv.get("a.b", min_last_revision=n).revision == n

    def test_bucket_with_unreachable_origin_is_rejected_at_planning(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        far = BucketSource(bucket="far", external=ExternalStream(api="$JS.moon.API"))
        js.create_key_value(BucketConfig(bucket=fresh, mirror=far))
        row = spark.createDataFrame([("a", "1")], "key STRING, value STRING")
        with pytest.raises(PySparkException, match=r"is a replica of stream 'KV_far', which does not exist below"):
            write(row, any_server, fresh)


@pytest.mark.spec("SP-07")
@pytest.mark.parametrize("option", [{"domain": "hub"}, {"apiPrefix": "$JS.hub.API"}])
def test_a_domain_is_read_and_written_to(spark: SparkSession, option: dict[str, str]) -> None:
    """Both sides have a bucket of that name; what is told to the one must not end in the other."""
    with leaf_of_a_hub() as (hub_url, leaf_url), connect_blocking(hub_url) as hub, connect_blocking(leaf_url) as leaf:
        there = hub.jetstream().create_key_value(BucketConfig(bucket="b"))
        here = leaf.jetstream().create_key_value(BucketConfig(bucket="b"))
        here.put("a", b"leaf")
        revision = there.status().last_revision
        row = spark.createDataFrame([("a", "hub")], "key STRING, value STRING")
        write(row, leaf_url, "b", **option)
        write(row, leaf_url, "b", onlyChanged="true", **option)
        assert (there.get("a").value, there.get("a").revision) == (b"hub", revision + 1)
        assert here.get("a").value == b"leaf"
        assert read(spark, leaf_url, "b", **option) == [("a", b"hub", revision + 1)]


@contextmanager
def leaf_of_a_hub() -> Iterator[tuple[str, str]]:
    """Two real servers, each with a domain, and a link between them."""
    port = free_port()
    hub = f'jetstream {{ domain: "hub" }}\nleafnodes {{ host: "127.0.0.1", port: {port} }}'
    leaf = f'jetstream {{ domain: "leaf" }}\nleafnodes {{ remotes: [{{ url: "nats://127.0.0.1:{port}" }}] }}'
    with real_server(config=hub) as hub_url, real_server(config=leaf) as leaf_url:
        deadline = time.monotonic() + 20
        while not answers(leaf_url):
            assert time.monotonic() < deadline, "the servers do not find each other"
            time.sleep(0.05)
        yield hub_url, leaf_url


def answers(leaf_url: str) -> bool:
    with connect_blocking(leaf_url) as client:
        try:
            return client.jetstream(domain="hub", timeout=1.0).account_info().domain == "hub"
        except Error:  # not linked yet, in whichever way that shows
            return False


def test_a_domain_of_our_own_server_is_read(spark: SparkSession) -> None:
    with Server(domain="hub") as server, connect_blocking(server.url) as client:
        client.jetstream().create_key_value(BucketConfig(bucket="b")).put("a", b"1")
        assert read(spark, server.url, "b", domain="hub") == [("a", b"1", 1)]
        rows = spark.createDataFrame([("c", "3")], "key STRING, value STRING").write.format("jetstream_kv")
        rows.mode("append").option("servers", server.url).option("domain", "hub").save("b")
        assert read(spark, server.url, "b", domain="hub") == [("a", b"1", 1), ("c", b"3", 2)]


def test_chain_of_replicas_is_bounded(js: BlockingJetStream, fresh: str) -> None:
    js.create_key_value(BucketConfig(bucket=f"{fresh}-0"))
    for n in range(MAX_HOPS):
        js.create_key_value(BucketConfig(bucket=f"{fresh}-{n + 1}", mirror=f"{fresh}-{n}"))
    assert origin_of(js, f"{fresh}-{MAX_HOPS - 1}").address.put_prefix == f"$KV.{fresh}-0."
    with pytest.raises(UsageError, match="must be at most 8 replicas away"):
        origin_of(js, f"{fresh}-{MAX_HOPS}")
