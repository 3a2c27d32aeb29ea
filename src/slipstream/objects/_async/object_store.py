"""Object Store over asyncio: objects of any size, in chunks, with a digest; reads are Direct Gets.

An object is written chunk by chunk under a name of its own and appears when its record is stored; until then nobody
sees any of it, and what an interrupted put leaves is removed. Reads hold a bounded number of bytes. The blocking twin
is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import BinaryIO, Protocol

from slipstream.api import names
from slipstream.errors import (
    BucketNotFoundError,
    ConnectionLostError,
    Error,
    MessageNotFoundError,
    ObjectExistsError,
    ObjectNotFoundError,
    RequestTimeoutError,
    StreamNotFoundError,
    UsageError,
    WrongLastSequenceError,
)
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.jetstream.requests import check_bucket
from slipstream.objects._async.watch import ObjectWatch
from slipstream.objects.chunks import Checker, Chunker, Piece, check_piece, pieces
from slipstream.objects.info import (
    DEFAULT_CHUNK_SIZE,
    STREAM_PREFIX,
    ObjectInfo,
    ObjectLink,
    ObjectOptions,
    ObjectStoreConfig,
    ObjectStoreStatus,
    Subjects,
    check_name,
    header_lists,
    read_record,
)

IN_FLIGHT_BYTES = 8 * 1024 * 1024
RECORD_TRIES = 16  # writers of the same name that may come in between
MAX_LINKS = 8
_UNSURE = (RequestTimeoutError, ConnectionLostError)  # whether a write was stored is not known

Data = Piece | BinaryIO | Iterable[Piece] | AsyncIterable[Piece]
Progress = Callable[[int], object]


class _Writable(Protocol):
    def write(self, data: bytes, /) -> object: ...


class ObjectStore:
    """A bucket of objects. Every read takes `min_last_seq`: its answer is at least as new as that write."""

    def __init__(self, js: JetStream, bucket: str) -> None:
        self.bucket = check_bucket(bucket)
        self._js = js
        self._stream = js.stream(STREAM_PREFIX + bucket)
        self._subjects = Subjects(bucket)

    @classmethod
    async def create_bucket(
        cls, js: JetStream, config: ObjectStoreConfig, *, timeout: float | None = None
    ) -> ObjectStore:
        """Make a bucket, or find it made with the same configuration."""
        await js.create_stream(config.stream_config(), timeout=timeout)
        return cls(js, config.bucket)

    @classmethod
    async def open_bucket(cls, js: JetStream, bucket: str, *, timeout: float | None = None) -> ObjectStore:
        """An existing bucket; raises BucketNotFoundError if there is none."""
        store = cls(js, bucket)
        await store.status(timeout=timeout)
        return store

    # Writing.

    async def put(
        self,
        name: str,
        data: Data,
        *,
        description: str = "",
        headers: Mapping[str, str | Sequence[str]] | None = None,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int = DEFAULT_CHUNK_SIZE,
        progress: Progress | None = None,
        timeout: float | None = None,
    ) -> ObjectInfo:
        """Store an object, also in place of an older one: bytes, an open binary file, or pieces of bytes.

        `progress` is called with the number of bytes acknowledged so far. `timeout` is for each wait, not for all.
        The `sequence` of the info returned is what a read elsewhere may ask for with `min_last_seq`.
        """
        check_name(name)
        limit = self._js.client.server_info.max_payload
        if not 1 <= chunk_size <= limit:
            raise UsageError(f"bad chunk_size {chunk_size}: 1 to {limit} is allowed, the server's max_payload")
        nuid = self._new_nuid()
        chunker = Chunker(chunk_size)
        is_unsure = False  # whether the record is stored
        try:
            await self._put_chunks(self._subjects.chunks(nuid), data, chunker, progress, timeout)
            is_unsure = True
            info = ObjectInfo(
                name=name,
                description=description,
                headers=header_lists(headers or {}),
                metadata=dict(metadata or {}),
                options=ObjectOptions(max_chunk_size=chunk_size),
                bucket=self.bucket,
                nuid=nuid,
                size=chunker.total,
                chunks=chunker.count,
                digest=chunker.digest,
            )
            stored, replaced = await self._put_record(info, timeout)
        except BaseException as error:
            # A record without its chunks would be the end of the object that it replaces; chunks without a record only
            # take room.
            if not is_unsure or (isinstance(error, Error) and not isinstance(error, _UNSURE)):
                with contextlib.suppress(Error):  # what went wrong is told by the first error
                    await self._drop_chunks(nuid, timeout)
            raise
        await self._drop_chunks(replaced, timeout)
        return stored

    async def delete(self, name: str, *, timeout: float | None = None) -> ObjectInfo:
        """Remove an object; its record stays and says so. Raises ObjectNotFoundError if there is none."""
        info = await self.info(name, timeout=timeout)
        gone = replace(info, deleted=True, size=0, chunks=0, digest="")
        stored, replaced = await self._put_record(gone, timeout)
        await self._drop_chunks(replaced, timeout)
        if replaced != info.nuid:
            await self._drop_chunks(info.nuid, timeout)
        return stored

    async def update_meta(
        self,
        name: str,
        *,
        new_name: str = "",
        description: str | None = None,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> ObjectInfo:
        """Change what is said of an object, or its name; its data stays. What is None stays as it is."""
        info = await self.info(name, timeout=timeout)
        changed = replace(
            info,
            name=check_name(new_name or name),
            description=info.description if description is None else description,
            headers=info.headers if headers is None else header_lists(headers),
            metadata=info.metadata if metadata is None else dict(metadata),
        )
        if changed.name == name:
            return await self._replace_record(changed, info.sequence, timeout)
        taken = await self._info_or_none(changed.name, timeout)
        if taken is not None and not taken.deleted:
            raise ObjectExistsError(self.bucket, changed.name)
        try:
            stored = await self._replace_record(changed, taken.sequence if taken else 0, timeout)
        except WrongLastSequenceError as error:
            raise ObjectExistsError(self.bucket, changed.name) from error
        # The record we have read, and no other that took the old name meanwhile.
        await self._stream.purge(subject=self._subjects.record(name), below=info.sequence + 1, timeout=timeout)
        return stored

    async def link(self, name: str, target: ObjectInfo, *, timeout: float | None = None) -> ObjectInfo:
        """Let `name` stand for another object, also one of another bucket. A link to a link is not allowed."""
        if target.deleted:
            raise UsageError(
                f"{target.name!r} of bucket {target.bucket!r} was deleted: only an object can be linked to"
            )
        if target.link is not None:
            raise UsageError(f"{target.name!r} of bucket {target.bucket!r} is a link: only an object can be linked to")
        return await self._put_link(name, ObjectLink(bucket=target.bucket, name=target.name), timeout)

    async def link_bucket(self, name: str, bucket: str, *, timeout: float | None = None) -> ObjectInfo:
        """Let `name` stand for another bucket as a whole."""
        return await self._put_link(name, ObjectLink(bucket=check_bucket(bucket)), timeout)

    async def seal(self, *, timeout: float | None = None) -> ObjectStoreStatus:
        """Allow no further change, ever."""
        config = (await self._stream.info(timeout=timeout)).config
        return ObjectStoreStatus(
            self.bucket, await self._js.update_stream(replace(config, sealed=True), timeout=timeout)
        )

    async def destroy(self, *, timeout: float | None = None) -> None:
        """Remove the bucket and everything in it."""
        try:
            await self._stream.delete(timeout=timeout)
        except StreamNotFoundError as error:
            raise BucketNotFoundError(f"no object bucket {self.bucket!r}") from error

    # Reading.

    async def info(
        self, name: str, *, show_deleted: bool = False, min_last_seq: int = 0, timeout: float | None = None
    ) -> ObjectInfo:
        """What is known of an object. Raises ObjectNotFoundError if there is none."""
        try:
            found = await self._stream.get_last(self._subjects.record(name), min_last_seq=min_last_seq, timeout=timeout)
        except MessageNotFoundError as error:
            raise ObjectNotFoundError(self.bucket, name) from error
        info = read_record(found.data, seq=found.seq, time=found.time)
        if info.deleted and not show_deleted:
            raise ObjectNotFoundError(self.bucket, name, f"it was deleted, sequence {info.sequence}")
        return info

    async def get(self, name: str, *, min_last_seq: int = 0, timeout: float | None = None) -> ObjectReader:
        """An object to read, piece by piece or at once; links are followed."""
        store: ObjectStore = self
        for _ in range(MAX_LINKS):
            info = await store.info(name, min_last_seq=min_last_seq, timeout=timeout)
            link = info.link
            if link is None:
                return ObjectReader(store, info, timeout)
            if not link.name:
                raise UsageError(f"{name!r} stands for the whole bucket {link.bucket!r}: open that bucket instead")
            if link.bucket != store.bucket:
                store, min_last_seq = ObjectStore(self._js, link.bucket), 0  # sequences are a bucket's own
            name = link.name
        raise UsageError(f"more than {MAX_LINKS} links one behind the other, the last is {name!r}")

    async def get_bytes(self, name: str, *, min_last_seq: int = 0, timeout: float | None = None) -> bytes:
        """All of an object at once."""
        return await (await self.get(name, min_last_seq=min_last_seq, timeout=timeout)).read()

    async def get_into(
        self,
        name: str,
        file: _Writable,
        *,
        min_last_seq: int = 0,
        progress: Progress | None = None,
        timeout: float | None = None,
    ) -> ObjectInfo:
        """Write an object into an open binary file. What was written is complete and right only if this returns."""
        reader = await self.get(name, min_last_seq=min_last_seq, timeout=timeout)
        done = 0
        async for piece in reader:
            file.write(piece)
            done += len(piece)
            if progress is not None:
                progress(done)
        return reader.info

    async def list(
        self, *, show_deleted: bool = False, min_last_seq: int = 0, timeout: float | None = None
    ) -> AsyncIterator[ObjectInfo]:
        """Every object of the bucket, in the order in which they were last changed."""
        chunks = self._stream.read_chunks(subject=self._subjects.records, min_last_seq=min_last_seq, timeout=timeout)
        async for chunk in chunks:
            for found in chunk:
                info = read_record(found.data, seq=found.seq, time=found.time)
                if show_deleted or not info.deleted:
                    yield info

    def watch(self, *, ignore_deletes: bool = False, updates_only: bool = False) -> ObjectWatch:
        """What the bucket holds and what happens to it: `async for info in store.watch()`, or in `async with`."""
        return ObjectWatch(
            self._stream,
            self._subjects.records,
            now=self._js.client.now,
            ignore_deletes=ignore_deletes,
            updates_only=updates_only,
        )

    async def status(self, *, timeout: float | None = None) -> ObjectStoreStatus:
        """The bucket's state. Raises BucketNotFoundError if there is no such bucket."""
        try:
            return ObjectStoreStatus(self.bucket, await self._stream.info(timeout=timeout))
        except StreamNotFoundError as error:
            raise BucketNotFoundError(f"no object bucket {self.bucket!r}") from error

    # Within.

    def _new_nuid(self) -> str:
        """A name that no other object has: the connection's random part and a counter."""
        return "".join(self._js.client.new_inbox().split(".")[-2:])

    async def _put_chunks(
        self, subject: str, data: Data, chunker: Chunker, progress: Progress | None, timeout: float | None
    ) -> None:
        room = max(2, IN_FLIGHT_BYTES // chunker.size)
        publisher = self._js.publisher(max_in_flight=room, timeout=timeout)
        try:
            async for piece in _pieces(data, chunker.size):
                for chunk in chunker.feed(piece):
                    await publisher.publish(subject, chunk)
                if progress is not None:
                    progress(min(publisher.acked * chunker.size, chunker.total))
            for chunk in chunker.finish():
                await publisher.publish(subject, chunk)
        except BaseException:
            # Chunks that are still under way would come in behind the purge that is to remove them.
            with contextlib.suppress(Error):
                await publisher.flush()
            raise
        await publisher.flush()
        if progress is not None:
            progress(chunker.total)

    async def _put_record(self, info: ObjectInfo, timeout: float | None) -> tuple[ObjectInfo, str]:
        """Store the record of an object; also returns whose chunks it leaves behind.

        Each writer replaces exactly the record it has seen: when two put the same name at once, the later one knows
        of the earlier one's chunks, and none stay behind unseen.
        """
        known = await self._info_or_none(info.name, timeout)
        for _ in range(RECORD_TRIES):
            try:
                stored = await self._replace_record(info, known.sequence if known else 0, timeout)
            except WrongLastSequenceError:
                known = await self._info_of_leader(info.name, timeout)
            else:
                return stored, known.nuid if known is not None and not known.deleted else ""
        raise Error(f"object {info.name!r} of bucket {self.bucket!r}: {RECORD_TRIES} other writers came in between")

    async def _replace_record(self, info: ObjectInfo, last: int, timeout: float | None) -> ObjectInfo:
        ack = await self._js.publish(
            self._subjects.record(info.name),
            info.record(),
            rollup=names.ROLLUP_SUBJECT,
            expected_last_subject_seq=last,
            timeout=timeout,
        )
        return replace(info, sequence=ack.seq, mtime=0)

    async def _put_link(self, name: str, link: ObjectLink, timeout: float | None) -> ObjectInfo:
        known = await self._info_or_none(name, timeout)
        if known is not None and not known.deleted and known.link is None:
            raise ObjectExistsError(self.bucket, name)
        info = ObjectInfo(name=name, options=ObjectOptions(link=link), bucket=self.bucket, nuid=self._new_nuid())
        try:
            return await self._replace_record(info, known.sequence if known else 0, timeout)
        except WrongLastSequenceError as error:
            raise ObjectExistsError(self.bucket, name) from error

    async def _info_or_none(self, name: str, timeout: float | None) -> ObjectInfo | None:
        try:
            return await self.info(name, show_deleted=True, timeout=timeout)
        except ObjectNotFoundError:
            return None

    async def _info_of_leader(self, name: str, timeout: float | None) -> ObjectInfo | None:
        """A replica may not know yet what the leader refused a write for."""
        try:
            found = await self._stream.get_last_from_leader(self._subjects.record(name), timeout=timeout)
        except MessageNotFoundError:
            return None
        return read_record(found.data, seq=found.seq, time=found.time)

    async def _drop_chunks(self, nuid: str, timeout: float | None) -> None:
        if nuid:
            await self._stream.purge(subject=self._subjects.chunks(nuid), timeout=timeout)


class ObjectReader:
    """An object's data, to be read once: iterate over its pieces, or `read()` them all.

    The digest is checked at the end: a read that does not raise gave the object as it was put.
    """

    def __init__(self, store: ObjectStore, info: ObjectInfo, timeout: float | None) -> None:
        self.info = info
        self._store = store
        self._timeout = timeout

    async def __aiter__(self) -> AsyncIterator[bytes]:
        info, store = self.info, self._store
        checker = Checker(info)
        if info.chunks:
            # The record is behind all chunks: a range up to it is complete, whichever replica answers.
            chunks = store._stream.read_chunks(
                end=info.sequence, subject=store._subjects.chunks(info.nuid), timeout=self._timeout
            )
            async for chunk in chunks:
                for message in chunk:
                    checker.feed(message.data)
                    yield message.data
        checker.finish()

    async def read(self) -> bytes:
        """All of it."""
        whole = bytearray()
        async for piece in self:
            whole += piece
        return bytes(whole)


async def _pieces(data: Data, size: int) -> AsyncIterator[Piece]:
    if hasattr(data, "__aiter__"):
        async for piece in data:
            yield check_piece(piece)
    else:
        for piece in pieces(data, size):
            yield piece
