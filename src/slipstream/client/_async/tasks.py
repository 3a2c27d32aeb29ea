"""A coroutine that goes on by itself, for the rooms above: what hands messages to a callback."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import nullcontext

Guard = asyncio.Lock  # `async with`: one at a time
Lock = nullcontext  # `with`, around what waits for nothing: a task is not interrupted there, a thread would be


class Worker:
    """A task of the client's; it is cancelled when the client is closed."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    @property
    def is_done(self) -> bool:
        """Whether it came to its end."""
        return self._task.done()

    @property
    def is_own(self) -> bool:
        """Whether the caller runs in it: nobody can wait for his own end."""
        return self._task is asyncio.current_task()

    async def join(self, timeout: float) -> bool:
        """Wait for its end; whether it came."""
        if self.is_own:
            return False
        await asyncio.wait((self._task,), timeout=timeout)
        return self._task.done()


async def finish(result: object) -> None:
    """Wait for what a callback returned, if it is a coroutine function."""
    if inspect.isawaitable(result):
        await result
