"""The messages of an ordered consumer become a feed of entries, over asyncio.

The consumer deals with gaps, lost heartbeats, reconnects and restarts; here it is known where the initial data ends.
The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat

from slipstream.client.base import FOREVER
from slipstream.errors import (
    BucketNotFoundError,
    ConnectionClosedError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.jetstream._async.ordered import LOOK, OrderedConsumer
from slipstream.jetstream.consume.ordered import Run
from slipstream.kv._async.runtime import clock
from slipstream.kv.entry import Entry, Listing, Operation, listing_of, marks_of

# An entry is a tuple: made of columns, one call for each, no loop.
_new_entry: Callable[[tuple[object, ...]], Entry[bytes]] = partial(tuple.__new__, Entry)
_ZEROS, _PUTS, _EMPTY = repeat(0), repeat(Operation.PUT), repeat("")


class StreamFeed:
    """Entries of an ordered consumer. `is_wanted` drops keys of filters that a server cannot tell apart."""

    def __init__(
        self,
        js: JetStream,
        consumer: OrderedConsumer,
        bucket: str,
        prefix: str,
        is_wanted: Callable[[str], bool] | None,
        note: Callable[[int], None],
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
        self._note = note  # for sessions
        self._initial = list(initial)  # read by other means: the consumer has what comes behind them
        self._to_come = 0 if initial else consumer.initial_pending

    @property
    def is_live(self) -> bool:
        """Whether there is a connection and a consumer."""
        return bool(self._consumer.consumer_name) and self._js.client.is_connected

    async def next_entries(self, *, timeout: float | None = None) -> list[Entry[bytes]]:
        """The next entries; empty when none of the initial data is left to wait for."""
        if self._initial:
            return self._hand_over(self._initial)
        deadline = None if timeout is None else clock() + timeout
        while True:
            left = FOREVER if deadline is None else deadline - clock()
            try:
                run = await self._next(min(left, LOOK) if self.pending else left)
            except RequestTimeoutError:
                if self.pending and await self._consumer.is_drained():
                    self.pending = 0
                    return []
                if deadline is not None and clock() >= deadline:
                    raise
                continue
            entries = self._entries(run)
            if entries or not self.pending:
                return entries

    async def _next(self, timeout: float) -> Run:
        try:
            run = await self._consumer.next_run(timeout=max(timeout, 0.0))
        except StreamNotFoundError as error:
            raise BucketNotFoundError(f"bucket {self.bucket!r} is gone") from error
        if run is None:
            raise ConnectionClosedError(f"the feed of bucket {self.bucket!r} is closed")
        return run

    def _hand_over(self, entries: list[Entry[bytes]]) -> list[Entry[bytes]]:
        self._initial = []
        self.pending = 0
        self.revision = max(self.revision, entries[-1].revision)
        return entries

    def _entries(self, run: Run) -> list[Entry[bytes]]:
        """A hot path: 10,000 keys are read at once, and most of them have no header."""
        cut = self._cut
        keys = [subject[cut:] for subject in run.subjects()]
        deltas = run.left if self.pending and self._is_history else _ZEROS
        columns = zip(
            repeat(self.bucket), keys, run.payloads(), run.seqs, run.times, deltas, _PUTS, _EMPTY, repeat(run.stream)
        )
        entries: list[Entry[bytes]] = list(map(_new_entry, columns))
        for at, (operation, marker) in marks_of(run.headers()):
            entries[at] = entries[at]._replace(operation=operation, marker=marker)
        if self.pending:
            self._count(len(keys), run.left[-1])
        self.revision = entries[-1].revision
        self._note(self.revision)
        if self._is_wanted is not None:
            return [entry for entry in entries if self._is_wanted(entry.key)]
        return entries

    async def keys(self, *, timeout: float) -> Listing:
        """The next part of the initial data as keys alone: the same without an entry for each."""
        if self._initial or self._is_wanted is not None:
            return listing_of(await self.next_entries(timeout=timeout))
        try:
            run = await self._next(min(timeout, LOOK))
        except RequestTimeoutError:
            return listing_of(await self.next_entries(timeout=timeout))
        cut = self._cut
        self._count(len(run.seqs), run.left[-1])
        self.revision = run.seqs[-1]
        self._note(self.revision)
        keys = [subject[cut:] for subject in run.subjects()]
        if gone := {at for at, mark in marks_of(run.headers()) if mark.operation is not Operation.PUT}:
            live = {key: at not in gone for at, key in enumerate(keys)}  # the last one of a key counts
            return Listing([key for key, is_live in live.items() if is_live], [key for key in live if not live[key]])
        return Listing(keys, [])

    def _count(self, received: int, left: int) -> None:
        """The initial data is over when the consumer had nothing left behind a message, or all it had is here."""
        self._to_come -= received
        if self._consumer.resets:  # the new consumer's own count: it begins behind what we have
            self.pending = left
        else:
            self.pending = max(min(self._to_come, left), 0)

    async def close(self) -> None:
        """End it; the consumer is deleted."""
        await self._consumer.close()
