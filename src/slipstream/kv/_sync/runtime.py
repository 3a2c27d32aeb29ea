"""Clock, ids, disk calls, signals and background threads for the blocking Key-Value driver.

Written by hand, like its twin `kv/_async/runtime.py`.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from slipstream.client._sync.tasks import Guard, Signal, Worker
from slipstream.client._sync.tasks import Lock as Mutex

__all__ = [
    "Guard",
    "Mutex",
    "Signal",
    "Worker",
    "clock",
    "current_worker",
    "lease_clock",
    "new_id",
    "off_loop",
    "sleep",
    "spawn",
    "wall_ns",
]

T = TypeVar("T")

sleep = time.sleep
clock = time.monotonic
wall_ns = time.time_ns
# Linux stops CLOCK_MONOTONIC while the machine is suspended, macOS what time.monotonic() reads; Windows stops neither.
_LEASE_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def lease_clock() -> float:
    """Seconds on a clock that is never set and also counts while the machine is suspended."""
    return time.monotonic() if _LEASE_CLOCK is None else time.clock_gettime(_LEASE_CLOCK)


def new_id() -> str:
    """A random id that no other process has."""
    return secrets.token_hex(11)


def off_loop(function: Callable[[], T]) -> T:
    """Run a function that touches the disk: there is no loop to block."""
    return function()


def spawn(main: Callable[[], None], name: str) -> Worker:
    """Run a function in the background; it must check by itself when to stop."""
    thread = threading.Thread(target=main, name=name, daemon=True)
    thread.start()
    return Worker(thread)


def current_worker() -> Worker:
    """The thread that the caller runs in."""
    return Worker(threading.current_thread())
