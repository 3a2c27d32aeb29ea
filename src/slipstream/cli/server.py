"""`slipstream server`: the embedded server as a process (`slipstream.server.process.command`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.cli.common import Commands, Shell

NAME = "server"


def add(commands: Commands) -> None:
    """Declare the command for the list of commands; `main` passes its arguments on unparsed."""
    commands.add(NAME, _show_flags, "run a JetStream server, with nats-server's flags and configuration files")


def serve(arguments: list[str]) -> int:
    """Run a server until a signal stops it; returns the exit code."""
    from slipstream.server.process import command

    return command.main(arguments)


def _show_flags(_: Shell) -> None:
    serve(["--help"])
