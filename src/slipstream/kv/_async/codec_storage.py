"""A storage wrapper that encodes and decodes keys and values with a codec, over asyncio.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Generic, TypeVar, cast

from slipstream.errors import CodecError, DecryptionError, Error
from slipstream.kv._async.runtime import clock
from slipstream.kv._async.storage import Feed, Seen, Storage, StorageWriter
from slipstream.kv.bucket import BucketStatus
from slipstream.kv.codecs.base import Codec, ForeignKeys
from slipstream.kv.entry import Entry, Listing, Operation, Start

V = TypeVar("V")


class CodecStorage(Generic[V]):
    """The entries of another storage through a codec. Marks have no value to decode."""

    def __init__(self, inner: Storage[bytes], codec: Codec[V]) -> None:
        self.bucket = inner.bucket
        self.inner = inner
        self.codec = codec
        self.foreign = ForeignKeys(inner.bucket)

    def check_key(self, key: str) -> str:
        """Return `key` as it is listed, or raise a UsageError if its stored form is not a valid key."""
        stored = self.codec.encode_key(key)
        listed = self.inner.check_key(stored)
        return self.codec.canonical_key(key) if listed == stored else self.codec.decode_key(listed)

    def patterns(self, filters: Sequence[str], *, exact: bool = False) -> tuple[str, ...]:
        """The stored form of filters over the program's keys."""
        if exact:
            return self.inner.patterns([self.codec.encode_key(key) for key in filters], exact=True)
        encode = self.codec.encode_filter
        return self.inner.patterns([each if each in ("", ">") else encode(each) for each in filters])

    def seen(self, key: str = "") -> Seen:
        """What a read of a key must have seen because of the session or handle it belongs to."""
        return self.inner.seen(self.codec.encode_key(key) if key else "")

    def known(self, key: str) -> int | None:
        """The newest revision of a key as of what a read of it must have seen (0: none); None if that is not known."""
        return self.inner.known(self.codec.encode_key(key))

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
        stored, data = encoded(self.codec, key, value, operation)
        return await self.inner.append(stored, data, operation=operation, last=last, ttl=ttl, timeout=timeout)

    def writer(self, *, max_in_flight: int, timeout: float | None = None) -> CodecWriter[V]:
        """Append entries in a pipeline, each acknowledged."""
        return CodecWriter(self.inner.writer(max_in_flight=max_in_flight, timeout=timeout), self.codec)

    async def last(self, key: str, *, min_last_revision: int = 0, timeout: float | None = None) -> Entry[V] | None:
        """The newest entry of a key, a mark or not."""
        stored = self.codec.encode_key(key)
        entry = await self.inner.last(stored, min_last_revision=min_last_revision, timeout=timeout)
        return None if entry is None else decoded(self.codec, entry)

    async def at(self, revision: int, *, min_last_revision: int = 0, timeout: float | None = None) -> Entry[V] | None:
        """The entry of a revision."""
        entry = await self.inner.at(revision, min_last_revision=min_last_revision, timeout=timeout)
        return None if entry is None else decoded(self.codec, entry)

    async def read(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[list[Entry[V]]]:
        """Every entry kept."""
        async for entries in self.inner.read(patterns, min_last_revision=min_last_revision, timeout=timeout):
            yield self._decoded(entries)

    async def latest(
        self,
        patterns: Sequence[str],
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[list[Entry[V]]]:
        """The newest entry of each key."""
        chunks = self.inner.latest(patterns, meta_only=meta_only, min_last_revision=min_last_revision, timeout=timeout)
        async for entries in chunks:
            yield self._decoded(entries, meta_only)

    async def keys(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[Listing]:
        """Like `latest`, but keys only."""
        async for live, deleted in self.inner.keys(patterns, min_last_revision=min_last_revision, timeout=timeout):
            yield Listing(
                [key for stored in live if (key := own_key(self.codec, stored, self.foreign)) is not None],
                [key for stored in deleted if (key := own_key(self.codec, stored, self.foreign)) is not None],
            )

    def _decoded(self, entries: Sequence[Entry[bytes]], meta_only: bool = False) -> list[Entry[V]]:
        """The program's form of entries, without those of foreign keys."""
        codec, foreign = self.codec, self.foreign
        return [
            decoded_value(codec, entry, key, meta_only)
            for entry in entries
            if (key := own_key(codec, entry.key, foreign)) is not None
        ]

    async def follow(
        self,
        patterns: Sequence[str],
        start: Start,
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> CodecFeed[V]:
        """Open a feed."""
        inner = await self.inner.follow(
            patterns, start, meta_only=meta_only, min_last_revision=min_last_revision, timeout=timeout
        )
        return CodecFeed(inner, self.codec, self.foreign, meta_only)

    async def forget(self, key: str, *, below: int, timeout: float | None = None) -> None:
        """Remove the key's entries below a revision."""
        await self.inner.forget(self.codec.encode_key(key), below=below, timeout=timeout)

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


def encoded(codec: Codec[V], key: str, value: V | None, operation: Operation) -> tuple[str, bytes | None]:
    """The stored form of a key and its value; a mark has no value."""
    if operation is not Operation.PUT:
        return codec.encode_key(key), None
    return codec.encode_key(key), codec.encode_value(key, cast("V", value))


def own_key(codec: Codec[V], stored: str, foreign: ForeignKeys) -> str | None:
    """The program's form of a stored key; None if it is foreign to the codec, which is reported."""
    try:
        return codec.decode_key(stored)
    except DecryptionError:  # of a wrong keyring, perhaps: leaving it out would look as if it did not exist
        raise
    except CodecError as error:
        foreign.report(stored, error)
        return None


def decoded(codec: Codec[V], entry: Entry[bytes]) -> Entry[V]:
    """The program's form of an entry."""
    return decoded_value(codec, entry, codec.decode_key(entry.key), meta_only=False)


def decoded_value(codec: Codec[V], entry: Entry[bytes], key: str, meta_only: bool) -> Entry[V]:
    """The same if its key is decoded already. With `meta_only` the value is not decoded: it may be empty."""
    if meta_only or entry.is_deleted:
        return cast("Entry[V]", entry._replace(key=key))
    changed: Entry[object] = cast("Entry[object]", entry)._replace(key=key, value=codec.decode_value(key, entry.value))
    return cast("Entry[V]", changed)


def foreign_keys(storage: object) -> tuple[str, ...]:
    """The foreign keys that a storage and those below it have met."""
    found: list[str] = []
    while storage is not None:
        if isinstance(storage, CodecStorage):
            found += storage.foreign.keys
        storage = getattr(storage, "inner", None)
    return tuple(found)


class CodecWriter(Generic[V]):
    """Pipelined appends through a codec."""

    def __init__(self, inner: StorageWriter[bytes], codec: Codec[V]) -> None:
        self._inner = inner
        self._codec = codec

    async def append(self, key: str, value: V | None, operation: Operation = Operation.PUT) -> None:
        """Send one."""
        stored, data = encoded(self._codec, key, value, operation)
        await self._inner.append(stored, data, operation)

    async def flush(self) -> int:
        """Wait until all are stored; returns the newest revision."""
        return await self._inner.flush()

    async def abandon(self) -> None:
        """Stop waiting for acknowledgements."""
        await self._inner.abandon()


class CodecFeed(Generic[V]):
    """A feed through a codec."""

    knows_delta = True  # False: a key may have entries under several names, which the inner feed does not know of

    def __init__(self, inner: Feed[bytes], codec: Codec[V], foreign: ForeignKeys, meta_only: bool) -> None:
        self._inner = inner
        self._codec = codec
        self._foreign = foreign
        self._meta_only = meta_only
        self._held: deque[Entry[bytes]] = deque()  # received but not decoded: one before them failed to decode
        self._held_pending = 0  # how many of them belong to the initial data
        self._revision = 0

    @property
    def pending(self) -> int:
        """How many entries of the initial data were not returned yet."""
        return self._inner.pending + self._held_pending

    @property
    def revision(self) -> int:
        """Every entry up to this revision was returned."""
        return self._revision if self._held else self._inner.revision

    @property
    def is_live(self) -> bool:
        """Whether changes arrive at present."""
        return self._inner.is_live

    async def next_entries(self, *, timeout: float | None = None) -> list[Entry[V]]:
        """The next entries. A value that cannot be decoded raises in its turn; those around it are still returned."""
        deadline = None if timeout is None else clock() + timeout
        was_pending = self.pending
        while True:
            if not self._held:
                await self._fill(None if deadline is None else max(deadline - clock(), 0.0))
            found = self._decode_held()
            if found or (was_pending and not self.pending):
                return found

    async def _fill(self, timeout: float | None) -> None:
        before = self._inner.pending
        self._held.extend(await self._inner.next_entries(timeout=timeout))
        self._held_pending = min(max(before - self._inner.pending, 0), len(self._held))

    def _decode_held(self) -> list[Entry[V]]:
        """The entries held, up to one that cannot be decoded; without those of foreign keys."""
        held, found = self._held, list[Entry[V]]()
        while held:
            try:
                key = own_key(self._codec, held[0].key, self._foreign)
                entry = None if key is None else decoded_value(self._codec, held[0], key, self._meta_only)
            except Error:
                if found:
                    break
                self._take()
                raise
            self._take()
            if entry is not None:
                found.append(entry if self.knows_delta else entry._replace(delta=None))
        return found

    def _take(self) -> None:
        self._revision = self._held.popleft().revision
        self._held_pending = max(self._held_pending - 1, 0)

    async def close(self) -> None:
        """End it."""
        await self._inner.close()
