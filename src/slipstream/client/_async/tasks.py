"""Background tasks and locks of the asyncio driver, for the layers above."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import nullcontext

Guard = asyncio.Lock  # `async with`, around what may wait
Lock = nullcontext  # `with`, around what does not wait: a task is not interrupted there, a thread may be


class Worker:
    """A background task, which is cancelled when the client is closed."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._task.done()

    @property
    def is_own(self) -> bool:
        """Whether the caller runs in it: a task cannot wait for its own end."""
        return self._task is asyncio.current_task()

    async def join(self, timeout: float) -> bool:
        """Wait for its end; False on timeout."""
        if self.is_own:
            return False
        await asyncio.wait((self._task,), timeout=timeout)
        return self._task.done()


async def finish(result: object) -> None:
    """Await the result of a callback, if it is a coroutine function."""
    if inspect.isawaitable(result):
        await result
