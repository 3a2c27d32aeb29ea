"""Output of a command: tables for users or JSON for programs on stdout, everything else on stderr."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table


class Meter(Protocol):
    """Callback of a long operation: the bytes done so far."""

    def __call__(self, done: int, /) -> object: ...


def _console(**options: Any) -> Console:
    """A console that prints data as it is: brackets and `:x:` in it are not markup."""
    return Console(highlight=False, markup=False, emoji=False, **options)


class Output:
    """One command's output."""

    def __init__(self, *, json: bool) -> None:
        self.is_json = json
        self._console = _console(soft_wrap=not sys.stdout.isatty())
        self._notes = _console(stderr=True, soft_wrap=True)

    def data(self, data: bytes) -> None:
        """Write bytes unchanged."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def text(self, text: str) -> None:
        """Print a line of data."""
        self._console.print(text, markup=False)

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

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
        """Print rows; framed in a terminal, plain columns elsewhere. Columns that end in `#` are numbers."""
        framed = self._console.is_terminal
        table = Table(box=box.ROUNDED if framed else None, title=title if framed else None, pad_edge=framed)
        cells = [[str(cell) for cell in row] for row in rows]
        widths = _fitted(columns, cells, self._console.width) if framed else [None] * len(columns)
        for column, width in zip(columns, widths, strict=True):
            justify: Any = "right" if column.endswith("#") else "left"
            table.add_column(column.removesuffix("#"), justify=justify, no_wrap=True, max_width=width)
        for row in cells:
            table.add_row(*row)
        if framed:
            self._console.print(table)
        else:
            _console(width=10_000).print(table)

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Meter | None]:
        """Show a progress bar on stderr during a long operation; none if stderr is not a terminal."""
        if not self._notes.is_terminal:
            yield None
            return
        parts = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*parts, console=self._notes, transient=True) as bar:
            task = bar.add_task(what, total=total)

            def update(done: int, /) -> None:
                bar.update(task, completed=done)

            yield update


def _fitted(columns: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Widths of columns with which a framed table fits: the widest column of text is cut, the others stay whole."""
    rows = [[column.removesuffix("#") for column in columns], *cells]
    widths = [max(cell_len(line) for row in rows for line in row[at].split("\n")) for at in range(len(columns))]
    excess = sum(widths) + 3 * len(columns) + 1 - width
    texts = [at for at, column in enumerate(columns) if not column.endswith("#")]
    if excess > 0 and texts:
        widest = max(texts, key=lambda at: (widths[at], at))
        widths[widest] = max(widths[widest] - excess, 8)
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
