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
        self.status = {"isDataAvailable": False}
        self.lastProgress = None
        self.recentProgress: list[object] = []
        self.exception = lambda: failure or None

    def stop(self) -> None:
        self.isActive = False


def test_failed_query_ends_the_run_while_others_wait_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(parse(SMALL, file=str(tmp_path / "p.toml")), once=True)
    bad, *slow = (RunningQuery(QueryPlan(name, None, mock.Mock())) for name in ("bad", "slow", "slower", "waiting"))
    runner.queries = {one.name: one for one in (bad, *slow)}
    started = []

    def start(one: RunningQuery) -> None:
        started.append(one.name)
        one.started(Query("AnalysisException: no such column" if one is bad else ""))  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "_max_starting", 2)
    monkeypatch.setattr(runner, "_start", start)
    monkeypatch.setattr(runner, "_report", mock.Mock())
    with pytest.raises(Error, match="output 'bad' failed: AnalysisException: no such column"):
        runner._supervise({}, mock.Mock(), Lines(io.StringIO()))
    assert started == ["bad", "slow", "slower"]
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
