"""A watch of an object bucket over asyncio: an iterator of records that marks the end of the initial data with `None`.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from slipstream.client._async.opening import Openable
from slipstream.client.base import FOREVER
from slipstream.errors import ConnectionLostError, RequestTimeoutError
from slipstream.jetstream._async.message import JsMessage
from slipstream.jetstream._async.ordered import IDLE_CHECK, OrderedConsumer
from slipstream.objects.info import ObjectInfo, read_record
from slipstream.wire.arguments import Duration, check_seconds, check_timeout


class ObjectWatch(Openable):
    """An iterator of infos with one `None` between the objects of the bucket and the changes after them.

    The `None` is always returned, also if the bucket is empty, and before anything else with `updates_only`. The
    ordered consumer recovers from lost connections and server restarts: the newest state of each object is never
    skipped.
    """

    def __init__(self, records: OrderedConsumer, *, now: Callable[[], float], ignore_deletes: bool) -> None:
        self._records = records
        self._now = now
        self._ignores_deletes = ignore_deletes
        self._left: int | None = None  # of the initial data; None before the start
        self._is_current = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<ObjectWatch of {self._records.stream!r}{', closed' if self._is_closed else ''}>"

    @property
    def is_current(self) -> bool:
        """Whether the initial data is complete: the `None` was returned."""
        return self._is_current

    async def start(self, *, timeout: Duration = 5.0) -> Self:
        """Create the consumer, if there is none yet: `async with` does it too."""
        timeout = check_seconds(timeout)
        if self._left is None:
            await self._records.start(timeout=timeout)
            self._left = self._records.initial_pending
        return self

    async def next(self, *, timeout: Duration | None = None) -> ObjectInfo | None:
        """The next info, or the one `None`. Raises RequestTimeoutError if none arrives in time (None: forever)."""
        timeout = check_timeout(timeout)
        await self.start()
        deadline = self._now() + (FOREVER if timeout is None else timeout)
        while True:
            if not self._is_current and not self._left:
                self._is_current = True
                return None
            message = await self._await_record(deadline)
            if message is None:
                self._left = 0
                continue
            if self._left:
                # Records that are replaced meanwhile are not delivered: the last one says that none are left.
                self._left = min(self._left - 1, message.num_pending)
            info = read_record(message.data, seq=message.seq, time=message.time)
            if not (info.deleted and self._ignores_deletes):
                return info

    async def _await_record(self, deadline: float) -> JsMessage | None:
        """The next record; None when the initial data turned out to be complete."""
        while True:
            left = max(deadline - self._now(), 0.0)
            try:
                return await self._records.next(timeout=left, idle=IDLE_CHECK if self._left else None)
            except RequestTimeoutError:
                if self._left and await self._records.is_drained():
                    return None
                if self._now() >= deadline:
                    raise

    async def close(self) -> None:
        """End the watch, here and on the server. Can be called again."""
        self._is_closed = True
        await self._records.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ObjectInfo | None:
        if self._is_closed:
            raise StopAsyncIteration
        try:
            return await self.next()
        except ConnectionLostError:
            if self._is_closed:  # while waiting
                raise StopAsyncIteration from None
            raise

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()
