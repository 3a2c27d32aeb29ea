"""Output of a command: tables for users or JSON for programs on stdout, everything else on stderr.

Rich is imported when it first prints: bytes, JSON and errors do without it.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from slipstream.cli.values import show_size

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import ProgressColumn
    from rich.table import Table

SHORTEST = 12  # characters that a column of text is cut to; with fewer it is left out
LONGEST_AGE = 14  # columns this short are ages and kinds, which say nothing when they are cut


GOOD, WARNING, BAD = "green", "yellow", "red"


class Colored(str):
    """A cell of a table, or another text, with the style it has in a terminal."""

    __slots__ = ("style",)
    style: str

    def __new__(cls, text: str, style: str = "") -> Colored:
        found = super().__new__(cls, text)
        found.style = style
        return found


class Meter(Protocol):
    """Callback of a long operation: the bytes done so far."""

    def __call__(self, done: int, /) -> object: ...


def _console(**options: Any) -> Console:
    """A console that prints data as it is: brackets and `:x:` in it are not markup."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, **options)


class Output:
    """One command's output."""

    def __init__(self, *, json: bool) -> None:
        self.is_json = json

    @cached_property
    def _console(self) -> Console:
        return _console(soft_wrap=not sys.stdout.isatty())

    @cached_property
    def _notes(self) -> Console:
        return _console(stderr=True, soft_wrap=True)

    def data(self, data: bytes) -> None:
        """Write bytes unchanged."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def text(self, text: str) -> None:
        """Print a line of data."""
        self._console.print(text, markup=False, style=text.style if isinstance(text, Colored) else None)

    @property
    def is_terminal(self) -> bool:
        """Whether data is printed for a user who watches."""
        return self._console.is_terminal and not self.is_json

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return self._console.width

    @property
    def height(self) -> int:
        """Lines of the terminal."""
        return self._console.height

    @contextmanager
    def live(self) -> Iterator[Callable[[Sequence[RenderableType]], None]]:
        """Show tables and lines that replace those before, in a terminal, until the end."""
        from rich.console import Group
        from rich.live import Live

        with Live(console=self._console, auto_refresh=False, screen=True) as live:
            yield lambda parts: live.update(Group(*parts), refresh=True)

    def json(self, value: Any) -> None:
        """Print a value as JSON on one line, so that several make JSON Lines."""
        self.data(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")

    def note(self, text: str) -> None:
        """Print a message for the user on stderr."""
        self._notes.print(text, markup=False)

    def facts(self, title: str, facts: Iterable[tuple[str, object]]) -> None:
        """Print names and values, one per line; a value of None is left out."""
        rows = [(name, str(value)) for name, value in facts if value is not None]
        width = max((len(name) for name, _ in rows), default=0)
        if title:
            self._console.print(title, style="bold", markup=False)
            self._console.print()
        for name, value in rows:
            self._console.print(f"{name:>{width + 2}}: {value}", markup=False)

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", empty: str = ""
    ) -> None:
        """Print rows; framed in a terminal, plain columns elsewhere. Columns that end in `#` are numbers.

        A column without a single value is left out in a terminal. Without rows only `empty` is printed, on stderr.
        """
        cells = [[cell if isinstance(cell, Colored) else str(cell) for cell in row] for row in rows]
        if not cells and empty:
            self.note(empty)
            return
        table = self.layout(columns, cells, title=title)
        if self._console.is_terminal:
            self._console.print(table)
        else:
            _console(width=10_000).print(table)

    def layout(self, columns: Sequence[str], cells: Sequence[Sequence[str]], *, title: str = "") -> Table:
        """A table as `table` prints it."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        framed = self._console.is_terminal
        fitting: dict[int, int | None] = dict.fromkeys(range(len(columns)))
        if framed:
            used = [at for at in range(len(columns)) if any(row[at] for row in cells) or not cells]
            columns, cells = [columns[at] for at in used], [[row[at] for at in used] for row in cells]
            fitting = {**fitted(columns, cells, self._console.width)}
        table = Table(box=box.ROUNDED if framed else None, title=title if framed else None, pad_edge=framed)
        for at, width in fitting.items():
            is_number, is_name = columns[at].endswith("#"), framed and not at
            table.add_column(
                columns[at].removesuffix("#"),
                justify="right" if is_number else "left",
                no_wrap=not is_name,
                overflow="fold" if is_name else "ellipsis",
                min_width=width,
                max_width=width,
            )
        for row in cells:
            table.add_row(*(Text(row[at], getattr(row[at], "style", "")) for at in fitting))
        return table

    @contextmanager
    def count(self, what: str, total: int | None) -> Iterator[Meter | None]:
        """Show a progress bar with a number of messages on stderr; none if stderr is not a terminal."""
        from rich.progress import MofNCompleteColumn

        with self._bar(what, total, MofNCompleteColumn()) as update:
            yield update

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Meter | None]:
        """Show a progress bar on stderr during a long operation; none if stderr is not a terminal."""
        from rich.progress import DownloadColumn, ProgressColumn, Task
        from rich.text import Text

        class Speed(ProgressColumn):
            """Bytes per second, in the units of the sizes beside it: rich has it in powers of 1000 only."""

            def render(self, task: Task) -> Text:
                speed = task.finished_speed or task.speed
                return Text("" if speed is None else f"{show_size(int(speed))}/s")

        with self._bar(what, total, DownloadColumn(binary_units=True), Speed()) as update:
            yield update

    @contextmanager
    def _bar(self, what: str, total: int | None, *done: ProgressColumn) -> Iterator[Meter | None]:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        if not self._notes.is_terminal:
            yield None
            return
        parts = (TextColumn("{task.description}"), BarColumn(), *done, TimeRemainingColumn())
        with Progress(*parts, console=self._notes, transient=True) as bar:
            task = bar.add_task(what, total=total)

            def update(done: int, /) -> None:
                bar.update(task, completed=done)

            yield update


def fitted(columns: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> dict[int, int]:
    """The columns that a framed table of this width has room for, and their widths.

    Numbers and the first column, which is the name, are never lost. The widest of the others is cut, or left out if too
    little of it would remain; a name that is still too long is folded.
    """
    from rich.cells import cell_len

    rows = [[column.removesuffix("#") for column in columns], *cells]
    widths = {at: max(cell_len(line) for row in rows for line in row[at].split("\n")) for at in range(len(columns))}
    while (excess := sum(widths.values()) + 3 * len(widths) + 1 - width) > 0:
        texts = [at for at in widths if at and not columns[at].endswith("#")]
        if not texts:
            widths[0] = max(widths[0] - excess, SHORTEST)
            break
        widest = max(texts, key=lambda at: (widths[at], at))
        if widths[widest] - excess >= SHORTEST and widths[widest] > LONGEST_AGE:
            widths[widest] -= excess
        else:
            del widths[widest]
    return widths


def payload(data: bytes) -> dict[str, str]:
    """A payload for JSON: as text if it is UTF-8, else in base64."""
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"data_base64": base64.b64encode(data).decode()}


def readable(data: bytes) -> str:
    """A payload for users."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"<{len(data)} bytes, not text>"
    return text if text.isprintable() or not any(char < " " and char not in "\t\r\n" for char in text) else repr(text)
