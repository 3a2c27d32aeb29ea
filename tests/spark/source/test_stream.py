"""A stream read by Spark holds exactly what was published to it."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from unittest import mock

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from slipstream import BlockingJetStream, BucketConfig, StreamConfig, connect_blocking
from slipstream.api import format_time
from slipstream.errors import AuthorizationError
from slipstream.spark.source.pushdown import SLACK
from slipstream.spark.source.stream import JetStreamDataSource, StreamReader
from slipstream.wire import Headers

LETTERS = "abc"


def make_stream(js: BlockingJetStream, name: str, **config: Any) -> None:
    settings: dict[str, Any] = {"allow_direct": True, **config}
    js.create_stream(StreamConfig(name=name, subjects=(f"{name}.>",), **settings))


def publish(js: BlockingJetStream, name: str, numbers: range) -> None:
    with js.publisher() as publisher:
        for n in numbers:
            publisher.publish(f"{name}.{LETTERS[n % 3]}", str(n).encode())


def read(spark: SparkSession, server: str, name: str, **options: object) -> DataFrame:
    given = {key: str(value) for key, value in options.items()}
    return spark.read.format("jetstream").option("servers", server).options(**given).load(name)


def sequences(df: DataFrame) -> list[int]:
    return sorted(row.sequence for row in df.select("sequence").collect())


@pytest.mark.spec("SP-01")
class TestBatch:
    def test_every_column_of_every_message_arrives(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        make_stream(js, fresh)
        payloads = [b"", b"\x00\xff\r\n", "ü".encode(), b"x" * 100_000]
        headers = [None, {"A": ["1", "2", "1"], "a": "", "B": "ü:x"}, {"Nats-Sequence": "77", "Status": "204"}]
        for n in range(24):
            js.publish(f"{fresh}.{n % 5}.x", payloads[n % 4], headers=headers[n % 3])
        stored = [message for chunk in js.stream(fresh).read_chunks(end=24) for message in chunk]
        assert [message.data for message in stored] == [payloads[n % 4] for n in range(24)]

        df = read(spark, any_server, fresh, partitions=5)
        assert df.rdd.getNumPartitions() == 5
        got = df.orderBy("sequence").toArrow().to_pylist()
        assert [(row["subject"], row["sequence"], row["data"]) for row in got] == [
            (f"{fresh}.{n % 5}.x", n + 1, payloads[n % 4]) for n in range(24)
        ]
        assert [row["timestamp_ns"] for row in got] == [message.time for message in stored]
        assert [int(row["timestamp"].timestamp() * 1_000_000) for row in got] == pytest.approx(
            [message.time // 1000 for message in stored], abs=1
        )
        expected = [Headers(one) if one else Headers() for one in headers]
        assert [dict(row["headers"]) for row in got] == [
            {name: expected[n % 3].get_all(name) for name in expected[n % 3]} for n in range(24)
        ]

    def test_a_filter_and_a_range_by_sequence_or_time(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        make_stream(js, fresh)
        publish(js, fresh, range(100))
        time.sleep(0.01)  # the only clock here is the server's
        publish(js, fresh, range(100, 200))
        middle = format_time(js.stream(fresh).get(101).time)

        def seen(**options: object) -> list[int]:
            return sequences(read(spark, any_server, fresh, **options))

        assert seen() == list(range(1, 201))
        assert seen(subjects=f"{fresh}.b", partitions=3) == list(range(2, 201, 3))
        assert seen(starting=50, ending=60, partitions=4) == list(range(50, 61))
        assert seen(starting=50, ending=60, subjects=f"{fresh}.*") == list(range(50, 61))
        assert seen(starting=middle) == list(range(101, 201))
        assert seen(ending=middle) == list(range(1, 101))
        assert seen(starting=201) == []
        assert seen(subjects=f"{fresh}.a,{fresh}.b") == [n for n in range(1, 201) if n % 3]
        assert seen(subjects=f"{fresh}.a, {fresh}.*, >", partitions=2) == list(range(1, 201))
        assert seen(subjects=f"{fresh}.a.>,{fresh}.c,*.c,{fresh}.b") == [n for n in range(1, 201) if n % 3 != 1]
        assert seen(subjects="nobody.writes.this") == []

    def test_messages_that_limits_per_subject_removed_are_ordinary_gaps(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        make_stream(js, fresh, max_msgs_per_subject=2)
        js.publish(f"{fresh}.first")
        publish(js, fresh, range(60))
        assert sequences(read(spark, any_server, fresh, partitions=4)) == [1, *range(56, 62)]

    def test_sql_tables_views_and_chosen_columns(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        make_stream(js, fresh)
        publish(js, fresh, range(10))
        options = f"OPTIONS (stream '{fresh}', servers '{any_server}', ending '7')"
        query = "SELECT count(*), sum(CAST(CAST(data AS STRING) AS INT)) FROM"
        spark.sql(f"CREATE TEMPORARY VIEW view_{fresh} USING jetstream {options}")
        assert spark.sql(f"{query} view_{fresh}").collect() == [(7, 21)]
        spark.sql(f"CREATE TABLE table_{fresh} USING jetstream {options}")
        try:
            assert spark.sql(f"{query} table_{fresh}").collect() == [(7, 21)]
        finally:
            spark.sql(f"DROP TABLE table_{fresh}")
        assert "headers" not in read(spark, any_server, fresh, includeHeaders="false").columns
        assert read(spark, any_server, fresh, columns="data,subject", ending=1).collect() == [(b"0", f"{fresh}.a")]
        chosen = spark.read.schema("data BINARY, sequence BIGINT").format("jetstream").option("servers", any_server)
        assert chosen.option("ending", 2).load(fresh).toArrow().to_pylist() == [
            {"data": b"0", "sequence": 1},
            {"data": b"1", "sequence": 2},
        ]


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    """Spark pushes filters down; it does not unless told so."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


