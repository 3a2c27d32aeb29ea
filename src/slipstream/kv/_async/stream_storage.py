"""The JetStream backend of a bucket, over asyncio: appends are publishes, reads are Direct Gets, feeds are consumers.

A bucket whose stream does not offer Direct Get (other clients make such ones) is read from its leader and by consumers.
The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from functools import partial
from operator import attrgetter

from slipstream.api import DeliverPolicy, names
from slipstream.errors import (
    BucketNotFoundError,
    Error,
    MessageNotFoundError,
    StaleReadError,
    StreamNotFoundError,
)
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.jetstream._async.ordered import OrderedConsumer
from slipstream.jetstream._async.publisher import Publisher
from slipstream.jetstream.reads.columns import Columns
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.jetstream.reads.retry import RetryPolicy
from slipstream.jetstream.requests import Call
from slipstream.kv._async.feed import StreamFeed
from slipstream.kv._async.runtime import sleep
from slipstream.kv.bucket import Address, BucketStatus
from slipstream.kv.decode import entry_or_message
from slipstream.kv.entry import ALL, LATEST, Entry, From, Listing, Operation, Start, listing_of, mark_of, payload_of
from slipstream.kv.keys import any_of, check_key, check_patterns, filters_for
from slipstream.kv.snapshot import forgotten_of, with_forgotten
from slipstream.wire import matcher


class StreamStorage:
    """A bucket as a stream of a NATS server."""

    def __init__(self, js: JetStream, bucket: str, address: Address) -> None:
        self.bucket = bucket
        self.js = js
        self._context = js.context
        self.address = address
        self.stream = js.stream(address.stream)
        self._prefix = address.prefix
        self._put_prefix = address.put_prefix
        self._direct = js.context.api.direct_subject(address.stream) + "." + address.prefix

    def check_key(self, key: str) -> str:
        """Return `key` if it is a good one."""
        return check_key(key)

    def patterns(self, filters: Sequence[str], *, exact: bool = False) -> tuple[str, ...]:
        """Filters over keys, checked; subjects differ from them by the prefix only."""
        return tuple(filters) if exact else check_patterns(filters)

    # Writing

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
        """Publish an entry; returns its sequence."""
        ack = await self.js.publish(
            self._put_prefix + key,
            payload_of(value, operation),
            headers=_HEADERS.get(operation),
            rollup=names.ROLLUP_SUBJECT if operation is Operation.PURGE else None,
            expected_last_subject_seq=last,
            ttl=ttl,
            timeout=timeout,
        )
        self.note(ack.seq)  # of a read replica too: its sequences are those of its origin
        return ack.seq

    def writer(self, *, max_in_flight: int, timeout: float | None = None) -> StreamWriter:
        """Publish many entries, each acknowledged."""
        publisher = self.js.publisher(max_in_flight=max_in_flight, timeout=timeout)
        return StreamWriter(publisher, self._put_prefix, self.note)

    async def forget(self, key: str, *, below: int, timeout: float | None = None) -> None:
        """Purge the subject below a sequence: what is written meanwhile stays."""
        await self.stream.purge(subject=self._prefix + key, below=below, timeout=timeout)

    async def record_forgotten(self, revision: int, *, timeout: float | None = None) -> None:
        """Record it in the stream's metadata, where other programs find it too."""
        config = (await self.status(timeout=timeout)).stream_info.config
        if forgotten_of(config) < revision:
            await self.js.update_stream(with_forgotten(config, revision), timeout=timeout)

    # Reading

    async def last(self, key: str, *, min_last_revision: int = 0, timeout: float | None = None) -> Entry[bytes] | None:
        """The last message of the key's subject."""
        if self.address.is_direct and not self._least(min_last_revision):
            return await self._plain_last(key, timeout)
        try:
            message = await self.stream.get_last(
                self._prefix + key,
                min_last_seq=min_last_revision,
                from_leader=not self.address.is_direct,
                timeout=timeout,
            )
        except MessageNotFoundError:
            return None
        return self._entry(message)

    async def _plain_last(self, key: str, timeout: float | None) -> Entry[bytes] | None:
        """The same from whichever replica answers: the hot path of `get`, one request and nothing else."""
        context, subject = self._context, self._prefix + key
        call = Call(self._direct + key, b"", partial(entry_or_message, bucket=self.bucket, key=key, subject=subject))
        try:
            found = await context.run(call, timeout=timeout)
        except MessageNotFoundError:
            context.read_state.at_once += 1
            return None
        except Error:
            context.read_state.failed += 1
            raise
        context.read_state.at_once += 1
        if isinstance(found, StoredMessage):
            found = self._entry(found)
        self.note(found.revision)
        return found

    async def at(
        self, revision: int, *, min_last_revision: int = 0, timeout: float | None = None
    ) -> Entry[bytes] | None:
        """The message of a sequence."""
        try:
            message = await self.stream.get(
                revision, min_last_seq=min_last_revision, from_leader=not self.address.is_direct, timeout=timeout
            )
        except MessageNotFoundError:
            return None
        return self._entry(message) if message.subject.startswith(self._prefix) else None

    async def read(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[list[Entry[bytes]]]:
        """Every message of the keys' subjects, by batched Direct Get, one pattern after the other."""
        if not self.address.is_direct:
            await self._leader_has(self._least(min_last_revision), timeout)
            async for entries in self._consumed(patterns, ALL, False, timeout):
                yield entries
            return
        async for entries in self._read_apart(patterns, min_last=min_last_revision, timeout=timeout):
            yield entries

    async def _read_apart(
        self, patterns: Sequence[str], *, start: int = 1, end: int = 0, min_last: int = 0, timeout: float | None
    ) -> AsyncIterator[list[Entry[bytes]]]:
        """One pattern after the other: what is written meanwhile may be there of one and not of another."""
        for place, pattern in enumerate(patterns):
            seen = [matcher(each) for each in patterns[:place]]  # patterns may overlap; a key comes once
            chunks = self.stream.read_columns(
                start=start, end=end, subject=self._prefix + pattern, min_last_seq=min_last, timeout=timeout
            )
            async for columns in chunks:
                entries = self._entries(columns)
                yield [entry for entry in entries if not any(is_seen(entry.key) for is_seen in seen)]

    async def latest(
        self,
        patterns: Sequence[str],
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[list[Entry[bytes]]]:
        """The last message of each subject, by a consumer; with `min_last_revision` by Direct Gets, which can prove it.

        (A consumer lives on one replica, and does not say how far that is.)
        """
        least = self._least(min_last_revision)
        if least and self.address.is_direct:
            yield await self._newest(patterns, least, timeout)
            return
        await self._leader_has(least, timeout)
        async for entries in self._consumed(patterns, LATEST, meta_only, timeout):
            yield entries

    async def keys(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[Listing]:
        """The keys alone, by a headers-only consumer."""
        least = self._least(min_last_revision)
        if least and self.address.is_direct:
            yield listing_of(await self._newest(patterns, least, timeout))
            return
        await self._leader_has(least, timeout)
        feed = await self._follow(patterns, LATEST, True, timeout)
        patience = self._patience(timeout)
        try:
            while feed.pending:
                yield await feed.keys(timeout=patience)
        finally:
            await feed.close()

    async def _newest(self, patterns: Sequence[str], min_last: int, timeout: float | None) -> list[Entry[bytes]]:
        newest: dict[str, Entry[bytes]] = {}
        async for entries in self.read(patterns, min_last_revision=min_last, timeout=timeout):
            for entry in entries:
                newest[entry.key] = entry
        return sorted(newest.values(), key=attrgetter("revision"))

    async def _consumed(
        self, patterns: Sequence[str], start: Start, meta_only: bool, timeout: float | None
    ) -> AsyncIterator[list[Entry[bytes]]]:
        """The initial data of a feed."""
        feed = await self._follow(patterns, start, meta_only, timeout)
        patience = self._patience(timeout)
        try:
            while feed.pending:
                entries = await feed.next_entries(timeout=patience)
                if entries:
                    yield entries
        finally:
            await feed.close()

    async def follow(
        self,
        patterns: Sequence[str],
        start: Start,
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> StreamFeed:
        """Messages of an ordered consumer."""
        least = self._least(min_last_revision)
        if least and start.kind is not From.NEW:
            return await self._follow_from_proof(patterns, start, meta_only, least, timeout)
        return await self._follow(patterns, start, meta_only, timeout)

    async def _follow(
        self, patterns: Sequence[str], start: Start, meta_only: bool, timeout: float | None
    ) -> StreamFeed:
        if start.kind is From.LATEST:
            consumer = await self._ordered(patterns, meta_only, timeout, policy=DeliverPolicy.LAST_PER_SUBJECT)
            if not consumer.initial_pending:
                # All there will ever be is new. A consumer for that begins at the same place again when it must be made
                # anew, one for the last messages would not tell what happened between.
                await consumer.close()
                consumer = await self._ordered(patterns, meta_only, timeout)
        elif start.kind is From.NEW:
            consumer = await self._ordered(patterns, meta_only, timeout, policy=DeliverPolicy.NEW)
        else:
            consumer = await self._ordered(patterns, meta_only, timeout, start=start.revision)
        return self._feed(consumer, patterns, is_history=start.kind is not From.LATEST)

    async def _follow_from_proof(
        self, patterns: Sequence[str], start: Start, meta_only: bool, min_last: int, timeout: float | None
    ) -> StreamFeed:
        """The initial data by Direct Gets that prove how new it is, then a consumer for what comes behind it."""
        is_history = start.kind is not From.LATEST
        entries, last = await self._proven(patterns, is_history, min_last, timeout)
        initial = [entry for entry in entries if entry.revision >= start.revision]
        if is_history:
            initial = [entry._replace(delta=len(initial) - 1 - at) for at, entry in enumerate(initial)]
        if meta_only:
            initial = [entry._replace(value=b"") for entry in initial]
        consumer = await self._ordered(patterns, meta_only, timeout, start=max(last + 1, start.revision))
        return self._feed(consumer, patterns, is_history=is_history, initial=initial)

    async def _proven(
        self, patterns: Sequence[str], is_history: bool, min_last: int, timeout: float | None
    ) -> tuple[list[Entry[bytes]], int]:
        """Entries in order up to a revision, and that revision: all that are kept, or the newest of each key.

        It is `min_last` or newer, and no key may be missing there. A read in order moves it along. Where patterns are
        read apart it is the newest one before them, and moves on as far as keys were overwritten before their turn.
        """
        is_in_order = len(patterns) == 1 or not self.address.is_direct
        last = min_last if self.address.is_direct and is_in_order else await self._leader_has(min_last, timeout)
        by = attrgetter("revision" if is_history else "key")
        kept: dict[str | int, Entry[bytes]] = {}
        later: list[Entry[bytes]] = []
        async for entries in self.read(patterns, min_last_revision=last, timeout=timeout):
            if is_in_order and entries:
                last = max(last, entries[-1].revision)
            kept.update((by(entry), entry) for entry in entries if entry.revision <= last)
            later += [entry for entry in entries if entry.revision > last]
        if later:
            known = {entry.key for entry in kept.values()}
            missing = {entry.key: entry.revision for entry in reversed(later) if entry.key not in known}
            up_to = max(missing.values(), default=last)
            kept.update((by(entry), entry) for entry in later if entry.revision <= up_to)
            async for entries in self._read_apart(patterns, start=last + 1, end=up_to, timeout=timeout):
                kept.update((by(entry), entry) for entry in entries)
            last = up_to
        return sorted(kept.values(), key=attrgetter("revision")), last

    async def _leader_has(self, wanted: int, timeout: float | None) -> int:
        """Wait until the leader has a revision; returns its newest (0 if none was wanted)."""
        if not wanted:
            return 0
        patience = RetryPolicy(self._patience(timeout), self.js.client.now)
        while True:
            last = (await self.status(timeout=patience.left())).last_revision
            if last >= wanted:
                return last
            behind = f"{self.address.stream}: its leader has {last}, wanted {wanted}"
            error = StaleReadError(behind, stream=self.address.stream, min_last_seq=wanted)
            pause = patience.next_pause(error)
            if pause is None:
                raise error
            await sleep(pause)

    def _patience(self, timeout: float | None) -> float:
        return self.js.timeout if timeout is None else timeout

    def _least(self, min_last: int) -> int:
        """How new a read must be, for the caller or for a session."""
        session = self._context.session
        return min_last if session is None else max(min_last, session.seen(self.address.stream))

    def note(self, revision: int) -> None:
        """A session has seen a revision."""
        self._context.note(self.address.stream, revision)

    async def _ordered(
        self, patterns: Sequence[str], meta_only: bool, timeout: float | None, *, policy: str = "", start: int = 0
    ) -> OrderedConsumer:
        consumer = self.stream.ordered_consumer(
            [self._prefix + pattern for pattern in filters_for(patterns)],
            deliver_policy=policy,
            start_seq=start,
            headers_only=meta_only,
        )
        try:
            return await consumer.start(timeout=self._patience(timeout))
        except StreamNotFoundError as error:
            raise not_found(self.bucket) from error

    def _feed(
        self,
        consumer: OrderedConsumer,
        patterns: Sequence[str],
        *,
        is_history: bool,
        initial: Sequence[Entry[bytes]] = (),
    ) -> StreamFeed:
        is_wanted = any_of(patterns) if filters_for(patterns) != tuple(patterns) else None
        return StreamFeed(
            self.js, consumer, self.bucket, self._prefix, is_wanted, self.note, is_history=is_history, initial=initial
        )

    def _entry(self, message: StoredMessage) -> Entry[bytes]:
        operation, marker = mark_of(message.header)
        key = message.subject[len(self._prefix) :]
        return Entry(self.bucket, key, message.data, message.seq, message.time, 0, operation, marker, message.stream)

    def _entries(self, columns: Columns) -> list[Entry[bytes]]:
        bucket, cut, stream, put = self.bucket, len(self._prefix), columns.stream, Operation.PUT
        rows = zip(columns.subjects, columns.seqs, columns.times, columns.headers, columns.data, strict=True)
        make = partial(Entry, bucket)
        return [
            make(subject[cut:], data, seq, time, 0, *mark_of(header), stream)
            if header
            else make(subject[cut:], data, seq, time, 0, put, "", stream)
            for subject, seq, time, header, data in rows
        ]

    # The bucket

    async def status(self, *, timeout: float | None = None) -> BucketStatus:
        """The stream's info, from its leader."""
        try:
            return BucketStatus(self.bucket, await self.stream.info(timeout=timeout))
        except StreamNotFoundError as error:
            raise not_found(self.bucket) from error

    async def close(self) -> None:
        """Nothing is held here: the connection is the caller's."""

    async def destroy(self, *, timeout: float | None = None) -> None:
        """Delete the stream."""
        try:
            await self.stream.delete(timeout=timeout)
        except StreamNotFoundError as error:
            raise not_found(self.bucket) from error


_HEADERS = {
    Operation.DELETE: {names.KV_OPERATION: names.KV_DELETE},
    Operation.PURGE: {names.KV_OPERATION: names.KV_PURGE},
}
_WRITER_HEADERS = {
    Operation.DELETE: {names.KV_OPERATION: names.KV_DELETE},
    Operation.PURGE: {names.KV_OPERATION: names.KV_PURGE, names.ROLLUP: names.ROLLUP_SUBJECT},
}


def not_found(bucket: str) -> BucketNotFoundError:
    return BucketNotFoundError(f"no bucket is called {bucket!r}")


class StreamWriter:
    """Publishes in flight."""

    def __init__(self, publisher: Publisher, prefix: str, note: Callable[[int], None]) -> None:
        self._publisher = publisher
        self._prefix = prefix
        self._note = note  # for sessions

    async def append(self, key: str, value: bytes | None, operation: Operation = Operation.PUT) -> None:
        """Send one; waits only while too many are in flight."""
        headers = _WRITER_HEADERS.get(operation)
        await self._publisher.publish(self._prefix + key, payload_of(value, operation), headers=headers)

    async def flush(self) -> int:
        """Wait until all are stored; returns the newest revision."""
        await self._publisher.flush()
        ack = self._publisher.last_ack
        if ack is None:
            return 0
        self._note(ack.seq)  # of a read replica too: the acks name its origin
        return ack.seq

    async def abandon(self) -> None:
        """Give up on what is in flight."""
        error = Error("given up: the block that wrote it raised")
        await self._publisher.__aexit__(Error, error, None)
