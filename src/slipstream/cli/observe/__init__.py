"""Commands to watch servers with: `slipstream console` and `slipstream exporter`."""

from slipstream.cli.common import Commands
from slipstream.cli.observe import console, exporter


def add(commands: Commands) -> None:
    """Declare the commands."""
    console.add(commands)
    exporter.add(commands)
