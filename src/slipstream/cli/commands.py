"""All commands and their options, in one parser."""

from __future__ import annotations

import argparse

from slipstream.cli import bench, completion, consumers, contexts, get, kv, objects, pipeline, pubsub, server, streams
from slipstream.cli.common import Commands, shared_options
from slipstream.cli.common import Shell as Shell
from slipstream.version import VERSION


def build_parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    shared = shared_options()
    parser = argparse.ArgumentParser(
        prog="slipstream",
        description="NATS and JetStream from the command line.",
        parents=[shared],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"slipstream {VERSION}")
    commands = Commands(parser.add_subparsers(metavar="COMMAND", dest="command"), shared)
    for room in (
        pubsub,
        streams,
        consumers,
        get,
        kv,
        objects,
        bench,
        contexts,
        pipeline,
        server,
        completion,
    ):
        room.add(commands)
    return parser
