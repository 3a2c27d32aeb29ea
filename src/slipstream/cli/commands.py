"""Parser of the whole command line: every command with its options."""

from __future__ import annotations

from slipstream.cli import (
    bench,
    completion,
    consumers,
    contexts,
    get,
    kv,
    objects,
    pipeline,
    pubsub,
    server,
    services,
    streams,
    worker,
)
from slipstream.cli.common import Commands, HelpFormatter, Parser, shared_options
from slipstream.version import VERSION


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
    for module in (pubsub, streams, consumers, get, kv, objects, services, bench, contexts, pipeline, worker, server):
        module.add(commands)
    completion.add(commands, parser)
    return parser
