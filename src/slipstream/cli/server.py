"""`slipstream server`: the embedded server as a process. All of it is in `slipstream.server.command`."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.server import command


def run(argv: Sequence[str]) -> int:
    """Run a server until it is told to stop."""
    return command.main(argv)
