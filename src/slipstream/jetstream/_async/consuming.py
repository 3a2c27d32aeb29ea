"""A callback at work on the messages of a pull consumer: what `Consumer.consume` returns.

The messages come from a `PullLoop`. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self

from slipstream.client._async.tasks import finish
from slipstream.client.base import FOREVER, check_callback
from slipstream.errors import Error, RequestTimeoutError
from slipstream.jetstream._async.message import Callback, JsMessage
from slipstream.jetstream._async.pull_loop import PullLoop
from slipstream.jetstream.consume.inbox import DRAIN_TIMEOUT

logger = logging.getLogger("slipstream.consumer")


class Consuming:
    """A callback at work. `stop` ends it at once, `drain` after what has arrived; both wait for the callback.

    While the callback handles a message for long, the server is told that it is in progress, so that it does not
    redeliver it.
    """

    def __init__(self, loop: PullLoop, callback: Callback) -> None:
        check_callback(callback)
        self._loop = loop
        self._callback = callback
        self._is_stopped = False
        self._error: Error | None = None
        self._current: JsMessage | None = None  # in the hands of the callback
        self.stats = loop.stats
        self._worker = loop.client.spawn(self._run, f"consume {loop.name}")
        self._keeper = loop.client.spawn(self._keep_in_progress, f"progress of {loop.name}")

    def __repr__(self) -> str:
        return f"<Consuming of {self._loop.name!r}{', stopped' if self._is_stopped else ''}>"

    @property
    def is_done(self) -> bool:
        """Whether the callback has been called for the last time."""
        return self._worker.is_done

    async def wait(self, *, timeout: float = FOREVER) -> None:
        """Wait for the end: `stop` or `drain` was called, or the client closed. Raises the error that ended it.

        So a program whose work is this callback notices that its consumer or stream was deleted.
        """
        if not await self._worker.join(timeout):
            raise RequestTimeoutError(f"consume {self._loop.name}: it still runs after {timeout:g} s")
        if self._error is not None:
            raise self._error

    async def stop(self, *, timeout: float = DRAIN_TIMEOUT) -> None:
        """Stop calling back. Messages that arrived and were not handled are for the next call on the consumer.

        Raises the error that ended it before.
        """
        self._is_stopped = True
        await self.drain(timeout=timeout)

    async def drain(self, *, timeout: float = DRAIN_TIMEOUT) -> None:
        """Send no more requests and wait until everything that arrived is handled. Raises as `stop` does."""
        self._loop.stop()
        if not await self._worker.join(timeout) and not self._worker.is_done:
            if self._worker.is_own:
                return
            raise RequestTimeoutError(f"consume {self._loop.name}: the callback still runs after {timeout:g} s")
        if self._error is not None:
            raise self._error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _run(self) -> None:
        loop = self._loop
        try:
            while not self._is_stopped and (message := await loop.next(None)) is not None:
                self._current = message
                try:
                    await finish(self._callback(message))
                except Exception as exc:  # the top of the user's code
                    what = f"the callback of consumer {loop.name!r} for {message.describe()}"
                    loop.client.callback_failed(what, exc)
                self._current = None
        except Error as error:
            self._error = error
            logger.error("consume() of consumer %r has ended: %s", loop.name, error)
            loop.client.report(error)
        finally:
            loop.close()

    async def _keep_in_progress(self) -> None:
        """Tell the server of a message that stays in the hands of the callback."""
        client = self._loop.client
        handled: JsMessage | None = None
        while not await self._worker.join(self._loop.progress_interval):
            message = self._current
            if message is not None and message is handled and client.is_connected:
                await message.in_progress()
            handled = message
