"""Small things that the drivers of consumers share: replies nobody waits for, names, bounds."""

from __future__ import annotations

from slipstream.errors import Error
from slipstream.wire import Msg

# What may wait to be taken. Pull requests and flow control bound it first; beyond this a gap is seen, and mended.
MAX_MSGS = 4_000_000
MAX_BYTES = 512 * 1024 * 1024


class Ignored:
    """A `ReplySink` for a request whose answer changes nothing."""

    def deliver(self, msg: Msg) -> bool:  # noqa: ARG002 -- the name is the protocol's
        """Take it; there is no second one."""
        return True

    def fail(self, error: Error) -> None:
        """Nobody waits."""


def consumer_name(inbox: str) -> str:
    """A name that nobody else has, out of an inbox that nobody else has."""
    return "_".join(inbox.split(".")[-2:])
