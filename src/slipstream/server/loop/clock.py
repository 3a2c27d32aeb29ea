"""Clocks of a server: the machine's time, or a virtual one that only a test moves."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """The machine's time in nanoseconds since the epoch; it never goes back, even if the machine's does."""

    is_virtual = False

    def __init__(
        self, wall: Callable[[], int] = time.time_ns, monotonic: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`wall` may be set back and forth, `monotonic` never goes back."""
        self._wall, self._monotonic = wall, monotonic
        self._last = self._tick = 0

    def __call__(self) -> int:
        # In this order: what passes between the two readings is not counted twice, so the time is never ahead.
        wall = self._wall()
        tick = self._monotonic()
        now = max(wall, self._last + tick - self._tick if self._last else 0)
        self._last, self._tick = now, tick
        return now


class VirtualClock(Clock):
    """Starts at the machine's time and moves by `move_to` only."""

    is_virtual = True

    def __init__(self) -> None:
        super().__init__()
        self._now = super().__call__()

    def __call__(self) -> int:
        return self._now

    def move_to(self, now: int) -> None:
        self._now = max(self._now, now)

    def set_back(self, now: int) -> None:
        """Return to an earlier time, together with all that was stored since."""
        self._now = min(self._now, now)
