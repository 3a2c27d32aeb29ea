"""Progress display of a running pipeline: a live table in a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, TextIO

from slipstream.spark.pipelines.state import QueryState, now_text

_GAP = 2  # characters between two columns
_DISPENSABLE = ("took", "rows/s", "last batch at", "batch")  # columns of a table that is too wide, in this order


class Lines:
    """One line per batch of rows: for logs and pipes."""

    def __init__(self, out: TextIO, prefix: str = "") -> None:
        self._out = out
        self._prefix = prefix
        self._shown: dict[str, int] = {}

    def say(self, text: str) -> None:
        """Print a message."""
        self._out.write(f"{self._prefix}{text}\n")  # in one piece: several pipelines may print at once
        self._out.flush()

    def show(self, queries: Mapping[str, QueryState], lags: Mapping[str, int]) -> None:
        """Show the progress that is new since the last call."""
        for name, one in queries.items():
            if one.batch >= 0 and self._shown.get(name) != one.batch:
                self._shown[name] = one.batch
                lag = f", {behind(one, lags[name])} behind" if name in lags else ""
                written = f", {one.written:,} written" if one.written >= 0 else ""
                dead = f", {one.dead:,} dead letters" if one.dead else ""
                self.say(
                    f"{name}: batch {one.batch} read {one.batch_rows:,} rows in {one.batch_seconds:.1f} s "
                    f"({one.rate:,.0f} rows/s), {one.rows:,} in this run{written}{lag}{dead}"
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


class Live(Lines):
    """A table in a terminal, updated in place."""

    def __init__(self, out: TextIO, title: str) -> None:
        super().__init__(out)
        from rich.console import Console
        from rich.live import Live as RichLive

        self._title = title
        self._console = Console(file=out)
        self._live = RichLive(console=self._console, refresh_per_second=4)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def show(self, queries: Mapping[str, QueryState], lags: Mapping[str, int]) -> None:
        self._live.update(table(self._title, queries, lags, self._console.width))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def table(title: str, queries: Mapping[str, QueryState], lags: Mapping[str, int], width: int = 80) -> Any:
    """The state of every output as a `rich` table, with its last failures below. What it can do without is left out
    where it would be wider than that: a name or number that is cut says nothing."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    columns = {"output": list(queries)} | _columns(queries, lags)
    for name in _DISPENSABLE:
        if sum(max(map(len, (one, *cells))) + _GAP for one, cells in columns.items()) > width:
            columns.pop(name, None)
    found = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        found.add_column(name, justify="left" if name == "output" else "right", no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        found.add_row(*(Text(cell) for cell in row))
    failures = [f"{name}: {text}" for name, one in queries.items() if (text := failure(one))]
    return Group(found, *(Text(f"last failure of {line}") for line in failures))


def _columns(queries: Mapping[str, QueryState], lags: Mapping[str, int]) -> dict[str, list[str]]:
    """The columns behind the name of an output."""
    has_batch = [one.batch >= 0 for one in queries.values()]
    states = list(queries.values())
    found = {
        "batch": [str(one.batch) for one in states],
        "read": [f"{one.rows:,}" for one in states],
        "written": [f"{one.written:,}" if one.written >= 0 else "-" for one in states],
        "rows/s": [f"{one.rate:,.0f}" for one in states],
        "took": [f"{one.batch_seconds:.1f} s" for one in states],
    }
    for name in ("batch", "rows/s", "took"):
        found[name] = [cell if has else "-" for cell, has in zip(found[name], has_batch, strict=True)]
    found["behind"] = [behind(one, lags[name]) if name in lags else "-" for name, one in queries.items()]
    if any(one.dead for one in states):
        found["dead letters"] = [f"{one.dead:,}" if one.dead else "-" for one in states]
    if any(one.skipped for one in states):
        found["skipped"] = [f"{one.skipped:,}" if one.skipped else "-" for one in states]
    today = now_text().partition("T")[0]
    found["last batch at"] = [one.at.removeprefix(f"{today}T") or "-" for one in states]
    return found


def behind(state: QueryState, lag: int) -> str:
    """The lag in messages and, if there is one, in time."""
    return f"{lag:,} ({_age(state.lag_seconds)})" if lag and state.lag_seconds >= 1 else f"{lag:,}"


def _age(seconds: float) -> str:
    """A number of seconds as one number of two or three digits."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def failure(state: QueryState) -> str:
    """The last failure with its time, and whether the query has recovered; empty if there was none."""
    if not state.error:
        return ""
    outcome = "given up" if state.is_failed else "recovered" if state.is_recovered else "not recovered"
    return f"{state.error_at or 'time unknown'}, {outcome}: {state.error}"


def display(out: TextIO, title: str, *, plain: bool = False, prefix: str = "") -> Lines:
    """A live table if `out` is a terminal and `plain` is not set, else lines, each with a prefix."""
    return Lines(out, prefix) if plain or not out.isatty() else Live(out, title)
