"""What a command has to say becomes tables for people, JSON for programs: data on stdout, everything else on stderr."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table


class Meter(Protocol):
    """Where long work tells how far it is."""

    def __call__(self, done: int, /) -> object: ...


def _console(**options: Any) -> Console:
    """What is shown is data: brackets and `:x:` in it mean nothing."""
    return Console(highlight=False, markup=False, emoji=False, **options)


class Output:
    """One command's output."""

    def __init__(self, *, json: bool) -> None:
        self.is_json = json
        self._console = _console(soft_wrap=not sys.stdout.isatty())
        self._notes = _console(stderr=True, soft_wrap=True)

    def data(self, data: bytes) -> None:
        """Bytes as they are."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def text(self, text: str) -> None:
        """A line of data."""
        self._console.print(text, markup=False)

    def json(self, value: Any) -> None:
        """A value for programs: one line, so that many make JSON Lines."""
        self.data(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")

    def note(self, text: str) -> None:
        """A line for people: not part of the data."""
        self._notes.print(text, markup=False)

    def facts(self, title: str, facts: Iterable[tuple[str, object]]) -> None:
        """Names and values, one per line; what is None is left out."""
        rows = [(name, str(value)) for name, value in facts if value is not None]
        width = max((len(name) for name, _ in rows), default=0)
        if title:
            self._console.print(title, style="bold", markup=False)
            self._console.print()
        for name, value in rows:
            self._console.print(f"{name:>{width + 2}}: {value}", markup=False)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
        """Rows; framed in a terminal, plain columns elsewhere. Columns that end in `#` are numbers."""
        framed = self._console.is_terminal
        table = Table(box=box.ROUNDED if framed else None, title=title if framed else None, pad_edge=framed)
        for column in columns:
            table.add_column(
                column.removesuffix("#"), justify="right" if column.endswith("#") else "left", no_wrap=True
            )
        for row in rows:
            table.add_row(*[str(cell) for cell in row])
        if framed:
            self._console.print(table)
        else:
            _console(width=10_000).print(table)

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Meter | None]:
        """A bar on stderr while something long goes on; nothing where nobody would see it move."""
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

            def tell(done: int, /) -> None:
                bar.update(task, completed=done)

            yield tell


def payload(data: bytes) -> dict[str, str]:
    """A payload in JSON: as text where it is text, in base64 where it is not."""
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"data_base64": base64.b64encode(data).decode()}


def readable(data: bytes) -> str:
    """A payload for people."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"<{len(data)} bytes, not text>"
    return text if text.isprintable() or not any(char < " " and char not in "\t\r\n" for char in text) else repr(text)
