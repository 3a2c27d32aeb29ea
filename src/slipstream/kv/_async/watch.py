"""A feed of entries becomes what a watcher reads: entries one by one, and once the word that the initial data is over.

Over asyncio; the blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Self, TypeVar

from slipstream.errors import Error
from slipstream.kv._async.runtime import clock
from slipstream.kv._async.storage import Feed
from slipstream.kv.entry import Entry

V = TypeVar("V")


class Watch(Generic[V]):
    """An iterator of entries, and of one `None`: up to there it was the initial data, from there on it is news.

    The `None` always comes, also when there is no data, and before anything else with `updates_only`. Lost connections
    and restarts of the server are dealt with beneath: no entry is skipped, none comes twice. A watch that cannot go on
    (its bucket is gone) raises.
    """

    def __init__(self, feed: Feed[V], *, ignore_deletes: bool = False, is_current: bool = False) -> None:
        self._feed = feed
        self._ignores_deletes = ignore_deletes
        self._is_said = False
        self._starts_current = is_current
        self._ready: deque[Entry[V]] = deque()
        self._is_closed = False

    @property
    def is_current(self) -> bool:
        """Whether the initial data is over: the `None` was handed out."""
        return self._is_said

    @property
    def revision(self) -> int:
        """The newest revision that arrived; `resume_from` this plus one goes on behind it."""
        return self._feed.revision

    async def next(self, *, timeout: float | None = None) -> Entry[V] | None:
        """The next entry, or the one `None`. Raises RequestTimeoutError if there is none in time (None: forever)."""
        if not self._ready:
            entries = await self._next(timeout)
            if not entries:
                return None
            self._ready.extend(entries)
        return self._ready.popleft()

    async def _next(self, timeout: float | None) -> list[Entry[V]]:
        """The next entries; empty once, when the initial data is over."""
        deadline = None if timeout is None else clock() + timeout
        while True:
            if not self._is_said and (self._starts_current or not self._feed.pending):
                self._is_said = True
                return []
            left = None if deadline is None else max(deadline - clock(), 0.0)
            entries = await self._feed.chunk(timeout=left)
            if self._ignores_deletes:
                entries = [entry for entry in entries if not entry.is_deleted]
            if entries:
                return entries

    async def initial(self, *, timeout: float = 5.0) -> list[Entry[V]]:
        """All of the initial data; what is read after this is news. `timeout` is for each wait."""
        found: list[Entry[V]] = []
        while not self._is_said:
            found += await self.chunk(timeout=timeout)
        return found

    async def chunk(self, *, timeout: float | None = None) -> list[Entry[V]]:
        """Entries as they come, several at once: the fast way. It is empty once, when the initial data is over."""
        if self._ready:
            entries = list(self._ready)
            self._ready.clear()
            return entries
        return await self._next(timeout)

    async def close(self) -> None:
        """End the watch, here and on the server. Can be called again."""
        self._is_closed = True
        self._ready.clear()
        await self._feed.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Entry[V] | None:
        if self._ready:
            return self._ready.popleft()
        if self._is_closed:
            raise StopAsyncIteration
        try:
            return await self.next()
        except Error:
            if self._is_closed:  # while we waited
                raise StopAsyncIteration from None
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
