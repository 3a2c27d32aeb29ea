"""Supervision of queries, without Spark."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import NoReturn
from unittest import mock

import pytest

from slipstream.errors import Error
from slipstream.spark.pipelines import parse
from slipstream.spark.pipelines.build import QueryPlan
from slipstream.spark.pipelines.display import Lines
from slipstream.spark.pipelines.runner import Runner, RunningQuery
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


def test_query_is_restarted_for_as_long_as_a_server_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(parse(SMALL, file=str(tmp_path / "p.toml")), once=True)
    monkeypatch.setattr("slipstream.spark.pipelines.runner.MAX_FAILURES", 3)
    away, dies = (RunningQuery(QueryPlan(name, None, mock.Mock())) for name in ("away", "dies"))
    for _ in range(50):
        runner._failed(away, "slipstream.errors.ConnectionLostError: refused", Lines(io.StringIO()))
    assert not away.is_failed
    for _ in range(3):
        runner._failed(dies, "org.S: Python worker exited unexpectedly (crashed)", Lines(io.StringIO()))
    assert not dies.is_failed
    runner._failed(dies, "org.S: Python worker exited unexpectedly (crashed)", Lines(io.StringIO()))
    assert dies.is_failed


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
