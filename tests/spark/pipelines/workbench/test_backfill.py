"""Backfills: what is missing or wrong in an output becomes right, and what is right is not written again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from slipstream import BlockingJetStream, BucketConfig, StreamConfig
from slipstream.errors import UsageError
from slipstream.spark.pipelines import Pipeline, parse
from slipstream.spark.pipelines.build import plan_queries
from slipstream.spark.pipelines.queries import start_query
from slipstream.spark.pipelines.state import StateFolder
from slipstream.spark.pipelines.workbench.backfill import Filled, _chosen, _work, backfill, fill

FILE = """
[pipeline]
name = "fills"
[sources.orders]
stream = "{0}"
format = "json"
schema = "customer STRING, amount BIGINT"
subjects = "{0}.>"
[steps.totals]
sql = "SELECT customer, sum(amount) AS total, count(*) AS orders FROM orders GROUP BY customer"
[steps.last]
sql = "SELECT customer, amount, amount < 0 AS gone FROM orders"
[steps.large]
sql = "SELECT customer, amount FROM orders WHERE amount >= 10"
[outputs.totals]
from = "totals"
bucket = "{0}-totals"
key = "customer"
[outputs.last]
from = "last"
bucket = "{0}-last"
key = "customer"
deleted = "gone"
mode = "append"
[outputs.large]
from = "large"
stream = "{0}L"
subject = "concat('{0}L.', customer)"
[outputs.changes]
from = "totals"
stream = "{0}L"
subject = "concat('{0}L.', customer)"
mode = "update"
[outputs.files]
from = "large"
path = "out"
"""
ORDERS = [("ada", 10), ("alan", 20), ("ada", 30), ("ada", 10), ("grace", 5), ("grace", -1), ("alan", 25)]


class Filler:
    """A pipeline whose outputs have run, and their backfills."""

    def __init__(self, spark: SparkSession, js: BlockingJetStream, url: str, pipeline: Pipeline) -> None:
        self.spark, self.js, self.pipeline = spark, js, pipeline
        self.connection = {"servers": url}
        self.state = StateFolder(pipeline)

    def run(self, *names: str) -> None:
        plans = plan_queries(self.spark, self.pipeline, self.connection)
        queries = [start_query(one, self.pipeline, self.state, once=True) for one in plans if one.name in names]
        for query in queries:
            assert query.awaitTermination(120)

    def fill(self, names: Sequence[str], starting: str = "1", ending: str = "") -> list[Filled]:
        outputs = _chosen(self.pipeline, names)
        works = [_work(self.js, self.pipeline, self.state, one, starting, ending) for one in outputs]
        return fill(self.spark, self.pipeline, self.connection, works, self.js, lambda _: None)

    def view(self, bucket: str) -> dict[str, object]:
        kv = self.js.key_value(bucket)
        return {key: json.loads(kv.get(key).value) for key in kv.keys()}  # noqa: SIM118


@pytest.fixture
def filler(spark: SparkSession, js: BlockingJetStream, any_server: str, fresh: str, tmp_path: Path) -> Filler:
    for name in (fresh, f"{fresh}L"):
        js.create_stream(StreamConfig(name=name, subjects=(f"{name}.>",)))
    for name in ("totals", "last"):
        js.create_key_value(BucketConfig(bucket=f"{fresh}-{name}"))
    for customer, amount in ORDERS:
        js.publish(f"{fresh}.{customer}", json.dumps({"customer": customer, "amount": amount}).encode())
    return Filler(spark, js, any_server, parse(FILE.format(fresh), file=str(tmp_path / "p.toml")))


@pytest.mark.parametrize("any_server", ["ours"], indirect=True)
def test_what_is_missing_or_wrong_becomes_right_and_the_rest_is_left_alone(filler: Filler, fresh: str) -> None:
    js, names = filler.js, ("totals", "last", "large")
    filler.run(*names)
    totals, last = filler.view(f"{fresh}-totals"), filler.view(f"{fresh}-last")
    assert totals == {
        "ada": {"total": 50, "orders": 3}, "alan": {"total": 45, "orders": 2}, "grace": {"total": 4, "orders": 2},
    }  # fmt: skip
    assert last == {"ada": {"amount": 10}, "alan": {"amount": 25}}
    published = [(one.subject, one.data) for one in js.stream(f"{fresh}L").read()]
    assert len(published) == 5

    # All is right: nothing is written, however often.
    for _ in range(2):
        assert [(one.output, one.written) for one in filler.fill(names)] == [(name, 0) for name in names]

    # A range of one message chooses its key; the value is that of all messages, not of the range.
    js.key_value(f"{fresh}-totals").delete("ada")
    js.key_value(f"{fresh}-totals").delete("alan")
    js.key_value(f"{fresh}-last").put("ada", b'{"amount": 999}')
    js.key_value(f"{fresh}-last").put("grace", b'{"amount": 999}')
    rows = [json.loads(data)["amount"] for _, data in published]
    js.stream(f"{fresh}L").delete_message(rows.index(10) + 1)  # one of two equal rows, of messages 1 and 4
    js.stream(f"{fresh}L").delete_message(rows.index(30) + 1)
    found = filler.fill(names, "1", "1")
    assert [one.written for one in found] == [1, 1, 1]
    assert filler.view(f"{fresh}-totals") == {name: totals[name] for name in ("ada", "grace")}
    assert filler.view(f"{fresh}-last") == {**last, "grace": {"amount": 999}}  # not of the range
    assert [one.written for one in filler.fill(names)] == [1, 1, 1]
    assert filler.view(f"{fresh}-totals") == totals
    assert filler.view(f"{fresh}-last") == last  # the newest row of grace deletes it
    again = [(one.subject, one.data) for one in js.stream(f"{fresh}L").read()]
    assert sorted(again) == sorted(published)
    assert [one.written for one in filler.fill(names)] == [0, 0, 0]

    # What the outputs have not read yet is left to the next run.
    js.publish(f"{fresh}.new", b'{"customer": "new", "amount": 50}')
    assert [one.written for one in filler.fill(names)] == [0, 0, 0]
    assert [one.rows for one in filler.fill(["large"], "8")] == [0]


@pytest.mark.parametrize("any_server", ["ours"], indirect=True)
def test_what_a_range_cannot_tell_is_refused_before_anything_is_written(filler: Filler, fresh: str) -> None:
    with pytest.raises(UsageError, match="output 'totals' has not run yet, and its first run reads its source"):
        filler.fill(["totals"])
    filler.run("changes", "totals")
    before = filler.js.stream(f"{fresh}L").info().state.last_seq
    filler.js.key_value(f"{fresh}-totals").delete("ada")
    with pytest.raises(UsageError, match="output 'changes' publishes the changes of an aggregate"):
        filler.fill(["totals", "changes"])
    assert "ada" not in filler.view(f"{fresh}-totals")  # though it comes first
    assert filler.js.stream(f"{fresh}L").info().state.last_seq == before
    for names, message in (
        (
            ["files"],
            r"output 'files' writes files, which a backfill cannot compare with the range: `reset --output files`",
        ),
        ([], r"writes all of it again; name the others by --output"),
        (["totalz"], r"there is no output 'totalz'; did you mean totals"),
    ):
        with pytest.raises(UsageError, match=message):
            backfill(filler.pipeline, starting="1", outputs=names)
    with filler.state.lock.held("x"), pytest.raises(UsageError, match="is already running"):
        backfill(filler.pipeline, starting="1", outputs=["totals"], servers=filler.connection["servers"])
    with pytest.raises(UsageError, match="option 'starting' must be 'earliest', 'latest', a sequence"):
        filler.fill(["totals"], "yesterday")
