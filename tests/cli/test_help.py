"""Help of every command: it fits a terminal of 80 columns, its examples are commands, and no command imports all."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

import pytest

from slipstream.cli.commands import MODULES, build_parser
from slipstream.cli.common import Commands, Parser, shared_options


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
    assert usage == f"usage: slipstream kv update [-h] [--ttl DURATION] [bucket options] [connection options] {own}"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_declares_the_commands_by_which_it_is_found(module: str) -> None:
    parser = Parser(prog="slipstream")
    import_module(f"slipstream.cli.{module}").add(Commands(parser.add_subparsers(), shared_options()))
    assert tuple(parser.commands) == MODULES[module]


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["--version"], set()),
        (["context", "ls"], {"contexts"}),
        (["--user", "kv", "context", "ls"], {"contexts"}),  # the first word that could be a command is a user
    ],
)
def test_a_command_does_not_pay_for_the_others(words: list[str], own: set[str]) -> None:
    program = (
        "import sys\nfrom slipstream.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "finally:\n    print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    imported = set(done.stderr.split())
    assert {name for name in MODULES if f"slipstream.cli.{name}" in imported} - {"server"} == own
    heavy = {"slipstream.facade", "slipstream.jetstream", "slipstream.kv", "slipstream.server.server", "asyncio"}
    assert heavy & imported == set()
    assert len({name for name in imported if name.startswith("slipstream")}) < 60


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("pub -J s --count 3 body", {"subject": "s", "count": 3, "body": "body"}),
        ("pub --count 3 s body", {"subject": "s", "count": 3, "body": "body"}),
        ("pub s body --count=3", {"subject": "s", "count": 3, "body": "body"}),
        ("pub s -H A:b -", {"subject": "s", "body": "-"}),
        ("pub s -- --count", {"subject": "s", "body": "--count"}),
        ("pub -J -- s -1", {"subject": "s", "body": "-1"}),
        ("stream view S --raw 5 --subject x", {"name": "S", "count": 5, "subject": "x", "raw": True}),
        ("stream add S --max-msgs -1 --subjects a", {"name": "S", "max_msgs": -1}),
        ("consumer next S c --nak 5s --count 2", {"stream": "S", "name": "c", "count": 2}),
        ("kv lock B k --ttl 5s -- sh -c ls", {"bucket": "B", "key": "k", "program": ["sh", "-c", "ls"]}),
        ("kv lock B k -- sh --ttl 5s", {"ttl": None, "program": ["sh", "--ttl", "5s"]}),
        ("-s nats://x stream --help-me", None),
    ],
)
def test_options_stand_anywhere(words: str, found: dict[str, object] | None) -> None:
    if found is None:
        with pytest.raises(SystemExit):
            build_parser().parse_args(words.split())
        return
    options = vars(build_parser().parse_args(words.split()))
    assert {name: options[name] for name in found} == found
