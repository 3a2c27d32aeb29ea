"""Background threads and locks of the blocking driver, for the layers above."""

from __future__ import annotations

import threading

from slipstream.client.reporter import check_callback, check_result

Guard = threading.Lock  # `with`, around what may wait
Lock = threading.Lock  # `with`, around what does not wait


def enter_if_free(guard: threading.Lock) -> bool:
    """Enter a guard unless it is taken; it is to be released then."""
    return guard.acquire(blocking=False)


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

    def cancel(self) -> None:
        """Do nothing: a thread cannot be cancelled."""


class Signal:
    """A repeatable event: `count` is how often it was set, `wait` waits for the next time."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = threading.Condition()

    def set(self) -> None:
        """Wake all waiters."""
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait(self, seen: int, timeout: float | None) -> bool:
        """Wait until it was set more often than `seen` times; False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self.count != seen, timeout)


def check_handler(callback: object) -> None:
    """Reject a callback that cannot be called, or that nothing would run."""
    check_callback(callback, may_be_async=False)


def result_of(value: object) -> object:
    """The result of a function of the user; raises UsageError if its work was not done."""
    check_result(value)
    return value


def finish(result: object) -> None:
    """Raise UsageError for the result of a callback whose work was not done."""
    check_result(result)
