"""Timers of the engine: a heap of deadlines in virtual time.

Nothing here reads a clock: the driver passes the time to `due`. Timers run in the order of their deadlines, and equal
deadlines in the order in which they were set, so that the same calls give the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

Action = Callable[[int], None]


class Timer:
    """One deadline; it can be cancelled."""

    __slots__ = ("action", "when")

    def __init__(self, when: int, action: Action) -> None:
        self.when: int = when
        self.action: Action | None = action

    def cancel(self) -> None:
        self.action = None


class Timers:
    """Every deadline of the engine."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._made = 0

    def at(self, when: int, action: Action) -> Timer:
        """Call `action(now)` at `when`."""
        timer = Timer(when, action)
        self._made += 1
        if len(self._heap) > 1024 and self._made % 1024 == 0:  # or cancelled timers would pile up behind a far deadline
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapify(self._heap)
        heappush(self._heap, (when, self._made, timer))
        return timer

    def next_deadline(self) -> int | None:
        """The earliest deadline."""
        heap = self._heap
        while heap and heap[0][2].action is None:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: int) -> None:
        """Run every timer that is due."""
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            timer = heappop(self._heap)[2]
            action, timer.action = timer.action, None
            assert action is not None
            action(now)
