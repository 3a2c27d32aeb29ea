"""A Key-Value bucket as users hold it, over asyncio: its rules, on top of any `Storage`.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Generic, Self, TypeVar, Unpack, cast

from slipstream.api.notebook import facts
from slipstream.api.times import nanoseconds
from slipstream.client._async.opening import Openable, opens
from slipstream.errors import (
    HistoryLostError,
    KeyExistsError,
    KeyNotFoundError,
    KeyRevisionError,
    UsageError,
    WrongLastSequenceError,
)
from slipstream.jetstream.requests import check_seq
from slipstream.kv._async.cached_storage import CACHE_BYTES, CACHE_ENTRIES, RECHECK_AFTER, CachedStorage
from slipstream.kv._async.codec_storage import CodecStorage, foreign_keys
from slipstream.kv._async.election import Election, Members
from slipstream.kv._async.hidden_keys import HiddenKeyStorage
from slipstream.kv._async.lease import DEFAULT_TTL, Lock
from slipstream.kv._async.storage import ReadOnlyStorage, Storage, StorageWriter, read_live
from slipstream.kv._async.watch import Watch
from slipstream.kv.bucket import BucketConfig, BucketStatus
from slipstream.kv.cache import CacheStats
from slipstream.kv.codecs.base import Codec
from slipstream.kv.consistency import check_consistency
from slipstream.kv.entry import ALL, LATEST, NEW, Entry, From, Operation, Start, with_deltas
from slipstream.kv.lifetime import whole_seconds
from slipstream.kv.snapshot import Fold, check_past
from slipstream.wire.arguments import Duration, check_timeout

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from slipstream.frames.options import FrameOptions, SnapshotOptions

V = TypeVar("V")
W = TypeVar("W")

_CREATE_ATTEMPTS = 8
_SNAPSHOT_ATTEMPTS = 8
_IN_FLIGHT = 4096
DELETES_KEPT = timedelta(minutes=30)


class KeyValue(Generic[V]):
    """A bucket. Every read takes `min_last_revision`: its answer is at least as new as that write.

    Without it, the handle's `consistency` decides what reads reflect (see `JetStream.key_value`): by default everything
    written through the handle and returned by it before. Views of a handle share that state.

    Values are `bytes`, or the type of a codec (`with_codec`). Features beyond the Key-Value specification are
    extensions of this client: `min_last_revision`, ranges, snapshots, writers and more; the reference lists them all.
    """

    def __init__(self, storage: Storage[V]) -> None:
        self.storage = storage
        self.bucket: str = storage.bucket

    def _repr_html_(self) -> str:
        return facts(f"Bucket {self.bucket}", [("State", "status() shows it, to_pandas() its values")])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.bucket!r} in {type(self.storage).__name__}>"

    @property
    def foreign_keys(self) -> tuple[str, ...]:
        """Stored keys that this handle left out so far, because its codecs cannot have written them (1,000 at most)."""
        return foreign_keys(self.storage)

    # One key

    async def put(self, key: str, value: V, *, ttl: Duration | None = None, timeout: Duration | None = None) -> int:
        """Store a value; returns its revision.

        With a `ttl` (the bucket must allow that: `value_ttl`) it replaces the key's history, and the key is gone when
        it expires. Servers count whole seconds: fractions are rounded up.
        """
        timeout = check_timeout(timeout)
        return await self.storage.append(self.storage.check_key(key), value, ttl=whole_seconds(ttl), timeout=timeout)

    async def get(
        self, key: str, *, revision: int = 0, min_last_revision: int = 0, timeout: Duration | None = None
    ) -> Entry[V]:
        """The newest value of a key, or the one of a revision. Raises KeyNotFoundError if there is none."""
        timeout = check_timeout(timeout)
        key = self.storage.check_key(key)
        if revision != 0 or min_last_revision != 0:  # the usual read has neither
            check_seq(revision, "revision")
            check_seq(min_last_revision, "min_last_revision")
        if revision:
            entry = await self.storage.at(revision, min_last_revision=min_last_revision, timeout=timeout)
            if entry is not None and entry.key != key:
                raise KeyNotFoundError(self.bucket, key, f"revision {revision} belongs to another key")
        else:
            entry = await self.storage.last(key, min_last_revision=min_last_revision, timeout=timeout)
        if entry is None:
            raise KeyNotFoundError(self.bucket, key, f"revision {revision}" if revision else "")
        if entry.is_deleted:
            raise KeyNotFoundError(
                self.bucket, key, f"its last entry is a {entry.operation}, revision {entry.revision}"
            )
        return entry

    async def create(self, key: str, value: V, *, ttl: Duration | None = None, timeout: Duration | None = None) -> int:
        """Store a value only if the key has none; returns its revision. Raises KeyExistsError otherwise."""
        timeout = check_timeout(timeout)
        key = self.storage.check_key(key)
        span = whole_seconds(ttl)
        expected = attempts = 0
        while True:
            try:
                return await self.storage.append(key, value, last=expected, ttl=span, timeout=timeout)
            except WrongLastSequenceError as error:
                attempts += 1
                if attempts == _CREATE_ATTEMPTS:  # the key appears and disappears faster than we can write
                    seen = error.last_seq
                    raise KeyRevisionError(self.bucket, key, expected=expected, revision=seen, cause=error) from error
                least = await self._rejected_at(error, timeout)
            last = await self.storage.last(key, min_last_revision=least, timeout=timeout)
            if last is not None and not last.is_deleted:
                raise KeyExistsError(self.bucket, key, last.revision)
            expected = last.revision if last else 0

    async def _rejected_at(self, error: WrongLastSequenceError, timeout: float | None) -> int:
        """The revision for which the leader rejected a write: a read must be as new to see the same state."""
        if error.last_seq is not None:
            return error.last_seq
        return (await self.storage.status(timeout=timeout)).last_revision  # the server's text without a sequence

    async def update(
        self, key: str, value: V, *, last: int, ttl: Duration | None = None, timeout: Duration | None = None
    ) -> int:
        """Store a value only if the key's revision is `last`. Raises KeyRevisionError otherwise."""
        timeout = check_timeout(timeout)
        return await self._append_after(last, key, value, ttl=whole_seconds(ttl), timeout=timeout)

    async def delete(self, key: str, *, last: int | None = None, timeout: Duration | None = None) -> int:
        """Mark a key as deleted, keeping its history; returns the revision of the mark.

        With `last` only if the key's revision is that one: raises KeyRevisionError otherwise.
        """
        timeout = check_timeout(timeout)
        return await self._append_after(last, key, None, operation=Operation.DELETE, timeout=timeout)

    async def purge(
        self, key: str, *, last: int | None = None, ttl: Duration | None = None, timeout: Duration | None = None
    ) -> int:
        """Remove a key with all its history, leaving one mark (which expires after `ttl`); returns its revision.

        With `last` only if the key's revision is that one: raises KeyRevisionError otherwise.
        """
        timeout = check_timeout(timeout)
        span = whole_seconds(ttl)
        return await self._append_after(last, key, None, operation=Operation.PURGE, ttl=span, timeout=timeout)

    async def _append_after(
        self,
        last: int | None,
        key: str,
        value: V | None,
        *,
        operation: Operation = Operation.PUT,
        ttl: timedelta | None = None,
        timeout: float | None = None,
    ) -> int:
        """Append an entry if the key's revision is `last` (None: any)."""
        key = self.storage.check_key(key)
        if last is not None:
            check_seq(last, "last")
        try:
            return await self.storage.append(key, value, operation=operation, last=last, ttl=ttl, timeout=timeout)
        except WrongLastSequenceError as error:
            if last is None:
                raise
            revision = error.last_seq
            raise KeyRevisionError(self.bucket, key, expected=last, revision=revision, cause=error) from error

    async def history(self, key: str, *, min_last_revision: int = 0, timeout: Duration | None = None) -> list[Entry[V]]:
        """Every entry kept of a key, oldest first, marks included. Raises KeyNotFoundError if there is none."""
        timeout = check_timeout(timeout)
        key = self.storage.check_key(key)
        found: list[Entry[V]] = []
        chunks = self.storage.read(
            self.storage.patterns((key,), exact=True), min_last_revision=min_last_revision, timeout=timeout
        )
        async for entries in chunks:
            found += entries
        if not found:
            raise KeyNotFoundError(self.bucket, key)
        return with_deltas(found)

    @opens
    async def watch(
        self,
        *filters: str,
        include_history: bool = False,
        ignore_deletes: bool = False,
        meta_only: bool = False,
        updates_only: bool = False,
        resume_from: int = 0,
        min_last_revision: int = 0,
        timeout: Duration | None = None,
    ) -> Watch[V]:
        """Watch keys: the newest entry of each that matches a filter (none: all keys), then every change.

        `include_history` begins with all entries that are kept, `resume_from` with those written from that revision on,
        `updates_only` with changes only. `meta_only` leaves values empty, `ignore_deletes` leaves marks out. One `None`
        among the entries marks the end of the initial data. End it with `close`, or use it as a context manager.
        Extensions of this client: several filters, `resume_from` and `min_last_revision`.
        """
        timeout = check_timeout(timeout)
        check_seq(resume_from, "resume_from")
        check_seq(min_last_revision, "min_last_revision")
        if bool(include_history) + bool(updates_only) + bool(resume_from) > 1:
            raise UsageError("include_history, updates_only and resume_from are mutually exclusive")
        start = ALL if include_history else NEW if updates_only else LATEST
        feed = await self.storage.follow(
            self.storage.patterns(filters),
            Start(From.REVISION, resume_from) if resume_from else start,
            meta_only=meta_only,
            min_last_revision=min_last_revision,
            timeout=timeout,
        )
        return Watch(feed, bucket=self.bucket, ignore_deletes=ignore_deletes, is_current=updates_only)

    # Ranges of keys: filters in which a token may be `*` and the last one `>`; none: all keys

    async def keys(self, *filters: str, min_last_revision: int = 0, timeout: Duration | None = None) -> list[str]:
        """Every key that has a value, in the order of their last change."""
        timeout = check_timeout(timeout)
        live: dict[str, None] = {}
        patterns = self.storage.patterns(filters)
        async for part in self.storage.keys(patterns, min_last_revision=min_last_revision, timeout=timeout):
            if not live:
                live = dict.fromkeys(part.live)
                continue
            for key in part.deleted:
                live.pop(key, None)
            before = len(live)
            live.update(dict.fromkeys(part.live))
            if len(live) < before + len(part.live):  # keys that were listed before have changed since
                for key in part.live:
                    live.pop(key, None)
                live.update(dict.fromkeys(part.live))
        return list(live)

    async def iter_keys(
        self, *filters: str, min_last_revision: int = 0, timeout: Duration | None = None
    ) -> AsyncIterator[str]:
        """The same one by one, without a list of all. A key that changes during the read may be returned twice."""
        timeout = check_timeout(timeout)
        patterns = self.storage.patterns(filters)
        async for part in self.storage.keys(patterns, min_last_revision=min_last_revision, timeout=timeout):
            for key in part.live:
                yield key

    async def get_range(
        self, *filters: str, min_last_revision: int = 0, timeout: Duration | None = None
    ) -> dict[str, Entry[V]]:
        """The values of a range of keys, each the newest when it was read. For a consistent view: `snapshot`."""
        timeout = check_timeout(timeout)
        return await read_live(self.storage, filters, min_last_revision=min_last_revision, timeout=timeout)

    async def delete_range(self, *filters: str, timeout: Duration | None = None) -> int:
        """Delete every key of a range that has a value; returns how many. Not atomic: each key is deleted
        separately."""
        timeout = check_timeout(timeout)
        return await self._mark_range(filters, Operation.DELETE, timeout)

    async def purge_range(self, *filters: str, timeout: Duration | None = None) -> int:
        """Purge every key of a range that has a value; returns how many. Not atomic: each key is purged separately."""
        timeout = check_timeout(timeout)
        return await self._mark_range(filters, Operation.PURGE, timeout)

    async def _mark_range(self, filters: tuple[str, ...], operation: Operation, timeout: float | None) -> int:
        if not filters:
            raise UsageError("a range must have at least one filter; pass '>' for every key of the bucket")
        self.storage.check_writable(f"{operation} of keys {filters}")
        keys = await self.keys(*filters, timeout=timeout)
        writer = self.storage.writer(max_in_flight=_IN_FLIGHT, timeout=timeout)
        for key in keys:
            await writer.append(key, None, operation)
        await writer.flush()
        return len(keys)

    async def snapshot(
        self, *filters: str, revision: int = 0, min_last_revision: int = 0, timeout: Duration | None = None
    ) -> dict[str, Entry[V]]:
        """The values of a range of keys as of one revision (0: now).

        Exact, or raises HistoryLostError: a bucket keeps a limited number of entries per key. Keys that were removed
        for good (`purge_deletes`) without recording it leave no trace and are missing.
        """
        timeout = check_timeout(timeout)
        patterns = self.storage.patterns(filters)
        check_seq(revision, "revision")
        check_seq(min_last_revision, "min_last_revision")
        attempts = 0
        while True:
            status = await self.storage.status(timeout=timeout)
            as_of = revision or max(status.last_revision, min_last_revision, self.storage.seen().bucket)
            if revision:
                check_past(self.bucket, revision, status.stream_info)
            fold: Fold[V] = Fold(self.bucket, as_of, status.history)
            least = max(as_of, min_last_revision)
            async for entries in self.storage.read(patterns, min_last_revision=least, timeout=timeout):
                fold.feed(entries)
            if revision:  # keys may have been removed for good during the read
                status = await self.storage.status(timeout=timeout)
                check_past(self.bucket, revision, status.stream_info)
            try:
                return fold.result()
            except HistoryLostError:
                attempts += 1
                if revision or attempts == _SNAPSHOT_ATTEMPTS:
                    raise  # otherwise a key was overwritten during the read: retry as of a newer revision

    async def to_arrow(
        self,
        *filters: str,
        revision: int = 0,
        min_last_revision: int = 0,
        timeout: Duration | None = None,
        **options: Unpack[FrameOptions],
    ) -> pa.Table:
        """A `snapshot` as an Arrow table with a row per key: key, value, revision, created, operation.

        `columns`, `schema` and `errors` are FrameOptions; a `schema` decodes JSON values into columns. Needs the extra
        `arrow`.
        """
        from slipstream.frames.arrow import TableBuilder  # with its dependencies, which are optional

        builder = TableBuilder(**options, entries=True)
        found = await self.snapshot(*filters, revision=revision, min_last_revision=min_last_revision, timeout=timeout)
        builder.add_entries(found.values())
        return builder.table()

    async def to_pandas(self, *filters: str, **options: Unpack[SnapshotOptions]) -> pd.DataFrame:
        """The same as a pandas data frame, its columns backed by Arrow; takes the arguments of `to_arrow`."""
        from slipstream.frames.arrow import pandas_of

        return pandas_of(await self.to_arrow(*filters, **options))

    async def to_polars(self, *filters: str, **options: Unpack[SnapshotOptions]) -> pl.DataFrame:
        """The same as a polars data frame; takes the arguments of `to_arrow`."""
        from slipstream.frames.arrow import polars_of

        return polars_of(await self.to_arrow(*filters, **options))

    async def purge_deletes(
        self, *, older_than: Duration = DELETES_KEPT, recorded: bool = False, timeout: Duration | None = None
    ) -> int:
        """Remove deleted keys for good; delete markers younger than `older_than` stay for watchers to see. Returns how
        many.

        A key that is written meanwhile keeps its new entries. With `recorded` the stream's metadata records up to which
        revision, so that a `snapshot` of an earlier one is rejected; otherwise such a snapshot omits the removed keys.
        Read replicas in the same account are purged as well, since a mirror does not repeat the purges of its origin;
        one that cannot be purged, or lags for the whole timeout, is logged and keeps its markers.
        """
        timeout = check_timeout(timeout)
        kept = nanoseconds(older_than, "older_than")
        if kept < 0:
            raise UsageError(f"older_than must be 0 (all marks) or more, got {older_than!r}")
        self.storage.check_writable("removal of deleted keys")
        marks = [
            entry
            async for entries in self.storage.latest((">",), meta_only=True, timeout=timeout)
            for entry in entries
            if entry.is_deleted
        ]
        now = (await self.storage.status(timeout=timeout)).stream_info.ts  # the clock that also dated the marks
        if marks and recorded:
            await self.storage.record_forgotten(max(entry.revision for entry in marks), timeout=timeout)
        for entry in marks:
            is_old = not kept or now - entry.created > kept
            await self.storage.forget(entry.key, below=entry.revision + is_old, timeout=timeout)
        return len(marks)

    # The bucket

    async def status(self, *, timeout: Duration | None = None) -> BucketStatus:
        """The bucket's configuration and state."""
        timeout = check_timeout(timeout)
        return await self.storage.status(timeout=timeout)

    async def destroy(self, *, timeout: Duration | None = None) -> None:
        """Remove the bucket with everything in it."""
        timeout = check_timeout(timeout)
        await self.storage.destroy(timeout=timeout)

    async def close(self) -> None:
        """Release what this handle holds (a file, a cache); the bucket stays. Can be called again.

        A handle on a server's bucket holds nothing: the connection is the caller's.
        """
        await self.storage.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def writer(self, *, max_in_flight: int = _IN_FLIGHT, timeout: Duration | None = None) -> Writer[V]:
        """Put and delete keys in a pipeline, each acknowledged: the fast way."""
        timeout = check_timeout(timeout)
        return Writer(self.storage, self.storage.writer(max_in_flight=max_in_flight, timeout=timeout))

    # Coordination: docs/kv-coordination.md says what each guarantees

    def lock(self: KeyValue[bytes], key: str, *, ttl: Duration = DEFAULT_TTL, name: str = "") -> Lock:
        """A lock with a fencing token; use it as a context manager, or `acquire` and `release` it."""
        return Lock(self.storage, key, ttl=ttl, name=name)

    def election(
        self: KeyValue[bytes], key: str, *, name: str = "", data: bytes = b"", ttl: Duration = DEFAULT_TTL
    ) -> Election:
        """A candidacy for the leadership of a key."""
        return Election(self.storage, key, name=name, data=data, ttl=ttl)

    def members(self: KeyValue[bytes], prefix: str, *, ttl: Duration = DEFAULT_TTL) -> Members:
        """A set of members on keys below `prefix`; a member that does not renew its lease is removed."""
        return Members(self.storage, prefix, ttl=ttl)

    # Other views of the same bucket

    def read_only(self) -> KeyValue[V]:
        """A handle that rejects every write before anything is sent."""
        return KeyValue(ReadOnlyStorage(self.storage))

    @opens
    async def cached(
        self,
        *filters: str,
        max_entries: int = CACHE_ENTRIES,
        max_bytes: int = CACHE_BYTES,
        recheck_after: Duration = RECHECK_AFTER,
        timeout: Duration | None = None,
    ) -> CachedKeyValue[V]:
        """A handle whose `get` is answered from memory if the answer is known to be right; close it at the end.

        A watch keeps it fresh. The handle always sees its own writes, and those of others a little later, or at once
        with `min_last_revision`. A value with a TTL is not returned once that has ended. A value removed without a
        message (by a purge of the stream, by limits, with a recreated bucket) is no longer returned after
        `recheck_after`: the bucket's state is checked twice as often, while there are reads. If the answer cannot be
        proven, and without a connection, reads go to the bucket; `stats.reasons` says why.
        """
        timeout = check_timeout(timeout)
        self.storage.patterns(filters)  # a malformed filter is rejected before anything is sent
        storage = await CachedStorage.opened(
            self.storage,
            filters,
            max_entries=max_entries,
            max_bytes=max_bytes,
            recheck_after=recheck_after,
            timeout=timeout,
        )
        return CachedKeyValue(storage)

    def with_codec(self, codec: Codec[W]) -> KeyValue[W]:
        """The bucket with keys and values encoded by a codec. Codecs stack on a bucket whose values are bytes."""
        if not isinstance(codec, Codec):
            raise UsageError(f"codec must be a Codec, got {codec!r}")
        wrapper = HiddenKeyStorage if codec.hides_keys else CodecStorage
        return KeyValue(wrapper(cast("Storage[bytes]", self.storage), codec))


