"""Parser of the whole command line: every command with its options.

The module of a command is imported when the command is parsed, or when all commands are listed: a command does not pay
for the others, nor `--version` for any.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

from slipstream.cli.common import Commands, HelpFormatter, Parser, shared_options
from slipstream.version import VERSION

# Module -> its commands, with their aliases, in the order of the help.
MODULES: dict[str, tuple[str, ...]] = {
    "pubsub": ("pub", "publish", "sub", "subscribe", "req", "request", "reply", "rtt"),
    "streams": ("stream", "str", "account"),
    "consumers": ("consumer", "con"),
    "get": ("get",),
    "kv": ("kv",),
    "objects": ("object", "obj"),
    "services": ("service", "micro"),
    "bench": ("bench",),
    "contexts": ("context", "ctx"),
    "pipeline": ("pipeline",),
    "worker": ("worker",),
    "server": ("server",),
    "observe": ("console", "exporter"),
}


def build_parser() -> Parser:
    """The parser of `slipstream`. A command sets `run` in the namespace: a function of the `Shell`."""
    shared = shared_options()
    parser = Parser(
        prog="slipstream",
        description="NATS and JetStream from the command line.",
        parents=[shared],
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"slipstream {VERSION}")
    commands = Commands(parser.add_subparsers(metavar="COMMAND", dest="command"), shared)
    for module, names in MODULES.items():
        parser.declare_late(names, partial(_declare, module, commands))
    parser.declare_late(("completion",), partial(_declare_completion, commands, parser))
    return parser


def _declare(module: str, commands: Commands) -> None:
    import_module(f"slipstream.cli.{module}").add(commands)


def _declare_completion(commands: Commands, root: Parser) -> None:
    from slipstream.cli import completion

    completion.add(commands, root)
