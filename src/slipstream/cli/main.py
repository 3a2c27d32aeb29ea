"""Entry point of the `slipstream` command: picks a command, runs it, and reports errors as text and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

from slipstream.cli import server
from slipstream.cli.exit_codes import INTERRUPTED, OK, USAGE, exit_code
from slipstream.errors import ConnectionLostError, Error

COMPLETE = "__complete"  # what completion scripts run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (`exit_codes.py`)."""
    try:
        return _main(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # before the command has begun: importing its modules takes a moment
        return INTERRUPTED


def _main(words: list[str]) -> int:
    debug = words[:1] == ["--debug"]
    if words[:1] == [COMPLETE]:
        from slipstream.cli.commands import build_parser
        from slipstream.cli.completion import complete

        return complete(build_parser(), words[1:])
    arguments = words[debug + 1 :]
    if words[debug : debug + 1] == [server.NAME] and not server.is_for_client(arguments):
        return _reported(partial(server.serve, arguments), debug=debug)

    from slipstream.cli.commands import build_parser  # not needed by a server, so not imported for it

    parser = build_parser()
    options = parser.parse_args(words)
    if not hasattr(options, "run"):
        parser.print_help(sys.stderr)
        return USAGE
    return _reported(partial(_run_command, options), debug=getattr(options, "debug", False))


def run() -> None:
    """The `slipstream` script."""
    sys.exit(main())


def _run_command(options: argparse.Namespace) -> int:
    from slipstream.cli.common import Shell
    from slipstream.extras import check_extra

    check_extra("rich", "the command line", "cli")  # for tables: before a command changes anything that it then shows
    try:
        code: int | None = options.run(Shell(options))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    return code or OK


def _reported(command: Callable[[], int], *, debug: bool) -> int:
    """Run a command. Its errors become a message and an exit code; with `debug` they are raised."""
    try:
        return command()
    except KeyboardInterrupt:
        return INTERRUPTED
    except (Error, OSError, argparse.ArgumentTypeError) as error:
        if debug and not isinstance(error, argparse.ArgumentTypeError):
            raise
        print(f"{_label()} {_message(error)}", file=sys.stderr)
        return exit_code(error)


def _label() -> str:
    """What an error begins with; red in a terminal, unless NO_COLOR is set."""
    is_plain = not sys.stderr.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return "slipstream: error:" if is_plain else "slipstream: \x1b[1;31merror:\x1b[0m"


def _message(error: Exception) -> str:
    """The error in one line; only the mistakes of a pipeline file have a line each."""
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    text = "\n".join(line for line in lines if line) or type(error).__name__
    if isinstance(error, ConnectionLostError):
        text += " (is a server running? slipstream server starts one; -s or a context names another)"
    return text
