"""Servers that go away while a task or a query works: it waits, goes on, and every row is there once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from slipstream import BlockingJetStream, BucketConfig, StreamConfig, connect_blocking
from slipstream.errors import ConnectionLostError, Error
from slipstream.jetstream.reads.columns import Columns
from slipstream.spark.connect import RetryingConnection
from slipstream.spark.micro_batch import BATCH_ID, QUERY_ID
from slipstream.spark.option_reader import Connection
from slipstream.spark.options import DEFAULT_PROGRESS, SinkOptions, SourceOptions, StreamSinkOptions
from slipstream.spark.sink import kv as kv_sink
from slipstream.spark.sink.entries import layout_of
from slipstream.spark.sink.kv import KeyValueTask
from slipstream.spark.sink.progress import Progress, Task
from slipstream.spark.sink.records import Shape
from slipstream.spark.sink.stream import StreamTask
from slipstream.spark.source import plan, rows
from slipstream.spark.source.kv import KeyValueDataSource
from slipstream.spark.source.offsets import created_of
from slipstream.spark.source.stream import BatchReader, JetStreamDataSource, RangePartition, read_range
from slipstream.testing import TestServer
from tests.servers import OurProcess, RealProcess

AWAY = 0.7  # seconds for which a killed server is away: longer than the first pauses between two attempts
ROWS = 3_000


class Restarts:
    """A server that is killed, and started again after a while, as often as one likes."""

    def __init__(self, process: OurProcess | RealProcess) -> None:
        self._process = process
        self._starting: threading.Thread | None = None
        self.url = process.url

    def kill(self, away: float = AWAY) -> None:
        self.wait()
        self._process.kill()

        def start() -> None:
            time.sleep(away)
            self._process.start()

        self._starting = threading.Thread(target=start)
        self._starting.start()

    def wait(self) -> None:
        """Until the server is back."""
        if self._starting is not None:
            self._starting.join(60)

    @contextmanager
    def jetstream(self) -> Iterator[BlockingJetStream]:
        self.wait()
        with connect_blocking(self.url) as client:
            yield client.jetstream()


@pytest.fixture(params=["ours", "real"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Restarts]:
    process = OurProcess(tmp_path) if request.param == "ours" else RealProcess(tmp_path)
    with process:
        restarts = Restarts(process)
        yield restarts
        restarts.wait()


def numbered(numbers: range, name: str) -> pa.RecordBatch:
    """Rows of which every hundredth has a subject that no stream listens on, and some no subject at all."""
    subjects = [None if n % 500 == 499 else f"else.{n}" if n % 100 == 99 else f"{name}.{n % 3}" for n in numbers]
    return pa.RecordBatch.from_pydict({"subject": subjects, "data": [b"%d" % n for n in numbers]})


def is_good(n: int) -> bool:
    return n % 100 != 99


def prepare(js: BlockingJetStream, name: str, **config: Any) -> None:
    js.create_stream(StreamConfig(name=name, subjects=(f"{name}.>",), allow_direct=True, **config))
    js.create_stream(StreamConfig(name=f"{name}_dead", subjects=(f"{name}_dead",), allow_direct=True))
    Progress(js, DEFAULT_PROGRESS, name).prepare(1)


def stored(js: BlockingJetStream, name: str) -> Counter[int]:
    return Counter(int(message.data) for message in js.stream(name).read())


def check_rows(js: BlockingJetStream, name: str) -> None:
    """Every good row is in the stream once, every other one a dead letter once."""
    assert stored(js, name) == Counter(n for n in range(ROWS) if is_good(n))
    assert stored(js, f"{name}_dead") == Counter(n for n in range(ROWS) if not is_good(n))


def batches(name: str, interrupt: Callable[[], object], at: set[int], size: int = 250) -> Iterator[pa.RecordBatch]:
    for start in range(0, ROWS, size):
        if start in at:
            interrupt()
        yield numbered(range(start, start + size), name)


@pytest.mark.parametrize("config", [{}, {"allow_batched": True}, {"allow_atomic": True}], ids=str)
def test_stream_sink_stores_every_row_once_over_restarts(server: Restarts, fresh: str, config: dict[str, Any]) -> None:
    with server.jetstream() as js:
        prepare(js, fresh, **config)
    options = StreamSinkOptions(
        stream=fresh, connection=Connection(servers=(server.url,)), dead_letter=f"{fresh}_dead", max_in_flight=100
    )
    sent = StreamTask(options, Shape()).run(batches(fresh, server.kill, {500, 1500, 2750}), Task("q", 0, 0))
    assert sent.rows == ROWS - ROWS // 500  # those without a subject never were messages
    assert sent.rejected == ROWS // 100
    with server.jetstream() as js:
        check_rows(js, fresh)


@pytest.mark.parametrize("config", [{}, {"allow_batched": True}, {"allow_atomic": True}], ids=str)
def test_stream_sink_stores_every_row_once_whichever_byte_a_cut_comes_after(fresh: str, config: dict[str, Any]) -> None:
    chance = random.Random(7)
    with TestServer() as server, connect_blocking(server.url) as client:
        js = client.jetstream()
        for turn in range(8):
            name = f"{fresh}{turn}"
            prepare(js, name, **config)
            options = StreamSinkOptions(
                stream=name, connection=Connection(servers=(server.url,)), dead_letter=f"{name}_dead", max_in_flight=100
            )

            def cut() -> None:
                direction = chance.choice(("to_client", "to_server"))
                server.cut("slipstream-spark", after=chance.randrange(20_000), direction=direction)

            StreamTask(options, Shape()).run(batches(name, cut, {0, 750, 1500, 2250}), Task("q", turn, 0))
            server.clear()
            check_rows(js, name)


@pytest.mark.parametrize("query", ["", "q"], ids=["batch", "micro-batch"])
def test_bucket_sink_ends_with_the_last_values_over_restarts(
    server: Restarts, fresh: str, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.jetstream() as js:
        js.create_key_value(BucketConfig(bucket=fresh))
    properties = {QUERY_ID: query, BATCH_ID: "3" if query else ""}
    context = SimpleNamespace(partitionId=lambda: 0, getLocalProperty=properties.get)
    monkeypatch.setattr(kv_sink, "current_task", lambda: context)
    options = SinkOptions(bucket=fresh, connection=Connection(servers=(server.url,)), max_in_flight=100)
    task = KeyValueTask(options, layout_of({"key": "string", "value": "binary"}, options), "w")

    def changes() -> Iterator[pa.RecordBatch]:
        for start in range(0, 2_000, 250):
            if start in (500, 1500):
                server.kill()
            numbers = range(start, start + 250)
            keys = [f"k{n % 600}" for n in numbers]  # later rows replace earlier ones
            yield pa.RecordBatch.from_pydict({"key": keys, "value": [b"%d" % n for n in numbers]})

    assert task.run(changes()).rows == 2_000
    with server.jetstream() as js:
        kv = js.key_value(fresh)
        assert {key: kv.get(key).value for key in list(kv.keys())} == {
            f"k{n % 600}": b"%d" % n for n in range(1_400, 2_000)
        }


@pytest.mark.parametrize("subjects", [(), ("*.1", "*.2", "*.*")], ids=["all", "filtered"])
def test_range_is_read_once_over_restarts(
    server: Restarts, fresh: str, subjects: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.jetstream() as js:
        js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True))
        with js.publisher() as publisher:
            for n in range(20_000):
                publisher.publish(f"{fresh}.{n % 3}", b"%d" % n + b"." * 100)
        created = created_of(js.stream(fresh).info())
    options = SourceOptions(stream=fresh, connection=Connection(servers=(server.url,)), subjects=subjects)
    kills = iter((2, 5))  # behind these chunks
    chunks = rows.batches

    def interrupted(read: Iterator[Columns], columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        def killing() -> Iterator[Columns]:
            due = next(kills, 0)
            for number, chunk in enumerate(read, 1):
                yield chunk
                if number == due:
                    due = next(kills, 0)
                    server.kill()

        return chunks(killing(), columns)

    monkeypatch.setattr(rows, "batches", interrupted)
    partition = RangePartition(plan.Range(1, 20_000), created)
    found = [batch.column("data").to_pylist() for batch in read_range(options, ("data", "sequence"), partition)]
    assert Counter(int(data.rstrip(b".")) for part in found for data in part) == Counter(range(20_000))
    assert next(kills, None) is None


def test_range_of_a_stream_that_was_recreated_during_an_outage_is_an_error(fresh: str) -> None:
    with TestServer() as server, connect_blocking(server.url) as client:
        js = client.jetstream()
        config = StreamConfig(name=fresh, subjects=(fresh,), allow_direct=True)
        js.create_stream(config)
        with js.publisher() as publisher:
            for _ in range(20_000):
                publisher.publish(fresh, b"old" * 50)
        created = created_of(js.stream(fresh).info())
        options = SourceOptions(stream=fresh, connection=Connection(servers=(server.url,)))
        reading = read_range(options, ("data",), RangePartition(plan.Range(1, 20_000), created))
        next(reading)
        js.stream(fresh).delete()
        js.create_stream(config)
        with js.publisher() as publisher:
            for _ in range(20_000):
                publisher.publish(fresh, b"new" * 50)
        server.cut("slipstream-spark")
        with pytest.raises(Error, match=r"created|recreated"):
            list(reading)


def test_task_gives_up_after_the_time_that_the_option_says(fresh: str) -> None:
    connection = Connection(servers=("nats://127.0.0.1:1",), retry_for=0.3)
    began = time.monotonic()
    with pytest.raises(ConnectionLostError, match="Connection refused"):
        StreamTask(StreamSinkOptions(stream=fresh, connection=connection), Shape()).run(iter(()), Task("q", 0, 0))
    assert time.monotonic() - began >= 0.3


def test_planning_of_a_batch_waits_only_if_it_is_asked_to(server: Restarts, fresh: str) -> None:
    with server.jetstream() as js:
        js.create_stream(StreamConfig(name=fresh, subjects=(fresh,), allow_direct=True))
        js.publish(fresh, b"")
    server.kill()
    options = SourceOptions(stream=fresh, connection=Connection(servers=(server.url,)))
    with pytest.raises(ConnectionLostError):
        BatchReader(options, ("data",)).partitions()
    waiting = replace(options, connection=replace(options.connection, plan_retry_for=30.0))
    assert BatchReader(waiting, ("data",)).partitions()


def test_work_is_called_again_with_a_new_connection(server: Restarts) -> None:
    seen = []

    def work(js: BlockingJetStream) -> str:
        seen.append(js)
        if len(seen) == 1:
            server.kill()
            js.account_info()
        return js.client.server_info.server_id

    with RetryingConnection(Connection(servers=(server.url,)), {}) as connection:
        assert connection.run(work)
    assert len(seen) == len({id(js) for js in seen}) == 2


@pytest.mark.parametrize("kind", ["stream", "bucket"])
def test_micro_batch_that_is_planned_while_the_server_is_away_waits(server: Restarts, fresh: str, kind: str) -> None:
    with server.jetstream() as js:
        js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True))
        js.create_key_value(BucketConfig(bucket=fresh))
    sink = (JetStreamDataSource if kind == "stream" else KeyValueDataSource)({"servers": server.url, kind: fresh})
    schema = (
        StructType()
        .add("subject" if kind == "stream" else "key", "string")
        .add("data" if kind == "stream" else "value", "binary")
    )
    server.kill()
    sink.streamWriter(schema, overwrite=False)  # returns when the server is back
    server.kill()
    with pytest.raises(ConnectionLostError):  # of a batch write: an address that never answered may be a mistake
        sink.writer(schema, overwrite=False)


@pytest.mark.spark
def test_plain_streaming_query_lives_through_restarts_of_the_server(
    spark: SparkSession, server: Restarts, fresh: str, tmp_path: Path
) -> None:
    with server.jetstream() as js:
        js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), allow_direct=True))
        js.create_stream(StreamConfig(name=f"{fresh}_copy", subjects=(f"{fresh}_copy",), allow_direct=True))
    source = spark.readStream.format("jetstream").option("servers", server.url).option("stream", fresh).load()
    query = (
        source.selectExpr(f"'{fresh}_copy' AS subject", "data")
        .writeStream.format("jetstream")
        .option("servers", server.url)
        .option("stream", f"{fresh}_copy")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        for turn in range(3):
            with server.jetstream() as js:
                for n in range(100 * turn, 100 * turn + 100):
                    js.publish(f"{fresh}.a", b"%d" % n)
            server.kill(3.0)
            assert query.isActive, query.exception()
        deadline = time.monotonic() + 120
        while True:
            with server.jetstream() as js:
                copied = js.stream(f"{fresh}_copy").info().state.messages
            if copied >= 300 or time.monotonic() > deadline or not query.isActive:
                break
            time.sleep(0.2)
        assert query.exception() is None
        with server.jetstream() as js:
            assert stored(js, f"{fresh}_copy") == Counter(range(300))
    finally:
        query.stop()
