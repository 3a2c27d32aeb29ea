"""The embedded backend of a bucket, over asyncio: no server, a file or memory. `local.py` keeps the entries.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TypeVar

from slipstream.errors import RequestTimeoutError, StaleReadError, UsageError
from slipstream.kv._async.runtime import Guard, Signal, clock, off_loop, wall_ns
from slipstream.kv.bucket import BucketConfig, BucketStatus
from slipstream.kv.entry import Entry, Listing, Operation, listing_of, payload_of
from slipstream.kv.keys import check_key, check_patterns
from slipstream.kv.local import LocalBucket
from slipstream.kv.start import From, Start

T = TypeVar("T")

DEFAULT_TIMEOUT = 5.0
MEMORY = ":memory:"


async def open_local(
    path: str = MEMORY, config: BucketConfig | None = None, *, now: Callable[[], int] = wall_ns
) -> LocalStorage:
    """A bucket in a file, or in memory; made if it is not there and a configuration is given. Close it at the end.

    `now` is the clock of entries and TTLs, in nanoseconds since the epoch.
    """
    if config is None and path == MEMORY:
        raise UsageError("bad bucket: one in memory is always new and needs a configuration")
    model = await off_loop(lambda: LocalBucket.open(path, config=config, now=now()))
    return LocalStorage(model, is_file=path != MEMORY, now=now)


class LocalStorage:
    """A bucket without a server. All of its methods may be used by several tasks or threads at once."""

    def __init__(self, model: LocalBucket, *, is_file: bool, now: Callable[[], int] = wall_ns) -> None:
        self.bucket = model.bucket
        self._model = model
        self._is_file = is_file
        self._now = now
        self._guard = Guard()
        self._written = Signal()
        self._is_closed = False

    def check_key(self, key: str) -> str:
        """Return `key` if it is a good one."""
        return check_key(key)

    def patterns(self, filters: Sequence[str], *, exact: bool = False) -> tuple[str, ...]:
        """Filters over keys, checked."""
        return tuple(filters) if exact else check_patterns(filters)

    async def close(self) -> None:
        """Let go of the file. Can be called again; who waits for entries is told."""
        async with self._guard:
            self._is_closed = True
            self._written.set()
            await self._off_loop(self._model.close)

    # Writing

    async def append(
        self,
        key: str,
        value: bytes | None,
        *,
        operation: Operation = Operation.PUT,
        last: int | None = None,
        ttl: timedelta | None = None,
        timeout: float | None = None,
    ) -> int:
        """Record an entry; on disk when this returns."""
        del timeout
        now, data = self._now(), payload_of(value, operation)

        def write() -> int:
            return self._model.append(key, data, operation=operation, last=last, ttl=ttl, now=now)

        revision = await self._call(write)
        self._written.set()
        return revision

    def writer(self, *, max_in_flight: int, timeout: float | None = None) -> LocalWriter:
        """Appends one after the other: there is no way between to hide."""
        del max_in_flight, timeout
        return LocalWriter(self)

    async def forget(self, key: str, *, below: int, timeout: float | None = None) -> None:
        """Remove a key's entries under a revision."""
        del timeout
        await self._call(lambda: self._model.forget(key, below=below))

    async def forgetting(self, revision: int, *, timeout: float | None = None) -> None:
        """Record that deleted keys are being removed."""
        del timeout
        await self._call(lambda: self._model.forgetting(revision))

    # Reading

    async def last(self, key: str, *, min_last_revision: int = 0, timeout: float | None = None) -> Entry[bytes] | None:
        """The newest entry of a key."""
        await self._reached(min_last_revision, timeout)
        return await self._read(lambda: self._model.last(key))

    async def at(
        self, revision: int, *, min_last_revision: int = 0, timeout: float | None = None
    ) -> Entry[bytes] | None:
        """The entry of a revision."""
        await self._reached(min_last_revision, timeout)
        return await self._read(lambda: self._model.at(revision))

    def read(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[list[Entry[bytes]]]:
        """Every entry kept."""
        return self._chunks(self._model.read, patterns, min_last_revision, timeout)

    def latest(
        self,
        patterns: Sequence[str],
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[list[Entry[bytes]]]:
        """The newest entry of each key."""
        del meta_only
        return self._chunks(self._model.latest, patterns, min_last_revision, timeout)

    async def keys(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[Listing]:
        """The keys alone."""
        async for entries in self.latest(patterns, min_last_revision=min_last_revision, timeout=timeout):
            yield listing_of(entries)

    async def _chunks(
        self,
        read: Callable[..., tuple[list[Entry[bytes]], int]],
        patterns: Sequence[str],
        min_last: int,
        timeout: float | None,
    ) -> AsyncIterator[list[Entry[bytes]]]:
        """Up to what is the newest revision when each chunk is read: a key cannot be missed by moving on."""
        await self._reached(min_last, timeout)
        at, up_to = 0, 1
        while at < up_to:
            entries, at, up_to = await self._read(partial(self._page, read, patterns, at))
            if entries:
                yield entries

    def _page(
        self, read: Callable[..., tuple[list[Entry[bytes]], int]], patterns: Sequence[str], after: int
    ) -> tuple[list[Entry[bytes]], int, int]:
        up_to = self._model.last_revision
        return *read(patterns, after=after, up_to=up_to), up_to

    async def follow(
        self,
        patterns: Sequence[str],
        start: Start,
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> LocalFeed:
        """Entries from a start on, then new ones as they come."""
        del meta_only
        await self._reached(min_last_revision, timeout)
        up_to, pending = await self._read(lambda: (self._model.last_revision, self._model.count(patterns, start)))
        return LocalFeed(self, patterns, start, up_to, pending)

    async def _reached(self, wanted: int, timeout: float | None) -> None:
        """Wait until a revision was given."""
        if not wanted:
            return
        deadline = clock() + (DEFAULT_TIMEOUT if timeout is None else timeout)
        while True:
            seen = self._written.count
            last = await self._call(lambda: self._model.last_revision)
            if last >= wanted:
                return
            if not await self._written.wait(seen, max(0.0, deadline - clock())):
                raise StaleReadError(
                    f"bucket {self.bucket!r} has revision {last}, wanted {wanted}", min_last_seq=wanted
                )

    # The bucket

    async def status(self, *, timeout: float | None = None) -> BucketStatus:
        """The same report that a stream gives."""
        del timeout
        now = self._now()
        return await self._read(lambda: self._model.status(now=now))

    async def destroy(self, *, timeout: float | None = None) -> None:
        """Remove everything; the handle cannot be used any more, and who waits for entries is told."""
        del timeout
        await self._call(self._model.destroy)
        self._written.set()

    async def _read(self, function: Callable[[], T]) -> T:
        now, model = self._now(), self._model

        def expire_and_read() -> tuple[bool, T]:
            return model.expire(now), function()

        is_changed, result = await self._call(expire_and_read)
        if is_changed:
            self._written.set()
        return result

    async def _call(self, function: Callable[[], T]) -> T:
        """One at a time, until the handle is closed."""
        async with self._guard:
            if self._is_closed:
                raise UsageError(f"bucket {self.bucket!r} is closed")
            return await self._off_loop(function)

    async def _off_loop(self, function: Callable[[], T]) -> T:
        """A file is waited for off the loop."""
        return await off_loop(function) if self._is_file else function()


class LocalWriter:
    """Appends one after the other."""

    def __init__(self, storage: LocalStorage) -> None:
        self._storage = storage
        self._revision = 0

    async def append(self, key: str, value: bytes | None, operation: Operation = Operation.PUT) -> None:
        """Record one."""
        self._revision = await self._storage.append(key, value, operation=operation)

    async def flush(self) -> int:
        """The newest revision: all is stored."""
        return self._revision

    async def abandon(self) -> None:
        """Nothing is in flight."""


class LocalFeed:
    """Entries in the order of revisions, read from the bucket whenever something was written."""

    def __init__(self, storage: LocalStorage, patterns: Sequence[str], start: Start, up_to: int, pending: int) -> None:
        self.pending = pending
        self.revision = 0
        self._storage = storage
        self._patterns = patterns
        self._at = up_to if start.kind is From.NEW else max(start.revision - 1, 0)
        self._initial = up_to
        self._latest_up_to = up_to if start.kind is From.LATEST else 0
        self._is_closed = False

    @property
    def is_live(self) -> bool:
        """Always: there is nothing between."""
        return not self._is_closed

    async def chunk(self, *, timeout: float | None = None) -> list[Entry[bytes]]:
        """The next entries."""
        storage = self._storage
        deadline = None if timeout is None else clock() + timeout
        while True:
            seen, was_pending = storage._written.count, self.pending
            entries = await self._take()
            if entries or (was_pending and not self.pending):
                return entries
            if self._is_closed:
                raise UsageError(f"the feed of bucket {storage.bucket!r} is closed")
            left = None if deadline is None else deadline - clock()
            if left is not None and left <= 0:
                raise RequestTimeoutError(f"no entry of bucket {storage.bucket!r} came in {timeout} s")
            await storage._written.wait(seen, await self._patience(left))

    async def _patience(self, left: float | None) -> float | None:
        """How long to wait: an entry that is due before leaves a marker."""
        storage = self._storage
        due = await storage._call(storage._model.next_expiry)
        if due is None:
            return left
        soon = max((due - storage._now()) / 1e9, 0.0) + 0.001
        return soon if left is None else min(left, soon)

    async def _take(self) -> list[Entry[bytes]]:
        """What is here already."""
        model = self._storage._model

        def read() -> list[Entry[bytes]]:
            found: list[Entry[bytes]] = []
            while not found and self._at < (newest := model.last_revision):
                if self._at < self._latest_up_to:
                    found, self._at = model.latest(self._patterns, after=self._at, up_to=self._latest_up_to)
                else:
                    found, self._at = model.read(self._patterns, after=self._at, up_to=newest)
            return found

        entries = [] if self._is_closed else await self._storage._read(read)
        if entries:
            self.revision = entries[-1].revision
        # What was counted may have been removed since; what counts is how far we are.
        self.pending = 0 if self._at >= self._initial else max(self.pending - len(entries), 1)
        return entries

    async def close(self) -> None:
        """End it."""
        self._is_closed = True
        self._storage._written.set()
