"""Progress display: lines and tables."""

from __future__ import annotations

import io
import sys

import pytest

from slipstream.spark.pipelines.display import Lines, display, table
from slipstream.spark.pipelines.state import QueryState


def test_lines_are_shown_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    screen = display(sys.stdout, "title")
    assert type(screen) is Lines
    queries = {"a": QueryState(rows=1500, batch=3, rate=250.0, batch_rows=50, batch_seconds=0.2), "b": QueryState()}
    for _ in range(2):  # nothing new: nothing is said
        screen.show(queries, {"a": 20})
    assert capsys.readouterr().out == ("a: batch 3 read 50 rows in 0.2 s (250 rows/s), 1,500 in this run, 20 behind\n")


def test_written_rows_seconds_and_dead_letters_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    state = QueryState(rows=9, batch=3, batch_rows=9, batch_seconds=0.2, written=4, dead=2, lag_seconds=61.4)
    Lines(sys.stdout).show({"a": state}, {"a": 20})
    assert capsys.readouterr().out.endswith("9 in this run, 4 written, 20 (61 s) behind, 2 dead letters\n")
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table("p", {"a": state, "b": QueryState()}, {"a": 20}))
    text = console.export_text()
    assert "20 (61 s)" in text
    assert "dead letters" in text
    assert "skipped" not in text


def test_table_has_the_progress_of_every_query() -> None:
    from rich.console import Console

    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table("pipeline p", {"a": QueryState(rows=1500, batch=3)}, {"a": 20}))
    text = console.export_text()
    assert "pipeline p" in text
    assert "1,500" in text
