"""Clock, ids, disk calls, signals and background tasks for the asyncio Key-Value driver.

Written by hand, like its twin `kv/_sync/runtime.py`: these two are the only modules of the package in which asyncio and
threads differ.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TypeVar

from slipstream.client._async.tasks import Guard, Signal, Worker
from slipstream.client._async.tasks import Lock as Mutex

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

sleep = asyncio.sleep
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


async def off_loop(function: Callable[[], T]) -> T:
    """Run a function that touches the disk in a thread.

    A cancelled caller still waits for its end: the next call must not begin before it.
    """
    task = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # retrieve it, or asyncio logs that it never was
        raise


def spawn(main: Callable[[], Coroutine[None, None, None]], name: str) -> Worker:
    """Run a coroutine function in the background; it must check by itself when to stop."""
    return Worker(asyncio.get_running_loop().create_task(main(), name=name))


def current_worker() -> Worker:
    """The task that the caller runs in."""
    task = asyncio.current_task()
    assert task is not None  # a coroutine of ours runs in one
    return Worker(task)
