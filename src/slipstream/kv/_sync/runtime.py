"""The outside world as the Key-Value room needs it, with threads: time, names, the disk, work in the background.

Written by hand, with `aio_outside.py` beside it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

Guard = threading.Lock  # `with`: one at a time
sleep = time.sleep
clock = time.monotonic
wall_ns = time.time_ns


def new_id() -> str:
    """A name that nobody else has."""
    return secrets.token_hex(11)


def off_loop(function: Callable[[], T]) -> T:
    """Call what touches the disk: there is no loop to hold up."""
    return function()


class Signal:
    """Something happened: `count` says how often, `wait` waits for the next time."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = threading.Condition()

    def set(self) -> None:
        """Tell everybody who waits."""
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait(self, seen: int, timeout: float | None) -> bool:
        """Wait until it happened more often than `seen`; whether it did."""
        with self._changed:
            return self._changed.wait_for(lambda: self.count != seen, timeout)


class Worker:
    """Work that goes on by itself until it is done. It must look by itself whether it is still wanted."""

    def __init__(self, main: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=main, name=name, daemon=True)
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for its end. From within itself this does nothing: it ends by returning."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
