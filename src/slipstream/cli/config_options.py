"""Options that set fields of a configuration: their declaration as arguments, and the values of a command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from slipstream.cli import values
from slipstream.cli.common import Parser
from slipstream.errors import UsageError

T = TypeVar("T")

Fields = Mapping[str, tuple[str, Callable[[str], Any], str]]
"""Option -> (field of the configuration, parser of its value, help)."""


def add_fields(parser: Parser, fields: Fields) -> None:
    """Declare `--config`, the options of the table and `--metadata`."""
    parser.add_argument("--config", metavar="FILE", help="configuration as JSON; options take precedence")
    for option, (_, read, text) in fields.items():
        parser.add_argument(option, type=read, default=None, metavar="VALUE", help=text)
    parser.add_argument("--metadata", type=values.pair, action="append", metavar="KEY=VALUE", help="may be repeated")


def changed_fields(options: argparse.Namespace, fields: Fields) -> dict[str, Any]:
    """The fields that the options set, with their values."""
    found = {field: getattr(options, option[2:].replace("-", "_")) for option, (field, _, _) in fields.items()}
    found["metadata"] = dict(options.metadata) if options.metadata else None
    return {field: value for field, value in found.items() if value is not None}


def read_config(file: str | None, read: Callable[[bytes], T], otherwise: T) -> T:
    """The configuration in a file, or `otherwise` without one."""
    if not file:
        return otherwise
    try:
        return read(Path(file).read_bytes())
    except ValueError as exc:
        raise UsageError(f"{file}: {exc}") from exc
