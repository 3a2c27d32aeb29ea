"""The storage interface of buckets, over asyncio: what `KeyValue` needs of a backend.

Two backends implement it: JetStream (`stream_storage.py`), and SQLite in a file or in memory (`sqlite_storage.py`).
Three wrappers change one aspect each: keys and values (`codec_storage.py`), where reads are answered
(`cached_storage.py`), and `ReadOnlyStorage` below.

The rules every backend keeps: revisions only grow, over all keys of a bucket; an entry is durable before `append`
returns; with `last` an entry is appended only if the key's newest revision is that one (0: it has none), else
WrongLastSequenceError is raised; a read with `min_last_revision` is at least that new or raises StaleReadError.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Generic, NamedTuple, NoReturn, Protocol, TypeVar

from slipstream.errors import ReadOnlyError
from slipstream.kv.bucket import BucketStatus
from slipstream.kv.entry import Entry, Listing, Operation, Start

V = TypeVar("V")
V_in = TypeVar("V_in", contravariant=True)


class Feed(Protocol[V]):
    """Entries as they are written, in the order of their revisions, each exactly once, across lost connections.

    The *initial data* are the entries that existed when the feed was opened, as its start selects them.
    """

    @property
    def pending(self) -> int:
        """How many entries of the initial data were not returned yet."""
        ...

    @property
    def revision(self) -> int:
        """Every entry up to this revision that belongs to the feed was returned; 0 if that is not known."""
        ...

    @property
    def is_live(self) -> bool:
        """Whether changes arrive at present, as far as the client can know."""
        ...

    async def next_entries(self, *, timeout: float | None = None) -> list[Entry[V]]:
        """The next entries, at least one. Raises RequestTimeoutError if none arrives in time (None: wait forever).

        Empty when the initial data turned out to be complete: entries counted in `pending` may be removed from the
        bucket before they are delivered.
        """
        ...

    async def close(self) -> None:
        """End the feed, here and on the server. Can be called again."""
        ...


class StorageWriter(Protocol[V_in]):
    """Pipelined appends."""

    async def append(self, key: str, value: V_in | None, operation: Operation = Operation.PUT) -> None:
        """Send one; waits only while too many are unacknowledged. Raises the first failure of an earlier one."""
        ...

    async def flush(self) -> int:
        """Wait until all are stored; returns the newest revision. Raises the first failure."""
        ...

    async def abandon(self) -> None:
        """Stop waiting for acknowledgements: whether unacknowledged appends were stored is unknown."""
        ...


class Seen(NamedTuple):
    """What a read must have seen because of its session or handle.

    `bucket` is the revision that the answer must have seen, `key` one that the key has reached (0 or less: none, or not
    remembered); with `is_latest` it must have seen all that the leader has.
    """

    bucket: int = 0
    key: int = 0
    is_latest: bool = False


class Storage(Protocol[V]):
    """A bucket's entries. Keys must have passed `check_key`, patterns come from `patterns`; marks have no value."""

    bucket: str

    def check_key(self, key: str) -> str:
        """Return `key` as it is listed, or raise a UsageError."""
        ...

    def patterns(self, filters: Sequence[str], *, exact: bool = False) -> tuple[str, ...]:
        """The patterns for `read`, `latest` and `follow` of some filters (none: all keys); `exact`: of literal keys.

        Raises UsageError for a malformed filter.
        """
        ...

    def seen(self, key: str = "") -> Seen:
        """What a read of a key (empty: of more than one) must have seen because of the session or handle."""
        ...

    def known(self, key: str) -> int | None:
        """The newest revision of a key as of what a read of it must have seen (0: none); None if that is not known."""
        ...

    def check_writable(self, what: str) -> None:
        """Raise ReadOnlyError if nothing can be written: for writes that begin with a read. `what` is to be written."""
        ...

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
        """Record an entry; returns its revision. A purge removes the older entries of the key."""
        ...

    def writer(self, *, max_in_flight: int, timeout: float | None = None) -> StorageWriter[V]:
        """Append entries in a pipeline, each acknowledged."""
        ...

    async def last(self, key: str, *, min_last_revision: int = 0, timeout: float | None = None) -> Entry[V] | None:
        """The newest entry of a key, a mark or not."""
        ...

    async def at(self, revision: int, *, min_last_revision: int = 0, timeout: float | None = None) -> Entry[V] | None:
        """The entry of a revision, of any key; None if it is not kept."""
        ...

    def read(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[list[Entry[V]]]:
        """Every entry kept, in the order of revisions for each key."""
        ...

    def latest(
        self,
        patterns: Sequence[str],
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[list[Entry[V]]]:
        """The newest entry of each key, marks included. A key that changes during the read may be returned again.

        With `meta_only` values may be left empty; those of a feed are.
        """
        ...

    def keys(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[Listing]:
        """Like `latest`, but keys only."""
        ...

    async def follow(
        self,
        patterns: Sequence[str],
        start: Start,
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> Feed[V]:
        """Open a feed: entries from a start on, then every change."""
        ...

    async def forget(self, key: str, *, below: int, timeout: float | None = None) -> None:
        """Remove the key's entries with revisions below that one for good: no mark is left."""
        ...

    async def record_forgotten(self, revision: int, *, timeout: float | None = None) -> None:
        """Record that keys deleted up to a revision are removed for good: see `kv/snapshot.py`."""
        ...

    async def status(self, *, timeout: float | None = None) -> BucketStatus:
        """The bucket's configuration and state."""
        ...

    async def write_path(self, *, timeout: float | None = None) -> Sequence[BucketStatus]:
        """The status of this bucket and, of a read replica, that of its origin: the last one takes the writes."""
        ...

    async def destroy(self, *, timeout: float | None = None) -> None:
        """Remove the bucket with everything in it."""
        ...

    async def close(self) -> None:
        """Release what the handle holds: a file, a feed. The bucket stays."""
        ...


async def read_live(
    storage: Storage[V], filters: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
) -> dict[str, Entry[V]]:
    """The newest entries of the keys that match and have a value, in the order of their last change."""
    live: dict[str, Entry[V]] = {}
    patterns = storage.patterns(filters)
    async for entries in storage.latest(patterns, min_last_revision=min_last_revision, timeout=timeout):
        for entry in entries:
            live.pop(entry.key, None)  # changed during the read: move it to the end, or it was deleted
            if entry.operation is Operation.PUT:
                live[entry.key] = entry
    return live


class WrappedStorage(Generic[V]):
    """Base of wrappers: forwards every call to another storage."""

    def __init__(self, inner: Storage[V]) -> None:
        self.inner = inner
        self.bucket: str = inner.bucket

    def check_key(self, key: str) -> str:
        """Return `key`, or raise a UsageError."""
        return self.inner.check_key(key)

    def patterns(self, filters: Sequence[str], *, exact: bool = False) -> tuple[str, ...]:
        """Patterns for filters."""
        return self.inner.patterns(filters, exact=exact)

    def seen(self, key: str = "") -> Seen:
        """What a read of a key must have seen because of the session or handle it belongs to."""
        return self.inner.seen(key)

    def known(self, key: str) -> int | None:
        """The newest revision of a key as of what a read of it must have seen (0: none); None if that is not known."""
        return self.inner.known(key)

    def check_writable(self, what: str) -> None:
        """Raise ReadOnlyError if nothing can be written."""
        self.inner.check_writable(what)

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
        """Record an entry; returns its revision."""
        return await self.inner.append(key, value, operation=operation, last=last, ttl=ttl, timeout=timeout)

    def writer(self, *, max_in_flight: int, timeout: float | None = None) -> StorageWriter[V]:
        """Append entries in a pipeline, each acknowledged."""
        return self.inner.writer(max_in_flight=max_in_flight, timeout=timeout)

    async def last(self, key: str, *, min_last_revision: int = 0, timeout: float | None = None) -> Entry[V] | None:
        """The newest entry of a key, a mark or not."""
        return await self.inner.last(key, min_last_revision=min_last_revision, timeout=timeout)

    async def at(self, revision: int, *, min_last_revision: int = 0, timeout: float | None = None) -> Entry[V] | None:
        """The entry of a revision."""
        return await self.inner.at(revision, min_last_revision=min_last_revision, timeout=timeout)

    def read(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[list[Entry[V]]]:
        """Every entry kept."""
        return self.inner.read(patterns, min_last_revision=min_last_revision, timeout=timeout)

    def latest(
        self,
        patterns: Sequence[str],
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[list[Entry[V]]]:
        """The newest entry of each key."""
        return self.inner.latest(patterns, meta_only=meta_only, min_last_revision=min_last_revision, timeout=timeout)

    def keys(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[Listing]:
        """Like `latest`, but keys only."""
        return self.inner.keys(patterns, min_last_revision=min_last_revision, timeout=timeout)

    async def follow(
        self,
        patterns: Sequence[str],
        start: Start,
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> Feed[V]:
        """Open a feed."""
        return await self.inner.follow(
            patterns, start, meta_only=meta_only, min_last_revision=min_last_revision, timeout=timeout
        )

    async def forget(self, key: str, *, below: int, timeout: float | None = None) -> None:
        """Remove the key's entries below a revision for good."""
        await self.inner.forget(key, below=below, timeout=timeout)

    async def record_forgotten(self, revision: int, *, timeout: float | None = None) -> None:
        """Record that deleted keys are removed for good."""
        await self.inner.record_forgotten(revision, timeout=timeout)

    async def status(self, *, timeout: float | None = None) -> BucketStatus:
        """The bucket's configuration and state."""
        return await self.inner.status(timeout=timeout)

    async def write_path(self, *, timeout: float | None = None) -> Sequence[BucketStatus]:
        """The status of every bucket on the way of a write."""
        return await self.inner.write_path(timeout=timeout)

    async def destroy(self, *, timeout: float | None = None) -> None:
        """Remove the bucket with everything in it."""
        await self.inner.destroy(timeout=timeout)

    async def close(self) -> None:
        """Release what the handle holds."""
        await self.inner.close()


class ReadOnlyStorage(WrappedStorage[V]):
    """A bucket that can only be read; every write is rejected before anything is sent."""

    def check_writable(self, what: str) -> NoReturn:
        """Rejected."""
        raise ReadOnlyError(self.bucket, what)

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
        """Rejected."""
        del value, last, ttl, timeout
        self.check_writable(f"{operation} of key {key!r}")

    def writer(self, *, max_in_flight: int, timeout: float | None = None) -> StorageWriter[V]:
        """Rejected."""
        del max_in_flight, timeout
        self.check_writable("a writer")

    async def forget(self, key: str, *, below: int, timeout: float | None = None) -> None:
        """Rejected."""
        del below, timeout
        self.check_writable(f"removal of key {key!r}")

    async def record_forgotten(self, revision: int, *, timeout: float | None = None) -> None:
        """Rejected."""
        del timeout
        self.check_writable(f"removal of keys deleted up to revision {revision}")

    async def write_path(self, *, timeout: float | None = None) -> Sequence[BucketStatus]:
        """Rejected."""
        del timeout
        self.check_writable("a lease")

    async def destroy(self, *, timeout: float | None = None) -> None:
        """Rejected."""
        del timeout
        self.check_writable("destruction")
