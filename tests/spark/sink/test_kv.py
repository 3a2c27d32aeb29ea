"""DataFrames into a bucket: whatever is tried again or killed, the bucket holds what the query says."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import nats
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from slipstream import BlockingJetStream, BucketConfig, StreamConfig, connect_blocking
from slipstream.errors import UsageError
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.spark import into_bucket
from slipstream.spark.options import SinkOptions
from slipstream.spark.sink.dead_letters import DeadLetters
from slipstream.spark.sink.entries import Change
from slipstream.spark.sink.fence import Epoch, epoch_of
from slipstream.spark.sink.kv import BucketWriter
from tests.spark import view_job

ROOT = Path(__file__).resolve().parents[3]
LETTERS = "abcdefg"


def write(df: DataFrame, server: str, bucket: str, **options: str) -> None:
    df.write.format("jetstream_kv").mode("append").option("servers", server).options(**options).save(bucket)


def contents(js: BlockingJetStream, bucket: str) -> dict[str, bytes]:
    """Every key with its value, at least as new as the bucket's last write."""
    kv = js.key_value(bucket)
    newest = kv.status().stream_info.state.last_seq
    keys = kv.keys(min_last_revision=newest)
    return {key: kv.get(key, min_last_revision=newest).value for key in keys}


async def read_with_nats_py(server: str, bucket: str, keys: Iterable[str]) -> dict[str, bytes | None]:
    client = await nats.connect(server)
    try:
        kv = await client.jetstream().key_value(bucket)
        return {key: (await kv.get(key)).value for key in keys}
    finally:
        await client.close()


def publish_numbers(js: BlockingJetStream, name: str, count: int) -> dict[str, bytes]:
    """Numbers on a subject per letter; gives the view they should make."""
    js.create_stream(StreamConfig(name=name, subjects=(f"{name}.*",), allow_direct=True))
    js.create_key_value(BucketConfig(bucket=name))
    totals: dict[str, list[int]] = defaultdict(list)
    with js.publisher() as publisher:
        for n in range(count):
            letter = LETTERS[n * n % len(LETTERS)]
            publisher.publish(f"{name}.{letter}", str(n).encode())
            totals[letter].append(n)
    return {letter: f"{len(numbers)}:{sum(numbers)}".encode() for letter, numbers in totals.items()}


