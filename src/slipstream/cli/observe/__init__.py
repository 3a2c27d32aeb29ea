"""Commands to watch servers with: `slipstream top`, `events`, `console` and `exporter`."""

from slipstream.cli.common import Commands
from slipstream.cli.observe import console, events, exporter, top


def add(commands: Commands) -> None:
    """Declare the commands."""
    for module in (top, events, console, exporter):
        module.add(commands)
