"""Background tasks and locks of the asyncio driver, for the layers above."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import nullcontext
from weakref import WeakSet

from slipstream.client.reporter import check_callback, check_result

Guard = asyncio.Lock  # `async with`, around what may wait
Lock = nullcontext  # `with`, around what does not wait: a task is not interrupted there, a thread may be


_ended: WeakSet[asyncio.Task[None]] = WeakSet()  # by `Worker.cancel`


async def enter_if_free(guard: asyncio.Lock) -> bool:
    """Enter a guard unless it is taken; it is to be released then."""
    return not guard.locked() and await guard.acquire()


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

    def cancel(self) -> None:
        """Cancel it. A thread cannot be: there it goes on."""
        _ended.add(self._task)
        self._task.cancel()


class Signal:
    """A repeatable event: `count` is how often it was set, `wait` waits for the next time."""

    def __init__(self) -> None:
        self.count = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        """Wake all waiters."""
        self.count += 1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, seen: int, timeout: float | None) -> bool:
        """Wait until it was set more often than `seen` times; False on timeout."""
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


def is_own_end(error: BaseException, *, is_ending: bool) -> bool:
    """Whether an exception ends the running task: by `Worker.cancel`, or while all of them end.

    Any other cancellation was done by the user's code, which ran in that task, or is that of something it waited for.
    It is taken back, for the task goes on.
    """
    if not isinstance(error, asyncio.CancelledError):
        return isinstance(error, GeneratorExit)
    task = asyncio.current_task()
    if is_ending or task is None or task in _ended:
        return True
    while task.cancelling():
        task.uncancel()
    return False


def check_handler(callback: object) -> None:
    """Reject a callback that cannot be called, or that nothing would run."""
    check_callback(callback, may_be_async=True)


async def result_of(value: object) -> object:
    """The result of a function of the user, awaited if it is a coroutine function."""
    return await value if inspect.isawaitable(value) else value


async def finish(result: object) -> None:
    """Await the result of a callback, if it is a coroutine function; raises UsageError if its work was not done."""
    if result is not None:
        check_result(await result if inspect.isawaitable(result) else result)
