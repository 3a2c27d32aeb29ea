"""Key-Value over asyncio: a bucket's reads are Direct Gets, its writes are publishes with expectations.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

import re

from slipstream.api import names
from slipstream.errors import (
    BucketNotFoundError,
    KeyExistsError,
    KeyNotFoundError,
    MessageNotFoundError,
    StreamNotFoundError,
    WrongLastSequenceError,
)
from slipstream.jetstream.aio import JetStream, Publisher, Stream
from slipstream.kv.bucket import STREAM_PREFIX, BucketConfig, BucketStatus, check_bucket, check_key
from slipstream.kv.entry import Entry, Operation, entry_of, operation_of

_LAST_SEQUENCE = re.compile(r"wrong last sequence: (\d+)")


class KeyValue:
    """A bucket. Every read takes `min_last_revision`: its answer is at least as new as that write."""

    def __init__(self, js: JetStream, bucket: str) -> None:
        self.bucket = check_bucket(bucket)
        self._js = js
        self._stream = Stream(js, STREAM_PREFIX + bucket)
        self._prefix = f"$KV.{bucket}."

    @classmethod
    async def create_bucket(cls, js: JetStream, config: BucketConfig, *, timeout: float | None = None) -> KeyValue:
        """Make a bucket, or find it made with the same configuration."""
        await js.create_stream(config.stream_config(), timeout=timeout)
        return cls(js, config.bucket)

    @classmethod
    async def open_bucket(cls, js: JetStream, bucket: str, *, timeout: float | None = None) -> KeyValue:
        """An existing bucket; raises BucketNotFoundError if there is none."""
        kv = cls(js, bucket)
        await kv.status(timeout=timeout)
        return kv

    async def put(self, key: str, value: bytes, *, timeout: float | None = None) -> int:
        """Store a value; returns its revision."""
        return (await self._js.publish(self._subject(key), value, timeout=timeout)).seq

    async def get(
        self, key: str, *, revision: int = 0, min_last_revision: int = 0, timeout: float | None = None
    ) -> Entry:
        """The newest value of a key, or the one of a given revision. Raises KeyNotFoundError if there is none."""
        entry = await self._entry(key, revision, min_last_revision, timeout)
        if entry.is_deleted:
            raise KeyNotFoundError(
                self.bucket, key, f"its last entry is a {entry.operation}, revision {entry.revision}"
            )
        return entry

    async def create(self, key: str, value: bytes, *, timeout: float | None = None) -> int:
        """Store a value only if the key has none; returns its revision. Raises KeyExistsError otherwise."""
        try:
            return await self._put_if(key, value, 0, timeout)
        except WrongLastSequenceError as error:
            # The leader names the revision it has; a read that is at least so new cannot mistake the key's state.
            found = _LAST_SEQUENCE.search(error.description)
            last = await self._entry_or_none(key, int(found[1]) if found else 0, timeout)
        if last is not None and not last.is_deleted:
            raise KeyExistsError(self.bucket, key, last.revision)
        try:
            return await self._put_if(key, value, last.revision if last else 0, timeout)
        except WrongLastSequenceError as error:
            newer = await self._entry_or_none(key, 0, timeout)
            raise KeyExistsError(self.bucket, key, newer.revision if newer else 0) from error

    async def update(self, key: str, value: bytes, *, last: int, timeout: float | None = None) -> int:
        """Store a value only if the key's revision is `last`; raises WrongLastSequenceError otherwise."""
        return await self._put_if(key, value, last, timeout)

    async def delete(self, key: str, *, last: int | None = None, timeout: float | None = None) -> int:
        """Mark a key as deleted, keeping its history; returns the revision of the mark."""
        return await self._mark(key, Operation.DELETE, last, timeout)

    async def purge(self, key: str, *, last: int | None = None, timeout: float | None = None) -> int:
        """Remove a key with all its history, leaving one mark; returns the revision of the mark."""
        return await self._mark(key, Operation.PURGE, last, timeout)

    async def keys(self, *, min_last_revision: int = 0, timeout: float | None = None) -> list[str]:
        """Every key that has a value, in the order of their last change."""
        live: dict[str, None] = {}
        cut = len(self._prefix)
        chunks = self._stream.read_columns(subject=f"{self._prefix}>", min_last_seq=min_last_revision, timeout=timeout)
        async for columns in chunks:
            for subject, header in zip(columns.subjects, columns.headers, strict=True):
                key = subject[cut:]
                live.pop(key, None)
                if not header or operation_of(header) is Operation.PUT:
                    live[key] = None
        return list(live)

    async def status(self, *, timeout: float | None = None) -> BucketStatus:
        """How the bucket is set up, and what it holds."""
        try:
            return BucketStatus(self.bucket, await self._stream.info(timeout=timeout))
        except StreamNotFoundError as error:
            raise BucketNotFoundError(f"no bucket is called {self.bucket!r}") from error

    async def destroy(self, *, timeout: float | None = None) -> None:
        """Remove the bucket with everything in it."""
        try:
            await self._stream.delete(timeout=timeout)
        except StreamNotFoundError as error:
            raise BucketNotFoundError(f"no bucket is called {self.bucket!r}") from error

    def writer(self, *, max_in_flight: int = 4096, timeout: float | None = None) -> Writer:
        """Put and delete many keys, each acknowledged, with many in flight: the fast way."""
        return Writer(self, self._js.publisher(max_in_flight=max_in_flight, timeout=timeout))

    def _subject(self, key: str) -> str:
        return self._prefix + check_key(key)

    async def _entry(self, key: str, revision: int, min_last: int, timeout: float | None) -> Entry:
        subject = self._subject(key)
        try:
            if revision:
                message = await self._stream.get(revision, min_last_seq=min_last, timeout=timeout)
            else:
                message = await self._stream.get_last(subject, min_last_seq=min_last, timeout=timeout)
        except MessageNotFoundError as error:
            raise KeyNotFoundError(self.bucket, key, f"revision {revision}" if revision else "") from error
        if message.subject != subject:
            raise KeyNotFoundError(self.bucket, key, f"revision {revision} is of another key")
        return entry_of(self.bucket, key, message)

    async def _entry_or_none(self, key: str, min_last: int, timeout: float | None) -> Entry | None:
        try:
            return await self._entry(key, 0, min_last, timeout)
        except KeyNotFoundError:
            return None

    async def _put_if(self, key: str, value: bytes, last: int, timeout: float | None) -> int:
        ack = await self._js.publish(self._subject(key), value, expected_last_subject_seq=last, timeout=timeout)
        return ack.seq

    async def _mark(self, key: str, operation: Operation, last: int | None, timeout: float | None) -> int:
        ack = await self._js.publish(
            self._subject(key),
            headers={names.KV_OPERATION: operation.value},
            rollup=names.ROLLUP_SUBJECT if operation is Operation.PURGE else None,
            expected_last_subject_seq=last,
            timeout=timeout,
        )
        return ack.seq


class Writer:
    """Puts and deletes in flight; use it as a context manager, which waits for the last ack."""

    def __init__(self, kv: KeyValue, publisher: Publisher) -> None:
        self._kv = kv
        self._publisher = publisher

    @property
    def last_revision(self) -> int:
        """The newest revision acknowledged so far; 0 before the first."""
        ack = self._publisher.last_ack
        return ack.seq if ack else 0

    async def put(self, key: str, value: bytes) -> None:
        """Send one value; waits only while too many are in flight."""
        await self._publisher.publish(self._kv._subject(key), value)

    async def delete(self, key: str) -> None:
        """Send one delete mark."""
        await self._publisher.publish(self._kv._subject(key), headers={names.KV_OPERATION: Operation.DELETE.value})

    async def flush(self) -> int:
        """Wait until everything sent so far is stored; returns the newest revision."""
        await self._publisher.flush()
        return self.last_revision

    async def __aenter__(self) -> Writer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            await self.flush()
