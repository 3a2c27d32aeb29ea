"""Moments become calls: a heap of deadlines in the engine's own time.

Nothing here reads a clock. `due` runs what a given moment has reached, in the order of the deadlines and, for equal
ones, of their making; so the same calls give the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

Action = Callable[[int], None]


class Timer:
    """One deadline; `cancel` makes it nothing."""

    __slots__ = ("action", "when")

    def __init__(self, when: int, action: Action) -> None:
        self.when = when
        self.action: Action | None = action

    def cancel(self) -> None:
        self.action = None


class Timers:
    """Every deadline of the engine."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._made = 0

    def at(self, when: int, action: Action) -> Timer:
        """Call `action(now)` once `when` has come."""
        timer = Timer(when, action)
        self._made += 1
        if len(self._heap) > 1024 and self._made % 1024 == 0:  # cancelled ones do not pile up behind a far deadline
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapify(self._heap)
        heappush(self._heap, (when, self._made, timer))
        return timer

    def next_deadline(self) -> int | None:
        """The next moment at which something is to be done."""
        heap = self._heap
        while heap and heap[0][2].action is None:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: int) -> None:
        """Run everything whose moment has come."""
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            timer = heappop(self._heap)[2]
            action, timer.action = timer.action, None
            assert action is not None
            action(now)