class Spy:
    """What is asked of a stream by Direct Get."""

    def __init__(self, server: str, stream: str) -> None:
        self._client = connect_blocking(server)
        self._asked = self._client.subscribe(f"$JS.API.DIRECT.GET.{stream}")
        self._client.flush()

    def batches(self) -> list[dict[str, Any]]:
        """The batched reads since the last call."""
        self._client.flush()
        found = []
        with contextlib.suppress(TimeoutError):
            while True:
                found.append(json.loads(self._asked.next(timeout=0.2).data))
        # Gets of several subjects are proofs that a range is complete, not reads of it.
        return [request for request in found if "batch" in request and "next_by_subj" in request]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


@pytest.mark.spec("SP-08")
class TestPushDown:
    @pytest.mark.usefixtures("pushing")
    def test_of_subject_sequence_and_time(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        make_stream(js, fresh)
        publish(js, fresh, range(200))

        def asked(condition: str, **options: object) -> tuple[list[int], set[tuple[str, int]]]:
            with Spy(any_server, fresh) as spy:
                found = sequences(read(spark, any_server, fresh, pushFilters="true", **options).where(condition))
                begins: dict[str, int] = {}
                for request in spy.batches():  # the first one per subject: pages follow
                    begins.setdefault(request["next_by_subj"], request["seq"])
                return found, set(begins.items())

        a, b = f"{fresh}.a", f"{fresh}.b"
        assert asked(f"subject = '{a}'") == (list(range(1, 201, 3)), {(a, 1)})
        assert asked(f"subject IN ('{a}', '{b}')")[1] == {(a, 1), (b, 1)}
        assert asked(f"subject LIKE '{fresh}.b%'") == (list(range(2, 201, 3)), {(f"{fresh}.>", 1)})
        assert asked(f"subject = '{a}'", subjects=b) == ([], set())
        assert asked("sequence > 190") == (list(range(191, 201)), {(">", 191)})
        assert asked("sequence BETWEEN 50 AND 52") == ([50, 51, 52], {(">", 50)})
        assert asked("sequence = 7 AND length(data) = 1") == ([7], {(">", 7)})
        assert asked("sequence < 1") == ([], set())
        assert asked("sequence = 5 OR sequence = 7") == ([5, 7], {(">", 1)})  # Spark hands over no OR
        future = "timestamp > TIMESTAMP'2100-01-01 00:00:00'"
        found, begins = asked(future)
        assert found == []
        assert len(begins) <= 1  # no range is read; which sequence a time is may take a look at a message
        nanos = js.stream(fresh).get(150).time
        assert asked(f"timestamp_ns >= {nanos}")[0][-51:] == list(range(150, 201))
        assert asked(f"timestamp >= timestamp_micros({nanos // 1000})")[0][-51:] == list(range(150, 201))

    @pytest.mark.usefixtures("pushing")
    def test_of_a_stream_whose_times_reach_back(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        make_stream(js, fresh)
        publish(js, fresh, range(10))
        now = js.stream(fresh).get(1).time
        late = f"timestamp_ns > {now + 10 * SLACK}"

        def where(condition: str) -> DataFrame:
            return read(spark, any_server, fresh, pushFilters="true").where(condition)

        assert where(late).rdd.getNumPartitions() == 1  # one without anything to read
        assert where(late).count() == 0
        assert where(f"timestamp_ns < {now + 10 * SLACK}").count() == 10

    @pytest.mark.usefixtures("pushing")
    def test_of_keys(self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str) -> None:
        kv = js.create_key_value(BucketConfig(bucket=fresh, history=2))
        for n in range(20):
            kv.put(f"{LETTERS[n % 3]}.{n % 7}", str(n).encode())

        def asked(condition: str, **options: str) -> tuple[int, set[str]]:
            reader = spark.read.format("jetstream_kv").option("servers", any_server).options(**options)
            reader = reader.option("pushFilters", "true")
            with Spy(any_server, f"KV_{fresh}") as spy:
                found = reader.load(fresh).where(condition).count()
                return found, {request["next_by_subj"] for request in spy.batches()}

        assert asked("key = 'a.0'") == (1, {f"$KV.{fresh}.a.0"})
        assert asked("key IN ('a.0', 'b.1', 'x')") == (2, {f"$KV.{fresh}.{key}" for key in ("a.0", "b.1", "x")})
        assert asked("key LIKE 'c.%'") == (6, {f"$KV.{fresh}.c.>"})
        assert asked("key = 'a.0'", keys="b.*") == (0, set())
        assert asked("revision > 18")[0] == 2

    def test_where_it_is_off_the_same_rows_come(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        make_stream(js, fresh)
        publish(js, fresh, range(20))
        assert sequences(read(spark, any_server, fresh).where(f"subject = '{fresh}.a' AND sequence > 10")) == [
            13,
            16,
            19,
        ]

    @pytest.mark.usefixtures("pushing")
    def test_a_dataframe_may_be_used_twice_unless_it_is_asked_for(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        """Spark 4.3.0 keeps what was pushed with the DataFrame: a second scan would read the rows of the first."""
        make_stream(js, fresh)
        publish(js, fresh, range(20))
        rows = read(spark, any_server, fresh)
        both = rows.where("sequence <= 3").union(rows.where("sequence >= 18"))
        assert sequences(both) == [1, 2, 3, 18, 19, 20]
        assert rows.where("sequence <= 3").count() == 3
        assert rows.count() == 20
        kv = js.create_key_value(BucketConfig(bucket=fresh))
        for key in "abc":
            kv.put(key, b"1")
        entries = spark.read.format("jetstream_kv").option("servers", any_server).load(fresh)
        assert (entries.where("key = 'a'").count(), entries.count()) == (1, 3)

    def test_is_for_batch_reads(self, spark: SparkSession, any_server: str) -> None:
        stream = spark.readStream.format("jetstream").option("servers", any_server).option("pushFilters", "true")
        with pytest.raises(PySparkException, match="'pushFilters' applies to batch reads"):
            stream.load("S").writeStream.format("noop").start().processAllAvailable()


class TestRefusals:
    """What cannot be read says why, before any job."""

    def test_options(self, spark: SparkSession, real_url: str) -> None:
        with pytest.raises(
            PySparkException, match=r"has no option 'startng'; did you mean starting\? It has stream, subjects"
        ):
            read(spark, real_url, "S", startng=5)
        with pytest.raises(PySparkException, match="'starting' must be 'earliest', 'latest', a sequence"):
            read(spark, real_url, "S", starting="soon")
        with pytest.raises(
            PySparkException, match=r"has no column data string; it has subject string, sequence bigint"
        ):
            spark.read.schema("data STRING").format("jetstream").load("S").collect()

    def test_positions_outside_the_stream_are_rejected(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        make_stream(js, fresh)
        publish(js, fresh, range(10))
        with pytest.raises(PySparkException, match=r"'starting' must be at most 11 for stream .*, got 500"):
            read(spark, any_server, fresh, starting=500).count()
        assert read(spark, any_server, fresh, starting=11).count() == 0
        with pytest.raises(PySparkException, match=r"'partitions' must be a whole number of at least 1, got '99"):
            read(spark, any_server, fresh, partitions="9" * 5_000)
        stream = spark.readStream.format("jetstream").option("servers", any_server)
        with pytest.raises(PySparkException, match="'starting' must not be a time in the future"):
            stream.option("starting", "2199-01-01T00:00:00Z").load(fresh).writeStream.format(
                "noop"
            ).start().processAllAvailable()

    def test_removed_messages(self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str) -> None:
        make_stream(js, fresh, max_msgs=40)
        publish(js, fresh, range(100))
        with pytest.raises(PySparkException, match=f"messages 11 to 60 of stream '{fresh}' were removed"):
            read(spark, any_server, fresh, starting=11).count()
        assert read(spark, any_server, fresh, starting=11, failOnDataLoss="false").count() == 40
        assert read(spark, any_server, fresh).count() == 40

    def test_messages_removed_after_the_plan(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        make_stream(js, fresh, max_msgs=40)
        publish(js, fresh, range(40))
        planned = read(spark, any_server, fresh)
        planned.rdd.getNumPartitions()  # Spark plans a DataFrame once
        publish(js, fresh, range(40, 60))
        with pytest.raises(PySparkException, match=r"messages 1 to 20 .* were removed"):
            planned.count()

    def test_a_stream_without_direct_get_or_that_does_not_exist(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        make_stream(js, fresh, allow_direct=False)
        with pytest.raises(PySparkException, match=f"'{fresh}' does not offer Direct Get: set 'allow_direct' to true"):
            read(spark, any_server, fresh).count()
        with pytest.raises(PySparkException, match=f"stream '{fresh}_not' does not exist"):
            read(spark, any_server, f"{fresh}_not").count()

    def test_a_work_queue(self, spark: SparkSession, real_url: str, fresh: str) -> None:
        with connect_blocking(real_url) as client:
            make_stream(client.jetstream(), fresh, retention="workqueue")
        with pytest.raises(PySparkException, match=f"'workqueue' retention.*has '{fresh}' as source"):
            read(spark, real_url, fresh).count()


class Micro:
    """A streaming query that notes which sequences each micro-batch had."""

    def __init__(self, spark: SparkSession, server: str, name: str, checkpoint: Path) -> None:
        self._spark = spark
        self._server = server
        self._name = name
        self.checkpoint = checkpoint

    def run(self, **options: object) -> list[tuple[int, list[int]]]:
        """Everything there is now, until done: batch ids with their sequences."""
        seen: list[tuple[int, list[int]]] = []
        reader = self._spark.readStream.format("jetstream").option("servers", self._server)
        source = reader.options(**{key: str(value) for key, value in options.items()}).load(self._name)

        def note(batch: DataFrame, batch_id: int) -> None:
            seen.append((batch_id, sequences(batch)))

        query = source.writeStream.foreachBatch(note).trigger(availableNow=True)
        query.option("checkpointLocation", str(self.checkpoint)).start().awaitTermination()
        return seen

    def offset(self, batch_id: int) -> dict[str, Any]:
        """The offset Spark has written down for the end of a micro-batch."""
        lines = (self.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
        offset: dict[str, Any] = json.loads(lines[-1])
        return offset

    def forget_commit(self, batch_id: int) -> None:
        """As if the driver had died after the micro-batch and before its commit."""
        for file in (self.checkpoint / "commits").glob(f"*{batch_id}*"):
            file.unlink()


@pytest.fixture
def micro(spark: SparkSession, any_server: str, fresh: str, tmp_path: Path) -> Micro:
    return Micro(spark, any_server, fresh, tmp_path / "checkpoint")


@pytest.mark.spec("SP-02")
class TestStreaming:
    def test_limited_micro_batches_and_one_that_is_replayed(
        self, micro: Micro, js: BlockingJetStream, fresh: str
    ) -> None:
        make_stream(js, fresh)
        publish(js, fresh, range(100))
        batches = micro.run(maxMessagesPerTrigger=40)
        assert batches == [(0, list(range(1, 41))), (1, list(range(41, 81))), (2, list(range(81, 101)))]
        created = format_time(js.stream(fresh).info().created)
        assert micro.offset(2) == {"seq": 100, "created": created}

        publish(js, fresh, range(100, 110))
        micro.forget_commit(2)
        again = micro.run(maxMessagesPerTrigger=70, partitions=2)
        assert again == [batches[2], (3, list(range(101, 111)))]

    def test_a_limit_in_bytes(self, micro: Micro, js: BlockingJetStream, fresh: str) -> None:
        make_stream(js, fresh)
        with js.publisher() as publisher:
            for _ in range(100):
                publisher.publish(f"{fresh}.a", b"x" * 100)
        average = js.stream(fresh).info().state.bytes // 100
        batches = micro.run(maxBytesPerTrigger=30 * average)
        assert [len(batch) for _, batch in batches] == [30, 30, 30, 10]
        shutil.rmtree(micro.checkpoint)
        assert [len(batch) for _, batch in micro.run(maxBytesPerTrigger=30 * average, maxMessagesPerTrigger=60)] == [
            *(30, 30, 30, 10)
        ]

    def test_a_start_by_sequence_by_time_or_behind_everything(
        self, micro: Micro, js: BlockingJetStream, fresh: str
    ) -> None:
        make_stream(js, fresh)
        publish(js, fresh, range(50))
        time.sleep(0.01)
        publish(js, fresh, range(50, 60))
        since = format_time(js.stream(fresh).get(51).time)

        def first_run(**options: object) -> list[int]:
            shutil.rmtree(micro.checkpoint, ignore_errors=True)
            return [seq for _, batch in micro.run(**options) for seq in batch]

        assert first_run(starting=42) == list(range(42, 61))
        assert first_run(starting=since, subjects=f"{fresh}.a") == [52, 55, 58]
        assert first_run(starting="latest") == []
        publish(js, fresh, range(60, 65))
        assert [seq for _, batch in micro.run(starting="latest") for seq in batch] == list(range(61, 66))


@pytest.mark.spec("SP-04")
class TestDataLoss:
    """What limits or deletes removed before it was read is an error that names it, or a skip that is counted."""

    def test_of_a_batch(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        make_stream(js, fresh, max_msgs=40)
        publish(js, fresh, range(100))
        with pytest.raises(PySparkException, match=f"messages 11 to 60 of stream '{fresh}' were removed"):
            read(spark, any_server, fresh, starting=11).count()
        assert read(spark, any_server, fresh, starting=11, failOnDataLoss="false").count() == 40
        # The log of a worker is its stderr, which the JVM has; so the plan is made here once more.
        given = {"servers": any_server, "starting": "11", "failOnDataLoss": "false", "stream": fresh}
        source = JetStreamDataSource(given)
        source.reader(source.schema()).partitions()
        assert f"stream {fresh}: skipped 50 lost messages, sequences 11 to 60" in caplog.text

    def test_of_a_streaming_query(self, micro: Micro, js: BlockingJetStream, fresh: str) -> None:
        make_stream(js, fresh)
        publish(js, fresh, range(20))
        micro.run()
        publish(js, fresh, range(20, 70))
        js.stream(fresh).purge(below=31)
        for seq in range(31, 41):
            js.stream(fresh).delete_message(seq)
        with pytest.raises(PySparkException, match=f"messages 21 to 40 of stream '{fresh}' were removed"):
            micro.run()
        assert micro.run(failOnDataLoss="false") == [(1, list(range(41, 71)))]
        assert micro.offset(1)["skipped"] == 20  # also in query.lastProgress
        js.stream(fresh).purge()
        publish(js, fresh, range(70, 75))
        assert micro.run(failOnDataLoss="false") == [(2, list(range(71, 76)))]
        assert micro.offset(2)["skipped"] == 20  # nothing more was lost: all of it had been read
        publish(js, fresh, range(75, 80))
        js.stream(fresh).purge()
        assert micro.run(failOnDataLoss="false") == [(3, [])]
        assert (micro.offset(3)["seq"], micro.offset(3)["skipped"]) == (80, 25)  # it is not behind what is gone

    def test_messages_removed_between_plan_and_read(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        make_stream(js, fresh)
        publish(js, fresh, range(40))
        planned = read(spark, any_server, fresh)
        planned.rdd.getNumPartitions()  # Spark plans a DataFrame once
        js.stream(fresh).purge(below=21)
        with pytest.raises(PySparkException, match=r"messages 1 to 20 .* were removed"):
            planned.count()


class TestStreamingRefusals:
    def test_recreated_stream_ends_the_query(self, micro: Micro, js: BlockingJetStream, fresh: str) -> None:
        make_stream(js, fresh)
        publish(js, fresh, range(20))
        micro.run()
        js.stream(fresh).delete()
        make_stream(js, fresh)
        publish(js, fresh, range(30))
        with pytest.raises(PySparkException, match=f"stream '{fresh}' was deleted and recreated"):
            micro.run()
        assert micro.run(failOnDataLoss="false") == [(1, list(range(1, 31)))]

    def test_removed_messages(self, micro: Micro, js: BlockingJetStream, fresh: str) -> None:
        make_stream(js, fresh, max_msgs=30)
        publish(js, fresh, range(20))
        micro.run()
        publish(js, fresh, range(20, 70))
        with pytest.raises(PySparkException, match=f"messages 21 to 40 of stream '{fresh}' were removed"):
            micro.run()
        assert micro.run(failOnDataLoss="false") == [(1, list(range(41, 71)))]
        assert micro.offset(1)["skipped"] == 20  # also in query.lastProgress

    def test_an_end(self, spark: SparkSession, real_url: str) -> None:
        source = spark.readStream.format("jetstream").option("servers", real_url).option("ending", 5).load("S")
        query = source.writeStream.format("noop").start()
        with pytest.raises(PySparkException, match="'ending' does not apply to readStream"):
            query.awaitTermination()


def test_progress_names_the_stream_and_its_lag(
    any_server: str, fresh: str, js: BlockingJetStream, request: pytest.FixtureRequest
) -> None:
    """`latestOffset` in `query.lastProgress` is what `reportLatestOffset` returns."""
    js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
    options = {"path": fresh, "servers": any_server, "pollInterval": "0.000001", "subjects": f"{fresh}.a"}
    source = JetStreamDataSource(options)
    reader = source.streamReader(source.schema())
    request.addfinalizer(reader.stop)
    assert reader.reportLatestOffset() is None  # before the first batch
    for n in range(6):
        js.publish(f"{fresh}.{'ab'[n % 2]}", b"%d" % n)
    published = time.time()
    created = format_time(js.stream(fresh).info().created)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(4))
    found = reader.reportLatestOffset()
    assert found is not None
    assert 0 <= found.pop("lag_seconds") <= time.time() - published + 5
    assert found == {"seq": 6, "created": created, "stream": fresh, "lag_messages": 2}
    js.stream(fresh).delete_message(5)  # the only one behind the batch that has the subject
    reader.latestOffset(start, ReadMaxRows(4))
    assert reader.reportLatestOffset() == {**found, "lag_seconds": 0.0}
    reader.latestOffset(end, ReadMaxRows(4))
    assert reader.reportLatestOffset() == {**found, "lag_messages": 0, "lag_seconds": 0.0}


def _reader(url: str, stream: str, request: pytest.FixtureRequest, **options: str) -> StreamReader:
    """The reader of a query's driver; each run of the query has its own."""
    source = JetStreamDataSource({"path": stream, "servers": url, "partitions": "3", **options})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StreamReader)
    request.addfinalizer(reader.stop)
    return reader


def _sequences(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[list[int]]:
    parts = reader.partitions(start, end)
    return [[row["sequence"] for batch in reader.read(one) for row in batch.to_pylist()] for one in parts]


def test_first_batch_of_a_query_keeps_its_partitions_when_it_is_repeated_after_removals(
    any_server: str, fresh: str, js: BlockingJetStream, request: pytest.FixtureRequest
) -> None:
    """Spark asks again where it begins. A sink that has written a partition writes nothing for it again."""
    js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
    for _ in range(6):
        js.publish(f"{fresh}.a", b"")
    reader = _reader(any_server, fresh, request)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert _sequences(reader, start, end) == [[1, 2], [3, 4], [5, 6]]
    js.stream(fresh).purge(below=4)
    restarted = _reader(any_server, fresh, request, pollInterval="0.000001")
    assert _sequences(restarted, restarted.initialOffset(), json.loads(json.dumps(end))) == [[], [4], [5, 6]]
    # Spark stores the end, and compares its text with that of an idle stream.
    assert json.dumps(restarted.latestOffset(end, ReadAllAvailable())) == json.dumps(end)
    js.publish(f"{fresh}.a", b"")
    newer = restarted.latestOffset(end, ReadAllAvailable())
    assert _sequences(restarted, end, newer) == [[7]]
    assert newer.keys() == start.keys(), "only the first batch says where it begins"
    # Behind an offset that another batch ends at, what the end says of a first batch does not count.
    assert _sequences(_reader(any_server, fresh, request), {**start, "seq": 4}, end) == [[5], [6]]


def test_first_batch_behind_the_latest_message_is_repeated_with_the_same_messages(
    any_server: str, fresh: str, js: BlockingJetStream, request: pytest.FixtureRequest
) -> None:
    js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
    js.publish(f"{fresh}.a", b"")
    reader = _reader(any_server, fresh, request, starting="latest", pollInterval="0.000001")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    for _ in range(3):
        js.publish(f"{fresh}.a", b"")
    again = reader.initialOffset()  # Spark asks twice for the first batch
    found = reader.latestOffset(start, ReadAllAvailable())
    assert _sequences(reader, again, found) == [[2], [3], [4]]
    js.publish(f"{fresh}.a", b"")
    restarted = _reader(any_server, fresh, request, starting="latest")
    assert _sequences(restarted, restarted.initialOffset(), found) == [[2], [3], [4]]


def test_message_on_an_idle_stream_is_seen_before_its_info_is_due(
    any_server: str, fresh: str, js: BlockingJetStream, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.spark.source.stream._STATE_INTERVAL", 3600.0)
    js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True))
    js.publish(f"{fresh}.a", b"1")
    source = JetStreamDataSource({"path": fresh, "servers": any_server, "pollInterval": "0.000001"})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StreamReader)
    request.addfinalizer(reader.stop)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    infos = mock.Mock(side_effect=reader._info)
    monkeypatch.setattr(reader, "_info", infos)
    for _ in range(20):
        assert reader.latestOffset(end, ReadAllAvailable()) == end
    infos.assert_not_called()
    js.publish(f"{fresh}.b", b"2")
    deadline = time.monotonic() + 30
    while (found := reader.latestOffset(end, ReadAllAvailable())) == end:
        assert time.monotonic() < deadline
    assert found == {"seq": 2, "created": end["created"]}


def test_rare_polls_stay_rare(
    any_server: str, fresh: str, js: BlockingJetStream, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True))
    source = JetStreamDataSource({"path": fresh, "servers": any_server, "pollInterval": "3600"})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StreamReader)
    request.addfinalizer(reader.stop)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    probe = mock.Mock(return_value=False)
    monkeypatch.setattr(reader, "_has_message", probe)
    js.publish(f"{fresh}.a", b"1")
    for _ in range(5):
        assert reader.latestOffset(start, ReadAllAvailable()) == start
    probe.assert_not_called()


def test_probe_that_fails_waits_for_the_info(
    any_server: str, fresh: str, js: BlockingJetStream, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is wrong with it, e.g. a missing permission: the query sees the message with the next info."""

    def refuse(*_: object, **__: object) -> None:
        raise AuthorizationError("no direct gets for you")

    monkeypatch.setattr("slipstream.jetstream._sync.stream.Stream.get_next", refuse)
    js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True))
    source = JetStreamDataSource({"path": fresh, "servers": any_server, "pollInterval": "0.000001"})
    reader = source.streamReader(source.schema())
    request.addfinalizer(reader.stop)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    js.publish(f"{fresh}.a", b"1")
    deadline = time.monotonic() + 30
    while reader.latestOffset(start, ReadAllAvailable()) == start:
        assert time.monotonic() < deadline


@pytest.mark.parametrize("any_server", ["ours"], indirect=True)
def test_query_reports_the_stream_and_its_lag(
    spark: SparkSession, any_server: str, fresh: str, js: BlockingJetStream, tmp_path: Path
) -> None:
    js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
    for n in range(5):
        js.publish(f"{fresh}.a", b"%d" % n)
    reader = spark.readStream.format("jetstream").option("servers", any_server).option("maxMessagesPerTrigger", 3)
    writer = reader.load(fresh).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    found = [json.loads(one["sources"][0]["latestOffset"]) for one in query.recentProgress]
    assert [(one["stream"], one["seq"], one["lag_messages"]) for one in found[:2]] == [(fresh, 5, 2), (fresh, 5, 0)]
    assert found[0]["lag_seconds"] > 0
    ends = [json.loads(one["sources"][0]["endOffset"]) for one in query.recentProgress]
    assert [set(one) - {"seq", "created"} for one in ends][:2] == [{"begin"}, set()]  # what Spark keeps
