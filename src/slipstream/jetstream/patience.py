"""How long a read may take becomes how long its next try may take, and how long to rest before that."""

from __future__ import annotations

from collections.abc import Callable

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.25
SHORTEST_TRY = 0.001


class Patience:
    """A deadline and a growing pause between tries."""

    __slots__ = ("_deadline", "_now", "_pause", "whole")

    def __init__(self, timeout: float, now: Callable[[], float]) -> None:
        self.whole = timeout
        self._now = now
        self._deadline = now() + timeout
        self._pause = FIRST_PAUSE

    def left(self) -> float:
        """Seconds until the deadline; never so few that a try could not even be sent."""
        return max(self._deadline - self._now(), SHORTEST_TRY)

    def next_pause(self) -> float | None:
        """How long to rest before the next try; None when the time is up."""
        pause = self._pause
        if self._now() + pause >= self._deadline:
            return None
        self._pause = min(pause * 2, LONGEST_PAUSE)
        return pause
