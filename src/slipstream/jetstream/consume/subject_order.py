"""Order per subject: which messages may be handled beside each other, and which wait for their subject.

Invariants: at most one message of a subject is in a handler; those that wait are handled in the order in which they
were added. A subject takes no memory when none of its messages is here. Pure.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class SubjectOrder(Generic[T]):
    """Messages by subject: one in a handler each, and those behind it."""

    __slots__ = ("_busy", "waiting")

    def __init__(self) -> None:
        self._busy: dict[str, deque[T] | None] = {}  # subject in a handler -> what waits for it
        self.waiting: int = 0

    def add(self, subject: str, message: T) -> bool:
        """Whether the message may be handled now; otherwise `done` returns it when its turn has come."""
        if subject not in self._busy:
            self._busy[subject] = None
            return True
        queue = self._busy[subject]
        if queue is None:
            queue = self._busy[subject] = deque()
        queue.append(message)
        self.waiting += 1
        return False

    def take_waiting(self) -> list[T]:
        """Take all that wait, in any order; what is in handlers stays there."""
        taken = [message for queue in self._busy.values() for message in queue or ()]
        self._busy = dict.fromkeys(self._busy)
        self.waiting = 0
        return taken

    def done(self, subject: str) -> T | None:
        """The message of the subject in a handler is done with; returns the next one, which may be handled now."""
        queue = self._busy[subject]
        if not queue:
            del self._busy[subject]
            return None
        self.waiting -= 1
        return queue.popleft()
