"""The messages of an ordered consumer become a feed of entries, over asyncio.

The consumer deals with gaps, lost heartbeats, reconnects and restarts; here it is known where the initial data ends.
The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream.errors import (
    BucketNotFoundError,
    Error,
    RequestTimeoutError,
    StreamNotFoundError,
)
from slipstream.jetstream.aio import JetStream
from slipstream.jetstream.aio_messages import JsMessage
from slipstream.jetstream.aio_ordered import OrderedConsumer
from slipstream.kv.aio_outside import clock
from slipstream.kv.entry import Entry, Operation, mark_of

FOREVER = 1e6
LOOK = 0.5  # seconds without a message of the initial data before the server is asked whether there is one


class StreamFeed:
    """Entries of an ordered consumer. `is_wanted` drops keys of filters that a server cannot tell apart."""

    def __init__(
        self,
        js: JetStream,
        consumer: OrderedConsumer,
        bucket: str,
        prefix: str,
        is_wanted: Callable[[str], bool] | None,
        *,
        is_history: bool = False,
        initial: Sequence[Entry[bytes]] = (),
    ) -> None:
        self.bucket = bucket
        self.pending = len(initial) or consumer.initial_pending
        self.revision = 0
        self._js = js
        self._consumer = consumer
        self._is_history = is_history  # how many entries follow says how old one is
        self._cut = len(prefix)
        self._is_wanted = is_wanted
        self._initial = list(initial)  # read by other means: the consumer has what comes behind them
        self._to_come = 0 if initial else consumer.initial_pending

    async def chunk(self, *, timeout: float | None = None) -> list[Entry[bytes]]:
        """The next entries; empty when none of the initial data is left to wait for."""
        if self._initial:
            return self._hand_over(self._initial)
        deadline = None if timeout is None else clock() + timeout
        while True:
            left = FOREVER if deadline is None else deadline - clock()
            try:
                messages = await self._next(min(left, LOOK) if self.pending else left)
            except RequestTimeoutError:
                if self.pending and await self._is_over():
                    self.pending = 0
                    return []
                if deadline is not None and clock() >= deadline:
                    raise
                continue
            entries = self._entries(messages)
            if entries or not self.pending:
                return entries

    async def _next(self, timeout: float) -> list[JsMessage]:
        try:
            return await self._consumer.next_chunk(timeout=max(timeout, 0.0))
        except StreamNotFoundError as error:
            raise BucketNotFoundError(f"bucket {self.bucket!r} is gone") from error

    async def _is_over(self) -> bool:
        """Whether the server has none of the initial data left: some may be removed before it was delivered."""
        js, name = self._js, self._consumer.consumer_name
        if not name:
            return False
        try:
            info = await js.run(js._consumer_api.info(self._consumer.stream, name))
        except Error:  # it is being made anew, or there is no connection: ask again later
            return False
        return not info.num_pending and info.delivered.stream_seq <= self.revision

    def _hand_over(self, entries: list[Entry[bytes]]) -> list[Entry[bytes]]:
        self._initial = []
        self.pending = 0
        self.revision = max(self.revision, entries[-1].revision)
        return entries

    async def take(self) -> list[Entry[bytes]]:
        """What is here already."""
        if self._initial:
            return self._hand_over(self._initial)
        try:
            return self._entries(await self._next(0.0))
        except RequestTimeoutError:
            return []

    def _entries(self, messages: list[JsMessage]) -> list[Entry[bytes]]:
        bucket, cut, put, has_delta = self.bucket, self._cut, Operation.PUT, self._is_history and self.pending
        entries = []
        for message in messages:
            subject, _, _, header, data = message.raw
            tokens = message._split()
            operation, marker = mark_of(header) if header else (put, "")
            delta = int(tokens[8]) if has_delta else 0
            entries.append(
                Entry(bucket, subject[cut:], data, int(tokens[5]), int(tokens[7]), delta, operation, marker, tokens[2])
            )
        self.revision = entries[-1].revision
        if self.pending:
            self._count(messages)
        if self._is_wanted is not None:
            return [entry for entry in entries if self._is_wanted(entry.key)]
        return entries

    def _count(self, messages: list[JsMessage]) -> None:
        """The initial data is over when the consumer had nothing left behind a message, or all it had is here."""
        self._to_come -= len(messages)
        left = messages[-1].num_pending
        if self._consumer.resets:  # the new consumer's own count: it begins behind what we have
            self.pending = left
        else:
            self.pending = max(min(self._to_come, left), 0)

    async def close(self) -> None:
        """End it; the consumer is deleted."""
        await self._consumer.close()
