"""The Object Store over asyncio: objects of any size, in chunks, with a digest; reads are Direct Gets.

An object is written chunk by chunk on a subject of its own and becomes visible when its record is stored. Chunks of an
interrupted put are removed. Reads hold a bounded number of bytes. The blocking twin is generated from this file
(`tools/unasync.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import BinaryIO, Protocol

from slipstream.api import DeliverPolicy, names
from slipstream.errors import (
    BucketNotFoundError,
    ConnectionLostError,
    Error,
    MessageNotFoundError,
    ObjectExistsError,
    ObjectNotFoundError,
    RemoteProtocolError,
    RequestTimeoutError,
    StreamNotFoundError,
    UsageError,
    WrongLastSequenceError,
)
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.jetstream.reads.direct_get import StoredMessage
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
    check_metadata,
    check_name,
    header_lists,
    read_record,
)
from slipstream.wire.arguments import Duration, check_integer, check_seconds, check_text, check_timeout

IN_FLIGHT_BYTES = 8 * 1024 * 1024
RECORD_ATTEMPTS = 16  # each loses to another writer of the same name
MAX_LINKS = 8
_UNSURE = (RequestTimeoutError, ConnectionLostError)  # whether a write was stored is unknown

Data = Piece | BinaryIO | Iterable[Piece] | AsyncIterable[Piece]
Progress = Callable[[int], object]


class _Writable(Protocol):
    def write(self, data: bytes, /) -> object: ...


class ObjectStore:
    """An object bucket. Every read takes `min_last_seq`: its answer is at least as new as that write."""

    def __init__(self, js: JetStream, bucket: str) -> None:
        self.bucket: str = check_bucket(bucket)
        self._js = js
        self._stream = js.stream(STREAM_PREFIX + bucket)
        self._subjects = Subjects(bucket)

    def __repr__(self) -> str:
        return f"<ObjectStore {self.bucket!r}>"

    @classmethod
    async def create_bucket(
        cls, js: JetStream, config: ObjectStoreConfig, *, timeout: Duration | None = None
    ) -> ObjectStore:
        """Create a bucket, or open it if it exists with the same configuration."""
        timeout = check_timeout(timeout)
        await js.create_stream(config.stream_config(), timeout=timeout)
        return cls(js, config.bucket)

    @classmethod
    async def open_bucket(cls, js: JetStream, bucket: str, *, timeout: Duration | None = None) -> ObjectStore:
        """Open an existing bucket. Raises BucketNotFoundError if there is none."""
        timeout = check_timeout(timeout)
        store = cls(js, bucket)
        await store.status(timeout=timeout)
        return store

    # Writing

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
        timeout: Duration | None = None,
    ) -> ObjectInfo:
        """Store an object, replacing an older one of that name: bytes, an open binary file, or an iterable of bytes.

        `progress` is called with the number of bytes acknowledged so far. `timeout` is for each wait, not for all.
        Pass the `sequence` of the result as `min_last_seq` to see this write in reads elsewhere.
        """
        timeout = check_timeout(timeout)
        check_name(name)
        check_text(description, "description")
        header_fields, own_metadata = header_lists(headers or {}), check_metadata(metadata or {})
        if progress is not None and not callable(progress):
            raise UsageError(f"progress must be a function, got {progress!r}")
        if timeout is not None:
            check_seconds(timeout)
        limit = self._js.client.server_info.max_payload
        if not check_integer(chunk_size, "chunk_size", least=1) <= limit:
            raise UsageError(f"chunk_size must be 1 to {limit} (the server's max_payload), got {chunk_size}")
        nuid = self._new_nuid()
        chunker = Chunker(chunk_size)
        is_unsure = False  # whether the record is stored
        try:
            await self._put_chunks(self._subjects.chunks(nuid), data, chunker, progress, timeout)
            is_unsure = True
            info = ObjectInfo(
                name=name,
                description=description,
                headers=header_fields,
                metadata=own_metadata,
                options=ObjectOptions(max_chunk_size=chunk_size),
                bucket=self.bucket,
                nuid=nuid,
                size=chunker.total,
                chunks=chunker.count,
                digest=chunker.digest,
            )
            stored, replaced = await self._put_record(info, timeout)
        except BaseException as error:
            # If the record may be stored, its chunks must stay: without them the object that it replaced would be lost.
            # Chunks without a record only take space.
            if not is_unsure or (isinstance(error, Error) and not isinstance(error, _UNSURE)):
                with contextlib.suppress(Error):  # the first error is the one to raise
                    await self._drop_chunks(nuid, timeout)
            raise
        await self._drop_chunks(replaced, timeout)
        return stored

    async def delete(self, name: str, *, timeout: Duration | None = None) -> ObjectInfo:
        """Delete an object; its record stays, marked as deleted. Raises ObjectNotFoundError if there is none."""
        timeout = check_timeout(timeout)
        info = await self.info(name, timeout=timeout)
        deleted = replace(info, deleted=True, size=0, chunks=0, digest="")
        stored, replaced = await self._put_record(deleted, timeout)
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
        timeout: Duration | None = None,
    ) -> ObjectInfo:
        """Change an object's description, headers, metadata or name. `None` leaves a field as it is."""
        timeout = check_timeout(timeout)
        info = await self.info(name, timeout=timeout)
        changed = replace(
            info,
            name=check_name(new_name or name),
            description=info.description if description is None else check_text(description, "description"),
            headers=info.headers if headers is None else header_lists(headers),
            metadata=info.metadata if metadata is None else check_metadata(metadata),
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
        # Remove the record that was read, and none that another writer has stored under the old name since.
        await self._stream.purge(subject=self._subjects.record(name), below=info.sequence + 1, timeout=timeout)
        return stored

    async def link(self, name: str, target: ObjectInfo, *, timeout: Duration | None = None) -> ObjectInfo:
        """Make `name` a link to an object, also of another bucket. A link must not point to a link."""
        timeout = check_timeout(timeout)
        if not isinstance(target, ObjectInfo):
            raise UsageError(f"target of a link must be an ObjectInfo, got {target!r}")
        if target.deleted or target.link is not None:
            why = "was deleted" if target.deleted else "is a link"
            raise UsageError(
                f"target of a link must be an object, but {target.name!r} of bucket {target.bucket!r} {why}"
            )
        return await self._put_link(name, ObjectLink(bucket=target.bucket, name=target.name), timeout)

    async def link_bucket(self, name: str, bucket: str, *, timeout: Duration | None = None) -> ObjectInfo:
        """Make `name` a link to a whole bucket."""
        timeout = check_timeout(timeout)
        return await self._put_link(name, ObjectLink(bucket=check_bucket(bucket)), timeout)

    async def seal(self, *, timeout: Duration | None = None) -> ObjectStoreStatus:
        """Make the bucket read-only for good."""
        timeout = check_timeout(timeout)
        config = (await self._stream.info(timeout=timeout)).config
        return ObjectStoreStatus(
            self.bucket, await self._js.update_stream(replace(config, sealed=True), timeout=timeout)
        )

    async def destroy(self, *, timeout: Duration | None = None) -> None:
        """Remove the bucket and everything in it."""
        timeout = check_timeout(timeout)
        try:
            await self._stream.delete(timeout=timeout)
        except StreamNotFoundError as error:
            raise BucketNotFoundError(f"object bucket {self.bucket!r} does not exist") from error

    # Reading

    async def info(
        self, name: str, *, show_deleted: bool = False, min_last_seq: int = 0, timeout: Duration | None = None
    ) -> ObjectInfo:
        """The record of an object. Raises ObjectNotFoundError if there is none."""
        timeout = check_timeout(timeout)
        try:
            found = await self._stream.get_last(self._subjects.record(name), min_last_seq=min_last_seq, timeout=timeout)
        except MessageNotFoundError as error:
            raise ObjectNotFoundError(self.bucket, name) from error
        info = read_record(found.data, seq=found.seq, time=found.time)
        if info.deleted and not show_deleted:
            raise ObjectNotFoundError(self.bucket, name, f"it was deleted, sequence {info.sequence}")
        return info

    async def get(self, name: str, *, min_last_seq: int = 0, timeout: Duration | None = None) -> ObjectReader:
        """An object to read, piece by piece or as a whole; links are followed."""
        timeout = check_timeout(timeout)
        store: ObjectStore = self
        for _ in range(MAX_LINKS):
            info = await store.info(name, min_last_seq=min_last_seq, timeout=timeout)
            link = info.link
            if link is None:
                return _open_reader(self._js, store.bucket, info, timeout)
            if not link.name:
                raise UsageError(f"{name!r} is a link to the whole bucket {link.bucket!r}; open that bucket instead")
            if link.bucket != store.bucket:
                store, min_last_seq = (
                    ObjectStore(self._js, link.bucket),
                    0,
                )  # sequences differ between buckets
            name = link.name
        raise UsageError(f"a chain of links must be at most {MAX_LINKS} long, but {name!r} is another link")

    async def get_bytes(self, name: str, *, min_last_seq: int = 0, timeout: Duration | None = None) -> bytes:
        """The whole of an object."""
        timeout = check_timeout(timeout)
        return await (await self.get(name, min_last_seq=min_last_seq, timeout=timeout)).read()

    async def get_into(
        self,
        name: str,
        file: _Writable,
        *,
        min_last_seq: int = 0,
        progress: Progress | None = None,
        timeout: Duration | None = None,
    ) -> ObjectInfo:
        """Write an object into an open binary file. Unless this raises, the file has the whole, verified object."""
        timeout = check_timeout(timeout)
        reader = await self.get(name, min_last_seq=min_last_seq, timeout=timeout)
        done = 0
        async for piece in reader:
            file.write(piece)
            done += len(piece)
            if progress is not None:
                progress(done)
        return reader.info

    async def list(
        self,
        *,
        show_deleted: bool = False,
        malformed: Callable[[RemoteProtocolError], object] | None = None,
        min_last_seq: int = 0,
        timeout: Duration | None = None,
    ) -> AsyncIterator[ObjectInfo]:
        """Every object of the bucket, in the order of their last change.

        A record that cannot be read raises RemoteProtocolError; or that is passed to `malformed`, and the list goes on.
        """
        timeout = check_timeout(timeout)
        chunks = self._stream.read_chunks(subject=self._subjects.records, min_last_seq=min_last_seq, timeout=timeout)
        async for chunk in chunks:
            for found in chunk:
                try:
                    info = read_record(found.data, seq=found.seq, time=found.time)
                except RemoteProtocolError as error:
                    if malformed is None:
                        raise
                    malformed(error)
                    continue
                if show_deleted or not info.deleted:
                    yield info

    def watch(self, *, ignore_deletes: bool = False, updates_only: bool = False) -> ObjectWatch:
        """The objects of the bucket, then every change: `async for info in store.watch()`, or in `async with`."""
        policy = DeliverPolicy.NEW if updates_only else DeliverPolicy.LAST_PER_SUBJECT
        records = self._stream.ordered_consumer(self._subjects.records, deliver_policy=policy.value)
        return ObjectWatch(records, now=self._js.client.now, ignore_deletes=ignore_deletes)

    async def status(self, *, timeout: Duration | None = None) -> ObjectStoreStatus:
        """The bucket's state. Raises BucketNotFoundError if there is no such bucket."""
        timeout = check_timeout(timeout)
        try:
            return ObjectStoreStatus(self.bucket, await self._stream.info(timeout=timeout))
        except StreamNotFoundError as error:
            raise BucketNotFoundError(f"object bucket {self.bucket!r} does not exist") from error

    # Chunks and records

    def _new_nuid(self) -> str:
        """A unique id for the chunks of an object: the connection's random part and a counter."""
        return "".join(self._js.client.new_inbox().split(".")[-2:])

    async def _put_chunks(
        self, subject: str, data: Data, chunker: Chunker, progress: Progress | None, timeout: float | None
    ) -> None:
        in_flight = max(2, IN_FLIGHT_BYTES // chunker.size)
        publisher = self._js.publisher(max_in_flight=in_flight, timeout=timeout)
        try:
            async for piece in _pieces(data, chunker.size):
                for chunk in chunker.feed(piece):
                    await publisher.publish(subject, chunk)
                if progress is not None:
                    progress(min(publisher.acked * chunker.size, chunker.total))
            for chunk in chunker.finish():
                await publisher.publish(subject, chunk)
        except BaseException:
            # Wait for unacknowledged chunks: they would be stored after the purge that is to remove them.
            with contextlib.suppress(Error):
                await publisher.flush()
            raise
        await publisher.flush()
        if progress is not None:
            progress(chunker.total)

    async def _put_record(self, info: ObjectInfo, timeout: float | None) -> tuple[ObjectInfo, str]:
        """Store the record of an object; also returns the id of the chunks that it replaces.

        Each writer replaces exactly the record it has seen: of two concurrent puts of a name the later one knows the
        chunks of the earlier one, so none are left behind.
        """
        known = await self._info_or_none(info.name, timeout)
        for _ in range(RECORD_ATTEMPTS):
            try:
                stored = await self._replace_record(info, known.sequence if known else 0, timeout)
            except WrongLastSequenceError:
                known = await self._info_of_leader(info.name, timeout)
            else:
                return stored, known.nuid if known is not None and not known.deleted else ""
        raise Error(f"object {info.name!r} of bucket {self.bucket!r}: another writer won {RECORD_ATTEMPTS} times")

    async def _replace_record(self, info: ObjectInfo, last: int, timeout: float | None) -> ObjectInfo:
        ack = await self._js.publish(
            self._subjects.record(info.name),
            info.record(),
            rollup=names.ROLLUP_SUBJECT,
            expected_last_subject_seq=last,
            timeout=timeout,
        )
        try:  # its time is the server's, which the ack does not have
            time = (await self._stream.get(ack.seq, min_last_seq=ack.seq, timeout=timeout)).time
        except Error:  # replaced by now, or the connection is gone: the object is stored all the same
            time = 0
        return replace(info, sequence=ack.seq, mtime=time)

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
        """The record that the leader has: a replica may not have the one for which the leader rejected a write."""
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

    The digest is checked at the end: a read that does not raise returned the object as it was put.
    """

    def __init__(self, info: ObjectInfo, read_chunks: Callable[[], AsyncIterator[list[StoredMessage]]]) -> None:
        self.info = info
        self._read_chunks = read_chunks

    def __repr__(self) -> str:
        return f"<ObjectReader {self.info.name!r} of {self.info.bucket!r}, {self.info.size} bytes>"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        checker = Checker(self.info)
        if self.info.chunks:
            async for chunk in self._read_chunks():
                for message in chunk:
                    checker.feed(message.data)
                    yield message.data
        checker.finish()

    async def read(self) -> bytes:
        """The whole object."""
        whole = bytearray()
        async for piece in self:
            whole += piece
        return bytes(whole)


def _open_reader(js: JetStream, bucket: str, info: ObjectInfo, timeout: float | None) -> ObjectReader:
    # The record is stored behind all chunks: a range up to it is complete, whichever replica answers.
    read_chunks = partial(
        js.stream(STREAM_PREFIX + bucket).read_chunks,
        end=info.sequence,
        subject=Subjects(bucket).chunks(info.nuid),
        timeout=timeout,
    )
    return ObjectReader(info, read_chunks)


async def _pieces(data: Data, size: int) -> AsyncIterator[Piece]:
    if hasattr(data, "__aiter__"):
        async for piece in data:
            yield check_piece(piece)
    else:
        for piece in pieces(data, size):
            yield piece
