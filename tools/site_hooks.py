"""Parts of the documentation that are made when the site is built: the command-line reference, the fields of
configurations, and the chart of ratios.

mkdocs calls `on_page_markdown` for each page (see `hooks` in mkdocs.yml). A line `<!-- made: NAME -->` of a page is
replaced by what the function of that name returns, so that nothing generated is stored and nothing can be out of date.
"""

from __future__ import annotations

import argparse
import html
import math
import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import slipstream

ROOT = Path(__file__).resolve().parent.parent
MARK = re.compile(r"^<!-- made: ([A-Za-z-]+) -->$", re.MULTILINE)
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
FIELDS = ROOT / "docs" / "reference" / "fields.toml"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the parts that are made."""
    return MARK.sub(lambda found: part(found[1]), markdown)


def part(name: str) -> str:
    """One part, by its name."""
    return fields_of(name.removeprefix("fields-")) if name.startswith("fields-") else PARTS[name]()


# Fields of configurations.


def fields_of(name: str) -> str:
    """The fields of a configuration as a table: type, default, meaning."""
    lines = ["| field | type | default | meaning |", "|---|---|---|---|"]
    meanings = tomllib.loads(FIELDS.read_text("utf-8"))[name]
    for field in fields(getattr(slipstream, name)):
        if field.name == "unknown" or not field.init:  # what a newer server sends; what follows from others
            continue
        kind = str(field.type).replace("|", "\\|")
        lines.append(f"| `{field.name}` | `{kind}` | {_default(field)} | {meanings[field.name]} |")
    return "\n".join(lines)


def _default(field: Field[Any]) -> str:
    if field.default_factory is not MISSING:
        value = field.default_factory()
    elif field.default is MISSING:
        return "required"
    else:
        value = field.default
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s" if value else "0"
    return f"`{value!r}`" if value not in ("", (), {}, None) else "none"


# The command line.


def command_line() -> str:
    """Each command with its help, as the parser prints it."""
    from slipstream.cli.commands import build_parser

    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        return "\n".join(_section(parser, level) for parser, level in _commands(build_parser(), 2))
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns


def _commands(parser: argparse.ArgumentParser, level: int) -> Iterator[tuple[argparse.ArgumentParser, int]]:
    yield parser, level
    commands: dict[str, argparse.ArgumentParser] = parser.commands  # type: ignore[attr-defined]
    for command in {id(each): each for each in commands.values()}.values():
        yield from _commands(command, min(level + 1, 4) if level > 2 else 3)


def _section(parser: argparse.ArgumentParser, level: int) -> str:
    return f"{'#' * level} {parser.prog}\n\n```text\n{parser.format_help().rstrip()}\n```\n"


# The chart of ratios.


class Ratio(NamedTuple):
    """A line of the table of results."""

    work: str
    value: float


def ratios(text: str) -> list[Ratio]:
    """The ratios to other clients and servers in the tables of `make bench` on the page of benchmarks."""
    found: list[Ratio] = []
    is_peer = False
    for line in text.partition("<!-- bench -->")[2].partition("<!-- /bench -->")[0].splitlines():
        if line.endswith(" ratio |"):
            is_peer = line.startswith(("| work | nats-py |", "| work | nats-server |"))
        elif is_peer and (row := re.fullmatch(r"\| (.+?) \|.*\| ([\d.]+)x \|", line)):
            found.append(Ratio(row[1], float(row[2])))
    return found


def chart() -> str:
    """Bars of the ratios on a logarithmic scale, those below 1 to the left, as an SVG in the page."""
    rows = ratios(BENCHMARKS.read_text("utf-8"))
    low, high, left, width, step = 0.5, 64.0, 470, 330, 26

    def at(value: float) -> float:
        return left + width * math.log(value / low) / math.log(high / low)

    parts = []
    bottom = 24 + step * len(rows)
    for mark in (0.5, 1, 2, 4, 8, 16, 32, 64):
        kind = "one" if mark == 1 else "grid"
        parts.append(
            f'<line x1="{at(mark):.0f}" x2="{at(mark):.0f}" y1="18" y2="{bottom}" class="{kind}"/>'
            f'<text x="{at(mark):.0f}" y="12" text-anchor="middle">{mark:g}x</text>'
        )
    for number, row in enumerate(rows):
        top = 24 + step * number
        begin, end = sorted((at(1), at(row.value)))
        kind = "more" if row.value >= 1 else "less"
        parts.append(
            f'<text x="{left - 12}" y="{top + 14}" text-anchor="end">{html.escape(_short(row.work))}</text>'
            f'<rect x="{begin:.1f}" y="{top + 2}" width="{max(end - begin, 1.5):.1f}" height="16" class="{kind}"/>'
            f'<text x="{end + 6:.1f}" y="{top + 14}">{row.value:g}x</text>'
        )
    height = 32 + step * len(rows)
    return (
        f'<svg class="chart" viewBox="0 0 860 {height}" role="img" aria-label="Ratios of the benchmarks">'
        f"{''.join(parts)}</svg>"
    )


def _short(work: str) -> str:
    work = work.replace("`", "")
    return work if len(work) <= 62 else f"{work[:61]}…"


PARTS = {"command-line": command_line, "chart": chart}
