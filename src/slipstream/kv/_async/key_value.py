"""Key-Value over asyncio: a bucket, whatever keeps it. Its rules are here; where entries are is `Storage`'s affair.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Generic, TypeVar, cast

from slipstream.errors import HistoryLostError, KeyExistsError, KeyNotFoundError, UsageError, WrongLastSequenceError
from slipstream.kv._async.cached_storage import CACHE_BYTES, CACHE_ENTRIES, CachedStorage
from slipstream.kv._async.codec_storage import CodecStorage
from slipstream.kv._async.election import Election, Members
from slipstream.kv._async.lease import DEFAULT_TTL, Lock
from slipstream.kv._async.storage import ReadOnlyStorage, Storage, StorageWriter
from slipstream.kv._async.watch import Watch
from slipstream.kv.bucket import SHORTEST_TTL, BucketConfig, BucketStatus
from slipstream.kv.cache import CacheStats
from slipstream.kv.codecs.base import Codec
from slipstream.kv.entry import Entry, Operation
from slipstream.kv.snapshot import Fold, check_past
from slipstream.kv.start import ALL, LATEST, NEW, From, Start

V = TypeVar("V")
W = TypeVar("W")

_LAST_SEQUENCE = re.compile(r"wrong last sequence: (\d+)")
_CREATE_TRIES = 8
_SNAPSHOT_TRIES = 8
_IN_FLIGHT = 4096
DELETES_KEPT = timedelta(minutes=30)


class KeyValue(Generic[V]):
    """A bucket. Every read takes `min_last_revision`: its answer is at least as new as that write.

    Values are `bytes`, or what a codec makes of them (`with_codec`).
    """

    def __init__(self, storage: Storage[V]) -> None:
        self.storage = storage
        self.bucket = storage.bucket

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.bucket!r} in {type(self.storage).__name__}>"

    # One key

    async def put(self, key: str, value: V, *, ttl: timedelta | None = None, timeout: float | None = None) -> int:
        """Store a value; returns its revision. With a `ttl` it goes by itself (the bucket must allow that)."""
        return await self.storage.append(self.storage.check_key(key), value, ttl=_check_ttl(ttl), timeout=timeout)

    async def get(
        self, key: str, *, revision: int = 0, min_last_revision: int = 0, timeout: float | None = None
    ) -> Entry[V]:
        """The newest value of a key, or the one of a given revision. Raises KeyNotFoundError if there is none."""
        self.storage.check_key(key)
        if revision:
            entry = await self.storage.at(revision, min_last_revision=min_last_revision, timeout=timeout)
            if entry is not None and entry.key != key:
                raise KeyNotFoundError(self.bucket, key, f"revision {revision} is of another key")
        else:
            entry = await self.storage.last(key, min_last_revision=min_last_revision, timeout=timeout)
        if entry is None:
            raise KeyNotFoundError(self.bucket, key, f"revision {revision}" if revision else "")
        if entry.is_deleted:
            raise KeyNotFoundError(
                self.bucket, key, f"its last entry is a {entry.operation}, revision {entry.revision}"
            )
        return entry

    async def create(self, key: str, value: V, *, ttl: timedelta | None = None, timeout: float | None = None) -> int:
        """Store a value only if the key has none; returns its revision. Raises KeyExistsError otherwise."""
        self.storage.check_key(key)
        _check_ttl(ttl)
        expected = tries = 0
        while True:
            try:
                return await self.storage.append(key, value, last=expected, ttl=ttl, timeout=timeout)
            except WrongLastSequenceError as error:
                tries += 1
                if tries == _CREATE_TRIES:  # it comes and goes faster than we can write
                    raise
                least = await self._at_least(error, timeout)
            last = await self.storage.last(key, min_last_revision=least, timeout=timeout)
            if last is not None and not last.is_deleted:
                raise KeyExistsError(self.bucket, key, last.revision)
            expected = last.revision if last else 0

    async def _at_least(self, refused: WrongLastSequenceError, timeout: float | None) -> int:
        """How new a read must be not to mistake the state that made the leader refuse."""
        found = _LAST_SEQUENCE.search(refused.description)
        if found:
            return int(found[1])
        return (await self.storage.status(timeout=timeout)).last_revision  # the form without a sequence

    async def update(
        self, key: str, value: V, *, last: int, ttl: timedelta | None = None, timeout: float | None = None
    ) -> int:
        """Store a value only if the key's revision is `last`; raises WrongLastSequenceError otherwise."""
        return await self.storage.append(
            self.storage.check_key(key), value, last=last, ttl=_check_ttl(ttl), timeout=timeout
        )

    async def delete(self, key: str, *, last: int | None = None, timeout: float | None = None) -> int:
        """Mark a key as deleted, keeping its history; returns the revision of the mark."""
        return await self.storage.append(
            self.storage.check_key(key), None, operation=Operation.DELETE, last=last, timeout=timeout
        )

    async def purge(
        self, key: str, *, last: int | None = None, ttl: timedelta | None = None, timeout: float | None = None
    ) -> int:
        """Remove a key with all its history, leaving one mark (which goes after `ttl`); returns its revision."""
        return await self.storage.append(
            self.storage.check_key(key),
            None,
            operation=Operation.PURGE,
            last=last,
            ttl=_check_ttl(ttl),
            timeout=timeout,
        )

    async def history(self, key: str, *, min_last_revision: int = 0, timeout: float | None = None) -> list[Entry[V]]:
        """Every entry kept of a key, oldest first, marks included. Raises KeyNotFoundError if there is none."""
        self.storage.check_key(key)
        found: list[Entry[V]] = []
        chunks = self.storage.read(
            self.storage.patterns((key,), exact=True), min_last_revision=min_last_revision, timeout=timeout
        )
        async for entries in chunks:
            found += entries
        if not found:
            raise KeyNotFoundError(self.bucket, key)
        return [entry._replace(delta=len(found) - 1 - at) for at, entry in enumerate(found)]

    async def watch(
        self,
        *filters: str,
        include_history: bool = False,
        ignore_deletes: bool = False,
        meta_only: bool = False,
        updates_only: bool = False,
        resume_from: int = 0,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> Watch[V]:
        """Follow keys: the newest entry of each that matches a filter (none: all keys), then every change.

        `include_history` begins with all that is kept, `resume_from` with what was written from that revision on,
        `updates_only` with nothing. `meta_only` leaves values away, `ignore_deletes` leaves marks out. `None` among the
        entries tells that the initial data is complete. End it with `close`, or use it as a context manager.
        """
        if include_history + updates_only + bool(resume_from) > 1:
            raise UsageError("bad watch: one of include_history, updates_only and resume_from is allowed")
        start = ALL if include_history else NEW if updates_only else LATEST
        feed = await self.storage.follow(
            self.storage.patterns(filters),
            Start(From.REVISION, resume_from) if resume_from else start,
            meta_only=meta_only,
            min_last_revision=min_last_revision,
            timeout=timeout,
        )
        return Watch(feed, ignore_deletes=ignore_deletes, is_current=updates_only)

    # Ranges of keys: filters in which a token may be `*` and the last one `>`; none: all keys

    async def keys(self, *filters: str, min_last_revision: int = 0, timeout: float | None = None) -> list[str]:
        """Every key that has a value, in the order of their last change."""
        live: dict[str, None] = {}
        patterns = self.storage.patterns(filters)
        async for part in self.storage.keys(patterns, min_last_revision=min_last_revision, timeout=timeout):
            for key in (*part.gone, *part.live) if live else ():  # what is here already may have changed meanwhile
                live.pop(key, None)
            live.update(dict.fromkeys(part.live))
        return list(live)

    async def iter_keys(
        self, *filters: str, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[str]:
        """The same one by one, without a list of all of them. A key that changes meanwhile may come twice."""
        patterns = self.storage.patterns(filters)
        async for part in self.storage.keys(patterns, min_last_revision=min_last_revision, timeout=timeout):
            for key in part.live:
                yield key

    async def get_range(
        self, *filters: str, min_last_revision: int = 0, timeout: float | None = None
    ) -> dict[str, Entry[V]]:
        """The values of a range of keys, each the newest when it was read. For one moment's view: `snapshot`."""
        live: dict[str, Entry[V]] = {}
        chunks = self.storage.latest(
            self.storage.patterns(filters), min_last_revision=min_last_revision, timeout=timeout
        )
        async for entries in chunks:
            for entry in entries:
                live.pop(entry.key, None)
                if entry.operation is Operation.PUT:
                    live[entry.key] = entry
        return live

    async def delete_range(self, *filters: str, timeout: float | None = None) -> int:
        """Delete every key of a range that has a value; returns how many. Each is a delete of its own, not one act."""
        return await self._mark_range(filters, Operation.DELETE, timeout)

    async def purge_range(self, *filters: str, timeout: float | None = None) -> int:
        """Purge every key of a range that has a value; returns how many. Each is a purge of its own, not one act."""
        return await self._mark_range(filters, Operation.PURGE, timeout)

    async def _mark_range(self, filters: tuple[str, ...], operation: Operation, timeout: float | None) -> int:
        if not filters:
            raise UsageError("bad range: say '>' to mean every key of the bucket")
        keys = await self.keys(*filters, timeout=timeout)
        writer = self.storage.writer(max_in_flight=_IN_FLIGHT, timeout=timeout)
        for key in keys:
            await writer.append(key, None, operation)
        await writer.flush()
        return len(keys)

    async def snapshot(
        self, *filters: str, revision: int = 0, min_last_revision: int = 0, timeout: float | None = None
    ) -> dict[str, Entry[V]]:
        """The values of a range of keys as they all were at one revision (0: now).

        Exact, or HistoryLostError: a bucket keeps only so many entries of each key. Keys that were removed for good
        (`purge_deletes`) without a record of it leave no trace, and are not known to have been.
        """
        patterns = self.storage.patterns(filters)
        tries = 0
        while True:
            status = await self.storage.status(timeout=timeout)
            as_of = revision or max(status.last_revision, min_last_revision)
            if revision:
                check_past(self.bucket, revision, status.stream_info)
            fold: Fold[V] = Fold(self.bucket, as_of, status.history)
            least = max(as_of, min_last_revision)
            async for entries in self.storage.read(patterns, min_last_revision=least, timeout=timeout):
                fold.feed(entries)
            if revision:  # nothing may have been removed for good while we read
                status = await self.storage.status(timeout=timeout)
                check_past(self.bucket, revision, status.stream_info)
            try:
                return fold.result()
            except HistoryLostError:
                tries += 1
                if revision or tries == _SNAPSHOT_TRIES:
                    raise  # else a key was overwritten while we read: look at a newer moment

    async def purge_deletes(
        self, *, older_than: timedelta = DELETES_KEPT, recorded: bool = False, timeout: float | None = None
    ) -> int:
        """Remove deleted keys for good; marks younger than `older_than` stay for watchers to see. Returns how many.

        A key that is written again meanwhile keeps what is new. With `recorded` the stream's metadata tells up to which
        revision, so that a `snapshot` of an earlier one is refused; without, it is given as if those keys had never
        been. (Other programs that create the bucket anew at each start would meet a configuration that is not theirs.)
        """
        if older_than < timedelta(0):
            raise UsageError(f"bad older_than {older_than!r}: 0 (all) or more is allowed")
        marks = [
            entry
            async for entries in self.storage.latest((">",), meta_only=True, timeout=timeout)
            for entry in entries
            if entry.is_deleted
        ]
        now = (await self.storage.status(timeout=timeout)).stream_info.ts  # the clock that also dated the marks
        kept = older_than // timedelta(microseconds=1) * 1000
        if marks and recorded:
            await self.storage.forgetting(max(entry.revision for entry in marks), timeout=timeout)
        for entry in marks:
            is_old = not kept or now - entry.created > kept
            await self.storage.forget(entry.key, below=entry.revision + is_old, timeout=timeout)
        return len(marks)

    # The bucket

    async def status(self, *, timeout: float | None = None) -> BucketStatus:
        """How the bucket is set up, and what it holds."""
        return await self.storage.status(timeout=timeout)

    async def destroy(self, *, timeout: float | None = None) -> None:
        """Remove the bucket with everything in it."""
        await self.storage.destroy(timeout=timeout)

    async def close(self) -> None:
        """Let go of what this handle holds (a file, a cache); the bucket stays."""
        await self.storage.close()

    def writer(self, *, max_in_flight: int = _IN_FLIGHT, timeout: float | None = None) -> Writer[V]:
        """Put and delete many keys, each acknowledged, with many in flight: the fast way."""
        return Writer(self.storage, self.storage.writer(max_in_flight=max_in_flight, timeout=timeout))

    # Agreement between programs: docs/kv-coordination.md says what each guarantees

    def lock(self: KeyValue[bytes], key: str, *, ttl: timedelta = DEFAULT_TTL, name: str = "") -> Lock:
        """A lock with a fencing token; use it as a context manager, or `acquire` and `release` it."""
        return Lock(self, key, ttl=ttl, name=name)

    def election(
        self: KeyValue[bytes], key: str, *, name: str = "", data: bytes = b"", ttl: timedelta = DEFAULT_TTL
    ) -> Election:
        """A candidacy for the leadership that a key stands for."""
        return Election(self, key, name=name, data=data, ttl=ttl)

    def members(self: KeyValue[bytes], prefix: str, *, ttl: timedelta = DEFAULT_TTL) -> Members:
        """A set, on keys below `prefix`, whose members lapse when they do not show that they are alive."""
        return Members(self, prefix, ttl=ttl)

    # Other views of the same bucket

    def read_only(self) -> KeyValue[V]:
        """A handle that refuses every write before anything is sent."""
        return KeyValue(cast("Storage[V]", ReadOnlyStorage(cast("Storage[bytes]", self.storage))))

    async def cached(
        self,
        *filters: str,
        max_entries: int = CACHE_ENTRIES,
        max_bytes: int = CACHE_BYTES,
        timeout: float | None = None,
    ) -> CachedKeyValue[V]:
        """A handle whose `get` is answered from memory where that is as new as asked for; close it at the end.

        A watch keeps it fresh. What was written through this handle is always seen by it; what others write a little
        later, or at once with `min_last_revision`. Without a connection the bucket is asked, not the memory.
        """
        storage = await CachedStorage.opened(
            self.storage, filters, max_entries=max_entries, max_bytes=max_bytes, timeout=timeout
        )
        return CachedKeyValue(storage)

    def with_codec(self, codec: Codec[W]) -> KeyValue[W]:
        """A bucket whose keys and values go through a codec on their way. Only a bucket of bytes can have one more."""
        return KeyValue(CodecStorage(cast("Storage[bytes]", self.storage), codec))


class CachedKeyValue(KeyValue[V]):
    """A bucket with a read cache."""

    def __init__(self, storage: CachedStorage[V]) -> None:
        super().__init__(storage)
        self._cache = storage

    @property
    def figures(self) -> CacheStats:
        """Hits and misses, entries and bytes."""
        return self._cache.figures


async def open_local_key_value(path: str = ":memory:", config: BucketConfig | None = None) -> KeyValue[bytes]:
    """A bucket without any server: in a file, or in memory. It is made if it is not there; close it at the end."""
    from slipstream.kv._async.local_storage import open_local  # SQLite is loaded by those who use it

    return KeyValue(await open_local(path, config))


def _check_ttl(ttl: timedelta | None) -> timedelta | None:
    if ttl is not None and ttl < SHORTEST_TTL:
        raise UsageError(f"bad ttl {ttl!r}: at least 1 s is allowed")
    return ttl


class Writer(Generic[V]):
    """Puts and deletes in flight; use it as a context manager, which waits for the last ack."""

    def __init__(self, storage: Storage[V], inner: StorageWriter[V]) -> None:
        self.storage = storage
        self._inner = inner
        self.last_revision = 0

    async def put(self, key: str, value: V) -> None:
        """Send one value; waits only while too many are in flight."""
        await self._inner.append(self.storage.check_key(key), value)

    async def delete(self, key: str) -> None:
        """Send one delete mark."""
        await self._inner.append(self.storage.check_key(key), None, Operation.DELETE)

    async def purge(self, key: str) -> None:
        """Send one purge."""
        await self._inner.append(self.storage.check_key(key), None, Operation.PURGE)

    async def flush(self) -> int:
        """Wait until everything sent so far is stored; returns the newest revision."""
        self.last_revision = await self._inner.flush()
        return self.last_revision

    async def __aenter__(self) -> Writer[V]:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            await self.flush()
        else:
            await self._inner.abandon()