class CachedKeyValue(KeyValue[V]):
    """A bucket with a read cache."""

    def __init__(self, storage: CachedStorage[V]) -> None:
        super().__init__(storage)
        self._cache = storage

    @property
    def stats(self) -> CacheStats:
        """Hits and misses, entries and bytes."""
        return self._cache.stats


@opens
async def open_local_key_value(
    path: str = ":memory:", config: BucketConfig | None = None, *, consistency: str | None = None
) -> KeyValue[bytes]:
    """Open a bucket without a server: in a file or in memory, created if `config` is passed. Close it at the end.

    Its reads are the latest, whatever `consistency` says.
    """
    check_consistency(consistency, in_session=False)
    from slipstream.kv._async.sqlite_storage import open_sqlite  # other programs need not load SQLite

    return KeyValue(await open_sqlite(path, config))


class Writer(Generic[V], Openable):
    """Pipelined puts and deletes; use it as a context manager, which waits for the last ack."""

    def __init__(self, storage: Storage[V], inner: StorageWriter[V]) -> None:
        self.storage = storage
        self._inner = inner
        self.last_revision: int = 0

    def __repr__(self) -> str:
        return f"<Writer to {self.storage.bucket!r}>"

    async def put(self, key: str, value: V) -> None:
        """Send one value; waits only while too many are unacknowledged."""
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            await self.flush()
        else:
            await self._inner.abandon()
