"""`slipstream pub`, `sub`, `req`, `reply` and `rtt`: core NATS, with the acks and messages of streams."""

from __future__ import annotations

from slipstream.cli.common import Commands
from slipstream.cli.messages import publish, request, subscribe


def add(commands: Commands) -> None:
    """Declare the commands."""
    for module in (publish, subscribe, request):
        module.add(commands)
