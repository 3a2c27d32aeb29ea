"""Supervision of queries, without Spark."""

from __future__ import annotations

import functools
import io
import os
import threading
from collections import deque
from pathlib import Path
from typing import NoReturn
from unittest import mock

import pytest
from pyspark.core.context import Py4JError  # type: ignore[attr-defined]

from slipstream import BlockingJetStream, Server, StreamConfig, connect_blocking
from slipstream.errors import Error, RequestTimeoutError, UsageError
from slipstream.spark.pipelines import parse
from slipstream.spark.pipelines import runner as runners
from slipstream.spark.pipelines.build import QueryPlan
from slipstream.spark.pipelines.connection import wait_out
from slipstream.spark.pipelines.display import Lines
from slipstream.spark.pipelines.fan_out.shared_read import WrittenBatch
from slipstream.spark.pipelines.lag import lag_seconds, letter_counts
from slipstream.spark.pipelines.runner import SHARED, Runner, RunningQuery
from slipstream.spark.pipelines.state import QueryState, StateFolder
from tests.spark.pipelines.support import SMALL


class Query:
    """A streaming query with the attributes that the runner reads."""

    def __init__(self, failure: str = "") -> None:
        self.isActive = not failure
        self.status = {"isDataAvailable": True}
        self.lastProgress = None
        self.recentProgress: list[object] = []
        self.exception = lambda: failure or None

    def stop(self) -> None:
        self.isActive = False


MISFIT = "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match existing state value schema."


def test_failed_query_does_not_end_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(parse(SMALL, file=str(tmp_path / "p.toml")), once=True)
    said = io.StringIO()
    names = ("bad", "changed", "good", "better")
    runner.queries = {name: RunningQuery(QueryPlan(name, None, mock.Mock())) for name in names}
    failures = {"bad": "AnalysisException: no such column", "changed": MISFIT}
    looks = 0

    def start(one: RunningQuery) -> None:
        one.started(Query(failures.get(one.name, "")))  # type: ignore[arg-type]

    def report(*_: object) -> None:
        nonlocal looks
        looks += 1
        for one in runner.queries.values():
            if one.query is not None and looks > 5:
                one.query.stop()

    monkeypatch.setattr(runner, "_start", start)
    monkeypatch.setattr(runner, "_report", report)
    monkeypatch.setattr("slipstream.spark.pipelines.runner.POLL", 0.01)
    runner._supervise({}, mock.Mock(), Lines(said))
    assert looks > 5  # the others went on
    assert [one.is_failed for one in runner.queries.values()] == [True, True, False, False]
    assert "bad: failed: AnalysisException: no such column\n" in said.getvalue()
    hint = f"no longer fits: slipstream pipeline reset {tmp_path / 'p.toml'} --output changed\n"
    assert hint in said.getvalue()
    state = runner.queries["bad"].state
    assert (state.is_failed, state.is_recovered, bool(state.error_at)) == (True, False, True)


