"""A storage wrapper that answers reads from memory, kept fresh by a feed of all changes, over asyncio.

`kv/cache.py` has the rules: what memory may answer, and what a check of the bucket proves. Here are the feed, the
checks (a request for the stream's info, while the cache is in use) and the reads that go to the bucket. The blocking
twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Generic, Self, TypeVar

from slipstream.api.times import Duration, duration
from slipstream.errors import ConnectionClosedError, Error, StaleReadError, UsageError, WrongLastSequenceError
from slipstream.kv._async.runtime import Guard, Signal, Worker, clock, sleep, spawn
from slipstream.kv._async.storage import Feed, Seen, Storage, StorageWriter, WrappedStorage
from slipstream.kv.cache import CacheStats, EntryCache, Miss, Verdict
from slipstream.kv.entry import LATEST, Entry, Listing, Operation
from slipstream.kv.keys import any_of

V = TypeVar("V")

CACHE_ENTRIES = 100_000
CACHE_BYTES = 256 * 1024 * 1024
RECHECK_AFTER = timedelta(seconds=2)
CLOSE_TIMEOUT = 2.0
CHECK_TIMEOUT = 5.0
CHECK_ATTEMPTS = 3  # until all changes up to the answer were applied when it was asked for
CATCH_UP = 0.005  # seconds between them
SHORTEST_INTERVAL = 0.05  # between checks
IDLE_CHECKS = 10  # after so many without a read in between, the next one waits for a read
RELOAD_PAUSE = 30.0  # seconds between two loads of a bucket from which entries are removed without a trace


class CachedStorage(WrappedStorage[V]):
    """Reads of newest entries are answered from memory where it is known to be right; all else goes to the bucket."""

    def __init__(self, inner: Storage[V], patterns: Sequence[str], cache: EntryCache[V], recheck_after: float) -> None:
        super().__init__(inner)
        self._patterns = patterns
        self._is_covered = any_of(patterns)
        self._cache = cache
        self._interval = max(recheck_after / 2, SHORTEST_INTERVAL)
        self._guard = Guard()
        self._feed: Feed[V] | None = None  # None: it ended, or is being opened
        self._own = 0  # the newest revision written through this handle: its reads must see it,
        self._own_in_feed = 0  # and the newest that its feed may bring: others are of keys that it does not have
        self._is_own_known = False  # the wrapped handle sees to that itself: it has a consistency, or a session
        self._created = 0  # of the bucket that was loaded
        self._is_replaced = False  # the bucket was made again since then, and counts its revisions from 1
        self._loaded_at = 0.0
        self._reads = 0
        self._is_idle = False
        self._is_closed = False
        self._turn = Guard()  # one check or load at a time
        self._wake = Signal()
        self._workers: list[Worker] = []

    @classmethod
    async def opened(
        cls,
        inner: Storage[V],
        filters: Sequence[str],
        *,
        max_entries: int,
        max_bytes: int,
        recheck_after: Duration,
        timeout: float | None,
    ) -> Self:
        """Open a cache that has read the bucket."""
        if inner.seen().is_latest:
            raise UsageError("consistency must be 'own-writes' or 'any' for cached(), got 'latest'")
        span = duration(recheck_after, "recheck_after").total_seconds()
        if span < 0:
            raise UsageError(f"recheck_after must be 0 (every read goes to the bucket) or more, got {recheck_after!r}")
        patterns = inner.patterns(filters)
        cache: EntryCache[V] = EntryCache(
            max_entries, max_bytes, recheck_after=span, is_whole=tuple(patterns) == (">",)
        )
        storage = cls(inner, patterns, cache, span)
        await storage._load(timeout)
        if span:
            storage._workers.append(spawn(storage._keep_checked, f"checks of the cache of {inner.bucket}"))
        return storage

    # The feed, and checks of the bucket

    async def _load(self, timeout: float | None) -> None:
        """Read the bucket as a whole, and follow its changes from there on."""
        async with self._turn:
            old, self._feed = self._feed, None
            if old is not None:
                await old.close()
            self._loaded_at = sent = clock()
            info = (await self.inner.status(timeout=timeout)).stream_info
            async with self._guard:
                self._cache.begin(info, sent)
                self._is_replaced = False
                if self._created != info.created:  # revisions of an earlier bucket say nothing of this one
                    self._created, self._own, self._own_in_feed = info.created, 0, 0
            feed = await self.inner.follow(self._patterns, LATEST, timeout=timeout)
            try:
                while feed.pending:
                    entries = await feed.next_entries(timeout=timeout)
                    async with self._guard:
                        self._cache.apply(entries, is_initial=True)
            except BaseException:
                await feed.close()
                raise
            async with self._guard:
                self._feed = None if self._is_closed else feed
            if self._is_closed:
                await feed.close()
                return
            self._workers = [worker for worker in self._workers if not worker.is_done]
            self._workers.append(spawn(partial(self._read_feed, feed), f"cache of {self.bucket}"))
        await self._check(timeout)

    async def _read_feed(self, feed: Feed[V]) -> None:
        try:
            while True:
                entries = await feed.next_entries()
                async with self._guard:
                    if self._feed is not feed:
                        return
                    self._cache.apply(entries)
        except Error:  # closed, or the bucket was deleted: reads go to the bucket, which reports that
            if self._feed is feed:
                self._feed = None

    async def _keep_checked(self) -> None:
        """Check the bucket while the cache is in use, and load it again where that is needed."""
        seen = quiet = 0
        since = self._loaded_at  # not from now on: a program that only hits may not have let this run for a long time
        while not self._is_closed:
            self._is_idle = quiet >= IDLE_CHECKS
            pause = max(0.0, since + self._interval - clock())
            await self._wake.wait(self._wake.count, None if self._is_idle else pause)
            quiet = quiet + 1 if seen == self._reads else 0
            seen = self._reads
            try:
                if not self._is_closed:
                    await self._refresh()
            except (ConnectionClosedError, UsageError):  # the bucket can never be read again
                return
            except Error:  # without a check in time reads go to the bucket, which reports what is wrong
                pass
            since = clock()

    async def _refresh(self) -> None:
        """Check the bucket; load it if it is another one, the feed has ended, or much was removed without a trace."""
        is_lost = self._feed is None or self._is_replaced
        verdict = Verdict.REPLACED if is_lost else await self._check(CHECK_TIMEOUT)
        is_due = clock() - self._loaded_at >= RELOAD_PAUSE
        if verdict is Verdict.REPLACED or (verdict is Verdict.REMOVED and is_due):
            await self._load(CHECK_TIMEOUT)

    async def _check(self, timeout: float | None) -> Verdict:
        """Ask for the bucket's state, best when all changes before the answer were applied before the question."""
        async with self._turn:
            for attempt in range(CHECK_ATTEMPTS):
                async with self._guard:
                    as_of, sent = self._cache.revision, clock()
                info = (await self.inner.status(timeout=timeout)).stream_info
                is_last = attempt + 1 == CHECK_ATTEMPTS or not self._cache.can_count
                async with self._guard:
                    if is_last or info.state.last_seq <= as_of:
                        return self._cache.check(info, sent, as_of)
                await sleep(CATCH_UP)
        raise AssertionError("the last attempt returns")

    @property
    def stats(self) -> CacheStats:
        """Hits and misses, entries and bytes."""
        return self._cache.stats

    async def close(self) -> None:
        """End the feed; the wrapped handle stays open."""
        async with self._guard:
            self._is_closed = True
            feed, self._feed = self._feed, None
        self._wake.set()
        if feed is not None:
            await feed.close()
        for worker in self._workers:
            await worker.join(CLOSE_TIMEOUT)

    # Reading

    async def last(self, key: str, *, min_last_revision: int = 0, timeout: float | None = None) -> Entry[V] | None:
        """The newest entry of a key, from memory if that is as new as the read asks for, and known to be right."""
        self._reads += 1
        if self._is_idle:
            self._wake.set()
        async with self._guard:
            # Behind the guard: while this waited, the cache may have been loaded from another bucket of that name.
            seen = self.inner.seen(key)
            need = max(self._least(min_last_revision), seen.bucket)
            least = min_last_revision if self._is_own_known else max(min_last_revision, self._own_in_feed)
            found = self._look(key, least, seen)
            if not isinstance(found, Miss):
                self._cache.stats.hits += 1
                self._cache.stats.absent += found is None
                return found
            self._cache.stats.missed(found)
            as_of, epoch, created = self._cache.revision, self._cache.epoch, self._created
            if self._is_replaced:
                as_of = 0  # of the old bucket
        try:
            entry = await self.inner.last(key, min_last_revision=max(need, as_of), timeout=timeout)
        except StaleReadError:
            if self._is_closed:
                raise
            await self._refresh()
            if self._created == created:
                raise
            return await self.inner.last(key, min_last_revision=min_last_revision, timeout=timeout)
        if entry is not None and self._covers(key):
            async with self._guard:
                self._cache.learn(entry, as_of, epoch)
        return entry

    def _look(self, key: str, least: int, seen: Seen) -> Entry[V] | Miss | None:
        """What memory has of a key, if that is as new as the caller (`least`) and the handle ask for.

        A read by other means shows a key as of a revision of the whole bucket, which a feed of some keys need never
        reach: then the entry that was shown is as good as it was.
        """
        feed = self._feed
        if self._is_closed or self._is_replaced or feed is None or not feed.is_live:
            return Miss.OFFLINE
        if not self._covers(key):
            return Miss.NOT_HELD
        if self._cache.revision < least:
            return Miss.BEHIND
        found = self._cache.look(key, clock())
        if isinstance(found, Miss):
            return found
        revision = found.revision if found is not None else 0
        # A consumer on a replica that catches up skips what was replaced meanwhile.
        if revision < seen.key or (self._cache.revision < seen.bucket and revision != self.inner.known(key)):
            return Miss.BEHIND
        return found

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
        known = self._cache.revision
        try:
            revision = await self.inner.append(key, value, operation=operation, last=last, ttl=ttl, timeout=timeout)
        except WrongLastSequenceError:  # the caller may have taken its revision from memory
            async with self._guard:
                self._cache.doubt(key)
            raise
        self._note_own(known, revision, is_in_feed=self._covers(key))
        return revision

    def _note_own(self, known: int, revision: int, *, is_in_feed: bool = True) -> None:
        """Note a write, which is newer than all that was known when it was sent, unless the bucket was made again."""
        if revision <= known:
            self._own, self._own_in_feed, self._is_replaced = revision, 0, True
            self._wake.set()
        self._own = max(self._own, revision)
        if is_in_feed:
            self._own_in_feed = max(self._own_in_feed, revision)
        self._is_own_known = self.inner.seen().bucket >= revision

    def _least(self, min_last_revision: int) -> int:
        """What a read must ask of the wrapped handle. One that knows its own writes is not asked for them: it notices
        by its reads that a bucket was made again, and then expects no revision of the old one."""
        return min_last_revision if self._is_own_known else max(min_last_revision, self._own)

    def writer(self, *, max_in_flight: int, timeout: float | None = None) -> CacheWriter[V]:
        """Append entries in a pipeline, each acknowledged."""
        inner = self.inner.writer(max_in_flight=max_in_flight, timeout=timeout)
        return CacheWriter(inner, partial(self._note_own, self._cache.revision))

    def read(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[list[Entry[V]]]:
        """Every entry kept."""
        return self.inner.read(patterns, min_last_revision=self._least(min_last_revision), timeout=timeout)

    def latest(
        self,
        patterns: Sequence[str],
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[list[Entry[V]]]:
        """The newest entry of each key."""
        least = self._least(min_last_revision)
        return self.inner.latest(patterns, meta_only=meta_only, min_last_revision=least, timeout=timeout)

    def keys(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[Listing]:
        """Like `latest`, but keys only."""
        return self.inner.keys(patterns, min_last_revision=self._least(min_last_revision), timeout=timeout)

    async def forget(self, key: str, *, below: int, timeout: float | None = None) -> None:
        """Remove a key's entries for good. No mark reaches the feed, so the cache drops them here."""
        await self.inner.forget(key, below=below, timeout=timeout)
        async with self._guard:
            self._cache.drop(key, below)


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
