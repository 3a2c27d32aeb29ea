"""Concurrency for tests of both drivers: background tasks, waiting for a condition, a pause. The asyncio side.

Written by hand, like its twin `tests/_sync/concurrency.py`. Tests below an `_async` folder use it where they would
use asyncio itself, which has no blocking twin.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

TIMEOUT = 30.0
sleep = asyncio.sleep


class Task(Generic[T]):
    """A coroutine that runs beside the test."""

    def __init__(self, main: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._task = asyncio.create_task(main())

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._task.done()

    async def result(self, *, timeout: float = TIMEOUT) -> T:
        """Wait for its end; returns or raises as it did."""
        return await asyncio.wait_for(self._task, timeout)


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function as a whole program."""
    return asyncio.run(main())


def spawn(main: Callable[[], Coroutine[Any, Any, T]]) -> Task[T]:
    """Run a coroutine function beside the test."""
    return Task(main)


async def until(check: Callable[[], bool | Awaitable[bool]], *, timeout: float = TIMEOUT) -> None:
    """Wait until a condition holds; `check` is a function or a coroutine function."""
    async with asyncio.timeout(timeout):
        while True:
            result = check()
            if await result if inspect.isawaitable(result) else result:
                return
            await asyncio.sleep(0.005)
