"""State on disk: the record of the last run, checkpoints, and how far outputs are behind."""

from __future__ import annotations

import os
from pathlib import Path

from slipstream.spark.pipelines import parse
from slipstream.spark.pipelines.state import QueryState, StateFolder, lag_of
from tests.spark.pipelines.support import SMALL

SEVERAL = """
[sources.a]
stream = "S"
[sources.b]
stream = "S"
[sources.c]
bucket = "c"
[steps.ab]
sql = "SELECT * FROM a JOIN b USING (subject)"
[steps.abc]
sql = "SELECT * FROM ab UNION ALL (SELECT * FROM c)"
[outputs.one]
from = "a"
path = "one"
[outputs.both]
from = "ab"
path = "both"
[outputs.all]
from = "abc"
path = "all"
"""


def test_progress_of_a_run_is_read_back(tmp_path: Path) -> None:
    state = StateFolder(parse(SMALL, file=str(tmp_path / "p.toml"), name="p"))
    assert state.read_run() == (0, "", {})
    seen = {"copy": QueryState(rows=5, batch=2, rate=1.5, at="now", sequences={"0": 7})}
    state.write_run("nats://x", seen)
    assert state.read_run() == (0, "nats://x", seen)
    with state.lock.held("it"):
        assert state.read_run() == (os.getpid(), "nats://x", seen)
    assert state.read_run() == (0, "nats://x", seen)


def test_run_without_batches_keeps_earlier_progress() -> None:
    earlier = QueryState(rows=5, batch=2, rate=1.5, at="then", sequences={"0": 7}, skipped=1, error="away")
    assert QueryState().after(earlier) == QueryState(
        rows=5, batch=2, rate=1.5, at="then", sequences={"0": 7}, skipped=1
    )
    now = QueryState(rows=4, batch=3, rate=0.5, at="now", sequences={"0": 9})
    assert now.after(earlier) == QueryState(rows=9, batch=3, rate=0.5, at="now", sequences={"0": 9}, skipped=1)
    assert now.after(QueryState()) == now


def test_reset_discards_the_progress_of_earlier_runs(tmp_path: Path) -> None:
    state = StateFolder(parse(SMALL, file=str(tmp_path / "p.toml"), name="p"))
    state.write_run("nats://x", {"copy": QueryState(rows=5), "other": QueryState(rows=6)})
    state.reset(["copy"])
    assert state.read_run() == (0, "nats://x", {"other": QueryState(rows=6)})


def test_lag_of_an_output() -> None:
    pipeline = parse(SMALL)
    assert lag_of(pipeline, "copy", [{"seq": 7}], {"orders": 10}) == 3
    assert lag_of(pipeline, "copy", [], {"orders": 10}) == 10
    assert lag_of(pipeline, "copy", [{"seq": 7}, {"seq": 1}], {"orders": 10}) == 12  # joined with itself
    assert lag_of(pipeline, "copy", [{"seq": 12}], {"orders": 10}) == 0
    assert lag_of(pipeline, "copy", [], {}) is None


def test_lag_of_outputs_with_several_sources() -> None:
    pipeline = parse(SEVERAL)
    assert pipeline.sources_of("one") == {"a"}
    assert pipeline.sources_of("both") == {"a", "b"}
    assert pipeline.sources_of("all") == {"a", "b", "c"}
    assert pipeline.sources_of("dead-b") == {"b"}
    last = {"a": 10, "b": 10, "c": 5}
    assert lag_of(pipeline, "one", [{"seq": 7}], last) == 3
    assert lag_of(pipeline, "both", [{"seq": 7}, {"seq": 9}], last) == 4
    assert lag_of(pipeline, "both", [{"seq": 7}], last) == 3  # of one stream: whichever it is
    assert lag_of(pipeline, "all", [{"seq": 7}, {"seq": 9}, {"seq": 1}], last) == 8
    assert lag_of(pipeline, "all", [{"seq": 7}, {"seq": 1}], last) is None
    assert lag_of(pipeline, "all", [], last) == 25
    assert lag_of(pipeline, "dead-b", [{"seq": 4}], last) == 6
    assert lag_of(pipeline, "all", [{"seq": 7}], {"a": 10, "b": 10}) is None
