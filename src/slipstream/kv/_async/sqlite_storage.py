"""The SQLite backend of a bucket, over asyncio: storage, writer and feed of a bucket without a server.

`kv/sqlite.py` holds the entries and their rules; this module serializes the calls, keeps the disk off the event loop
and wakes feeds after each change. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TypeVar

from slipstream.errors import BucketNotFoundError, RequestTimeoutError, StaleReadError, UsageError
from slipstream.kv._async.runtime import Guard, Signal, clock, off_loop, wall_ns
from slipstream.kv._async.storage import Seen
from slipstream.kv.bucket import BucketConfig, BucketStatus
from slipstream.kv.entry import Entry, From, Listing, Operation, Start, listing_of, payload_of
from slipstream.kv.keys import check_key, check_patterns
from slipstream.kv.sqlite import MEMORY, SqliteBucket

T = TypeVar("T")

# Reads one page of entries: patterns, the revision behind which it starts, the one where it ends.
ReadPage = Callable[[SqliteBucket, Sequence[str], int, int], tuple[list[Entry[bytes]], int]]

DEFAULT_TIMEOUT = 5.0


async def open_sqlite(
    path: str = MEMORY, config: BucketConfig | None = None, *, now: Callable[[], int] = wall_ns
) -> SqliteStorage:
    """Open the bucket of a file, or in memory; it is created if a configuration is passed. Close it at the end.

    `now` is the clock of entries and TTLs, in nanoseconds since the epoch.
    """
    if config is None and path == MEMORY:
        raise UsageError("config must be set for a bucket in memory, which is always new")
    bucket = await off_loop(lambda: SqliteBucket.open(path, config=config, now=now()))
    return SqliteStorage(SerializedBucket(bucket, is_file=path != MEMORY, now=now))


class SerializedBucket:
    """Access to an `SqliteBucket` for several tasks or threads: one call at a time, files off the event loop.

    `changed` is set after every change, also by expiry.
    """

    def __init__(self, bucket: SqliteBucket, *, is_file: bool, now: Callable[[], int]) -> None:
        self.name = bucket.bucket
        self.now = now
        self.changed = Signal()
        self._bucket = bucket
        self._is_file = is_file
        self._guard = Guard()
        self._is_closed = False

    async def call(self, function: Callable[[SqliteBucket], T]) -> T:
        """Call a function with the bucket. Raises UsageError once it is closed."""
        async with self._guard:
            if self._is_closed:
                raise UsageError(f"bucket {self.name!r} is closed")
            if self._bucket.is_destroyed:
                raise BucketNotFoundError(f"bucket {self.name!r} was destroyed")
            return await self._off_loop(lambda: function(self._bucket))

    async def read(self, function: Callable[[SqliteBucket], T]) -> T:
        """The same after removing expired entries: a read must not see them."""
        now = self.now()

        def expire_and_read(bucket: SqliteBucket) -> tuple[bool, T]:
            return bucket.expire(now), function(bucket)

        is_changed, result = await self.call(expire_and_read)
        if is_changed:
            self.changed.set()
        return result

    async def close(self) -> None:
        """Close the database. Can be called again; waiting feeds are woken and raise."""
        async with self._guard:
            self._is_closed = True
            self.changed.set()
            await self._off_loop(self._bucket.close)

    async def _off_loop(self, function: Callable[[], T]) -> T:
        return await off_loop(function) if self._is_file else function()


class SqliteStorage:
    """A bucket without a server. All of its methods may be used by several tasks or threads at once."""

    def __init__(self, database: SerializedBucket) -> None:
        self.bucket = database.name
        self._database = database

    def check_key(self, key: str) -> str:
        """Return `key`, or raise a UsageError."""
        return check_key(key)

    def patterns(self, filters: Sequence[str], *, exact: bool = False) -> tuple[str, ...]:
        """Filters over keys, checked."""
        return tuple(filters) if exact else check_patterns(filters)

    def seen(self, key: str = "") -> Seen:  # noqa: ARG002
        """Nothing: every read of a local bucket is the latest."""
        return Seen()

    def known(self, key: str) -> int | None:  # noqa: ARG002
        """Nothing is remembered."""
        return None

    async def close(self) -> None:
        """Close the database. Can be called again; waiting feeds raise."""
        await self._database.close()

    # Writing

    def check_writable(self, what: str) -> None:
        """It can be written."""

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
        now, data = self._database.now(), payload_of(value, operation)

        def write(bucket: SqliteBucket) -> int:
            return bucket.append(key, data, operation=operation, last=last, ttl=ttl, now=now)

        revision = await self._database.call(write)
        self._database.changed.set()
        return revision

    def writer(self, *, max_in_flight: int, timeout: float | None = None) -> SqliteWriter:
        """Append entries one after the other: there is no network latency to hide."""
        del max_in_flight, timeout
        return SqliteWriter(self)

    async def forget(self, key: str, *, below: int, timeout: float | None = None) -> None:
        """Remove a key's entries below a revision."""
        del timeout
        await self._database.call(lambda bucket: bucket.forget(key, below=below))

    async def record_forgotten(self, revision: int, *, timeout: float | None = None) -> None:
        """Record that deleted keys are removed for good."""
        del timeout
        await self._database.call(lambda bucket: bucket.record_forgotten(revision))

    # Reading

    async def last(self, key: str, *, min_last_revision: int = 0, timeout: float | None = None) -> Entry[bytes] | None:
        """The newest entry of a key."""
        await self._wait_for_revision(min_last_revision, timeout)
        return await self._database.read(lambda bucket: bucket.last(key))

    async def at(
        self, revision: int, *, min_last_revision: int = 0, timeout: float | None = None
    ) -> Entry[bytes] | None:
        """The entry of a revision."""
        await self._wait_for_revision(min_last_revision, timeout)
        return await self._database.read(lambda bucket: bucket.at(revision))

    def read(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[list[Entry[bytes]]]:
        """Every entry kept."""
        return self._pages(SqliteBucket.read, patterns, min_last_revision, timeout)

    def latest(
        self,
        patterns: Sequence[str],
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[list[Entry[bytes]]]:
        """The newest entry of each key."""
        pages = self._pages(SqliteBucket.latest, patterns, min_last_revision, timeout)
        return _without_values(pages) if meta_only else pages

    async def keys(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[Listing]:
        """Like `latest`, but keys only."""
        async for entries in self.latest(patterns, min_last_revision=min_last_revision, timeout=timeout):
            yield listing_of(entries)

    async def _pages(
        self, read_page: ReadPage, patterns: Sequence[str], min_last: int, timeout: float | None
    ) -> AsyncIterator[list[Entry[bytes]]]:
        """Each page ends at the newest revision of its own time: a key that is overwritten moves, but is not missed."""
        await self._wait_for_revision(min_last, timeout)

        def next_page(bucket: SqliteBucket, after: int) -> tuple[list[Entry[bytes]], int, int]:
            up_to = bucket.last_revision
            return *read_page(bucket, patterns, after, up_to), up_to

        at, up_to = 0, 1
        while at < up_to:
            entries, at, up_to = await self._database.read(partial(next_page, after=at))
            if entries:
                yield entries

    async def follow(
        self,
        patterns: Sequence[str],
        start: Start,
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> SqliteFeed:
        """Open a feed: entries from a start on, then every change."""
        await self._wait_for_revision(min_last_revision, timeout)
        up_to, pending = await self._database.read(lambda bucket: (bucket.last_revision, bucket.count(patterns, start)))
        return SqliteFeed(self._database, patterns, start, up_to, pending, meta_only=meta_only)

    async def _wait_for_revision(self, wanted: int, timeout: float | None) -> None:
        """Wait until a revision was assigned."""
        if not wanted:
            return
        deadline = clock() + (DEFAULT_TIMEOUT if timeout is None else timeout)
        changed = self._database.changed
        while True:
            seen = changed.count
            last = await self._database.call(lambda bucket: bucket.last_revision)
            if last >= wanted:
                return
            if not await changed.wait(seen, max(0.0, deadline - clock())):
                raise StaleReadError(
                    f"bucket {self.bucket!r} has revision {last}, wanted {wanted}", min_last_seq=wanted
                )

    # The bucket

    async def status(self, *, timeout: float | None = None) -> BucketStatus:
        """The bucket's state in the form that a stream reports it."""
        del timeout
        now = self._database.now()
        return await self._database.read(lambda bucket: bucket.status(now=now))

    async def write_path(self, *, timeout: float | None = None) -> Sequence[BucketStatus]:
        """The bucket's status: a local bucket has no origin."""
        return (await self.status(timeout=timeout),)

    async def destroy(self, *, timeout: float | None = None) -> None:
        """Remove everything. The handle is of no use afterwards; waiting feeds raise."""
        del timeout
        await self._database.call(SqliteBucket.destroy)
        self._database.changed.set()


async def _without_values(pages: AsyncIterator[list[Entry[bytes]]]) -> AsyncIterator[list[Entry[bytes]]]:
    async for entries in pages:
        yield [entry._replace(value=b"") for entry in entries]


class SqliteWriter:
    """Appends one after the other."""

    def __init__(self, storage: SqliteStorage) -> None:
        self._storage = storage
        self._revision = 0

    async def append(self, key: str, value: bytes | None, operation: Operation = Operation.PUT) -> None:
        """Record one."""
        self._revision = await self._storage.append(key, value, operation=operation)

    async def flush(self) -> int:
        """The newest revision: every append is already stored."""
        return self._revision

    async def abandon(self) -> None:
        """Nothing to do: every append is already stored."""


class SqliteFeed:
    """Entries in the order of revisions, read from the database after each change."""

    def __init__(
        self,
        database: SerializedBucket,
        patterns: Sequence[str],
        start: Start,
        up_to: int,
        pending: int,
        *,
        meta_only: bool,
    ) -> None:
        self.pending = pending
        self._database = database
        self._patterns = patterns
        self._meta_only = meta_only
        self._at = up_to if start.kind is From.NEW else max(start.revision - 1, 0)
        self._initial_up_to = up_to
        self._latest_up_to = up_to if start.kind is From.LATEST else 0
        self._is_closed = False

    @property
    def revision(self) -> int:
        """Every entry up to this revision was returned."""
        return self._at

    @property
    def is_live(self) -> bool:
        """Always, until it is closed: no connection can be lost."""
        return not self._is_closed

    async def next_entries(self, *, timeout: float | None = None) -> list[Entry[bytes]]:
        """The next entries; empty when the initial data turned out to be complete."""
        database = self._database
        deadline = None if timeout is None else clock() + timeout
        while True:
            seen, was_pending = database.changed.count, self.pending
            entries = await self._read_available()
            if entries or (was_pending and not self.pending):
                return entries
            if self._is_closed:
                raise UsageError(f"the feed of bucket {database.name!r} is closed")
            left = None if deadline is None else deadline - clock()
            if left is not None and left <= 0:
                raise RequestTimeoutError(f"bucket {database.name!r}: no entry within {timeout:g} s")
            await database.changed.wait(seen, await self._until_next_change(left))

    async def _until_next_change(self, left: float | None) -> float | None:
        """How long to wait for a write at most: an entry that expires earlier may leave a marker, which is one."""
        database = self._database
        due = await database.call(SqliteBucket.next_expiry)
        if due is None:
            return left
        soon = max((due - database.now()) / 1e9, 0.0) + 0.001
        return soon if left is None else min(left, soon)

    async def _read_available(self) -> list[Entry[bytes]]:
        """Entries that can be read without waiting."""

        def read(bucket: SqliteBucket) -> tuple[list[Entry[bytes]], int]:
            found: list[Entry[bytes]] = []
            at = self._at
            while not found and at < (newest := bucket.last_revision):
                if at < self._latest_up_to:
                    found, at = bucket.latest(self._patterns, at, self._latest_up_to)
                else:
                    found, at = bucket.read(self._patterns, at, newest)
            return found, at

        if self._is_closed:
            return []
        entries, self._at = await self._database.read(read)  # moves on with the entries: a cancelled read loses none
        # Counted entries may have been removed since; the position decides whether the initial data is complete.
        self.pending = 0 if self._at >= self._initial_up_to else max(self.pending - len(entries), 1)
        return [entry._replace(value=b"") for entry in entries] if self._meta_only else entries

    async def close(self) -> None:
        """End it."""
        self._is_closed = True
        self._database.changed.set()
