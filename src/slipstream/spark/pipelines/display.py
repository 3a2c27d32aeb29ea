"""Progress display of a running pipeline: a live table in a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, TextIO

from slipstream.spark.pipelines.state import QueryState


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
        self._live.update(table(self._title, queries, lags))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def table(title: str, queries: Mapping[str, QueryState], lags: Mapping[str, int]) -> Any:
    """The state of every output as a `rich` table."""
    from rich.table import Table

    found = Table(title=title)
    found.add_column("output")
    has_skipped, has_dead = any(one.skipped for one in queries.values()), any(one.dead for one in queries.values())
    extra = [name for name, has in (("dead letters", has_dead), ("skipped", has_skipped)) if has]
    for name in ("batch", "read", "written", "rows/s", "batch time", "behind", *extra):
        found.add_column(name, justify="right")
    found.add_column("last batch at")
    found.add_column("last failure")
    for name, one in queries.items():
        lag = behind(one, lags[name]) if name in lags else "-"
        batch = str(one.batch) if one.batch >= 0 else "-"
        counts = [f"{one.dead:,}" if one.dead else "-"] if has_dead else []
        counts += [f"{one.skipped:,}" if one.skipped else "-"] if has_skipped else []
        seconds = f"{one.batch_seconds:.1f} s" if one.batch >= 0 else "-"
        written = f"{one.written:,}" if one.written >= 0 else "-"
        rows = (f"{one.rows:,}", written, f"{one.rate:,.0f}", seconds)
        found.add_row(name, batch, *rows, lag, *counts, one.at or "-", failure(one) or "-")
    return found


def behind(state: QueryState, lag: int) -> str:
    """The lag in messages and, if there is one, in seconds."""
    return f"{lag:,} ({state.lag_seconds:,.0f} s)" if lag and state.lag_seconds >= 1 else f"{lag:,}"


def failure(state: QueryState) -> str:
    """The last failure with its time, and whether the query has recovered; empty if there was none."""
    if not state.error:
        return ""
    outcome = "given up" if state.is_failed else "recovered" if state.is_recovered else "not recovered"
    return f"{state.error_at or 'time unknown'}, {outcome}: {state.error}"


def display(out: TextIO, title: str, *, plain: bool = False, prefix: str = "") -> Lines:
    """A live table if `out` is a terminal and `plain` is not set, else lines, each with a prefix."""
    return Lines(out, prefix) if plain or not out.isatty() else Live(out, title)
