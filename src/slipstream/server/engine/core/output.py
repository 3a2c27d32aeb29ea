"""Output of all clients that waits for the driver: which sessions have any, and how many bytes they are.

The driver takes it once per turn. A single event can cause far more than a turn should hold (a message to thousands of
subscribers, a slice of pipelined reads of large messages): as soon as about `LIMIT` bytes are queued, the driver is
called to take them at once. It writes them to the sockets, and calls nothing of the engine that changes it. Bytes are
counted by tranches of a session's capacity (`Session.next_tranche`): counting each message would be felt.
"""

from __future__ import annotations

from collections.abc import Callable

from slipstream.server.engine.core.session import Session

LIMIT = 4 * 1024 * 1024


class Output:
    """Shared by the routers of all accounts."""

    __slots__ = ("dirty", "queued", "relieve")

    def __init__(self) -> None:
        self.dirty: list[Session] = []  # sessions with output, or to be closed
        self.queued: int = 0  # bytes since the last `take`, without the open tranche of each session
        self.relieve: Callable[[], object] = _nothing  # set by the driver

    def add(self, size: int) -> None:
        """Some more bytes are queued."""
        self.queued += size
        if self.queued > LIMIT:
            self.relieve()

    def take(self) -> list[Session]:
        """The sessions with output."""
        dirty, self.dirty = self.dirty, []
        self.queued = 0
        return dirty


def _nothing() -> None:
    pass
