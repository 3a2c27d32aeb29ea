"""`slipstream bench …`: throughput of a server, measured with this client."""

from __future__ import annotations

from slipstream.cli.bench import command
from slipstream.cli.common import Commands


def add(commands: Commands) -> None:
    """Declare the commands."""
    command.add(commands)
