"""Buckets read by Spark: as of now, as of a revision, with their history, and as a change feed."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from slipstream import BlockingJetStream, BucketConfig, connect_blocking
from slipstream.jetstream.reads.columns import Columns
from slipstream.spark.source import kv_rows
from slipstream.spark.source.kv import FeedReader, KeyValueDataSource


def read(spark: SparkSession, server: str, bucket: str, **options: object) -> DataFrame:
    given = {key: str(value) for key, value in options.items()}
    return spark.read.format("jetstream_kv").option("servers", server).options(**given).load(bucket)


def rows(df: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in df.select(*names).orderBy("revision").collect()]


class Feed:
    """A query over the changes of a bucket, as often as it is run."""

    def __init__(self, spark: SparkSession, server: str, bucket: str, checkpoint: Path) -> None:
        self._source = partial(spark.readStream.format, "jetstream_kv")
        self._given = {"servers": server, "bucket": bucket}
        self._checkpoint = str(checkpoint)
        self.offset = ""  # where its last run ended

    def run(self, **options: object) -> list[tuple[Any, ...]]:
        """What is new, by revision."""
        seen: list[tuple[Any, ...]] = []
        source = self._source().options(**self._given, **{key: str(value) for key, value in options.items()}).load()
        writer = source.writeStream.foreachBatch(lambda batch, _: seen.extend(rows(batch, "key", "value", "revision")))
        query = writer.option("checkpointLocation", self._checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        self.offset = str(query.lastProgress["sources"][0]["endOffset"]) if query.lastProgress else ""
        return sorted(seen, key=lambda row: int(row[-1]))


def wait_until_gone(js: BlockingJetStream, bucket: str) -> None:
    deadline = time.monotonic() + 20
    while js.stream(f"KV_{bucket}").info().state.messages:
        assert time.monotonic() < deadline, "the values do not expire"
        time.sleep(0.1)


@pytest.fixture
def bucket(js: BlockingJetStream, fresh: str) -> str:
    """History 3. Revisions: 1 a=1, 2 b=1, 3 a=2, 4 c.x=1, 5 b deleted, 6 a=3, 7 d purged, 8 c.y=ü."""
    kv = js.create_key_value(BucketConfig(bucket=fresh, history=3))
    kv.put("a", b"1")
    kv.put("b", b"1")
    kv.put("a", b"2")
    kv.put("c.x", b"1")
    kv.delete("b")
    kv.put("a", b"3")
    kv.purge("d")
    kv.put("c.y", "ü".encode())
    return fresh


@pytest.mark.spec("SP-06")
class TestReading:
    def test_as_of_now(self, spark: SparkSession, any_server: str, bucket: str, js: BlockingJetStream) -> None:
        now = read(spark, any_server, bucket)
        assert now.columns == ["key", "value", "operation", "revision", "created", "delta"]
        assert rows(now, "key", "value", "operation", "revision", "delta") == [
            ("c.x", b"1", "PUT", 4, 0),
            ("a", b"3", "PUT", 6, 0),
            ("c.y", "ü".encode(), "PUT", 8, 0),
        ]
        created = js.key_value(bucket).get("a").created
        assert [row.n for row in now.where("key = 'a'").selectExpr("unix_micros(created) AS n").collect()] == [
            created // 1000
        ]
        deleted = read(spark, any_server, bucket, includeDeletes="true").where("operation != 'PUT'")
        assert rows(deleted, "key", "value", "operation") == [("b", None, "DEL"), ("d", None, "PURGE")]
        assert rows(read(spark, any_server, bucket, keys="c.*,a"), "key") == [("c.x",), ("a",), ("c.y",)]

    def test_as_of_a_revision(self, spark: SparkSession, any_server: str, bucket: str, js: BlockingJetStream) -> None:
        def then(revision: int, **options: object) -> list[tuple[Any, ...]]:
            return rows(read(spark, any_server, bucket, asOfRevision=revision, **options), "key", "value")

        assert then(2, failOnDataLoss="false") == [("a", b"1"), ("b", b"1")]
        assert then(4, keys="a,b,c.>") == [("b", b"1"), ("a", b"2"), ("c.x", b"1")]
        assert then(8) == [("c.x", b"1"), ("a", b"3"), ("c.y", "ü".encode())]
        with pytest.raises(PySparkException, match=r"does not reach back that far for 1 keys \('d'\)"):
            then(4)  # d was purged: what it was before cannot be known
        js.key_value(bucket).put("a", b"4")
        with pytest.raises(PySparkException, match=r"as of revision 2: .* for 2 keys \('a', 'd'\)"):
            then(2)
        with pytest.raises(PySparkException, match="'asOfRevision' must be at most 9"):
            then(10)

    def test_as_of_a_revision_with_keys_removed_without_a_trace(
        self, spark: SparkSession, any_server: str, fresh: str, js: BlockingJetStream
    ) -> None:
        def then(bucket: str, revision: int, **options: object) -> list[tuple[Any, ...]]:
            return rows(read(spark, any_server, bucket, asOfRevision=revision, **options), "key", "value")

        short, cleaned = f"{fresh}short", f"{fresh}cleaned"
        kv = js.create_key_value(BucketConfig(bucket=short, history=5, ttl=timedelta(seconds=1.5)))
        kv.put("a", b"1")
        kv.put("b", b"1")
        wait_until_gone(js, short)
        kv.put("c", b"1")
        with pytest.raises(PySparkException, match="cannot be read as of revision 2: it keeps values for"):
            then(short, 2)
        kv = js.create_key_value(BucketConfig(bucket=cleaned, history=5))
        kv.put("a", b"1")
        kv.put("b", b"1")
        kv.delete("a")
        kv.purge_deletes(older_than=timedelta(0), recorded=True)
        kv.put("c", b"1")
        with pytest.raises(PySparkException, match=r"entries up to revision 3 were removed for good.*failOnDataL"):
            then(cleaned, 1)
        assert then(cleaned, 1, failOnDataLoss="false") == []
        assert then(cleaned, 2, failOnDataLoss="false") == [("b", b"1")]
        assert then(cleaned, 4) == [("b", b"1"), ("c", b"1")]

    def test_as_of_a_revision_before_a_mark_that_is_left_alone(
        self, spark: SparkSession, any_server: str, fresh: str, js: BlockingJetStream
    ) -> None:
        kv = js.create_key_value(BucketConfig(bucket=fresh, history=5))
        kv.put("a", b"1")
        kv.put("b", b"1")
        kv.delete("a")
        kv.purge_deletes()  # the mark is young and stays, what was before it goes
        with pytest.raises(PySparkException, match=r"does not reach back that far for 1 keys \('a'\)"):
            read(spark, any_server, fresh, asOfRevision=2).count()

    def test_with_its_history(self, spark: SparkSession, any_server: str, bucket: str) -> None:
        past = read(spark, any_server, bucket, history="true")
        assert rows(past, "key", "operation", "revision", "delta") == [
            ("a", "PUT", 1, 2),
            ("b", "PUT", 2, 1),
            ("a", "PUT", 3, 1),
            ("c.x", "PUT", 4, 0),
            ("b", "DEL", 5, 0),
            ("a", "PUT", 6, 0),
            ("d", "PURGE", 7, 0),
            ("c.y", "PUT", 8, 0),
        ]
        part = read(spark, any_server, bucket, history="true", starting=3, ending=5, keys="a,b")
        assert rows(part, "key", "revision", "delta") == [("a", 3, 1), ("b", 5, 0)]

    def test_as_a_change_feed(
        self, spark: SparkSession, any_server: str, bucket: str, js: BlockingJetStream, tmp_path: Path
    ) -> None:
        seen: list[list[tuple[Any, ...]]] = []

        def run(**options: object) -> None:
            given = {key: str(value) for key, value in options.items()}
            source = spark.readStream.format("jetstream_kv").option("servers", any_server).options(**given).load(bucket)
            query = source.writeStream.foreachBatch(
                lambda batch, _: seen.append(rows(batch, "key", "value", "operation", "revision"))
            )
            query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()

        run(maxMessagesPerTrigger=6, starting=2)
        assert seen == [
            [
                ("b", b"1", "PUT", 2),
                ("a", b"2", "PUT", 3),
                ("c.x", b"1", "PUT", 4),
                ("b", None, "DEL", 5),
                ("a", b"3", "PUT", 6),
                ("d", None, "PURGE", 7),
            ],
            [("c.y", "ü".encode(), "PUT", 8)],
        ]
        js.key_value(bucket).put("a", b"4")
        seen.clear()
        run()
        assert seen == [[("a", b"4", "PUT", 9)]]

    def test_as_a_change_feed_of_keys_that_change_between_its_runs(
        self, spark: SparkSession, any_server: str, fresh: str, js: BlockingJetStream, tmp_path: Path
    ) -> None:
        kv = js.create_key_value(BucketConfig(bucket=fresh))  # it keeps the newest entry only
        kv.put("a", b"0")
        feed = Feed(spark, any_server, fresh, tmp_path)
        assert feed.run() == [("a", b"0", 1)]
        for n in range(1, 6):
            kv.put("a", b"%d" % n)
        assert feed.run() == [("a", b"5", 6)]
        assert "skipped" not in feed.offset
        for n in range(6, 11):
            kv.put("a", b"%d" % n)
            kv.put("b", b"%d" % n)
        assert feed.run(maxMessagesPerTrigger=1) == [("a", b"10", 15), ("b", b"10", 16)]
        assert feed.run() == []

    def test_as_a_change_feed_whose_batch_is_repeated_after_entries_were_dropped(
        self, any_server: str, fresh: str, js: BlockingJetStream, request: pytest.FixtureRequest
    ) -> None:
        """What is left stays in its partition: a sink that has written one writes nothing for it again."""
        kv = js.create_key_value(BucketConfig(bucket=fresh))
        for n in range(6):
            kv.put(f"k{n}", b"1")
        options = {"path": fresh, "servers": any_server, "pollInterval": "0.000001", "partitions": "3"}
        reader = KeyValueDataSource(options).streamReader(KeyValueDataSource(options).schema())
        assert isinstance(reader, FeedReader)
        request.addfinalizer(reader.stop)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())

        def read(reader: FeedReader) -> list[list[int]]:
            parts = reader.partitions(start, end)
            return [[row["revision"] for batch in reader.read(one) for row in batch.to_pylist()] for one in parts]

        assert read(reader) == [[1, 2], [3, 4], [5, 6]]
        for n in range(3):
            kv.put(f"k{n}", b"2")
        assert read(reader) == [[], [4], [5, 6]]
        restarted = KeyValueDataSource(options).streamReader(KeyValueDataSource(options).schema())
        assert isinstance(restarted, FeedReader)
        request.addfinalizer(restarted.stop)
        start = restarted.initialOffset()
        assert start["seq"] == 3
        assert read(restarted) == [[], [4], [5, 6]]

    def test_as_a_change_feed_of_keys_that_change_while_it_reads(
        self, any_server: str, fresh: str, js: BlockingJetStream, request: pytest.FixtureRequest
    ) -> None:
        kv = js.create_key_value(BucketConfig(bucket=fresh))
        for key in "abc":
            kv.put(key, b"1")
        source = KeyValueDataSource({"path": fresh, "servers": any_server, "pollInterval": "0.000001"})
        reader = source.streamReader(source.schema())
        assert isinstance(reader, FeedReader)
        request.addfinalizer(reader.stop)
        start, limit = reader.initialOffset(), ReadAllAvailable()
        end = reader.latestOffset(start, limit)
        kv.put("a", b"2")
        (part,) = reader.partitions(start, end)
        kv.put("b", b"2")
        assert [row["revision"] for batch in reader.read(part) for row in batch.to_pylist()] == [3]
        kv.put("c", b"2")
        assert list(reader.partitions(start, end)) == []  # nothing is left of it
        (part,) = reader.partitions(end, reader.latestOffset(end, limit))
        found = [(row["key"], row["revision"]) for batch in reader.read(part) for row in batch.to_pylist()]
        assert found == [("a", 4), ("b", 5), ("c", 6)]

    def test_change_feed_of_an_emptied_or_recreated_bucket_fails(
        self, spark: SparkSession, any_server: str, fresh: str, js: BlockingJetStream, tmp_path: Path
    ) -> None:
        kv = js.create_key_value(BucketConfig(bucket=fresh))
        kv.put("a", b"1")
        feed = Feed(spark, any_server, fresh, tmp_path)
        feed.run()
        kv.put("b", b"1")
        js.stream(f"KV_{fresh}").purge()
        with pytest.raises(PySparkException, match=f"messages 2 to 2 of stream 'KV_{fresh}' were removed"):
            feed.run()
        kv.put("c", b"1")
        assert feed.run() == [("c", b"1", 3)]
        kv.destroy()
        js.create_key_value(BucketConfig(bucket=fresh)).put("a", b"2")
        with pytest.raises(PySparkException, match="was deleted and recreated"):
            feed.run()
        assert feed.run(failOnDataLoss="false") == [("a", b"2", 1)]

    def test_keys_that_change_during_a_read_are_all_read(
        self, spark: SparkSession, any_server: str, fresh: str, js: BlockingJetStream
    ) -> None:
        keys = [f"k{n}" for n in range(3_000)]
        kv = js.create_key_value(BucketConfig(bucket=fresh))
        with kv.writer() as writer:
            for key in keys:
                writer.put(key, b"0")
        stop = threading.Event()

        def change() -> None:
            with connect_blocking(any_server) as client, client.jetstream().key_value(fresh).writer() as writer:
                while not stop.is_set():
                    for key in keys[:500]:
                        writer.put(key, b"1")

        changer = threading.Thread(target=change)
        changer.start()
        try:
            found = [row.key for row in read(spark, any_server, fresh).select("key").collect()]
        finally:
            stop.set()
            changer.join(timeout=30)
        assert sorted(found) == sorted(keys)

    def test_tables_and_views_in_sql(self, spark: SparkSession, any_server: str, bucket: str) -> None:
        options = f"OPTIONS (bucket '{bucket}', servers '{any_server}', keys 'a,c.>')"
        spark.sql(f"CREATE TEMPORARY VIEW bucket_{bucket} USING jetstream_kv {options}")
        assert spark.sql(f"SELECT count(*), max(revision) FROM bucket_{bucket}").collect() == [(3, 8)]
        spark.sql(f"CREATE TABLE table_{bucket} USING jetstream_kv {options}")
        try:
            assert spark.sql(f"SELECT count(*), max(revision) FROM table_{bucket}").collect() == [(3, 8)]
        finally:
            spark.sql(f"DROP TABLE table_{bucket}")


class TestRefusals:
    def test_options_and_buckets(self, spark: SparkSession, real_url: str) -> None:
        with pytest.raises(PySparkException, match=r"has no option 'key'; did you mean keys\? It has bucket, keys"):
            read(spark, real_url, "b", key="x")
        with pytest.raises(PySparkException, match=r"option 'keys': key filter must be .*, got 'a\*'"):
            read(spark, real_url, "b", keys="a*")
        with pytest.raises(PySparkException, match="bucket 'nope' does not exist"):
            read(spark, real_url, "nope").count()
        with pytest.raises(PySparkException, match="has no column value string; it has key string, value binary"):
            spark.read.schema("value STRING").format("jetstream_kv").load("b").count()


def columns(*rows: tuple[str, int, bytes]) -> Columns:
    keys, seqs, headers = (list(column) for column in zip(*rows, strict=True))
    return Columns(keys, seqs, [0] * len(rows), headers, [b"v"] * len(rows), "KV_b")


def test_past_value_of_a_key_is_unknown_only_if_an_entry_was_dropped() -> None:
    purged = b"NATS/1.0\r\nKV-Operation: PURGE\r\n\r\n"
    chunk = columns(("$KV.b.old", 1, b""), ("$KV.b.full", 5, b""), ("$KV.b.full", 6, b""), ("$KV.b.new", 7, b""))
    kept = kv_rows.by_key([chunk, columns(("$KV.b.gone", 8, purged))], "$KV.b.")
    assert kv_rows.unknown_keys(kept, as_of=3, history=2) == ["full", "gone"]
    assert kv_rows.unknown_keys(kept, as_of=5, history=2) == ["gone"]
    assert kv_rows.unknown_keys(kept, as_of=3, history=-1) == ["gone"]  # a stream without that limit
    assert [row.key for row in kv_rows.state(kept.values(), as_of=3, include_deletes=False)] == ["old"]
