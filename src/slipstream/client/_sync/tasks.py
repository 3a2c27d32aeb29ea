"""Background threads and locks of the blocking driver, for the layers above."""

from __future__ import annotations

import threading

Guard = threading.Lock  # `with`, around what may wait
Lock = threading.Lock  # `with`, around what does not wait


class Worker:
    """A background thread; what it waits for fails when the client is closed."""

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    @property
    def is_own(self) -> bool:
        """Whether the caller runs in it: a thread cannot wait for its own end."""
        return self._thread is threading.current_thread()

    def join(self, timeout: float) -> bool:
        """Wait for its end; False on timeout."""
        if self.is_own:
            return False
        self._thread.join(timeout)
        return not self._thread.is_alive()


def finish(result: object) -> None:
    """Ignore the result of a callback."""
