"""`slipstream COMMAND …`: the first word chooses a command, which gets the rest.

A command is a module with a function `run(argv) -> int` (its exit code), imported when it is chosen and no sooner: the
command line starts quickly, however many commands there are. What a command raises of ours becomes one line on stderr;
`slipstream --debug COMMAND …` shows where it came from.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NamedTuple

from slipstream.errors import Error
from slipstream.version import VERSION

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130


class Command(NamedTuple):
    """One command."""

    module: str  # with `run(argv: Sequence[str]) -> int`
    summary: str


COMMANDS: dict[str, Command] = {
    "server": Command("slipstream.cli.server", "run a server, with the flags of nats-server"),
}


def usage() -> str:
    """What `--help` shows."""
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "Usage: slipstream [--debug] COMMAND [arguments]",
            "",
            "Commands:",
            *lines,
            "",
            "`slipstream COMMAND --help` tells more of one; `--version` is for the version, `--debug` for traces.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the result is the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = False
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "--debug":
            debug = True
        elif option in ("-h", "--help"):
            print(usage())
            return 0
        elif option in ("-v", "--version"):
            print(f"slipstream {VERSION}")
            return 0
        else:
            return _complain(f"unknown option {option!r}; --help shows what there is", WRONG_USE)
    if not words:
        print(usage(), file=sys.stderr)
        return WRONG_USE
    name, *rest = words
    if name == "help":
        name, rest = (rest[0], ["--help"]) if rest else ("", [])
        if not name:
            print(usage())
            return 0
    command = COMMANDS.get(name)
    if command is None:
        return _complain(f"unknown command {name!r}; there are {', '.join(COMMANDS)}", WRONG_USE)
    return _run(command, rest, debug=debug)


def _run(command: Command, argv: list[str], *, debug: bool) -> int:
    try:
        code = importlib.import_module(command.module).run(argv)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (Error, OSError) as exc:
        if debug:
            traceback.print_exc()
        return _complain(str(exc) or type(exc).__name__, FAILED)
    return int(code)


def _complain(text: str, code: int) -> int:
    """One line, whatever is in it."""
    print(f"slipstream: {' '.join(text.split())}", file=sys.stderr)
    return code
