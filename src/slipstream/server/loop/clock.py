"""The time of a server: the machine's, or one that stands still until somebody moves it."""

from __future__ import annotations

import time


class Clock:
    """Nanoseconds since the epoch that never go back."""

    is_virtual = False

    def __init__(self) -> None:
        self._last = self._tick = 0

    def __call__(self) -> int:
        tick = time.monotonic_ns()
        now = max(time.time_ns(), self._last + tick - self._tick if self._last else 0)
        self._last, self._tick = now, tick
        return now


class VirtualClock(Clock):
    """Begins at the machine's time and moves when it is told to."""

    is_virtual = True

    def __init__(self) -> None:
        super().__init__()
        self._now = super().__call__()

    def __call__(self) -> int:
        return self._now

    def move_to(self, now: int) -> None:
        self._now = max(self._now, now)
