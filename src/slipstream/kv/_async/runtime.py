"""The outside world as the Key-Value room needs it, over asyncio: time, names, the disk, work in the background.

Written by hand, with `blocking_outside.py` beside it: the two are the only ones of this room where asyncio and threads
are told apart.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

Guard = asyncio.Lock  # `async with`: one at a time
sleep = asyncio.sleep
clock = time.monotonic
wall_ns = time.time_ns


def new_id() -> str:
    """A name that nobody else has."""
    return secrets.token_hex(11)


async def off_loop(function: Callable[[], T]) -> T:
    """Call what touches the disk without holding up the loop. Who is cancelled meanwhile still waits for its end:
    the next call must not begin before it."""
    task = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # nobody else asks for it
        raise


class Signal:
    """Something happened: `count` says how often, `wait` waits for the next time."""

    def __init__(self) -> None:
        self.count = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        """Tell everybody who waits."""
        self.count += 1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, seen: int, timeout: float | None) -> bool:
        """Wait until it happened more often than `seen`; whether it did."""
        if self.count != seen:
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            return self.count != seen
        finally:
            self._waiters.discard(waiter)
        return True


class Worker:
    """Work that goes on by itself until it is done. It must look by itself whether it is still wanted."""

    def __init__(self, main: Callable[[], Coroutine[None, None, None]], name: str) -> None:
        self._task = asyncio.get_running_loop().create_task(main(), name=name)

    async def join(self, timeout: float) -> None:
        """Wait for its end. From within itself this does nothing: it ends by returning."""
        if self._task is not asyncio.current_task():
            await asyncio.wait((self._task,), timeout=timeout)