@pytest.mark.spec("SP-07")
class TestWriting:
    def test_upserts_and_deletes(self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str) -> None:
        js.create_key_value(BucketConfig(bucket=fresh))
        rows = [(f"k.{n}", bytes([n])) for n in range(100)]
        write(spark.createDataFrame(rows, "key STRING, value BINARY").repartition(3), any_server, fresh)
        assert contents(js, fresh) == dict(rows)
        changes = [("k.1", "neu: ü", False), ("k.2", None, True), ("k.3", None, True), ("new", "", False)]
        write(spark.createDataFrame(changes, "key STRING, value STRING, deleted BOOLEAN"), any_server, fresh)
        words = spark.createDataFrame(
            [("k.1", "x", "PUT"), ("k.4", None, "DEL")], "key STRING, value STRING, operation STRING"
        )
        write(words, any_server, fresh)
        expected = {**dict(rows), "k.1": b"x", "new": b""}
        for gone in ("k.2", "k.3", "k.4"):
            del expected[gone]
        assert contents(js, fresh) == expected

    def test_the_changes_of_another_bucket(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        source = js.create_key_value(BucketConfig(bucket=fresh, history=5))
        copy = js.create_key_value(BucketConfig(bucket=f"{fresh}copy", history=5))
        for key in "abc":
            source.put(key, b"1")
            copy.put(key, b"0")
        source.delete("a")
        source.purge("b")
        changes = spark.read.format("jetstream_kv").option("servers", any_server).option("includeDeletes", "true")
        write(changes.load(fresh).select("key", "value", "operation"), any_server, f"{fresh}copy")
        assert contents(js, f"{fresh}copy") == {"c": b"1"}

    def test_retried_task_writes_every_row_once(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        js.create_key_value(BucketConfig(bucket=fresh))

        def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            task = TaskContext.get()
            assert task is not None
            for batch in batches:
                yield batch.slice(0, 50)
                if task.attemptNumber() == 0:
                    raise RuntimeError("the first attempt")
                yield batch.slice(50)

        df = spark.range(0, 400, 1, 2).selectExpr("CAST(id AS STRING) AS key", "CAST(id * id AS STRING) AS value")
        write(df.mapInArrow(fail_once, df.schema), any_server, fresh)
        assert contents(js, fresh) == {str(n): str(n * n).encode() for n in range(400)}

    def test_an_aggregate_in_update_mode_is_a_view_for_any_client(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str, tmp_path: Path
    ) -> None:
        expected = publish_numbers(js, fresh, 2_000)
        query = view_job.start(spark, any_server, fresh, tmp_path / "checkpoint", limit=900)
        query.awaitTermination()
        assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [
            900,
            900,
            200,
        ]
        view = contents(js, fresh)
        assert view == expected
        stream = spark.read.format("jetstream").option("servers", any_server).load(fresh)
        assert {row.key: row.value.encode() for row in spark.sql(view_job.VIEW, messages=stream).collect()} == view
        assert asyncio.run(read_with_nats_py(any_server, fresh, view)) == view

    @pytest.mark.soak  # test_kills.py has a short form of it
    def test_a_driver_killed_in_the_middle_and_started_again_gives_the_same_view(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str, tmp_path: Path
    ) -> None:
        expected = publish_numbers(js, fresh, 10_000)
        checkpoint = tmp_path / "checkpoint"
        kill_after_commits(1, any_server, fresh, checkpoint, limit=300)
        assert 1 <= commits(checkpoint) < 10_000 // 300, "it was not killed in the middle"
        view_job.start(spark, any_server, fresh, checkpoint, limit=6_000).awaitTermination()
        assert contents(js, fresh) == expected


def commits(checkpoint: Path) -> int:
    return len([file for file in checkpoint.glob("commits/*") if file.name.isdigit()])


def kill_after_commits(count: int, server: str, name: str, checkpoint: Path, *, limit: int) -> None:
    """Run the job in a process group of its own, JVM included, and `kill -9` all of it while it works."""
    command = [sys.executable, "-m", "tests.spark.view_job", server, name, str(checkpoint), str(limit)]
    with Path(checkpoint.parent, "log").open("wb") as log:
        job = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 300
        while commits(checkpoint) < count:
            assert job.poll() is None, Path(checkpoint.parent, "log").read_text()
            assert time.monotonic() < deadline, "the job did not get going"
            time.sleep(0.02)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait(timeout=20)


class TestFence:
    """A write of an older micro-batch never replaces one of a newer; what others write is replaced."""

    OLD, NEW = Epoch("q", 5), Epoch("q", 6)

    def keeper(
        self, js: BlockingJetStream, bucket: str, epoch: Epoch | None, *, only_changed: bool = False
    ) -> BucketWriter:
        return BucketWriter(
            js,
            SinkOptions(bucket=bucket, only_changed=only_changed),
            epoch,
            DeadLetters("", prefix="", timeout=5.0),
        )

    def test_a_worker_that_outlived_its_driver_is_too_late(self, js: BlockingJetStream, fresh: str) -> None:
        kv = js.create_key_value(BucketConfig(bucket=fresh, history=5))
        kv.put("b", b"by hand")
        late = self.keeper(js, fresh, self.OLD)  # it has looked at the bucket already when the next ones write
        for key in "abc":
            late.add(Change(key, b"5"))
        again, following = self.keeper(js, fresh, self.OLD), self.keeper(js, fresh, self.NEW)
        for key in "abc":
            again.add(Change(key, b"5"))
        again.flush()
        following.add(Change("a", b"6"))
        following.add(Change("b", None))
        following.flush()
        late.flush()
        assert contents(js, fresh) == {"a": b"6", "c": b"5"}
        assert late.unchanged == 2

    def test_newer_write_between_read_and_write_wins(
        self, js: BlockingJetStream, fresh: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        js.create_key_value(BucketConfig(bucket=fresh))
        real = BucketWriter._read

        def read(keeper: BucketWriter, subjects: list[str]) -> dict[str, StoredMessage]:
            found = real(keeper, subjects)
            monkeypatch.setattr(BucketWriter, "_read", real)
            newer = self.keeper(js, fresh, self.NEW)
            newer.add(Change("a", b"6"))
            newer.flush()
            return found

        monkeypatch.setattr(BucketWriter, "_read", read)
        late = self.keeper(js, fresh, self.OLD)
        late.add(Change("a", b"5"))
        late.add(Change("z", b"5"))
        late.flush()
        assert contents(js, fresh) == {"a": b"6", "z": b"5"}

    def test_another_query_or_a_hand_may_write_over_it(self, js: BlockingJetStream, fresh: str) -> None:
        kv = js.create_key_value(BucketConfig(bucket=fresh))
        for epoch, value in ((self.NEW, b"6"), (Epoch("other", 0), b"0"), (None, b"batch")):
            keeper = self.keeper(js, fresh, epoch)
            keeper.add(Change("a", value))
            keeper.flush()
            assert kv.get("a").value == value

    def test_only_what_changed_is_written(self, js: BlockingJetStream, fresh: str) -> None:
        js.create_key_value(BucketConfig(bucket=fresh, history=5))
        first = [Change(f"k{n}", str(n).encode()) for n in range(2_500)]
        changed = [*first[:2_490], Change("k2490", b"x"), Change("k1", None), Change("gone", None)]
        for changes, expected in ((first, 2_500), (first, 2_500), (changed, 2_502), (changed[-3:], 2_502)):
            keeper = self.keeper(js, fresh, None, only_changed=True)
            for change in changes:
                keeper.add(change)
            keeper.flush()
            assert js.key_value(fresh).status().stream_info.state.last_seq == expected

    def test_rejected_value_is_named(self, js: BlockingJetStream, fresh: str) -> None:
        js.create_key_value(BucketConfig(bucket=fresh, max_value_size=100))
        for epoch in (None, self.OLD):
            keeper = self.keeper(js, fresh, epoch)
            with pytest.raises(UsageError, match=r"key 'large' was rejected: .*size"):  # noqa: PT012 - whichever sees it
                keeper.add(Change("small", b""))
                keeper.add(Change("large", b"x" * 1_000))
                keeper.flush()


class TestOtherQueries:
    def test_what_a_streaming_query_writes_says_which_batch_it_was(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str, tmp_path: Path
    ) -> None:
        publish_numbers(js, fresh, 100)
        view_job.start(spark, any_server, fresh, tmp_path / "checkpoint", limit=60).awaitTermination()
        newest = {message.subject: message for message in js.stream(f"KV_{fresh}").read()}
        found = {epoch_of(message.header) for message in newest.values()}
        assert {epoch.batch for epoch in found if epoch} == {1}
        assert len({epoch.query for epoch in found if epoch}) == 1

    def test_a_streaming_query_in_append_mode(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str, tmp_path: Path
    ) -> None:
        publish_numbers(js, fresh, 100)
        source = spark.readStream.format("jetstream").option("servers", any_server).load(fresh)
        rows = source.selectExpr("CAST(sequence AS STRING) AS k", "data AS v")
        writer = rows.writeStream.format("jetstream_kv").option("servers", any_server).trigger(availableNow=True)
        options = {"keyColumn": "k", "valueColumn": "v", "checkpointLocation": str(tmp_path / "checkpoint")}
        writer.options(**options).start(fresh).awaitTermination()
        assert contents(js, fresh) == {str(n + 1): str(n).encode() for n in range(100)}


class TestDeadLetters:
    """Each row that cannot be written is a letter of its own, and one only, however often it is tried."""

    @pytest.fixture
    def letters(self, js: BlockingJetStream, fresh: str) -> Callable[[], int]:
        """How many there are."""
        js.create_key_value(BucketConfig(bucket=fresh))
        js.create_stream(StreamConfig(name=f"{fresh}_DEAD", subjects=(f"{fresh}.dead",), allow_direct=True))
        return lambda: js.stream(f"{fresh}_DEAD").info().state.messages

    def test_of_equal_rows_in_other_tasks_and_writes(
        self, spark: SparkSession, any_server: str, fresh: str, letters: Callable[[], int]
    ) -> None:
        bad = spark.range(0, 4, 1, 2).selectExpr("'no key' AS key", "'1' AS value")
        for written in (4, 8):
            write(bad, any_server, fresh, deadLetter=f"{fresh}.dead")
            assert letters() == written

    def test_of_a_task_that_is_tried_again(
        self, spark: SparkSession, any_server: str, fresh: str, letters: Callable[[], int]
    ) -> None:
        def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            task = TaskContext.get()
            assert task is not None
            yield from batches
            if task.attemptNumber() == 0:
                time.sleep(0.5)  # until the letters are on their way
                raise RuntimeError("the first attempt")

        bad = spark.range(0, 600, 1, 2).selectExpr("'no key' AS key", "'1' AS value")
        write(bad.mapInArrow(fail_once, bad.schema), any_server, fresh, deadLetter=f"{fresh}.dead")
        assert letters() == 600

    def test_of_a_micro_batch_that_is_tried_again(
        self,
        spark: SparkSession,
        js: BlockingJetStream,
        any_server: str,
        fresh: str,
        letters: Callable[[], int],
        tmp_path: Path,
    ) -> None:
        js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.in",), allow_direct=True))
        js.publish(f"{fresh}.in", b"1")
        rows = spark.readStream.format("jetstream").option("servers", any_server).load(fresh)
        into = into_bucket(fresh, {"servers": any_server, "deadLetter": f"{fresh}.dead"})

        def run(*, fails: bool) -> None:
            def put(batch: DataFrame, number: int) -> None:
                into(batch, number)
                if fails:
                    raise RuntimeError("after it was written")

            writer = rows.selectExpr("'no key' AS key", "data AS value").writeStream.foreachBatch(put)
            query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
            query.start().awaitTermination()

        with pytest.raises(PySparkException, match="after it was written"):
            run(fails=True)
        run(fails=False)
        assert letters() == 1


class TestRefusals:
    """What cannot be written says why, before any job."""

    @pytest.fixture
    def bucket(self, real_url: str, fresh: str) -> str:
        with connect_blocking(real_url) as client:
            client.jetstream().create_key_value(BucketConfig(bucket=fresh))
        return fresh

    def test_by_its_columns_and_options(self, spark: SparkSession, real_url: str, bucket: str) -> None:
        with pytest.raises(PySparkException, match="needs a column 'value', got key, total"):
            write(spark.createDataFrame([("a", 1)], "key STRING, total INT"), real_url, bucket)
        fine = spark.createDataFrame([("a", "1")], "key STRING, value STRING")
        with pytest.raises(PySparkException, match=r"bucket 'nope' does not exist: create it first"):
            write(fine, real_url, "nope")
        with pytest.raises(PySparkException, match="cannot overwrite a bucket: use mode"):
            fine.write.format("jetstream_kv").mode("overwrite").option("servers", real_url).save(bucket)
        with pytest.raises(ValueError, match="has no option 'server'"):
            into_bucket(bucket, {"server": real_url})

    def test_by_a_row(self, spark: SparkSession, real_url: str, bucket: str) -> None:
        with pytest.raises(PySparkException, match="row 0: column 'value' of key 'a' must not be null"):
            write(spark.createDataFrame([("a", None)], "key STRING, value STRING"), real_url, bucket)
        with pytest.raises(PySparkException, match=r"key must .*, got 'a\.\.b'"):
            write(spark.createDataFrame([("a..b", "1")], "key STRING, value STRING"), real_url, bucket)

    def test_writing_all_of_it_each_time(self, spark: SparkSession, real_url: str, bucket: str, tmp_path: Path) -> None:
        counts = (
            spark.readStream.format("jetstream")
            .option("servers", real_url)
            .load(f"KV_{bucket}")
            .groupBy("subject")
            .count()
        )
        rows = counts.selectExpr("subject AS key", "CAST(count AS STRING) AS value")
        writer = rows.writeStream.format("jetstream_kv").option("servers", real_url).outputMode("complete")
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        with connect_blocking(real_url) as client:
            client.jetstream().key_value(bucket).put("a", b"1")
        with pytest.raises(PySparkException, match=r"does not support output mode 'complete'.*into_bucket"):
            query.start(bucket).awaitTermination()
