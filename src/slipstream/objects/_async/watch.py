"""The records of a bucket become what a watcher reads: infos one by one, and once the word that these were all.

Over asyncio; the blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from slipstream.api import DeliverPolicy
from slipstream.client.base import FOREVER
from slipstream.errors import ConnectionLostError, RequestTimeoutError
from slipstream.jetstream._async.message import JsMessage
from slipstream.jetstream._async.ordered import LOOK, OrderedConsumer
from slipstream.jetstream._async.stream import Stream
from slipstream.objects.info import ObjectInfo, read_record


class ObjectWatch:
    """An iterator of infos, and of one `None`: up to there it was what the bucket held, from there on it is news.

    The `None` always comes, also when the bucket is empty, and before anything else with `updates_only`. Lost
    connections and restarts of the server are dealt with beneath: the newest state of each object is never skipped.
    """

    def __init__(
        self, stream: Stream, records: str, *, now: Callable[[], float], ignore_deletes: bool, updates_only: bool
    ) -> None:
        policy = DeliverPolicy.NEW if updates_only else DeliverPolicy.LAST_PER_SUBJECT
        self._records: OrderedConsumer = stream.ordered_consumer(records, deliver_policy=policy.value)
        self._now = now
        self._ignores_deletes = ignore_deletes
        self._left: int | None = None  # of the initial data; None before the start
        self._is_said = False
        self._is_closed = False

    @property
    def is_current(self) -> bool:
        """Whether the initial data is over: the `None` was handed out."""
        return self._is_said

    async def start(self, *, timeout: float = 5.0) -> Self:
        """Begin, if that was not done yet: `async with` does it too."""
        if self._left is None:
            await self._records.start(timeout=timeout)
            self._left = self._records.initial_pending
        return self

    async def next(self, *, timeout: float | None = None) -> ObjectInfo | None:
        """The next info, or the one `None`. Raises RequestTimeoutError if there is none in time (None: forever)."""
        await self.start()
        deadline = self._now() + (FOREVER if timeout is None else timeout)
        while True:
            if not self._is_said and not self._left:
                self._is_said = True
                return None
            message = await self._message(deadline)
            if message is None:
                self._left = 0
                continue
            if self._left:
                # What was replaced while we read is not sent any more: the last one says that none are left.
                self._left = min(self._left - 1, message.num_pending)
            info = read_record(message.data, seq=message.seq, time=message.time)
            if not (info.deleted and self._ignores_deletes):
                return info

    async def _message(self, deadline: float) -> JsMessage | None:
        """The next record; None when none of the initial ones is left to wait for."""
        while True:
            left = max(deadline - self._now(), 0.0)
            try:
                return await self._records.next(timeout=min(left, LOOK) if self._left else left)
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
            if self._is_closed:  # while we waited
                raise StopAsyncIteration from None
            raise

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()
