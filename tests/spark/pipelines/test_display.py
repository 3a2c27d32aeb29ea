"""Progress display: lines and tables."""

from __future__ import annotations

import io
import sys

import pytest

from slipstream.spark.pipelines.display import Lines, behind, display, table
from slipstream.spark.pipelines.state import QueryState, now_text


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
    console.print(table("p", {"a": state, "b": QueryState()}, {"a": 20}, 200))
    text = console.export_text()
    assert "20 (61 s)" in text
    assert "dead letters" in text
    assert "skipped" not in text


def test_table_has_the_progress_of_every_query() -> None:
    text = shown({"a": QueryState(rows=1500, batch=3)}, {"a": 20}, 100)
    assert "pipeline p" in text
    assert "1,500" in text


@pytest.mark.parametrize(("width", "missing"), [(200, ""), (90, "took"), (80, "rows/s"), (67, "batch")])
def test_table_fits_its_terminal_and_cuts_no_name_and_no_number(width: int, missing: str) -> None:
    """Nor a failure, which has lines of its own."""
    busy = QueryState(rows=1_234_567, batch=40_123, rate=12_345.0, at=now_text(), batch_rows=5000, batch_seconds=12.5)
    busy.written, busy.dead, busy.lag_seconds = 1_234_000, 17, 1_000.0
    reason = "stream 'LARGE' does not exist: create it first, with create_stream"
    failed = QueryState(error=reason, error_at="2026-01-31T09:12:07Z", is_failed=True)
    text = shown({"customers": busy, "dead-orders": failed}, {"customers": 40_321, "dead-orders": 0}, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    for part in ("customers", "dead-orders", "1,234,567", "1,234,000", "40,321 (17 min)", "17", "dead letters"):
        assert any(part in line for line in lines), part
    assert f"last failure of dead-orders: 2026-01-31T09:12:07Z, given up: {reason}" in " ".join(text.split())
    head = next(line for line in lines if line.strip().startswith("output"))
    assert not missing or missing not in head
    assert now_text()[:10] not in text, "the time of a batch of this day is enough"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "7"), (61.4, "7 (61 s)"), (897, "7 (15 min)"), (10_000, "7 (3 h)"), (1e6, "7 (12 d)")],
)
def test_age_has_a_unit_that_fits(seconds: float, text: str) -> None:
    assert behind(QueryState(lag_seconds=seconds), 7) == text


def shown(queries: dict[str, QueryState], lags: dict[str, int], width: int) -> str:
    from rich.console import Console

    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table("pipeline p", queries, lags, width))
    return console.export_text()
