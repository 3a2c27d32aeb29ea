"""`slipstream server`: the embedded server as a process. Its flags and the rest are in `slipstream.server.command`."""

from __future__ import annotations

import sys

from slipstream.cli.common import Commands, Shell

NAME = "server"


def add(commands: Commands) -> None:
    """Declare the command, for the list of them: `main` hands its arguments over as they are."""
    commands.add(NAME, run, "run a JetStream server, with nats-server's flags and configuration files")


def run(shell: Shell) -> None:
    """Run a server until it is told to stop."""
    from slipstream.server import command  # the other commands do not pay for it

    code = command.main(getattr(shell.options, "arguments", ["--help"]))
    if code:
        sys.exit(code)
