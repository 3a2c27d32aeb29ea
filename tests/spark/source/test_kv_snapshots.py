"""Snapshots of a bucket per micro-batch: one state for all attempts, read again only when the bucket has changed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from slipstream import BlockingJetStream, StreamConfig
from slipstream.spark.source.kv_snapshots import snapshot, snapshot_folder

SCHEMA = pa.schema([pa.field("n", pa.int64())])


class Bucket:
    """A bucket that counts how often it is read."""

    def __init__(self) -> None:
        self.rows = [1]
        self.state = "a"
        self.reads = 0

    def read(self) -> Iterator[pa.RecordBatch]:
        self.reads += 1
        yield pa.RecordBatch.from_pydict({"n": self.rows}, schema=SCHEMA)

    def change(self, *rows: int) -> None:
        self.rows, self.state = list(rows), self.state + "x"

    def seen(self, folder: Path, batch: int) -> list[int]:
        found = snapshot(folder, batch, lambda: self.state, self.read, SCHEMA)
        return [n for one in found for n in one.column("n").to_pylist()]


def test_replay_sees_the_state_of_the_first_attempt(tmp_path: Path) -> None:
    bucket, folder = Bucket(), snapshot_folder(str(tmp_path), "query", "bucket")
    assert bucket.seen(folder, 0) == [1]
    bucket.change(2)
    assert bucket.seen(folder, 0) == [1]
    assert bucket.seen(folder, 1) == [2]
    assert bucket.seen(folder, 0) == [1]
    assert bucket.reads == 2


def test_unchanged_bucket_is_not_read_again_and_old_batches_are_removed(tmp_path: Path) -> None:
    bucket = Bucket()
    for batch in range(5):
        assert bucket.seen(tmp_path, batch) == [1]
    assert bucket.reads == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3.arrow", "4.arrow"]


def test_empty_bucket(tmp_path: Path) -> None:
    assert list(snapshot(tmp_path, 0, lambda: "", lambda: iter(()), SCHEMA)) == []
    assert list(snapshot(tmp_path, 0, lambda: "x", Bucket().read, SCHEMA)) == []


def test_of_two_attempts_at_once_the_first_to_finish_decides(tmp_path: Path) -> None:
    first, second = Bucket(), Bucket()
    second.change(2)

    def slow() -> Iterator[pa.RecordBatch]:
        assert second.seen(tmp_path, 0) == [2]  # while the first one reads
        yield from first.read()

    found = snapshot(tmp_path, 0, lambda: "a", slow, SCHEMA)
    assert [n for one in found for n in one.column("n").to_pylist()] == [2]
    assert [path.name for path in tmp_path.iterdir()] == ["0.arrow"]


def test_read_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from Bucket().read()
        raise RuntimeError("away")

    with pytest.raises(RuntimeError, match="away"):
        list(snapshot(tmp_path, 0, lambda: "a", broken, SCHEMA))
    assert list(tmp_path.iterdir()) == []


def test_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    bucket = Bucket()
    assert bucket.seen(tmp_path, 0) == [1]
    assert bucket.seen(tmp_path, 1) == [1]
    assert bucket.reads == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.arrow", "1.arrow"]


def test_reads_of_other_queries_and_keys_are_apart(tmp_path: Path) -> None:
    folders = {snapshot_folder(str(tmp_path), query, what) for query in "ab" for what in ("x eu", "x us")}
    assert len(folders) == 4


@pytest.mark.parametrize("any_server", ["ours"], indirect=True)
def test_join_sees_changes_between_micro_batches_and_replays_see_none(
    spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str, tmp_path: Path
) -> None:
    js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
    bucket = js.create_key_value(fresh)
    bucket.put("ada", b"london")
    options = {"servers": any_server, "snapshots": str(tmp_path / "snapshots")}
    table = spark.read.format("jetstream_kv").options(**options).load(fresh)
    source = spark.readStream.format("jetstream").option("servers", any_server).load(fresh)
    joined = source.selectExpr("CAST(data AS STRING) AS who", "sequence").join(
        table.selectExpr("key AS who", "CAST(value AS STRING) AS city"), "who", "left"
    )
    seen: list[tuple[int, list[tuple[int, str | None]]]] = []
    failing: set[int] = {2}

    def write(batch: DataFrame, number: int) -> None:
        seen.append((number, sorted((row["sequence"], row["city"]) for row in batch.collect())))
        if number in failing:
            failing.remove(number)
            raise RuntimeError("killed")

    def wait_for_batches(count: int) -> None:
        deadline = time.monotonic() + 120
        while len(seen) < count:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    writer = joined.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        js.publish(f"{fresh}.x", b"ada")
        wait_for_batches(1)
        bucket.put("ada", b"paris")
        js.publish(f"{fresh}.x", b"ada")
        wait_for_batches(2)  # in the same query: Spark has not planned the bucket again
        assert seen == [(0, [(1, "london")]), (1, [(2, "paris")])]
        bucket.delete("ada")
        js.publish(f"{fresh}.x", b"ada")
        with pytest.raises(PySparkException, match="killed"):
            query.awaitTermination(120)
    finally:
        query.stop()
    bucket.put("ada", b"rome")
    again = writer.trigger(availableNow=True).start()
    again.awaitTermination(120)
    assert seen[2:] == [(2, [(3, None)]), (2, [(3, None)])]  # as when the batch was first tried
