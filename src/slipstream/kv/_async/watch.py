"""A watch of a bucket over asyncio: an iterator over a feed that marks the end of the initial data with one `None`.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Self, TypeVar

from slipstream.errors import Error, RequestTimeoutError
from slipstream.kv._async.runtime import clock
from slipstream.kv._async.storage import Feed
from slipstream.kv.entry import Entry
from slipstream.wire.arguments import Duration, check_seconds, check_timeout

V = TypeVar("V")


class Watch(Generic[V]):
    """An iterator of entries with one `None` between the initial data and the changes after it.

    The `None` is always returned, also if there is no initial data, and before anything else with `updates_only`. The
    feed recovers from lost connections and server restarts: no entry is skipped or repeated. A watch that cannot
    continue (its bucket was deleted) raises.
    """

    def __init__(
        self, feed: Feed[V], *, bucket: str = "", ignore_deletes: bool = False, is_current: bool = False
    ) -> None:
        self._bucket = bucket
        self._feed = feed
        self._ignores_deletes = ignore_deletes
        self._is_current = False
        self._starts_current = is_current
        self._ready: deque[Entry[V]] = deque()  # received, and not yet returned
        self._last: Entry[V] | None = None  # returned while more was ready: the position is behind it
        self._returned = self._received = feed.revision
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Watch of {self._bucket!r}{', closed' if self._is_closed else ''}>"

    @property
    def is_current(self) -> bool:
        """Whether the initial data is complete: the `None` was returned."""
        return self._is_current

    @property
    def revision(self) -> int:
        """The program's position: a watch with `resume_from` set to this plus one continues without loss or repetition.

        Everything up to it was returned, or left out by the options of the watch. Entries that have arrived but were
        not returned yet come after it. Before the first entry it is the revision after which the watch began, if known
        (0: the beginning).
        """
        if self._last is None:
            return self._returned
        # Behind the last one may lie entries that are left out: they are passed with it.
        return self._last.revision if self._ready else self._received

    async def next(self, *, timeout: Duration | None = None) -> Entry[V] | None:
        """The next entry, or the one `None`. Raises RequestTimeoutError if none arrives in time (None: forever)."""
        timeout = check_timeout(timeout)
        if not self._ready:
            self._ready.extend(await self._receive(timeout))
        return self._take()

    async def next_entries(self, *, timeout: Duration | None = None) -> list[Entry[V]]:
        """All entries that have arrived, at least one: the fast way. Empty once, when the initial data is complete."""
        timeout = check_timeout(timeout)
        entries = list(self._ready) or await self._receive(timeout)
        self._ready.clear()
        self._move_to(self._received)
        return entries

    def _take(self) -> Entry[V] | None:
        """Return the next entry that has arrived; None for the end of the initial data."""
        if not self._ready:
            self._move_to(self._received)
            return None
        entry = self._last = self._ready.popleft()
        return entry

    def _move_to(self, revision: int) -> None:
        """Set the position; otherwise it follows the entries that are taken."""
        self._last, self._returned = None, revision

    async def _receive(self, timeout: float | None) -> list[Entry[V]]:
        """The next entries of the feed, at least one; empty once, when the initial data is complete."""
        self._move_to(self.revision)
        deadline = None if timeout is None else clock() + timeout
        while True:
            if not self._is_current and (self._starts_current or not self._feed.pending):
                self._is_current = True
                return []
            left = None if deadline is None else max(deadline - clock(), 0.0)
            try:
                entries = await self._feed.next_entries(timeout=left)
            except RequestTimeoutError as error:
                self._returned = self._received = self._feed.revision
                if timeout is None or not self._bucket:
                    raise
                raise RequestTimeoutError(f"watch of bucket {self._bucket!r}: no entry within {timeout:g} s") from error
            except Error:
                self._returned = self._received = self._feed.revision  # it tells of an entry that cannot be decoded
                raise
            self._received = self._feed.revision
            if self._ignores_deletes:
                entries = [entry for entry in entries if not entry.is_deleted]
            if entries:
                return entries
            self._returned = self._received

    async def initial(self, *, timeout: Duration = 5.0) -> list[Entry[V]]:
        """All of the initial data; later reads return changes. `timeout` is for each wait.

        If it raises nothing is lost: what had arrived is returned by the next read.
        """
        timeout = check_seconds(timeout)
        found: list[Entry[V]] = []
        before = self.revision
        try:
            while not self._is_current:
                found += await self.next_entries(timeout=timeout)
        except BaseException:
            self._ready.extendleft(reversed(found))
            if found:
                self._move_to(before)
            raise
        return found

    async def close(self) -> None:
        """End the watch, here and on the server. Can be called again."""
        self._is_closed = True
        self._move_to(self.revision)
        self._ready.clear()
        await self._feed.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Entry[V] | None:
        if self._ready:  # the fast part of `_take`
            entry = self._last = self._ready.popleft()
            return entry
        if self._is_closed:
            raise StopAsyncIteration
        try:
            self._ready.extend(await self._receive(None))
        except Error:
            if self._is_closed:  # while waiting
                raise StopAsyncIteration from None
            raise
        return self._take()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
