"""How long a read may take becomes how long its next try may take, and how long to rest before that."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.errors import Error

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.25
SHORTEST_TRY = 0.001


class Patience:
    """A deadline and a growing pause between tries."""

    __slots__ = ("_deadline", "_now", "_pause", "_reason")

    def __init__(self, timeout: float, now: Callable[[], float]) -> None:
        self._now = now
        self._reason: Error | None = None
        self._deadline = now() + timeout
        self._pause = FIRST_PAUSE

    def left(self) -> float:
        """Seconds until the deadline; never so few that a try could not even be sent."""
        return max(self._deadline - self._now(), SHORTEST_TRY)

    def why(self, error: Error) -> Error:
        """What to tell when the time is up: what went wrong before says more than the silence of the last try."""
        return self._reason or error

    def next_pause(self, reason: Error) -> float | None:
        """How long to rest before the next try, which `reason` made necessary; None when the time is up."""
        self._reason = reason
        pause = self._pause
        if self._now() + pause >= self._deadline:
            return None
        self._pause = min(pause * 2, LONGEST_PAUSE)
        return pause
