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

Setting = tuple[str, Callable[[str], Any], str]
"""A field of the configuration, the parser of its value, help. With the parser `bool`: a flag, and `--no-…`."""
Fields = Mapping[str, Setting]
"""The setting of each option."""

_METAVARS = {values.duration: "DURATION", values.size: "SIZE", values.count: "N", values.whole: "N", int: "N"}


def add_fields(parser: Parser, fields: Fields, *, has_file: bool = True) -> None:
    """Declare `--config` (unless it `has_file` false), the options of the table and `--metadata`."""
    if has_file:
        parser.add_argument("--config", metavar="FILE", help="configuration as JSON; options take precedence")
    declare_fields(parser, fields)
    parser.add_argument(
        "--metadata", type=values.pair, action="append", metavar="KEY=VALUE", help="metadata; may be repeated"
    )


def declare_fields(parser: Parser, fields: Fields, *, title: str = "") -> None:
    """Declare the options of the table, in a group of their own if it has a title."""
    group = parser.add_argument_group(title) if title else parser
    for option, (_, read, text) in fields.items():
        if read is bool:
            group.add_argument(option, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            group.add_argument(option, type=read, default=None, metavar=_metavar(option, read), help=text)


def _metavar(option: str, read: Callable[[str], Any]) -> str:
    """What stands for the value in help: its kind, the words it may be, or the option's last word."""
    if isinstance(read, values.Choice):
        return "{" + ",".join(read.names) + "}"
    return _METAVARS.get(read) or option.rpartition("-")[2].upper()


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
