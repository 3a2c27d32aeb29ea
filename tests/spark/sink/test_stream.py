"""DataFrames into a stream: every row is there once, whatever is tried again, runs twice, or is killed and started."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from slipstream import BlockingJetStream, BucketConfig, StreamConfig
from slipstream.errors import Error, UsageError
from slipstream.spark import into_stream
from slipstream.spark.option_reader import Connection
from slipstream.spark.options import StreamSinkOptions
from slipstream.spark.sink.outbox import Outbox
from slipstream.spark.sink.progress import Progress, Task
from slipstream.spark.sink.records import Shape, id_prefix, records, shape_of
from slipstream.spark.sink.stream import Sent, StreamTask, uses_atomic

NO_WINDOW = timedelta(milliseconds=100)  # the least that a server takes: no attempt is covered by it


def make_stream(js: BlockingJetStream, name: str, **config: Any) -> None:
    settings: dict[str, Any] = {"allow_direct": True, **config}
    js.create_stream(StreamConfig(name=name, subjects=(f"{name}.>",), **settings))


def stored(js: BlockingJetStream, name: str) -> list[tuple[str, bytes]]:
    return [(message.subject, message.data) for message in js.stream(name).read()]


def rows_of(count: int, name: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"subject": f"{name}.{n % 3}", "data": str(n).encode()} for n in range(count)])


def write(df: DataFrame, server: str, stream: str, **options: object) -> None:
    given = {key: str(value) for key, value in options.items()}
    df.write.format("jetstream").mode("append").option("servers", server).options(**given).save(stream)


class TestIds:
    """Pure: what a row is called."""

    def test_are_the_same_in_any_order_and_tell_equal_rows_apart(self) -> None:
        rows = [{"subject": "a", "data": b"1"}, {"subject": "a", "data": b"2"}, {"subject": "a", "data": b"1"}]

        def ids(order: list[dict[str, Any]]) -> Counter[tuple[str, bytes]]:
            batch = pa.RecordBatch.from_pylist(order)
            return Counter((one.msg_id, one.data) for one in next(records([batch], Shape(), id_prefix("q", 1, 0))))

        expected = ids(rows)
        assert len(expected) == 3
        assert all(ids(list(order)) == expected for order in itertools.permutations(rows))

    def test_differ_by_query_batch_partition_subject_and_headers(self) -> None:
        prefixes = {id_prefix("q", 1, 0), id_prefix("q", 2, 0), id_prefix("q", 1, 1), id_prefix("p", 1, 0)}
        assert len(prefixes) == 4
        kind = pa.map_(pa.string(), pa.string())
        headers = pa.array([[("A", "1")], [("A", "2")], None, None], kind)
        batch = pa.RecordBatch.from_arrays(
            [pa.array(["a", "a", "a", "b"]), pa.array([b"x"] * 4), headers], ["subject", "data", "headers"]
        )
        found = next(records([batch], Shape(has_headers=True), "p."))
        assert len({one.msg_id for one in found}) == 4
        assert [one.headers for one in found] == [b"A: 1\r\n", b"A: 2\r\n", b"", b""]

    @pytest.mark.parametrize(
        ("row", "said"),
        [
            ({"subject": None, "data": b""}, r"row 1: column 'subject' must be a subject, got null"),
            ({"subject": "a.*", "data": b""}, r"row 1: subject must be .* got 'a\.\*'"),
            ({"subject": "a", "data": None}, r"row 1 \(subject 'a'\): column 'data' must be bytes, got null"),
            (
                {"subject": "a", "data": b"", "msg_id": " "},
                r"row 1 \(subject 'a'\): column 'msg_id' must be printable text",
            ),
        ],
    )
    def test_a_row_that_cannot_be_sent_is_named(self, row: dict[str, Any], said: str) -> None:
        names = ["subject", "data", "msg_id"]
        types = [pa.string(), pa.binary(), pa.string()]
        good = {"subject": "a", "data": b"", "msg_id": None}
        schema = pa.schema(list(zip(names, types, strict=True)))
        batch = pa.RecordBatch.from_pylist([good, {**good, **row}], schema=schema)
        with pytest.raises(UsageError, match=said):
            next(records([batch], Shape(has_msg_id=True), "p."))

    def test_headers_of_the_publish_that_stored_a_message_are_not_copied(self) -> None:
        kind = pa.map_(pa.string(), pa.list_(pa.string()))
        copied = [("Nats-Msg-Id", ["x"]), ("Nats-Expected-Stream", ["S"]), ("A", ["1", "2"]), ("Nats-Batch-Id", ["b"])]
        headers = pa.array([copied, [("Nats-Msg-Id", ["y"])]], kind)
        batch = pa.RecordBatch.from_arrays(
            [pa.array(["a", "a"]), pa.array([b"", b"1"]), headers], ["subject", "data", "headers"]
        )
        found = next(records([batch], Shape(has_headers=True), "p."))
        assert [one.headers for one in found] == [b"A: 1\r\nA: 2\r\n", b""]
        assert all(one.msg_id.startswith("p.") for one in found)

    def test_columns_are_checked(self) -> None:
        kind = "map<string,string>"
        assert shape_of({"subject": "string", "data": "string", "headers": kind}) == Shape(has_headers=True)
        with pytest.raises(UsageError, match="needs a column 'data', got subject"):
            shape_of({"subject": "string"})
        with pytest.raises(UsageError, match=r"columns must be subject, data and .*, got 'x'; .*to_json"):
            shape_of({"subject": "string", "data": "string", "x": "int"})
        with pytest.raises(UsageError, match="column 'data' must be binary or string, got int"):
            shape_of({"subject": "string", "data": "int"})


class TestProgress:
    def test_existing_bucket_is_used_as_configured(self, js: BlockingJetStream, fresh: str) -> None:
        Progress(js, fresh, "S").prepare(1)
        Progress(js, fresh, "S").prepare(1)
        js.update_key_value(BucketConfig(bucket=fresh, max_bytes=100_000_000))
        Progress(js, fresh, "S").prepare(1)
        assert js.stream(f"KV_{fresh}").info().config.max_bytes == 100_000_000

    def test_bucket_created_meanwhile_by_another_writer_is_used(
        self, js: BlockingJetStream, fresh: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        progress = Progress(js, fresh, "S")
        js.create_key_value(BucketConfig(bucket=fresh, history=5))
        with monkeypatch.context() as patch:
            patch.setattr(progress._records, "info", js.stream("none").info)
            progress.prepare(1)
        assert js.stream(f"KV_{fresh}").info().config.max_msgs_per_subject == 5


class CutError(Exception):
    """An attempt ends here, as if its process had been killed."""


class TestAttempts:
    """One task of a micro-batch, without Spark around it: attempts that end anywhere, side by side, or late."""

    @pytest.fixture(params=["an ack for each", "fast batches"])
    def batched(self, request: pytest.FixtureRequest) -> bool:
        return bool(request.param == "fast batches")

    @pytest.fixture
    def task(self, js: BlockingJetStream, any_server: str, fresh: str, batched: bool) -> StreamTask:
        make_stream(js, fresh, duplicate_window=NO_WINDOW, allow_batched=batched)
        options = StreamSinkOptions(stream=fresh, connection=Connection(servers=(any_server,)), max_in_flight=7)
        Progress(js, options.progress, fresh).prepare(1)
        return StreamTask(options, Shape())

    def attempt(self, task: StreamTask, name: str, *, batch: int = 0, cut: int | None = None) -> Sent | None:
        """Write 100 rows; `cut` ends the attempt after so many, most of them sent."""

        def rows() -> Iterator[pa.RecordBatch]:
            whole = rows_of(100, name)
            if cut is None:
                yield whole
                return
            yield whole.slice(0, cut)
            raise CutError

        try:
            return task.run(rows(), Task(name, batch, 3))
        except CutError:
            return None

    def test_attempt_cut_anywhere_is_completed_after_the_duplicate_window(
        self, task: StreamTask, js: BlockingJetStream, fresh: str
    ) -> None:
        for cut in (0, 1, 50, 99, 100):
            assert self.attempt(task, fresh, cut=cut) is None
            time.sleep(NO_WINDOW.total_seconds() * 1.5)  # the server's clock is the only one here
        done = self.attempt(task, fresh)
        assert done is not None
        assert done.rows == 100
        expected = sorted((f"{fresh}.{n % 3}", str(n).encode()) for n in range(100))
        assert sorted(stored(js, fresh)) == expected
        time.sleep(NO_WINDOW.total_seconds() * 1.5)
        again = self.attempt(task, fresh)  # its commit was lost: the record says that it is done
        assert again is not None
        assert again.rows == 0
        assert sorted(stored(js, fresh)) == expected
        assert self.attempt(task, fresh, batch=1) is not None
        assert len(stored(js, fresh)) == 200

    def test_batch_older_than_the_recorded_one_is_rejected(self, task: StreamTask, fresh: str) -> None:
        self.attempt(task, fresh, batch=5)
        with pytest.raises(
            UsageError, match=r"batch 4 of this query .* batch 5 was written already. Was an older checkpoint"
        ):
            self.attempt(task, fresh, batch=4)

    def test_superseded_attempt_writes_no_row_twice(self, task: StreamTask, js: BlockingJetStream, fresh: str) -> None:
        batch = rows_of(100, fresh)

        def sleeper() -> Iterator[pa.RecordBatch]:
            yield batch.slice(0, 40)
            self.attempt(task, fresh)  # meanwhile another attempt does all of it, and the next batch begins
            self.attempt(task, fresh, batch=1, cut=10)
            time.sleep(0.6)  # longer than the window, and than half of it, the time after which it looks again
            yield batch.slice(40)

        task.run(sleeper(), Task(fresh, 0, 3))
        time.sleep(NO_WINDOW.total_seconds() * 1.5)
        self.attempt(task, fresh, batch=1)  # the sleeper must not have spoilt its record
        counts = Counter(stored(js, fresh))
        assert set(counts.values()) == {2}  # once per batch
        assert len(counts) == 100

    def test_ids_of_the_users_own(self, js: BlockingJetStream, any_server: str, fresh: str, batched: bool) -> None:
        make_stream(js, fresh, duplicate_window=NO_WINDOW, allow_batched=batched)
        options = StreamSinkOptions(stream=fresh, connection=Connection(servers=(any_server,)))
        Progress(js, options.progress, fresh).prepare(1)
        task = StreamTask(options, Shape(has_msg_id=True))
        rows = rows_of(50, fresh).append_column("msg_id", pa.array([f"order-{n}" for n in range(50)]))

        def cut() -> Iterator[pa.RecordBatch]:
            yield rows.slice(0, 20)
            raise CutError

        with pytest.raises(CutError):
            task.run(cut(), Task("q", 0, 0))
        time.sleep(NO_WINDOW.total_seconds() * 1.5)
        task.run(iter([rows]), Task("q", 0, 0))
        ids = [message.headers.get("Nats-Msg-Id") for message in js.stream(fresh).read()]
        assert sorted(ids, key=str) == sorted(f"order-{n}" for n in range(50))

    def test_a_stream_without_direct_get_is_read_by_its_leader(
        self, js: BlockingJetStream, any_server: str, fresh: str, batched: bool
    ) -> None:
        make_stream(js, fresh, duplicate_window=NO_WINDOW, allow_direct=False, allow_batched=batched)
        options = StreamSinkOptions(stream=fresh, connection=Connection(servers=(any_server,)))
        Progress(js, options.progress, fresh).prepare(1)
        task = StreamTask(options, Shape())
        self.attempt(task, fresh, cut=60)
        time.sleep(NO_WINDOW.total_seconds() * 1.5)
        self.attempt(task, fresh)
        assert js.stream(fresh).info().state.messages == 100

    def test_atomic_batches_are_used_on_request_only(self, js: BlockingJetStream, any_server: str, fresh: str) -> None:
        make_stream(js, fresh, allow_atomic=True)
        info = js.stream(fresh).info()
        options = StreamSinkOptions(stream=fresh, connection=Connection(servers=(any_server,)))
        used = {value: uses_atomic(replace(options, atomic=value), info) for value in ("auto", "true", "false")}
        assert used == {"auto": False, "true": True, "false": False}

    def test_atomic_batches_are_stored_whole_or_not_at_all(
        self, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        make_stream(js, fresh, duplicate_window=NO_WINDOW, allow_atomic=True)
        options = StreamSinkOptions(stream=fresh, connection=Connection(servers=(any_server,)), atomic="true")
        Progress(js, options.progress, fresh).prepare(1)
        task = StreamTask(options, Shape())
        self.attempt(task, fresh, cut=99)
        assert js.stream(fresh).info().state.messages == 0
        single = replace(options, atomic="false", max_in_flight=7)
        self.attempt(replace(task, options=single), fresh, cut=30)
        some = js.stream(fresh).info().state.messages
        assert 0 < some <= 30
        time.sleep(NO_WINDOW.total_seconds() * 1.5)
        done = self.attempt(task, fresh)
        assert done is not None
        assert done.rows == 100
        assert some <= done.found <= 30  # one may have been on its way
        assert sorted(stored(js, fresh)) == sorted((f"{fresh}.{n % 3}", str(n).encode()) for n in range(100))
        assert done.last_seq == 100

    def test_an_atomic_batch_with_a_row_that_another_attempt_has_sent(
        self, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        make_stream(js, fresh, allow_atomic=True)
        options = StreamSinkOptions(stream=fresh, connection=Connection(servers=(any_server,)), atomic="true")
        Progress(js, options.progress, fresh).prepare(1)
        task, batch = StreamTask(options, Shape()), rows_of(100, fresh)

        def overtaken() -> Iterator[pa.RecordBatch]:
            yield batch.slice(0, 40)
            self.attempt(task, fresh)
            yield batch.slice(40)

        task.run(overtaken(), Task(fresh, 0, 3))
        assert sorted(stored(js, fresh)) == sorted((f"{fresh}.{n % 3}", str(n).encode()) for n in range(100))

    def test_bad_rows_are_dead_letters_once(
        self, js: BlockingJetStream, any_server: str, fresh: str, batched: bool
    ) -> None:
        make_stream(js, fresh, max_msg_size=300, allow_batched=batched)
        make_stream(js, f"{fresh}_dead")
        connection = Connection(servers=(any_server,))
        options = StreamSinkOptions(stream=fresh, connection=connection, dead_letter=f"{fresh}_dead.rows")
        Progress(js, options.progress, fresh).prepare(1)
        schema = pa.schema([("subject", pa.string()), ("data", pa.binary())])
        good = [{"subject": f"{fresh}.a", "data": b"%d" % n} for n in range(10)]
        bad = [
            {"subject": "no spaces please", "data": b"1"},
            {"subject": "no spaces please", "data": b"1"},  # the same again: none of the two may be lost
            {"subject": None, "data": b"2"},
            {"subject": f"{fresh}.a", "data": None},
            {"subject": "somewhere.else", "data": b"3"},
            {"subject": f"{fresh}.a", "data": b"x" * 400},
            {"subject": f"{fresh}.a", "data": b"x" * 2_000_000},  # more than a server takes at all
            {"subject": "bad " * 5_000, "data": b"y" * 2_000_000},  # and a name that no header takes
        ]
        rows = pa.RecordBatch.from_pylist([*good[:5], *bad, *good[5:]], schema=schema)
        for partition in (0, 0, 1):  # the second attempt finds all done; another partition is another write
            StreamTask(options, Shape()).run(iter([rows]), Task("q", 0, partition))
        assert len(stored(js, fresh)) == 20
        letters = list(js.stream(f"{fresh}_dead").read())
        assert len(letters) == 2 * len(bad)
        reasons = [str(letter.headers.get("Slipstream-Reason")) for letter in letters[: len(bad)]]
        for said in (
            "subject must be",
            "'subject' must be a subject",
            "'data' must be bytes",
            f"has the subjects {fresh}.>",
            "size",
        ):
            assert any(said in reason for reason in reasons), (said, reasons)
        assert max(len(letter.data) for letter in letters) > 1_000_000
        cut = [letter.headers.get("Slipstream-Truncated") for letter in letters if len(letter.data) > 1_000_000]
        assert cut == ["2000000"] * 4

    def test_row_with_a_rejected_header_is_a_dead_letter(
        self, js: BlockingJetStream, any_server: str, fresh: str, batched: bool
    ) -> None:
        make_stream(js, fresh, allow_batched=batched)
        make_stream(js, f"{fresh}_dead")
        connection = Connection(servers=(any_server,))
        options = StreamSinkOptions(stream=fresh, connection=connection, dead_letter=f"{fresh}_dead.rows")
        Progress(js, options.progress, fresh).prepare(1)
        kind = pa.map_(pa.string(), pa.string())
        headers = pa.array([None, [("Nats-TTL", "5s")], [("A", "x" * 100_000)], None], kind)
        rows = pa.RecordBatch.from_arrays(
            [pa.array([f"{fresh}.a"] * 4), pa.array([b"0", b"1", b"2", b"3"]), headers], ["subject", "data", "headers"]
        )
        StreamTask(options, Shape(has_headers=True)).run(iter([rows]), Task("q", 0, 0))
        assert [data for _, data in stored(js, fresh)] == [b"0", b"3"]
        assert [letter.data for letter in js.stream(f"{fresh}_dead").read()] == [b"1", b"2"]

    def test_rejected_row_is_named(self, js: BlockingJetStream, any_server: str, fresh: str, batched: bool) -> None:
        make_stream(js, fresh, max_msg_size=300, allow_batched=batched)
        options = StreamSinkOptions(stream=fresh, connection=Connection(servers=(any_server,)))
        Progress(js, options.progress, fresh).prepare(1)
        task = StreamTask(options, Shape())
        rows = [{"subject": f"{fresh}.a", "data": b"x" * (400 if n == 17 else 10) + bytes([n])} for n in range(30)]
        with pytest.raises(UsageError, match=rf"row 17 \(subject '{fresh}.a'\) was rejected: .*size"):
            task.run(iter([pa.RecordBatch.from_pylist(rows)]), Task("q", 0, 0))
        elsewhere = pa.RecordBatch.from_pylist([{"subject": f"not.{fresh}", "data": b""}])
        with pytest.raises(UsageError, match=rf"row 0 \(subject 'not.{fresh}'\) was rejected"):
            task.run(iter([elsewhere]), Task("q", 1, 0))

    def test_fast_batches_are_used_if_the_stream_allows_them(
        self, js: BlockingJetStream, any_server: str, fresh: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        used: list[str] = []
        plain_flush = Outbox.flush

        def flush(box: Outbox[Any]) -> None:
            used.append(type(box).__name__)
            plain_flush(box)

        monkeypatch.setattr(Outbox, "flush", flush)
        make_stream(js, fresh, allow_batched=True, allow_atomic=True)
        options = StreamSinkOptions(stream=fresh, connection=Connection(servers=(any_server,)))
        Progress(js, options.progress, fresh).prepare(1)
        task = StreamTask(options, Shape())

        def outbox(batch: int, task: StreamTask, cut: int | None = None) -> str:
            used.clear()
            self.attempt(task, fresh, batch=batch, cut=cut)
            return used[0] if used else ""

        assert outbox(0, task, cut=100) == ""
        assert outbox(0, task) == "Outbox"  # tried again
        assert outbox(1, task) == "FastOutbox"
        assert outbox(2, replace(task, options=replace(options, batched="false"))) == "Outbox"
        assert outbox(3, replace(task, options=replace(options, atomic="true"))) == "Outbox"
        assert outbox(4, replace(task, options=replace(options, batched="true"))) == "FastOutbox"
        assert len(stored(js, fresh)) == 500
        make_stream(js, f"{fresh}x")
        with pytest.raises(UsageError, match=r"'batched' is true, but stream .* does not allow fast batches"):
            outbox(0, replace(task, options=replace(options, batched="true", stream=f"{fresh}x")))

    def test_rows_lost_by_another_attempt_are_detected(
        self, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        """In a cluster a row of another attempt counts as a duplicate before it is safe; here it is removed by hand."""
        make_stream(js, fresh, allow_batched=True)
        options = StreamSinkOptions(stream=fresh, connection=Connection(servers=(any_server,)))
        Progress(js, options.progress, fresh).prepare(1)
        task, batch = StreamTask(options, Shape()), rows_of(100, fresh)

        def overtaken(*, lost: bool) -> Iterator[pa.RecordBatch]:
            yield batch.slice(0, 40)
            self.attempt(task, fresh, cut=100, batch=int(lost))
            if lost:
                js.stream(fresh).delete_message(js.stream(fresh).info().state.last_seq)
            yield batch.slice(40)

        task.run(overtaken(lost=False), Task(fresh, 0, 3))
        assert len(stored(js, fresh)) == 100
        with pytest.raises(Error, match=r"another attempt wrote to stream .* and 1 of 100 rows are missing"):
            task.run(overtaken(lost=True), Task(fresh, 1, 3))
        time.sleep(0.1)
        done = self.attempt(task, fresh, batch=1)
        assert done is not None


@pytest.mark.spec("SP-05")
class TestWriting:
    def test_every_column_of_every_row_arrives(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        make_stream(js, fresh)
        rows = [(f"{fresh}.{n % 3}", f"ü{n}", {"A": ["1", str(n)]}, f"id-{n}" if n % 2 else None) for n in range(50)]
        schema = "subject STRING, data STRING, headers MAP<STRING, ARRAY<STRING>>, msg_id STRING"
        write(spark.createDataFrame(rows, schema).repartition(3), any_server, fresh)
        found = {message.data.decode(): message for message in js.stream(fresh).read()}
        assert len(found) == 50
        for subject, data, headers, msg_id in rows:
            message = found[data]
            assert message.subject == subject
            assert message.headers.get_all("A") == headers["A"]
            assert msg_id is None or message.headers.get("Nats-Msg-Id") == msg_id

    def test_task_retried_after_the_duplicate_window_writes_every_row_once(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        make_stream(js, fresh, duplicate_window=NO_WINDOW)

        def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            task = TaskContext.get()
            assert task is not None
            for batch in batches:
                if task.attemptNumber():
                    time.sleep(NO_WINDOW.total_seconds() * 1.5)
                    order = list(reversed(range(batch.num_rows)))  # as a shuffle may do
                    yield batch.take(pa.array(order))
                    continue
                yield batch.slice(0, 50)
                yield batch.slice(50, 50)
                raise RuntimeError("the first attempt")

        df = spark.range(0, 400, 1, 2).selectExpr(
            f"concat('{fresh}.', id % 5) AS subject", "CAST(id AS STRING) AS data"
        )
        write(df.mapInArrow(fail_once, df.schema), any_server, fresh, maxInFlight=10)
        assert sorted(int(data) for _, data in stored(js, fresh)) == list(range(400))

    def test_named_write_run_again_writes_no_row_twice(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        make_stream(js, fresh, duplicate_window=NO_WINDOW)
        df = spark.range(0, 100, 1, 2).selectExpr(f"'{fresh}.x' AS subject", "CAST(id AS STRING) AS data")
        for _ in range(2):
            write(df, any_server, fresh, writeId=f"load-{fresh}")
            time.sleep(NO_WINDOW.total_seconds() * 1.5)
        assert js.stream(fresh).info().state.messages == 100
        records = js.stream("KV_slipstream-progress").info().state.messages
        write(df, any_server, fresh)  # without a name it is another write
        assert js.stream(fresh).info().state.messages == 200
        assert js.stream("KV_slipstream-progress").info().state.messages == records  # and leaves nothing behind

    def test_a_streaming_query_whose_last_batch_is_replayed(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str, tmp_path: Path
    ) -> None:
        make_stream(js, fresh)
        make_stream(js, f"{fresh}_out", duplicate_window=NO_WINDOW)
        with js.publisher() as publisher:
            for n in range(1_000):
                publisher.publish(f"{fresh}.{n % 7}", str(n).encode())

        def run() -> None:
            source = spark.readStream.format("jetstream").option("servers", any_server)
            rows = source.option("maxMessagesPerTrigger", 400).load(fresh)
            rows = rows.selectExpr(f"concat('{fresh}_out.', sequence % 3) AS subject", "data")
            query = rows.writeStream.format("jetstream").option("servers", any_server).trigger(availableNow=True)
            query.option("checkpointLocation", str(tmp_path)).start(f"{fresh}_out").awaitTermination()

        run()
        for file in (tmp_path / "commits").glob("*2*"):  # as if the driver had died before it noted the commit
            file.unlink()
        time.sleep(NO_WINDOW.total_seconds() * 1.5)
        run()
        assert sorted(int(data) for _, data in stored(js, f"{fresh}_out")) == list(range(1_000))

    def test_an_aggregate_in_update_mode(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str, tmp_path: Path
    ) -> None:
        make_stream(js, fresh)
        make_stream(js, f"{fresh}_out", duplicate_window=NO_WINDOW)
        with js.publisher() as publisher:
            for n in range(600):
                publisher.publish(f"{fresh}.{n % 2}", b"")

        def run() -> None:
            reader = spark.readStream.format("jetstream").option("servers", any_server)
            counts = reader.option("maxMessagesPerTrigger", 400).load(fresh).groupBy("subject").count()
            rows = counts.selectExpr(f"replace(subject, '{fresh}', '{fresh}_out') AS subject", "string(count) AS data")
            write_batch = into_stream(f"{fresh}_out", {"servers": any_server})
            writer = rows.writeStream.outputMode("update").foreachBatch(write_batch).trigger(availableNow=True)
            writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination()

        run()
        for file in (tmp_path / "commits").glob("*1*"):  # as if the driver had died before it noted the commit
            file.unlink()
        time.sleep(NO_WINDOW.total_seconds() * 1.5)
        run()
        assert sorted(data for _, data in stored(js, f"{fresh}_out")) == [b"200", b"200", b"300", b"300"]


class TestRefusals:
    def test_what_cannot_be_written(
        self, spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str
    ) -> None:
        df = spark.createDataFrame([("a", "1")], "subject STRING, data STRING")
        with pytest.raises(PySparkException, match=f"stream '{fresh}' does not exist: create it first"):
            write(df, any_server, fresh)
        with pytest.raises(PySparkException, match="cannot overwrite a stream: use mode"):
            df.write.format("jetstream").mode("overwrite").option("servers", any_server).save(fresh)
        with pytest.raises(PySparkException, match="has no option 'subjects'; it has stream, writeId"):
            write(df, any_server, fresh, subjects="a")
        make_stream(js, fresh, allow_batched=True)
        with pytest.raises(PySparkException, match=r"row 0 \(subject 'a'\) was rejected"):
            write(df, any_server, fresh)
        with pytest.raises(PySparkException, match="'batched' and 'atomic' are mutually exclusive"):
            write(df, any_server, fresh, batched="true", atomic="true")
        with pytest.raises(PySparkException, match="'batched' and column 'msg_id' are mutually exclusive"):
            write(df.selectExpr("*", "'x' AS msg_id"), any_server, fresh, batched="true")
        spark.sql(f"CREATE TABLE {fresh} USING jetstream OPTIONS (stream '{fresh}', servers '{any_server}')")
        with pytest.raises(
            PySparkException,
            match="does not write the columns 'sequence', 'timestamp', 'timestamp_ns': select subject, data",
        ):
            spark.sql(f"INSERT INTO {fresh} SELECT * FROM {fresh}")
