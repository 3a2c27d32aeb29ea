"""`slipstream …`: picks the command, runs it, and turns what goes wrong into one line and an exit code.

Exit codes: 0 done; 1 refused by the server or failed; 2 wrong usage; 3 what was asked for is not there; 4 no
connection; 5 no answer in time; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from slipstream.cli import pipeline, server
from slipstream.errors import (
    ApiError,
    AuthorizationError,
    BucketNotFoundError,
    ConnectionLostError,
    Error,
    KeyNotFoundError,
    MessageNotFoundError,
    NoRespondersError,
    ObjectNotFoundError,
    RequestTimeoutError,
    StreamNotFoundError,
    UsageError,
)

FAILED, USAGE, NOT_FOUND, NO_CONNECTION, NO_ANSWER, INTERRUPTED = 1, 2, 3, 4, 5, 130
_NOT_FOUND = (
    BucketNotFoundError, KeyNotFoundError, MessageNotFoundError, ObjectNotFoundError, StreamNotFoundError,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = words[:1] == ["--debug"]
    if words[debug : debug + 1] == [server.NAME]:  # its flags are those of nats-server, which argparse does not read
        return _serve(words[debug + 1 :], debug=debug)
    if words[debug : debug + 1] == [pipeline.NAME]:  # has a parser of its own, and Spark to load
        return _pipeline(lambda: pipeline.run(words[debug + 1 :], debug=debug), debug=debug)

    from slipstream.cli.commands import Shell, build_parser  # a server does not pay for them

    parser = build_parser()
    options = parser.parse_args(words)
    if not hasattr(options, "run"):
        parser.print_help(sys.stderr)
        return USAGE
    if options.command == pipeline.NAME:
        return _pipeline(lambda: pipeline.run_with(options), debug=getattr(options, "debug", False))
    try:
        options.run(Shell(options))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except argparse.ArgumentTypeError as exc:
        return _say(str(exc), USAGE)
    except (Error, OSError) as exc:
        if getattr(options, "debug", False):
            raise
        return _say(_line(exc), _code(exc))
    return 0


def _serve(arguments: list[str], *, debug: bool) -> int:
    try:
        return server.serve(arguments)
    except (Error, OSError) as exc:
        if debug:
            raise
        return _say(_line(exc), _code(exc))


def _pipeline(run: Callable[[], int], *, debug: bool) -> int:
    try:
        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except UsageError as exc:
        if debug:
            raise
        return _say(_line(exc), USAGE)


def run() -> None:
    """The `slipstream` script."""
    sys.exit(main())


def _code(error: Exception) -> int:
    if isinstance(error, _NOT_FOUND) or (isinstance(error, ApiError) and error.code == 404):
        return NOT_FOUND
    if isinstance(error, UsageError):
        return USAGE
    if isinstance(error, (ConnectionLostError, AuthorizationError)):
        return NO_CONNECTION
    if isinstance(error, (RequestTimeoutError, NoRespondersError)):
        return NO_ANSWER
    return FAILED


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ConnectionLostError):
        text += " (is a server there? slipstream server starts one; -s or a context names another)"
    return text


def _say(text: str, code: int) -> int:
    print(f"slipstream: error: {text}", file=sys.stderr)
    return code
