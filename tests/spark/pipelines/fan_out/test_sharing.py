"""One read for several outputs: each row once, whatever ends between two outputs, and whoever shares the next read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr, spark_partition_id, when

from slipstream import BlockingJetStream, BucketConfig, StreamConfig
from slipstream.spark.failures import failure_of
from slipstream.spark.pipelines import Pipeline, parse
from slipstream.spark.pipelines.build import QueryPlan, plan_queries
from slipstream.spark.pipelines.fan_out.checkpoints import Checkpoint
from slipstream.spark.pipelines.fan_out.shared_read import SharedRead
from slipstream.spark.pipelines.fan_out.sharing import in_partitions, shared_reads
from slipstream.spark.pipelines.queries import start_query
from slipstream.spark.pipelines.state import StateFolder
from slipstream.spark.sink.foreach_batch import write_to_stream
from slipstream.spark.source.plan import split

FILE = """
[pipeline]
name = "fan"
dead_letter = "{0}D"
[sources.orders]
stream = "{0}"
format = "json"
schema = "n BIGINT, customer STRING"
max_messages_per_trigger = 20
[steps.odd]
sql = "SELECT n, customer FROM orders WHERE n % 2 = 1"
[steps.twice]
sql = "WITH some AS (SELECT * FROM odd) SELECT n, explode(array('x', 'y')) AS half FROM some"
[steps.totals]
sql = "SELECT customer, count(*) AS orders FROM orders GROUP BY customer"
[outputs.odd]
from = "odd"
stream = "{0}S"
subject = "concat('{0}S.', customer)"
[outputs.files]
from = "twice"
path = "files"
partition_by = "half"
[outputs.last]
from = "orders"
bucket = "{0}-last"
key = "customer"
value = "n"
[outputs.totals]
from = "totals"
bucket = "{0}-totals"
key = "customer"
"""
STATELESS = ["odd", "files", "last", "dead-orders"]


class OutageError(Exception):
    """What the runner takes for a server that was away."""

    def __str__(self) -> str:
        return "ConnectionLostError: the test"


class Runs:
    """Runs of one pipeline over a growing stream, and what its outputs must hold."""

    def __init__(
        self, spark: SparkSession, js: BlockingJetStream, url: str, name: str, folder: Path, text: str = FILE
    ) -> None:
        self.spark, self.js, self.name, self.folder = spark, js, name, folder
        self.connection = {"servers": url}
        self.pipeline = parse(text.format(name), file=str(folder / "p.toml"))
        self.state = StateFolder(self.pipeline)
        self.count = 0

    def publish(self, count: int) -> None:
        """Orders, of which every tenth is broken."""
        for n in range(self.count, self.count + count):
            text = json.dumps({"n": n, "customer": f"c{n % 3}"})
            self.js.publish(f"{self.name}.x", (text[:-2] if n % 10 == 9 else text).encode())
        self.count += count

    def plan(self, **changes: object) -> tuple[list[QueryPlan], list[SharedRead]]:
        pipeline: Pipeline = replace(self.pipeline, **changes)  # type: ignore[arg-type]
        plans = plan_queries(self.spark, pipeline, self.connection)
        return plans, shared_reads(self.spark, pipeline, plans, self.connection)

    def run(self, *, only: tuple[str, ...] = (), **changes: object) -> tuple[list[str], list[str]]:
        """A run to the end; returns the outputs that shared a read, and those that failed for good."""
        plans, reads = self.plan(**changes)
        shared = [one.name for read in reads for one in read.outputs]
        alone = [one for one in plans if one.name not in shared and (not only or one.name in only)]
        failed = []
        for plan in [*self.shared_plans(reads), *alone]:
            query = start_query(plan, self.pipeline, self.state, once=True)
            try:
                assert query.awaitTermination(120)
            except Exception:
                failed.append(plan.name)
                self.failure = failure_of(query)
        return shared, [*failed, *(name for read in reads for name in read.failed)]

    def shared_plans(self, reads: list[SharedRead]) -> list[QueryPlan]:
        return [QueryPlan(f"shared-{one.source}", None, one.writer, str(one.checkpoint.folder)) for one in reads]

    def fail_shared(self) -> None:
        """A run of the shared read alone, which an outage ends."""
        _, reads = self.plan()
        (plan,) = self.shared_plans(reads)
        query = start_query(plan, self.pipeline, self.state, once=True)
        with pytest.raises(Exception, match="ConnectionLostError"):
            query.awaitTermination(120)
        assert not reads[0].failed

    def check(self, *, without: tuple[str, ...] = ()) -> None:
        """Every output has each of its rows once."""
        good = [n for n in range(self.count) if n % 10 != 9]
        odd = [n for n in good if n % 2]
        if "odd" not in without:
            assert sorted(json.loads(one.data)["n"] for one in self.js.stream(f"{self.name}S").read()) == odd
        if "files" not in without:
            table = self.spark.read.parquet(str(self.folder / "files"))  # as the sink's log has it
            assert Counter((row.n, row.half) for row in table.collect()) == Counter((n, h) for n in odd for h in "xy")
        if "last" not in without:
            last = self.js.key_value(f"{self.name}-last")
            assert sorted(last.keys()) == ["c0", "c1", "c2"]
        if "dead-orders" not in without:
            letters = [one.headers.get("Slipstream-Sequence") for one in self.js.stream(f"{self.name}D").read()]
            assert sorted(map(int, filter(None, letters))) == [n + 1 for n in range(self.count) if n % 10 == 9]


@pytest.fixture
def runs(spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str, tmp_path: Path) -> Runs:
    for name in ("", "S", "D"):
        js.create_stream(StreamConfig(name=f"{fresh}{name}", subjects=(f"{fresh}{name}.>",)))
    for name in ("last", "totals"):
        js.create_key_value(BucketConfig(bucket=f"{fresh}-{name}"))
    return Runs(spark, js, any_server, fresh, tmp_path)


pytestmark = pytest.mark.parametrize("any_server", ["ours"], indirect=True)


def test_outputs_leave_and_join_a_shared_read_between_runs(runs: Runs) -> None:
    """A pipeline of before shared reads, one with them, and back: the checkpoints are the same ones."""
    runs.publish(25)
    assert runs.run(share_reads=False) == ([], [])
    runs.check()
    runs.publish(25)
    assert runs.run(only=("totals",)) == (STATELESS, [])
    runs.check()
    # One goes ahead by itself; what it has written is left out for it when it joins again.
    runs.publish(15)
    _, reads = runs.plan(share_reads=False)
    assert reads == []
    assert runs.run(share_reads=False, only=("odd",)) == ([], [])
    runs.publish(8)
    assert runs.run(only=("totals",)) == (STATELESS, [])
    runs.check()
    # The read of a batch is one read: rows of the stream, not of the outputs.
    runs.publish(10)
    _, reads = runs.plan()
    (plan,) = runs.shared_plans(reads)
    query = start_query(plan, runs.pipeline, runs.state, once=True)
    assert query.awaitTermination(120)
    assert sum(one["numInputRows"] for one in query.recentProgress) == 10
    written = {name: one.rows for batch in range(9) for name, one in reads[0].written(batch).items()}
    assert written == {"odd": 4, "files": 8, "last": 9, "dead-orders": 1}
    runs.check()
    # `status` and `backfill` read the checkpoint of each output.
    for name in STATELESS:
        batch, (offset,) = runs.state.committed(name)
        assert (batch > 0, offset["seq"]) == (True, runs.count)


@pytest.mark.parametrize(
    ("point", "after"), [("begin", "some"), ("commit", "shared"), ("commit", "alone"), ("end", "alone")]
)
def test_repeated_batch_writes_each_row_once(
    runs: Runs, point: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended before an output has begun a batch, before it has committed what is in its target, and before the shared
    query has committed. The next run shares the read again, or reads for each output alone, or without one of them."""
    runs.publish(30)
    _, reads = runs.plan()
    (plan,) = runs.shared_plans(reads)
    broken = reads[0].outputs[1].checkpoint  # the files: the rows of `odd` are written, those of `last` are not
    action = Checkpoint.begin if point == "begin" else Checkpoint.commit

    def cut(self: Checkpoint, *rest: object) -> None:
        if self is broken:
            raise OutageError
        action(self, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        if point == "end":
            patch.setattr(SharedRead, "_write", _and_then_fail(SharedRead._write))
        else:
            patch.setattr(Checkpoint, action.__name__, cut)
        query = start_query(plan, runs.pipeline, runs.state, once=True)
        with pytest.raises(Exception, match="ConnectionLostError"):
            query.awaitTermination(120)
    assert not reads[0].failed  # to be tried again
    if after == "shared":
        assert runs.run(only=("totals",)) == (STATELESS, [])
    elif after == "alone":
        assert runs.run(share_reads=False, only=tuple(STATELESS)) == ([], [])
    else:
        kept = tuple(one for one in runs.pipeline.outputs if one.name != "files")
        assert runs.run(only=("totals",), outputs=kept) == (["odd", "last", "dead-orders"], [])
        runs.check(without=("files",))
        assert runs.run(only=("files",), share_reads=False) == ([], [])  # it is in the file again
    runs.check()


def test_each_range_is_a_partition_with_its_messages_in_order(runs: Runs) -> None:
    """Whichever partitions the shared read has."""
    batch = runs.spark.range(11, 61, numPartitions=4).repartition(7).persist()
    for ranges in (split(31, 60, partitions=3), split(60, 60, partitions=3), split(11, 60, partitions=50)):
        found = in_partitions(batch, "id", ranges).withColumn("part", spark_partition_id()).collect()
        expected = [(seq, number) for number, one in enumerate(ranges) for seq in range(one.start, one.end + 1)]
        assert [(row["id"], row["part"]) for row in found] == expected


@pytest.mark.parametrize("order", [("shared", "alone"), ("alone", "shared"), ("shared", "shared")])
def test_output_that_is_ahead_writes_a_batch_once_in_its_own_read_and_a_shared_one(
    runs: Runs, order: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sink knows by partition what it has written: some of them before a failure, the others in the next run."""
    text = FILE.format(runs.name).replace("max_messages_per_trigger = 20", "partitions = 3")
    runs.pipeline = parse(text, file=str(runs.folder / "p.toml"))
    runs.publish(10)
    assert runs.run(only=("totals",)) == (STATELESS, [])
    runs.publish(20)
    assert runs.run(share_reads=False, only=("odd",)) == ([], [])
    runs.publish(30)
    before = len(list(runs.js.stream(f"{runs.name}S").read()))

    def cut(self: SharedRead, *rest: object) -> None:  # noqa: ARG001
        raise OutageError

    def cut_rows(rows: DataFrame, options: Mapping[str, str]) -> int:
        """The task of the last partition fails, those of the others write their rows."""
        fails = when(spark_partition_id() == 2, expr("raise_error('ConnectionLostError: the test')"))
        return write_to_stream(rows.withColumn("data", fails.otherwise(rows.data)), options)

    if order[0] == "alone":  # the shared query has begun the batch, too
        with monkeypatch.context() as patch:
            patch.setattr(SharedRead, "_attempt", cut)
            runs.fail_shared()
    with monkeypatch.context() as patch:
        for module in (shared_reads.__module__, write_to_stream.__module__):
            patch.setattr(f"{module}.write_to_stream", cut_rows)
        if order[0] == "alone":
            assert runs.run(share_reads=False, only=("odd",)) == ([], ["odd"])
        else:
            runs.fail_shared()
    written = len(list(runs.js.stream(f"{runs.name}S").read()))
    assert before < written < before + 12, "some of the rows of the batch"
    if order[1] == "alone":
        assert runs.run(share_reads=False, only=tuple(STATELESS)) == ([], [])
    else:
        assert runs.run(only=("totals",)) == (STATELESS, [])
    runs.check()


def _and_then_fail(write: object) -> object:
    def wrapped(self: SharedRead, *rest: object) -> None:
        write(self, *rest)  # type: ignore[operator]
        raise OutageError

    return wrapped


def test_output_that_fails_for_good_leaves_the_others_and_returns(runs: Runs) -> None:
    runs.publish(10)
    runs.run(only=("totals",))
    runs.js.delete_stream(f"{runs.name}S")
    runs.publish(20)
    shared, failed = runs.run(only=("totals",))
    assert (shared, failed) == (STATELESS, ["odd"])
    runs.check(without=("odd",))
    runs.js.create_stream(StreamConfig(name=f"{runs.name}S", subjects=(f"{runs.name}S.>",)))
    runs.publish(5)
    # It has begun a batch that the others have passed: it reads alone in this run, and with them in the next.
    assert runs.run(only=("odd",)) == (["files", "last", "dead-orders"], [])
    found = sorted(json.loads(one.data)["n"] for one in runs.js.stream(f"{runs.name}S").read())
    assert found == [n for n in range(10, 35) if n % 2 and n % 10 != 9]  # the stream is a new one
    assert runs.run(only=("odd",)) == (STATELESS, [])
    runs.check(without=("odd",))


@pytest.mark.parametrize("is_repeated", [False, True])
def test_outputs_go_on_together_in_a_stream_that_was_deleted_and_recreated(
    runs: Runs, is_repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fail_on_data_loss = false, as outputs that read alone do. One of them is ahead in the old stream."""
    text = FILE.format(runs.name).replace("max_messages_per_trigger = 20", "fail_on_data_loss = false")
    runs.pipeline = parse(text, file=str(runs.folder / "p.toml"))
    runs.publish(20)
    assert runs.run(only=("odd",)) == (STATELESS, [])
    runs.publish(10)
    assert runs.run(share_reads=False, only=("odd",)) == ([], [])
    letters = sorted(one.headers["Slipstream-Sequence"] for one in runs.js.stream(f"{runs.name}D").read())
    runs.js.delete_stream(runs.name)
    runs.js.create_stream(StreamConfig(name=runs.name, subjects=(f"{runs.name}.>",)))
    runs.publish(10)
    if is_repeated:  # the batch that begins in the old stream and ends in the new one
        broken = runs.plan()[1][0].outputs[1].checkpoint.folder
        commit = Checkpoint.commit

        def cut(self: Checkpoint, batch: int) -> None:
            if self.folder == broken:
                raise OutageError
            commit(self, batch)

        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "commit", cut)
            runs.fail_shared()
    assert runs.run(only=("odd",)) == (STATELESS, [])
    runs.publish(10)
    assert runs.run(only=("odd",)) == (STATELESS, [])
    found = sorted(json.loads(one.data)["n"] for one in runs.js.stream(f"{runs.name}S").read())
    assert found == [n for n in range(50) if n % 2 and n % 10 != 9]
    table = runs.spark.read.parquet(str(runs.folder / "files"))
    expected = [n for n in found if not 20 <= n < 30]  # of the messages that were deleted before it read them
    assert Counter((row.n, row.half) for row in table.collect()) == Counter((n, h) for n in expected for h in "xy")
    newer = sorted(one.headers["Slipstream-Sequence"] for one in runs.js.stream(f"{runs.name}D").read())
    assert newer == sorted([*letters, "10", "20"])


def test_reset_or_added_output_reads_alone_until_it_has_caught_up(runs: Runs) -> None:
    runs.publish(20)
    files = [one for one in runs.pipeline.outputs if one.name != "last"]
    assert runs.run(outputs=tuple(files), only=("totals",)) == (["odd", "files", "dead-orders"], [])
    assert runs.run(only=("last",)) == (["odd", "files", "dead-orders"], [])
    runs.check()
    assert runs.run(only=("last",)) == (STATELESS, [])
    runs.js.stream(f"{runs.name}S").purge()
    runs.state.reset(["odd"])
    assert runs.run(only=("odd",)) == (["files", "last", "dead-orders"], [])
    runs.check()
    runs.state.reset([*STATELESS, "totals"])
    assert not runs.state.shared("orders").exists()


def test_only_outputs_without_state_share_a_read(runs: Runs) -> None:
    alone = {
        "grouped": "SELECT customer, count(*) AS n FROM orders GROUP BY customer",
        "limited": "SELECT * FROM orders LIMIT 3",
        "distinct": "SELECT DISTINCT customer FROM orders",
        "dated": "SELECT n, now() AS seen FROM orders",
        "today": "SELECT n, CURRENT_DATE AS seen FROM orders",
        "unix": "SELECT n, unix_timestamp() AS seen FROM orders",
        "local": "SELECT n, localtimestamp() AS seen FROM orders",
        # Spark's text of a plan ends after 25 columns or arguments.
        "wide": f"SELECT {', '.join(f'n + {one} AS n{one}' for one in range(30))}, now() AS seen FROM orders",
        "nested": f"SELECT concat_ws('-', {', '.join('customer' for _ in range(30))}, now()) AS seen FROM orders",
        "random": "SELECT n, rand() AS lot FROM orders",
        "united": "SELECT n FROM orders UNION ALL SELECT -n FROM orders",
        "joined": "SELECT orders.n FROM orders JOIN orders AS o ON o.n = orders.n",
        "listed": "SELECT n FROM orders WHERE n IN (SELECT 3)",
    }
    plain = {"kept": "SELECT n, upper(customer) AS c FROM orders WHERE customer LIKE 'c%'"}
    text = FILE
    for name, sql in (alone | plain).items():
        text += f'[steps.{name}]\nsql = "{sql}"\n[outputs.{name}]\nfrom = "{name}"\nstream = "{{0}}S"\n'
        text += "subject = \"concat('{0}S.', 'x')\"\n"
    # Expressions of outputs, and targets whose sink needs a query of its own, count as well.
    text += '[outputs.ids]\nfrom = "orders"\nstream = "{0}S"\nsubject = "concat(\'{0}S.\', uuid())"\n'
    text += '[outputs.rows]\nfrom = "orders"\ntable = "rows"\n'
    more = Runs(runs.spark, runs.js, runs.connection["servers"], runs.name, runs.folder, text)
    _, (read,) = more.plan()
    assert [one.name for one in read.outputs] == ["odd", "files", "last", "kept", "dead-orders"]
    assert more.plan(share_reads=False)[1] == []
