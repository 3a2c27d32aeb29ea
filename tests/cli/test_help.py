"""Help of every command: it fits a terminal of 80 columns, and its examples are commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from slipstream.cli.commands import build_parser
from slipstream.cli.common import Parser


def commands_of(parser: Parser) -> Iterator[Parser]:
    yield parser
    for command in {id(each): each for each in parser.commands.values()}.values():
        yield from commands_of(command)


COMMANDS = list(commands_of(build_parser()))


def examples_of(parser: Parser) -> list[str]:
    text = (parser.epilog or "").partition("examples:")[2]
    return re.findall(r"slipstream [^|\n]+", text)


@pytest.mark.parametrize("parser", COMMANDS, ids=lambda parser: parser.prog.replace(" ", "-"))
def test_help_fits_80_columns(parser: Parser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert [line for line in parser.format_help().splitlines() if len(line) > 80] == []


EXAMPLES = [example for parser in COMMANDS for example in examples_of(parser)]


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_help_are_commands(example: str) -> None:
    words = shlex.split(re.split(r"<|>>|\)", example)[0], comments=True)
    options = build_parser().parse_args(words[1:])  # raises SystemExit for what is not one
    assert options.run


def test_usage_has_the_arguments_of_the_command_and_names_the_shared_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    usage = " ".join(build_parser().commands["kv"].commands["update"].format_usage().split())
    own = "BUCKET KEY [VALUE] REVISION"
    assert usage == f"usage: slipstream kv update [-h] [--ttl TIME] [bucket options] [connection options] {own}"