@pytest.mark.parametrize("asked", ["check_servers", "create_declared"])
def test_run_that_starts_without_a_leader_waits_for_it(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "p.toml"
    path.write_text(text := SMALL + '\n[streams.COPY]\nsubjects = ["copy.>"]\n')
    original = getattr(runners, asked)
    failures = [RequestTimeoutError("timed out after 10 s waiting for an answer on '$JS.API.STREAM.INFO.ORDERS'")] * 2

    def ask(*args: object) -> object:
        if failures:
            raise failures.pop()
        return original(*args)

    started = []
    monkeypatch.setattr(runners, asked, ask)
    monkeypatch.setattr("slipstream.spark.pipelines.preparation.prepare", lambda *_: None)
    monkeypatch.setattr("slipstream.spark.pipelines.checks.deep.deep_mistakes", lambda *_: [])
    monkeypatch.setattr("slipstream.spark.pipelines.build.plan_queries", lambda *_, **__: [])
    monkeypatch.setattr("slipstream.spark.pipelines.fan_out.sharing.shared_reads", lambda *_: [])
    with Server() as server, connect_blocking(server.url) as client:
        client.jetstream().create_stream(StreamConfig("ORDERS", subjects=["orders.>"]))
        runner = Runner(parse(text, file=str(path)), once=True, servers=server.url, out=io.StringIO())
        monkeypatch.setattr(runner, "_spark", mock.Mock())
        monkeypatch.setattr(runner, "_supervise", lambda *_: started.append(runner.queries))
        runner.run()
    assert started == [{}]
    assert not failures
    assert "STREAM.INFO.ORDERS'; retrying for up to 60 s (option retryFor)" in caplog.text


def test_wait_for_a_leader_ends_with_its_time_or_with_the_run() -> None:
    tries = []
    stopping = threading.Event()

    def ask() -> None:
        tries.append(1)
        raise RequestTimeoutError("no answer")

    ask_until = functools.partial(wait_out, work=ask, pause=stopping.wait, is_stopping=stopping.is_set)
    with pytest.raises(RequestTimeoutError, match="no answer"):
        ask_until({"servers": "nats://127.0.0.1:1", "retryFor": "0"})
    assert len(tries) == 1
    stopping.set()
    assert ask_until({"servers": "nats://127.0.0.1:1"}) is None
    assert len(tries) == 2


def test_query_is_restarted_for_as_long_as_a_server_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(parse(SMALL, file=str(tmp_path / "p.toml")), once=True)
    monkeypatch.setattr("slipstream.spark.pipelines.runner.MAX_FAILURES", 3)
    away, dies = (RunningQuery(QueryPlan(name, None, mock.Mock())) for name in ("away", "dies"))
    for _ in range(50):
        runner._failed(away, "slipstream.errors.ConnectionLostError: refused", Lines(io.StringIO()))
    assert not away.is_failed
    # When the server is back, a worker may fail: that is the first failure of its kind.
    runner._failed(away, "org.S: Python worker failed to connect back.", Lines(io.StringIO()))
    assert not away.is_failed
    for _ in range(3):
        runner._failed(dies, "org.S: Python worker exited unexpectedly (crashed)", Lines(io.StringIO()))
    assert not dies.is_failed
    runner._failed(dies, "org.S: Python worker exited unexpectedly (crashed)", Lines(io.StringIO()))
    assert dies.is_failed
    for _ in range(3):
        runner._failed(away, "org.S: Python worker failed to connect back.", Lines(io.StringIO()))
        away.add_progress(progress(1, 5, 5))  # with a batch in between
    assert not away.is_failed


def test_query_of_a_shared_read_has_a_name_that_no_output_can_have() -> None:
    """Spark starts no two queries of one name."""
    text = SMALL.replace("[outputs.copy]", f'[outputs."{SHARED}orders"]')
    with pytest.raises(UsageError, match="an output's name must consist of"):
        parse(text)


def progress(batch: int, rows: int, written: int | None) -> dict[str, object]:
    metrics = {} if written is None else {"slipstream": {"rows": written}}
    return {
        "id": "q", "runId": "r", "batchId": batch, "numInputRows": rows, "processedRowsPerSecond": 1.0,
        "batchDuration": 5, "durationMs": {"addBatch": 1} if rows or written is not None else {"latestOffset": 1},
        "sources": [{"endOffset": {"seq": rows}, "numInputRows": rows}], "observedMetrics": metrics,
    }  # fmt: skip


def test_written_rows_are_added_up_over_batches_and_runs(tmp_path: Path) -> None:
    runner = Runner(parse(SMALL, file=str(tmp_path / "p.toml")), once=True)
    one, other = (RunningQuery(QueryPlan(name, None, mock.Mock())) for name in ("copy", "other"))
    runner.queries = {"copy": one, "other": other}
    query = Query()
    query.recentProgress = [progress(0, 10, 4), progress(1, 5, 0), progress(2, 0, 3)]
    one.started(query)  # type: ignore[arg-type]
    one.update()
    one.update()  # nothing new
    assert (one.state.rows, one.state.written, other.state.written) == (15, 7, -1)
    assert one.state.after(QueryState(written=3)).written == 10
    assert one.state.after(QueryState()).written == 7
    assert QueryState().after(QueryState()).written == -1
    found = runner.result()
    assert (found["ok"], found["outputs"]["copy"]["written"], found["outputs"]["other"]["written"]) == (True, 7, None)
    other.is_failed = True
    assert not runner.result()["ok"]


def test_report_of_an_idle_query_does_not_hide_the_batch_that_follows() -> None:
    """Spark reports an idle query with the number of the batch to come."""
    events: list[tuple[str, object, object]] = []
    plan = QueryPlan("copy", None, mock.Mock())
    one = RunningQuery(plan, lambda kind, _, **more: events.append((kind, more["batch"], more["rows"])))
    query = Query()
    one.started(query)  # type: ignore[arg-type]
    query.recentProgress = [progress(0, 10, 4), progress(1, 0, None)]
    one.update()
    query.recentProgress += [progress(1, 0, None), progress(1, 5, 2)]
    one.update()
    assert (one.state.rows, one.state.written, one.state.batch, one.state.batches) == (15, 6, 1, 2)
    assert events == [("progress", 0, 10), ("progress", 1, 5)]


def test_watermark_state_and_late_rows_are_part_of_the_state() -> None:
    one = RunningQuery(QueryPlan("copy", None, mock.Mock()))
    query = Query()
    one.started(query)  # type: ignore[arg-type]
    for batch, late in ((0, 0), (1, 3), (2, 2)):
        found = progress(batch, 5, 5)
        found["stateOperators"] = [{"numRowsTotal": batch + 1, "numRowsDroppedByWatermark": late}]
        found["eventTime"] = {"watermark": f"2026-01-31T09:00:0{batch}.000Z"}
        query.recentProgress.append(found)
    one.update()
    assert (one.state.late, one.state.state_rows, one.state.watermark) == (5, 3, "2026-01-31T09:00:02.000Z")
    total = one.state.after(QueryState(late=2, state_rows=9, batches=4))
    assert (total.late, total.state_rows, total.batches) == (7, 3, 3)


def test_events_tell_failures_and_restarts(tmp_path: Path) -> None:
    seen: list[dict[str, object]] = []
    runner = Runner(parse(SMALL, file=str(tmp_path / "p.toml")), once=True, on_event=seen.append)
    away, bad = (RunningQuery(QueryPlan(name, None, mock.Mock())) for name in ("away", "bad"))
    runner._failed(away, "slipstream.errors.ConnectionLostError: refused", Lines(io.StringIO()))
    runner._failed(bad, "AnalysisException: no such column", Lines(io.StringIO()))
    assert [(one["event"], one["output"], one["reason"]) for one in seen] == [
        ("query_failed", "away", "refused"),
        ("query_given_up", "bad", "AnalysisException: no such column"),
    ]
    assert seen[0]["restarts_in"] == 1.0
    assert (away.state.failures, bad.state.failures) == (1, 1)
    assert len(StateFolder(runner._pipeline).path.joinpath("events.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("any_server", ["ours", "real"], indirect=True)
def test_lag_in_seconds_and_dead_letters(js: BlockingJetStream, fresh: str) -> None:
    text = f'[pipeline]\ndead_letter = "{fresh}D"\n[sources.s]\nstream = "{fresh}"\nsubjects = "{fresh}.x"\n'
    text += 'format = "json"\nschema = "n INT"\n[outputs.o]\nfrom = "s"\npath = "o"\n'
    pipeline = parse(text)
    assert letter_counts(js, pipeline) == {}
    for name in (fresh, f"{fresh}D"):
        js.create_stream(StreamConfig(name=name, subjects=(f"{name}.>",)))
    js.publish(f"{fresh}.x", b"")
    js.publish(f"{fresh}.y", b"")
    assert 0 < lag_seconds(js, pipeline, "o", {}) < 60
    assert lag_seconds(js, pipeline, "o", {"0": 1}) == 0  # the other message is not of this source
    js.publish(f"{fresh}D.s", b"")
    js.publish(f"{fresh}D.o", b"")
    js.publish(f"{fresh}D.o", b"")
    assert letter_counts(js, pipeline) == {"s": 1, "dead-s": 1, "o": 2}


def test_queries_that_wait_are_started_after_one_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(parse(SMALL, file=str(tmp_path / "p.toml")), once=True)
    bad, *slow = (RunningQuery(QueryPlan(name, None, mock.Mock())) for name in ("bad", "slow", "slower", "waiting"))
    runner.queries = {one.name: one for one in (bad, *slow)}
    started = []

    def start(one: RunningQuery) -> None:
        started.append(one.name)
        one.started(Query("AnalysisException: no such column" if one is bad else ""))  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "_max_starting", 2)
    monkeypatch.setattr(runner, "_start", start)

    def report(*_: object) -> None:
        if len(started) == 4:
            runner.stop()

    monkeypatch.setattr(runner, "_report", report)
    runner._supervise({}, mock.Mock(), Lines(io.StringIO()))
    assert started == ["bad", "slow", "slower", "waiting"]
    assert not any(one.query and one.query.isActive for one in slow)


def test_run_holds_the_lock_before_it_connects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = parse(SMALL, file=str(tmp_path / "p.toml"))
    state = StateFolder(pipeline)
    state.write_run("nats://earlier", {"copy": QueryState(rows=5)})
    seen = []

    def look(*_: object) -> NoReturn:
        seen.append(state.read_run())
        raise Error("no server")

    monkeypatch.setattr("slipstream.spark.pipelines.runner.connection_options", look)
    with pytest.raises(Error, match="no server"):
        Runner(pipeline, once=True).run()
    assert seen == [(os.getpid(), "", {"copy": QueryState(rows=5)})]
    assert state.read_run()[0] == 0


@pytest.mark.parametrize("error", [ConnectionRefusedError(), Py4JError("no answer"), Error("x"), ValueError()])
def test_run_that_is_stopped_does_not_need_its_jvm(error: Exception, tmp_path: Path) -> None:
    """A service manager sends SIGTERM to all processes of a service."""
    runner = Runner(parse(SMALL, file=str(tmp_path / "p.toml")), once=True)

    def end() -> None:
        with runner._without_jvm():
            raise error

    with pytest.raises(type(error)):
        end()  # it was not stopped: the JVM has crashed
    runner.stop()
    if isinstance(error, Error | ValueError):
        with pytest.raises(type(error)):
            end()
    else:
        end()


class Read:
    """A shared read with the attributes that the runner reads."""

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}
        self.batches: dict[int, dict[str, WrittenBatch]] = {}

    def written(self, batch: int) -> dict[str, WrittenBatch]:
        return self.batches.pop(batch, {})


def shared_by(runner: Runner, *names: str) -> tuple[RunningQuery, Read]:
    """A query of these outputs, which are all of the pipeline."""
    read = Read()
    runner.queries = {name: RunningQuery(QueryPlan(name, None, mock.Mock())) for name in names}
    plan = QueryPlan("shared-x", None, mock.Mock())
    query = RunningQuery(plan, members=list(runner.queries.values()), shared=read)  # type: ignore[arg-type]
    runner._shared = [query]
    return query, read


def test_batches_of_a_shared_read_are_those_of_its_outputs_and_read_once(tmp_path: Path) -> None:
    runner = Runner(parse(SMALL, file=str(tmp_path / "p.toml")), once=True)
    shared, read = shared_by(runner, "alerts", "history")
    query = Query()
    shared.started(query)  # type: ignore[arg-type]
    read.batches = {
        0: {"alerts": WrittenBatch(58, 1), "history": WrittenBatch(31, 9)},
        1: {"history": WrittenBatch(32, 4)},  # repeated: alerts were written before
    }
    query.recentProgress = [progress(0, 10, 0), progress(1, 5, 0)]
    shared.update()
    shared.update()  # nothing new
    states = {name: one.state for name, one in runner.queries.items()}
    assert (states["alerts"].batch, states["alerts"].rows, states["alerts"].written) == (58, 10, 1)
    assert (states["history"].batch, states["history"].rows, states["history"].written) == (32, 15, 13)
    assert runner.rows_read == runner.result()["rows_read"] == 15
    assert set(runner.result()["outputs"]) == {"alerts", "history"}


def test_output_of_a_shared_read_that_failed_for_good_does_not_end_the_others(tmp_path: Path) -> None:
    runner = Runner(parse(SMALL, file=str(tmp_path / "p.toml")), once=True)
    shared, read = shared_by(runner, "alerts", "history")
    alerts, history = shared.members
    said = io.StringIO()
    screen = Lines(said)
    shared.started(Query())  # type: ignore[arg-type]
    read.failed["alerts"] = "slipstream.errors.UsageError: stream 'ALERTS' does not exist"
    assert runner._check(deque(), screen)
    assert runner._check(deque(), screen)  # and is told once
    assert said.getvalue() == "alerts: failed: stream 'ALERTS' does not exist\n"
    assert (alerts.is_failed, history.is_failed, shared.is_failed) == (True, False, False)
    assert (alerts.query, history.query) == (None, shared.query)

    # A server that is away: the outputs that are left are restarted together.
    runner._failed(shared, "slipstream.errors.ConnectionLostError: refused", screen)
    assert said.getvalue().splitlines()[-1] == "history: refused; restarting in 1 s"
    assert (shared.query, history.query, history.state.failures, alerts.state.failures) == (None, None, 1, 1)
    shared.started(Query())  # type: ignore[arg-type]
    read.failed["history"] = "no space left on device"
    runner._failed(shared, "slipstream.errors.Error: every output of this read has failed", screen)
    assert shared.is_failed
    assert said.getvalue().splitlines()[-1] == "history: failed: no space left on device"
    assert not runner._check(deque(), screen)
