"""What a bucket needs of whatever keeps it: the storage interface, over asyncio.

Two backends have it: JetStream (`aio_stream.py`), and a file or memory (`aio_local.py`). Three wrappers
change one thing each: keys and values (`aio_codec.py`), where reads are answered (`aio_cache.py`), and
`ReadOnlyStorage` below. `KeyValue` is written against it alone. The blocking twin is generated from this file
(`tools/unasync.py`).

The rules every backend keeps: revisions only grow, over all keys of a bucket; an entry is durable before `append`
returns; with `last` an entry is appended only if the key's newest revision is that one (0: it has none), else
WrongLastSequenceError; a read with `min_last_revision` is at least that new or raises StaleReadError.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import NoReturn, Protocol, TypeVar

from slipstream.errors import ReadOnlyError
from slipstream.kv.bucket import BucketStatus
from slipstream.kv.entry import Entry, Listing, Operation
from slipstream.kv.start import Start

V = TypeVar("V")
V_in = TypeVar("V_in", contravariant=True)


class Feed(Protocol[V]):
    """Entries as they are written, in the order of their revisions, each exactly once.

    Connections may come and go beneath it. `pending` is how many entries of the initial data were not yet handed over,
    `revision` the newest one that was.
    """

    @property
    def pending(self) -> int:
        """How many entries of the initial data are to come."""
        ...

    @property
    def revision(self) -> int:
        """The newest revision handed over."""
        ...

    @property
    def is_live(self) -> bool:
        """Whether what is written arrives here, now, as far as can be known."""
        ...

    async def chunk(self, *, timeout: float | None = None) -> list[Entry[V]]:
        """The next entries; raises RequestTimeoutError if none comes in time (None: wait forever).

        Empty when no entry of the initial data is left to wait for: what was counted in `pending` may be removed
        before it is read.
        """
        ...

    async def close(self) -> None:
        """End it, here and on the server. Can be called again."""
        ...


class StorageWriter(Protocol[V_in]):
    """Many appends in flight."""

    async def append(self, key: str, value: V_in | None, operation: Operation = Operation.PUT) -> None:
        """Send one; waits only while too many are in flight. Raises the first failure of an earlier one."""
        ...

    async def flush(self) -> int:
        """Wait until all are stored; returns the newest revision. Raises the first failure."""
        ...

    async def abandon(self) -> None:
        """Give up on what is in flight: whether it is stored is not known."""
        ...


class Storage(Protocol[V]):
    """A bucket's entries. Keys are those of `check_key`, patterns those that `patterns` made; marks have no value."""

    bucket: str

    def check_key(self, key: str) -> str:
        """Return `key`, or raise a UsageError that says what a key may be."""
        ...

    def patterns(self, filters: Sequence[str], *, exact: bool = False) -> tuple[str, ...]:
        """What `read`, `latest` and `follow` take for some filters (none: all keys); `exact`: for keys as they are.

        Raises a UsageError that says what a filter may be.
        """
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
        """Append many entries, each acknowledged."""
        ...

    async def last(self, key: str, *, min_last_revision: int = 0, timeout: float | None = None) -> Entry[V] | None:
        """The newest entry of a key, a mark or not."""
        ...

    async def at(self, revision: int, *, min_last_revision: int = 0, timeout: float | None = None) -> Entry[V] | None:
        """The entry of a revision, if it is kept, whatever its key."""
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
        """The newest entry of each key, marks included. A key that changes meanwhile may come again, newer.

        With `meta_only` values need not be there.
        """
        ...

    def keys(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[Listing]:
        """The same as keys alone."""
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
        """Entries from a start on, then new ones as they come."""
        ...

    async def forget(self, key: str, *, below: int, timeout: float | None = None) -> None:
        """Remove the key's entries with revisions below that one, for good: no mark is left."""
        ...

    async def forgetting(self, revision: int, *, timeout: float | None = None) -> None:
        """Record that keys deleted up to a revision are being removed for good: see `snapshot.py`."""
        ...

    async def status(self, *, timeout: float | None = None) -> BucketStatus:
        """How the bucket is set up, and what it holds."""
        ...

    async def destroy(self, *, timeout: float | None = None) -> None:
        """Remove the bucket with everything in it."""
        ...

    async def close(self) -> None:
        """Let go of what the handle holds: a file, a feed. The bucket stays."""
        ...


class WrappedStorage:
    """A storage that leaves all that is not about entries to another one."""

    def __init__(self, inner: Storage[bytes]) -> None:
        self.inner = inner
        self.bucket = inner.bucket

    def check_key(self, key: str) -> str:
        """Return `key` if it is a good one."""
        return self.inner.check_key(key)

    def patterns(self, filters: Sequence[str], *, exact: bool = False) -> tuple[str, ...]:
        """Patterns for filters."""
        return self.inner.patterns(filters, exact=exact)

    async def status(self, *, timeout: float | None = None) -> BucketStatus:
        """How the bucket is set up, and what it holds."""
        return await self.inner.status(timeout=timeout)

    async def close(self) -> None:
        """Let go of what the handle holds."""
        await self.inner.close()


class ReadOnlyStorage(WrappedStorage):
    """The same bucket to read; every write is refused before anything is sent."""

    def _refuse(self, what: str) -> NoReturn:
        raise ReadOnlyError(self.bucket, what)

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
        """Refused."""
        del value, last, ttl, timeout
        self._refuse(f"{operation} of key {key!r}")

    def writer(self, *, max_in_flight: int, timeout: float | None = None) -> StorageWriter[bytes]:
        """Refused."""
        del max_in_flight, timeout
        self._refuse("a writer")

    async def forget(self, key: str, *, below: int, timeout: float | None = None) -> None:
        """Refused."""
        del below, timeout
        self._refuse(f"removal of key {key!r}")

    async def forgetting(self, revision: int, *, timeout: float | None = None) -> None:
        """Refused."""
        del timeout
        self._refuse(f"removal of keys deleted up to revision {revision}")

    async def destroy(self, *, timeout: float | None = None) -> None:
        """Refused."""
        del timeout
        self._refuse("destruction")

    async def last(self, key: str, *, min_last_revision: int = 0, timeout: float | None = None) -> Entry[bytes] | None:
        """The newest entry of a key, a mark or not."""
        return await self.inner.last(key, min_last_revision=min_last_revision, timeout=timeout)

    async def at(
        self, revision: int, *, min_last_revision: int = 0, timeout: float | None = None
    ) -> Entry[bytes] | None:
        """The entry of a revision."""
        return await self.inner.at(revision, min_last_revision=min_last_revision, timeout=timeout)

    def read(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[list[Entry[bytes]]]:
        """Every entry kept."""
        return self.inner.read(patterns, min_last_revision=min_last_revision, timeout=timeout)

    def latest(
        self,
        patterns: Sequence[str],
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[list[Entry[bytes]]]:
        """The newest entry of each key."""
        return self.inner.latest(patterns, meta_only=meta_only, min_last_revision=min_last_revision, timeout=timeout)

    def keys(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[Listing]:
        """The keys alone."""
        return self.inner.keys(patterns, min_last_revision=min_last_revision, timeout=timeout)

    async def follow(
        self,
        patterns: Sequence[str],
        start: Start,
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> Feed[bytes]:
        """Entries from a start on."""
        return await self.inner.follow(
            patterns, start, meta_only=meta_only, min_last_revision=min_last_revision, timeout=timeout
        )
