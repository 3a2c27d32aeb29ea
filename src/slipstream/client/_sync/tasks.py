"""A function that goes on by itself, for the rooms above: what hands messages to a callback."""

from __future__ import annotations

import threading

Guard = threading.Lock  # `with`: one at a time
Lock = threading.Lock  # the same, around what waits for nothing


class Worker:
    """A thread of the client's; what it waits for fails when the client is closed."""

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    @property
    def is_done(self) -> bool:
        """Whether it came to its end."""
        return not self._thread.is_alive()

    @property
    def is_own(self) -> bool:
        """Whether the caller runs in it: nobody can wait for his own end."""
        return self._thread is threading.current_thread()

    def join(self, timeout: float) -> bool:
        """Wait for its end; whether it came."""
        if self.is_own:
            return False
        self._thread.join(timeout)
        return not self._thread.is_alive()


def finish(result: object) -> None:
    """What a callback returned is of no interest."""
