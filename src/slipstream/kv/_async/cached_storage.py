"""A storage wrapper that answers reads from memory, kept fresh by a feed of all changes, over asyncio.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Generic, Self, TypeVar

from slipstream.errors import Error, UsageError
from slipstream.kv._async.runtime import Guard, Worker, spawn
from slipstream.kv._async.storage import Feed, Storage, StorageWriter, WrappedStorage
from slipstream.kv.bucket import BucketStatus
from slipstream.kv.cache import CacheStats, EntryCache
from slipstream.kv.entry import LATEST, Entry, Listing, Operation
from slipstream.kv.keys import any_of

V = TypeVar("V")

CACHE_ENTRIES = 100_000
CACHE_BYTES = 256 * 1024 * 1024
CLOSE_TIMEOUT = 2.0


class CachedStorage(WrappedStorage[V]):
    """Reads of newest entries are answered from memory while the feed lives; all else goes to the bucket."""

    def __init__(self, inner: Storage[V], patterns: Sequence[str], feed: Feed[V], cache: EntryCache[V]) -> None:
        super().__init__(inner)
        self._patterns = patterns
        self._is_covered = any_of(patterns)
        self._feed = feed
        self._cache = cache
        self._guard = Guard()
        self._own = 0  # the newest revision written through this handle: its reads must see it
        self._is_dead = False  # the feed has ended: memory is out of date
        self._worker: Worker | None = None

    @classmethod
    async def opened(
        cls, inner: Storage[V], filters: Sequence[str], *, max_entries: int, max_bytes: int, timeout: float | None
    ) -> Self:
        """Open a cache that has read the bucket."""
        cache: EntryCache[V] = EntryCache(max_entries, max_bytes)
        check_cacheable(await inner.status(timeout=timeout))
        patterns = inner.patterns(filters)
        feed = await inner.follow(patterns, LATEST, timeout=timeout)
        try:
            while feed.pending:
                cache.apply(await feed.next_entries(timeout=timeout))
        except BaseException:
            await feed.close()
            raise
        storage = cls(inner, patterns, feed, cache)
        storage._worker = spawn(storage._keep_fresh, f"cache of {inner.bucket}")
        return storage

    async def _keep_fresh(self) -> None:
        try:
            while not self._is_dead:
                entries = await self._feed.next_entries()
                async with self._guard:
                    self._cache.apply(entries)
        except Error:  # closed, or the bucket was deleted: reads go to the bucket, which reports that
            self._is_dead = True
            self._cache.clear()

    @property
    def stats(self) -> CacheStats:
        """Hits and misses, entries and bytes."""
        return self._cache.stats

    async def close(self) -> None:
        """End the feed; the wrapped handle stays open."""
        self._is_dead = True
        await self._feed.close()
        if self._worker is not None:
            await self._worker.join(CLOSE_TIMEOUT)

    async def last(self, key: str, *, min_last_revision: int = 0, timeout: float | None = None) -> Entry[V] | None:
        """The newest entry of a key, from memory if the cache is as new as the read asks for."""
        seen = self.inner.seen(key)
        need = max(min_last_revision, self._own, seen.bucket)
        stats = self._cache.stats
        async with self._guard:
            as_of = self._cache.revision
            if not self._is_dead and self._feed.is_live and self._covers(key):
                if as_of >= need:
                    is_known, entry = self._cache.look(key)
                    # A consumer on a replica that catches up skips what was replaced meanwhile.
                    if is_known and (entry.revision if entry is not None else 0) >= seen.key:
                        stats.hits += 1
                        stats.absent += entry is None
                        return entry
                else:
                    stats.behind += 1
            stats.misses += 1
        entry = await self.inner.last(key, min_last_revision=max(need, as_of), timeout=timeout)
        if entry is not None and self._covers(key):
            async with self._guard:
                self._cache.learn(entry, as_of)
        return entry

    def _covers(self, key: str) -> bool:
        return self._patterns == (">",) or self._is_covered(self.inner.patterns((key,), exact=True)[0])

    # Writes, and reads of the bucket that must see them

    async def append(
        self,
        key: str,
        value: V | None,
        *,
        operation: Operation = Operation.PUT,
        last: int | None = None,
        ttl: timedelta | None = None,
        timeout: float | None = None,
    ) -> int:
        """Record an entry; later reads of this handle are at least as new."""
        revision = await self.inner.append(key, value, operation=operation, last=last, ttl=ttl, timeout=timeout)
        self._note_own(revision)
        return revision

    def _note_own(self, revision: int) -> None:
        self._own = max(self._own, revision)

    def writer(self, *, max_in_flight: int, timeout: float | None = None) -> CacheWriter[V]:
        """Append entries in a pipeline, each acknowledged."""
        return CacheWriter(self.inner.writer(max_in_flight=max_in_flight, timeout=timeout), self._note_own)

    def read(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[list[Entry[V]]]:
        """Every entry kept."""
        return self.inner.read(patterns, min_last_revision=max(min_last_revision, self._own), timeout=timeout)

    def latest(
        self,
        patterns: Sequence[str],
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[list[Entry[V]]]:
        """The newest entry of each key."""
        least = max(min_last_revision, self._own)
        return self.inner.latest(patterns, meta_only=meta_only, min_last_revision=least, timeout=timeout)

    def keys(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[Listing]:
        """Like `latest`, but keys only."""
        return self.inner.keys(patterns, min_last_revision=max(min_last_revision, self._own), timeout=timeout)

    async def forget(self, key: str, *, below: int, timeout: float | None = None) -> None:
        """Remove a key's entries for good. No mark reaches the feed, so the cache drops them here."""
        await self.inner.forget(key, below=below, timeout=timeout)
        async with self._guard:
            self._cache.drop(key, below)


def check_cacheable(status: BucketStatus) -> None:
    """Reject buckets whose values can vanish without a trace in the feed: a cache would keep them forever."""
    config = status.stream_info.config
    if (config.max_age or config.allow_msg_ttl) and not config.subject_delete_marker_ttl:
        raise UsageError(
            f"bucket {status.bucket!r} lets values expire without a marker: set limit_marker_ttl to cache it"
        )
    if config.max_bytes > 0 or config.max_msgs > 0:
        raise UsageError(
            f"bucket {status.bucket!r} drops its oldest values without a marker when full: it cannot be cached"
        )


class CacheWriter(Generic[V]):
    """Pipelined appends; `note` is called with each revision that later reads must see."""

    def __init__(self, inner: StorageWriter[V], note: Callable[[int], None]) -> None:
        self._inner = inner
        self._note = note

    async def append(self, key: str, value: V | None, operation: Operation = Operation.PUT) -> None:
        """Send one."""
        await self._inner.append(key, value, operation)

    async def flush(self) -> int:
        """Wait until all are stored; returns the newest revision."""
        revision = await self._inner.flush()
        self._note(revision)
        return revision

    async def abandon(self) -> None:
        """Stop waiting for acknowledgements."""
        await self._inner.abandon()
