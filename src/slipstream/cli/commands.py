"""Parser of the whole command line: every command with its options.

The module of a command is imported when the command is parsed, or when all commands are listed: a command does not pay
for the others, nor `--version` for any.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

from slipstream.cli.common import Commands, HelpFormatter, Parser, shared_options
from slipstream.form import DESCRIPTION
from slipstream.version import VERSION

# Section of the help -> module -> its commands, with their aliases, in the order of the help.
SECTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "core NATS": {
        "messages": ("pub", "publish", "sub", "subscribe", "req", "request", "reply", "rtt"),
        "services": ("service", "micro"),
    },
    "JetStream": {
        "stream": ("stream", "str"),
        "consumer": ("consumer", "con"),
        "get": ("get",),
        "kv": ("kv",),
        "objects": ("object", "obj"),
        "account": ("account",),
        "error_codes": ("errors", "error"),
    },
    "programs": {
        "worker": ("worker",),
        "pipeline": ("pipeline",),
    },
    "servers": {
        "server": ("server",),
        "observe": ("top", "events", "console", "exporter"),
        "bench": ("bench",),
    },
    "settings": {
        "contexts": ("context", "ctx"),
        "completion": ("completion",),
    },
}
MODULES = {module: names for modules in SECTIONS.values() for module, names in modules.items()}


def build_parser() -> Parser:
    """The parser of `slipstream`. A command sets `run` in the namespace: a function of the `Shell`."""
    parser = Parser(
        prog="slipstream",
        description="NATS and JetStream from the command line.",
        parents=[shared_options(is_root=True)],
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"slipstream {VERSION} ({DESCRIPTION})")
    parsers = parser.add_subparsers(metavar="COMMAND", dest="command")
    commands = Commands(parsers, shared_options(), parser.listed)
    for section, modules in SECTIONS.items():
        for module, names in modules.items():
            parser.declare_late(names, partial(_declare, module, commands.section(section)))
    return parser


def _declare(module: str, commands: Commands) -> None:
    import_module(f"slipstream.cli.{module}").add(commands)
