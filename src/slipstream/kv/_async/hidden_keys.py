"""A storage wrapper for codecs that hide the names of keys (encryption), over asyncio.

The stored name of a key can be computed from it with the right secret alone, and a name made with another one is just
not found. "Not found" would then be a lie, and a `create` would give the key a second life. So before a handle says
that something is absent, and before it writes, it looks once at the names in the bucket: one that its codec cannot
decrypt is a DecryptionError. (The names themselves are the record of which secret the bucket needs: they are
authenticated, cannot expire before their values, and change no configuration.) Keys that are not encrypted at all are
foreign, and left out as with any codec.

While names are moved from one secret to another, a codec has several names for a key. Of all entries of a key the one
with the newest revision counts, whatever its name. A write uses the codec's first name, and then removes the entries
below its own revision under the others. A compare-and-set expects of the first name what a look at all of them found.
That is exact among programs that write under the same first name; where they differ it looks again behind the write.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import TypeVar

from slipstream.errors import CodecError, DecryptionError, ErrorCode
from slipstream.kv._async.codec_storage import CodecFeed, CodecStorage, CodecWriter, decoded, encoded
from slipstream.kv._async.storage import Seen, Storage
from slipstream.kv.codecs.base import Codec
from slipstream.kv.entry import Entry, Listing, Operation, Start, listing_of

V = TypeVar("V")

_ALL = (">",)


class HiddenKeyStorage(CodecStorage[V]):
    """The entries of another storage through a codec that hides the names of keys."""

    def __init__(self, inner: Storage[bytes], codec: Codec[V]) -> None:
        super().__init__(inner, codec)
        # Whether the bucket was found to have names, all of which the codec can decrypt.
        self._is_confirmed = not codec.checks_names

    def patterns(self, filters: Sequence[str], *, exact: bool = False) -> tuple[str, ...]:
        """The stored form of filters over the program's keys, under every name."""
        codec = self.codec
        if exact:
            names = [name for key in filters for name in (codec.encode_key(key), *codec.other_keys(key))]
            return self.inner.patterns(names, exact=True)
        stored: list[str] = []
        for each in filters:
            stored += [each] if each in ("", ">") else [codec.encode_filter(each), *codec.other_filters(each)]
        return self.inner.patterns(stored)

    def seen(self, key: str = "") -> Seen:
        """What a read of a key must have seen because of the session or handle it belongs to."""
        seen = [self.inner.seen(name) for name in (self._names(key) if key else [""])]
        return Seen(max(each.bucket for each in seen), max(each.key for each in seen), seen[0].is_latest)

    def known(self, key: str) -> int | None:
        """The newest revision of a key as of what a read of it must have seen (0: none); None if that is not known."""
        names = self._names(key)
        return self.inner.known(names[0]) if len(names) == 1 else None

    def _names(self, key: str) -> list[str]:
        """The names of a key, the one that is written last."""
        return [*self.codec.other_keys(key), self.codec.encode_key(key)]

    async def confirm(self, timeout: float | None = None) -> None:
        """Raise DecryptionError if the bucket has names that the codec cannot decrypt. Asks until there are names."""
        if self._is_confirmed:
            return
        found = False
        async for live, deleted in self.inner.keys(self.inner.patterns(()), timeout=timeout):
            for stored in (*live, *deleted):
                found |= self._is_own(stored)
        self._is_confirmed = found

    def _is_own(self, stored: str) -> bool:
        """Whether a stored key is the codec's; a foreign one is reported. Raises DecryptionError."""
        try:
            self.codec.check_stored(stored)
        except DecryptionError:
            raise
        except CodecError as error:
            self.foreign.report(stored, error)
            return False
        return True

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
        await self.confirm(timeout)
        stored, data = encoded(self.codec, key, value, operation)
        others = self.codec.other_keys(key)
        if not others:
            return await self.inner.append(stored, data, operation=operation, last=last, ttl=ttl, timeout=timeout)
        found = [0] * len(others)
        if last is not None:
            *found, last = await self._expected(key, last, timeout)
        revision = await self.inner.append(stored, data, operation=operation, last=last, ttl=ttl, timeout=timeout)
        if last is not None:
            await self._check_unchanged(stored, revision, dict(zip(others, found, strict=True)), timeout)
        for name in others:
            await self.inner.forget(name, below=revision, timeout=timeout)
        return revision

    async def _expected(self, key: str, last: int, timeout: float | None) -> list[int]:
        """The revision of each name, if `last` is the key's newest one. Raises WrongLastSequenceError otherwise."""
        newest = (await self.inner.status(timeout=timeout)).last_revision
        least = min(last or newest, newest)  # no read can have reached one that was never written
        found = [await self._revision(name, least, timeout) for name in self._names(key)]
        if max(found) != last:
            raise ErrorCode.STREAM_WRONG_LAST_SEQUENCE.error(seq=max(found))
        return found

    async def _check_unchanged(self, stored: str, revision: int, others: dict[str, int], timeout: float | None) -> None:
        """Take a compare-and-set back if a program wrote under another name between the look and the write.

        Writes have one order: of two such programs the later one sees the write of the earlier, and gives way.
        """
        for name, seen in others.items():
            found = await self._revision(name, revision, timeout)
            if seen < found < revision:
                await self.inner.forget(stored, below=revision + 1, timeout=timeout)
                raise ErrorCode.STREAM_WRONG_LAST_SEQUENCE.error(seq=found)

    async def _revision(self, name: str, least: int, timeout: float | None) -> int:
        entry = await self.inner.last(name, min_last_revision=least, timeout=timeout)
        return 0 if entry is None else entry.revision

    def writer(self, *, max_in_flight: int, timeout: float | None = None) -> HiddenKeyWriter[V]:
        """Append entries in a pipeline, each acknowledged."""
        return HiddenKeyWriter(self, max_in_flight=max_in_flight, timeout=timeout)

    async def last(self, key: str, *, min_last_revision: int = 0, timeout: float | None = None) -> Entry[V] | None:
        """The newest entry of a key, a mark or not."""
        entry = await self._newest(key, min_last_revision, timeout)
        if entry is None:
            await self.confirm(timeout)
            if self.codec.other_keys(key):  # it may have been moved between two looks, at replicas that lag
                newest = (await self.inner.status(timeout=timeout)).last_revision
                entry = await self._newest(key, max(min_last_revision, newest), timeout)
        return None if entry is None else decoded(self.codec, entry)

    async def _newest(self, key: str, min_last: int, timeout: float | None) -> Entry[bytes] | None:
        """The newest entry under any name. The first name is read last: entries are moved to it."""
        newest: Entry[bytes] | None = None
        for name in self._names(key):
            entry = await self.inner.last(name, min_last_revision=min_last, timeout=timeout)
            if entry is not None and (newest is None or newest.revision < entry.revision):
                newest = entry
        return newest

    # Listings. With several names each is read twice: a key that is moved during the first is seen by the second.

    async def read(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[list[Entry[V]]]:
        """Every entry kept."""
        await self._confirm_unless_all(patterns, timeout)
        if not self.codec.other_keys("k"):
            async for entries in super().read(patterns, min_last_revision=min_last_revision, timeout=timeout):
                yield entries
            return
        found: dict[int, Entry[V]] = {}
        for _ in range(2):
            async for entries in super().read(patterns, min_last_revision=min_last_revision, timeout=timeout):
                found.update((entry.revision, entry) for entry in entries)
        yield sorted(found.values(), key=attrgetter("revision"))

    async def latest(
        self,
        patterns: Sequence[str],
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[list[Entry[V]]]:
        """The newest entry of each key."""
        await self._confirm_unless_all(patterns, timeout)
        chunks = super().latest(patterns, meta_only=meta_only, min_last_revision=min_last_revision, timeout=timeout)
        if not self.codec.other_keys("k"):
            async for entries in chunks:
                yield entries
            return
        found: dict[str, Entry[V]] = {}
        for _ in range(2):
            async for entries in chunks:
                for entry in entries:
                    if entry.key not in found or found[entry.key].revision < entry.revision:
                        found[entry.key] = entry
            chunks = super().latest(patterns, meta_only=meta_only, min_last_revision=min_last_revision, timeout=timeout)
        yield sorted(found.values(), key=attrgetter("revision"))

    async def keys(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[Listing]:
        """Like `latest`, but keys only."""
        if self.codec.other_keys("k"):
            latest = self.latest(patterns, meta_only=True, min_last_revision=min_last_revision, timeout=timeout)
            async for entries in latest:
                yield listing_of(entries)
            return
        await self._confirm_unless_all(patterns, timeout)
        async for listing in super().keys(patterns, min_last_revision=min_last_revision, timeout=timeout):
            yield listing

    async def follow(
        self,
        patterns: Sequence[str],
        start: Start,
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> CodecFeed[V]:
        """Open a feed. An entry that was moved from one name to another is returned again."""
        await self._confirm_unless_all(patterns, timeout)
        feed = await super().follow(
            patterns, start, meta_only=meta_only, min_last_revision=min_last_revision, timeout=timeout
        )
        feed.knows_delta = not self.codec.other_keys("k")
        return feed

    async def _confirm_unless_all(self, patterns: Sequence[str], timeout: float | None) -> None:
        """A read of all keys decrypts every name itself."""
        if tuple(patterns) != _ALL:
            await self.confirm(timeout)

    async def forget(self, key: str, *, below: int, timeout: float | None = None) -> None:
        """Remove the key's entries below a revision, under every name."""
        for name in self._names(key):
            await self.inner.forget(name, below=below, timeout=timeout)


class HiddenKeyWriter(CodecWriter[V]):
    """Pipelined appends; one after the other while a key has several names."""

    def __init__(self, storage: HiddenKeyStorage[V], *, max_in_flight: int, timeout: float | None) -> None:
        super().__init__(storage.inner.writer(max_in_flight=max_in_flight, timeout=timeout), storage.codec)
        self._storage = storage
        self._timeout = timeout
        self._newest = 0

    async def append(self, key: str, value: V | None, operation: Operation = Operation.PUT) -> None:
        """Send one."""
        await self._storage.confirm(self._timeout)
        if self._codec.other_keys(key):
            self._newest = await self._storage.append(key, value, operation=operation, timeout=self._timeout)
        else:
            await super().append(key, value, operation)

    async def flush(self) -> int:
        """Wait until all are stored; returns the newest revision."""
        return max(await super().flush(), self._newest)
