"""`slipstream pipeline …`: pipelines on Spark. What they take is in `slipstream.spark.pipelines`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.cli.common import Commands, Shell

NAME = "pipeline"


_TAKEN = ("server", "json", "debug")
_OURS = ("command", "run", "arguments")


def add(commands: Commands) -> None:
    """Declare the command, with whatever stands behind it: pipelines have a parser of their own."""
    text = "run, check and watch a pipeline: one file of sources, SQL and outputs, on Spark"
    parser = commands.add(NAME, _refuse, text)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="run, validate, status or reset, and their options")


def run(arguments: list[str], *, debug: bool = False) -> int:
    """Run a command of pipelines; returns the exit code."""
    try:
        from slipstream.spark.pipelines import main
    except ModuleNotFoundError as exc:
        if exc.name not in ("pyspark", "pyarrow", "pandas"):
            raise
        print("slipstream: error: pipelines need Spark: pip install 'slipstream-jetstream[spark]'", file=sys.stderr)
        return 2
    return main(arguments, debug=debug)


def run_with(options: argparse.Namespace) -> int:
    """The same with options that stand before the command; those that say who we are come from the file."""
    given = vars(options)
    other = sorted(name for name in given if name not in (*_TAKEN, *_OURS))
    if other:
        raise UsageError(
            f"--{other[0].replace('_', '-')} is not for pipelines, whose file says it in [connection]; "
            "-s, --json and --debug are allowed"
        )
    words = list(options.arguments)
    command = words[0] if words else "--help"
    if given.get("json") and command != "status":
        raise UsageError("--json is for pipeline status alone")
    if given.get("server") and command in ("run", "status") and not _has(words, "--servers"):
        words[1:1] = ["--servers", options.server]
    if given.get("json"):
        words.insert(1, "--json")
    return run(words or ["--help"], debug=given.get("debug", False))


def _has(words: list[str], option: str) -> bool:
    """The nearer one goes first."""
    return any(word == option or word.startswith(f"{option}=") for word in words)


def _refuse(_: Shell) -> None:
    raise AssertionError("the command is dispatched before others are run")
