"""The JetStream backend of a bucket, over asyncio: storage, writer and feed of a bucket on a stream.

Appends are publishes, reads are Direct Gets, feeds are ordered consumers. A bucket whose stream does not offer Direct
Get (other clients create such ones) is read from its leader and by consumers.

A feed's consumer repairs gaps, lost heartbeats, reconnects and server restarts; the feed knows where the initial data
ends. A consumer lives on one replica and cannot say how far behind it is, so a feed that must be as new as a revision
reads its initial data by Direct Gets, which prove it, and lets the consumer start behind them.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from itertools import repeat
from operator import attrgetter

from slipstream.api import DeliverPolicy, StreamConfig, names
from slipstream.client.base import FOREVER
from slipstream.errors import (
    ApiError,
    BucketNotFoundError,
    ConnectionClosedError,
    ConnectionLostError,
    DirectGetNotAllowedError,
    Error,
    ErrorCode,
    MessageNotFoundError,
    NoRespondersError,
    NoStreamError,
    OriginUnreachableError,
    RequestTimeoutError,
    StaleReadError,
    StreamNotFoundError,
    WrongLastSequenceError,
)
from slipstream.jetstream._async.fresh_consumers import leader_with
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.jetstream._async.ordered import IDLE_CHECK, OrderedConsumer
from slipstream.jetstream._async.publisher import Publisher
from slipstream.jetstream._async.stream import Stream
from slipstream.jetstream.consume.ordered import MessageRun
from slipstream.jetstream.reads.at_once import AtOnce
from slipstream.jetstream.reads.columns import Columns
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.jetstream.reads.retry import SHORTEST_TRY, first_try
from slipstream.jetstream.reads.session import HandleState
from slipstream.jetstream.requests import Call
from slipstream.kv._async.replicas import Copies, find_copies
from slipstream.kv._async.runtime import clock
from slipstream.kv._async.storage import Seen
from slipstream.kv.bucket import STREAM_PREFIX, Address, BucketStatus
from slipstream.kv.consistency import Consistency
from slipstream.kv.entry import (
    Entry,
    From,
    Listing,
    Operation,
    Start,
    decode_entry,
    entry_of,
    expiries_of,
    expiry_of,
    last_sequence_of,
    listing_of,
    mark_of,
    marks_of,
    payload_of,
    with_deltas,
)
from slipstream.kv.keys import any_of, check_key, check_patterns, filters_for
from slipstream.kv.lifetime import rejected_ttl, ttl_disabled
from slipstream.kv.snapshot import forgotten_of, with_forgotten
from slipstream.wire import matcher
from slipstream.wire.arguments import check_seconds

OPTIONS_TRUSTED = 2.0  # seconds for which a bucket's options are taken as they were read


class StreamStorage:
    """A bucket as a stream of a NATS server.

    `consistency` says what reads must have seen: see `kv/consistency.py`. In a session that is what the session saw.
    """

    def __init__(
        self, js: JetStream, bucket: str, address: Address, *, consistency: Consistency = Consistency.OWN_WRITES
    ) -> None:
        self.bucket = bucket
        self.js = js
        self.address = address
        context = js.context
        self._is_latest = consistency is Consistency.LATEST
        self._state: HandleState | None = None
        self._at_once: AtOnce | None = None
        if context.session is None and consistency is not Consistency.ANY:
            self._state = HandleState()
            cache = context.read_state.stream(context.prefix, address.stream)
            self._at_once = AtOnce(address.stream, self._state, cache)
            context = context.in_session(self._state)
        self._context = context
        self.stream = Stream(context, address.stream)
        self._copies: Copies | None = None
        self._copies_until = 0.0
        self._prefix = address.prefix
        self._put_prefix = address.put_prefix
        self._options = StreamConfig(name=address.stream)
        self._options_until = 0.0
        self._direct = js.context.api.direct_subject(address.stream) + "." + address.prefix

    def check_key(self, key: str) -> str:
        """Return `key`, or raise a UsageError."""
        return check_key(key)

    def patterns(self, filters: Sequence[str], *, exact: bool = False) -> tuple[str, ...]:
        """Filters over keys, checked; subjects differ from them by the prefix only."""
        return tuple(filters) if exact else check_patterns(filters)

    def seen(self, key: str = "") -> Seen:
        """What a read of a key must have seen because of the session or handle it belongs to."""
        session, stream = self._context.session, self.address.stream
        if session is None:
            return Seen()
        subject = self._prefix + key if key else ""
        if self._state is not None and self._state.is_forgotten(stream, subject):  # all that was seen may have been it
            subject = ""
        return Seen(session.wanted(stream, subject), session.seen_of(stream, subject), self._is_latest)

    def known(self, key: str) -> int | None:
        """The newest revision of a key as of what a read of it must have seen (0: none); None if that is not known."""
        session = self._context.session
        return None if session is None else session.known(self.address.stream, self._prefix + key)

    # Writing

    def check_writable(self, what: str) -> None:
        """It can be written."""

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
        """Publish an entry; returns its sequence. A value with a TTL replaces the key's history: `kv/lifetime.py`."""
        payload = payload_of(value, operation)
        is_rollup = ttl is not None and await self._checked_rollup(ttl, timeout)
        try:
            ack = await self.js.publish(
                self._put_prefix + key,
                payload,
                headers=_HEADERS.get(operation),
                rollup=names.ROLLUP_SUBJECT if is_rollup or operation is Operation.PURGE else None,
                expected_last_subject_seq=last,
                ttl=ttl,
                timeout=timeout,
            )
        except NoStreamError as error:
            raise await self.cause_of(error) from error
        except WrongLastSequenceError as error:
            if rejected := last_sequence_of(error):  # what the leader has of the key: the next read must show it
                self._context.note(self.address.stream, rejected, self._prefix + key)
            raise
        except ApiError as error:
            if error.err_code == ErrorCode.MESSAGE_TTL_DISABLED:
                raise ttl_disabled(self.bucket) from error
            raise
        self.note_write(ack.seq, self._prefix + key)  # of a read replica too: its sequences are those of its origin
        return ack.seq

    async def _checked_rollup(self, ttl: timedelta, timeout: float | None) -> bool:
        """Whether a value with a TTL must replace the key's history. Raises if the bucket does not take that TTL."""
        if clock() >= self._options_until or rejected_ttl(self._options, self.bucket, ttl):  # it may have changed
            self._options = (await self.write_path(timeout=timeout))[-1].stream_info.config
            self._options_until = clock() + OPTIONS_TRUSTED
        if error := rejected_ttl(self._options, self.bucket, ttl):
            raise error
        return self._options.allow_rollup_hdrs

    def writer(self, *, max_in_flight: int, timeout: float | None = None) -> StreamWriter:
        """Publish entries in a pipeline, each acknowledged."""
        return StreamWriter(self, self.js.publisher(max_in_flight=max_in_flight, timeout=timeout))

    async def cause_of(self, error: Error) -> Error:
        """The error to raise where no server answers: the bucket was deleted, or is a replica without its origin."""
        if not isinstance(error, StreamNotFoundError):
            try:
                await self.stream.info()
            except StreamNotFoundError:
                return not_found(self.bucket)
            except Error:  # it is not known, or this user may not ask
                return error
            if isinstance(error, NoStreamError) and self.address.origin:
                return OriginUnreachableError(self.bucket, self.address.origin, error.subject)
            return error
        return not_found(self.bucket)

    async def forget(self, key: str, *, below: int, timeout: float | None = None) -> None:
        """Purge the subject below a sequence, in the bucket and its replicas: messages written meanwhile stay."""
        try:
            if clock() >= self._copies_until:
                self._copies = await find_copies(self.js, self.stream, timeout=timeout)
                self._copies_until = clock() + OPTIONS_TRUSTED
            if self._copies is None:
                raise OriginUnreachableError(self.bucket, self.address.origin, self._put_prefix + key)
            await self._copies.purge(self._prefix + key, below, timeout=timeout)
        except StreamNotFoundError as error:
            raise not_found(self.bucket) from error

    async def record_forgotten(self, revision: int, *, timeout: float | None = None) -> None:
        """Record it in the stream's metadata, for other programs too."""
        config = (await self.status(timeout=timeout)).stream_info.config
        if forgotten_of(config) < revision:
            await self.js.update_stream(with_forgotten(config, revision), timeout=timeout)

    # Reading

    async def last(self, key: str, *, min_last_revision: int = 0, timeout: float | None = None) -> Entry[bytes] | None:
        """The last message of the key's subject."""
        least, begin = min_last_revision, clock()
        if self._is_latest:
            least = await self._least(min_last_revision, timeout)
        if self.address.is_direct:
            if self._at_once is not None:
                is_proven, entry = await self._last_at_once(self._at_once, key, least, timeout)
                if is_proven:
                    return entry
            elif not least and self._context.session is None:
                return await self._last_of_any_replica(key, timeout)
        try:
            message = await self.stream.get_last(
                self._prefix + key,
                min_last_seq=least,
                from_leader=not self.address.is_direct,
                timeout=max(self._limit(timeout) - (clock() - begin), SHORTEST_TRY),  # what was waited counts
            )
        except MessageNotFoundError:
            return None
        except _UNANSWERED as error:
            raise await self.cause_of(error) from error
        return self._entry(message)

    async def _last_at_once(
        self, reads: AtOnce, key: str, least: int, timeout: float | None
    ) -> tuple[bool, Entry[bytes] | None]:
        """The same by one request, as most reads of a handle are proven; False: it must be read by all means."""
        context, subject = self._context, self._prefix + key
        now = context.client.now()
        floor = reads.begin(subject, now)
        if floor < 0:
            try:
                await self.stream.learn_generation(timeout=timeout)
            except StreamNotFoundError as error:
                raise not_found(self.bucket) from error
            floor = reads.begin(subject, now)
            if floor < 0:  # its leader is silent
                return False, None
        existed, wanted = reads.existed(), 0
        if floor or least:  # otherwise the answer will prove itself, most likely
            wanted = reads.wanted(subject, least)
            if not context.server_keeps_min:
                wanted = 0
                if reads.is_hopeless(subject):
                    return False, None
        body = b'{"min_last_seq":%d}' % wanted if wanted else b""
        decode = partial(decode_entry, bucket=self.bucket, key=key, subject=subject)
        limit = first_try(self._limit(timeout), is_late=bool(wanted))
        try:
            entry = await context.run(Call(self._direct + key, body, decode), timeout=limit)
        except MessageNotFoundError:
            is_proven = reads.takes_absence(subject, least=least, is_kept=bool(wanted))
            context.read_state.at_once += is_proven
            return is_proven, None
        except ConnectionClosedError:
            context.read_state.failed += 1
            raise
        except (StaleReadError, RequestTimeoutError, ConnectionLostError):  # who was asked may be cut off
            return False, None
        except Error as error:
            context.read_state.failed += 1
            if isinstance(error, _UNANSWERED):
                raise await self.cause_of(error) from error
            raise
        seq, time = entry.revision, entry.created
        is_own = entry.stream == self.address.stream
        if wanted:
            is_proven = reads.takes_kept(subject, seq, wanted)
        elif is_own or reads.is_copy(entry.stream, now) or context.server_keeps_min:
            is_proven = reads.takes(subject, seq, least, time) or (
                is_own
                and not self.address.origin  # a mirror may lag behind it
                and reads.takes_by_only_store(subject, seq, least=least, existed=existed, time=time, now=now)
            )
        else:
            is_proven = False
        context.read_state.at_once += is_proven
        return is_proven, entry

    async def _last_of_any_replica(self, key: str, timeout: float | None) -> Entry[bytes] | None:
        """The same from the first replica that answers: the hot path of `get`, one request and nothing else."""
        context, subject = self._context, self._prefix + key
        call = Call(self._direct + key, b"", partial(decode_entry, bucket=self.bucket, key=key, subject=subject))
        try:
            found = await context.run(call, timeout=timeout)
        except MessageNotFoundError:
            context.read_state.at_once += 1
            return None
        except Error as error:
            context.read_state.failed += 1
            if isinstance(error, _UNANSWERED):
                raise await self.cause_of(error) from error
            raise
        context.read_state.at_once += 1
        return found

    async def at(
        self, revision: int, *, min_last_revision: int = 0, timeout: float | None = None
    ) -> Entry[bytes] | None:
        """The message of a sequence."""
        least = await self._least(min_last_revision, timeout)
        try:
            message = await self.stream.get(
                revision, min_last_seq=least, from_leader=not self.address.is_direct, timeout=timeout
            )
        except MessageNotFoundError:
            return None
        except _UNANSWERED as error:
            raise await self.cause_of(error) from error
        return self._entry(message)._replace(delta=None) if message.subject.startswith(self._prefix) else None

    async def read(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[list[Entry[bytes]]]:
        """Every message of the keys' subjects, by batched Direct Get, one pattern after the other."""
        least = await self._least(min_last_revision, timeout)
        if not self.address.is_direct:
            async for entries in self._initial_data(patterns, DeliverPolicy.ALL, False, least, timeout):
                yield entries
            return
        async for entries in self._read_each_pattern(patterns, min_last=least, timeout=timeout):
            yield entries

    async def _read_each_pattern(
        self, patterns: Sequence[str], *, start: int = 1, end: int = 0, min_last: int = 0, timeout: float | None
    ) -> AsyncIterator[list[Entry[bytes]]]:
        """One pattern after the other: not a consistent view, as writes during the read may be seen by some only."""
        for index, pattern in enumerate(patterns):
            seen = [matcher(each) for each in patterns[:index]]  # patterns may overlap; each key is returned once
            chunks = self.stream.read_columns(
                start=start, end=end, subject=self._prefix + pattern, min_last_seq=min_last, timeout=timeout
            )
            try:
                async for columns in chunks:
                    if self._state is not None:
                        self._context.note_many(self.address.stream, columns.subjects, columns.seqs)
                    entries = self._entries(columns)
                    yield [entry for entry in entries if not any(is_seen(entry.key) for is_seen in seen)]
            except _UNANSWERED as error:
                raise await self.cause_of(error) from error

    async def latest(
        self,
        patterns: Sequence[str],
        *,
        meta_only: bool = False,
        min_last_revision: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[list[Entry[bytes]]]:
        """The last message of each subject: by a consumer, or by Direct Gets if it must be as new as a revision."""
        least = await self._least(min_last_revision, timeout)
        is_proven = self._needs_direct_gets(min_last_revision) if meta_only else least or self.seen().bucket
        if is_proven and self.address.is_direct:
            yield await self._latest_proven(patterns, least, timeout)
            return
        policy = DeliverPolicy.LAST_PER_SUBJECT
        async for entries in self._initial_data(patterns, policy, meta_only, least, timeout):
            yield entries

    async def keys(
        self, patterns: Sequence[str], *, min_last_revision: int = 0, timeout: float | None = None
    ) -> AsyncIterator[Listing]:
        """Like `latest`, but keys only, by a headers-only consumer.

        With a required revision the values are read as well: a Direct Get has no form without them, and how many keys a
        consumer has left is not exact on released servers while keys are overwritten, so that its end proves nothing.
        A handle's own listing is by a consumer on a copy that has seen enough; keys that the handle knows and that are
        not in it are looked up.
        """
        least = await self._least(min_last_revision, timeout)
        if self._needs_direct_gets(min_last_revision) and self.address.is_direct:
            yield listing_of(await self._latest_proven(patterns, least, timeout))
            return
        feed = await self._start_feed(
            patterns, DeliverPolicy.LAST_PER_SUBJECT, meta_only=True, min_last=least, timeout=timeout
        )
        limit = self._limit(timeout)
        listed = feed.listed = []
        try:
            while feed.pending:
                yield await feed.next_keys(timeout=limit)
        finally:
            await feed.close()
        if self._state is not None and not self._context.server_keeps_min:
            left_out = await self._left_out(self._state, patterns, listed, timeout)
            if left_out:
                yield listing_of(left_out)

    async def _left_out(
        self, state: HandleState, patterns: Sequence[str], listed: list[list[str]], timeout: float | None
    ) -> list[Entry[bytes]]:
        """The entries of keys that the handle knows and that a listing has left out; `listed` are its subjects."""
        stream, cut, is_wanted = self.address.stream, len(self._prefix), any_of(patterns)
        missing = [name for name in state.held(stream, besides=listed) if is_wanted(name[cut:])]
        if not missing or not self.address.is_direct:
            return []
        found = await self.stream.get_last_many(missing, timeout=timeout)
        for name in missing:
            if name not in found:  # it has expired, or was removed for good
                state.note_absent(stream, name)
        return [self._entry(message) for message in found.values()]

    def _needs_direct_gets(self, min_last_revision: int) -> bool:
        """Whether a listing or the initial data of a feed must be read by Direct Gets, which prove it.

        A handle's consumers are placed on a copy that has seen enough. That of a mirror cannot be shown to have.
        """
        if self._state is not None and not self.address.origin:
            return bool(min_last_revision)
        return bool(min_last_revision or self.seen().bucket)

    async def _latest_proven(self, patterns: Sequence[str], min_last: int, timeout: float | None) -> list[Entry[bytes]]:
        """The newest of each key. Not by a range: it may miss a key that is replaced behind its end meanwhile."""
        subjects = [self._prefix + pattern for pattern in patterns]
        try:
            found = await self.stream.get_last_many(subjects, min_last_seq=min_last, timeout=timeout)
        except _UNANSWERED as error:
            raise await self.cause_of(error) from error
        return sorted(map(self._entry, found.values()), key=attrgetter("revision"))

    async def _initial_data(
        self, patterns: Sequence[str], policy: DeliverPolicy, meta_only: bool, min_last: int, timeout: float | None
    ) -> AsyncIterator[list[Entry[bytes]]]:
        """The initial data of a feed, which is closed behind it."""
        feed = await self._start_feed(patterns, policy, meta_only=meta_only, min_last=min_last, timeout=timeout)
        limit = self._limit(timeout)
        try:
            while feed.pending:
                entries = await feed.next_entries(timeout=limit)
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
        """Open a feed on an ordered consumer."""
        least = min_last_revision
        if start.kind is not From.NEW:
            least = await self._least(min_last_revision, timeout)
            if self._needs_direct_gets(min_last_revision):
                return await self._follow_proven(patterns, start, meta_only, least, timeout)
        policy = _POLICIES[start.kind]
        feed = await self._start_feed(
            patterns,
            policy,
            start_seq=start.revision,
            meta_only=meta_only,
            min_last=least,
            timeout=timeout,
        )
        if policy is DeliverPolicy.LAST_PER_SUBJECT and not feed.pending:
            # The bucket has no matching key, so everything to come is a change. If the consumer must be replaced before
            # it delivered one, a new consumer of last messages would skip changes in between; one of all does not.
            await feed.close()
            feed = await self._start_feed(patterns, DeliverPolicy.ALL, meta_only=meta_only, timeout=timeout)
        return feed

    async def _follow_proven(
        self, patterns: Sequence[str], start: Start, meta_only: bool, min_last: int, timeout: float | None
    ) -> StreamFeed:
        """Open a feed whose initial data was read by Direct Gets; the consumer starts behind it."""
        is_history = start.kind is not From.LATEST
        entries, last = await self._read_proven(patterns, is_history, min_last, timeout)
        initial = [entry for entry in entries if entry.revision >= start.revision]
        if is_history:
            initial = with_deltas(initial)
        if meta_only:
            initial = [entry._replace(value=b"") for entry in initial]
        return await self._start_feed(
            patterns,
            DeliverPolicy.BY_START_SEQUENCE,
            start_seq=max(last + 1, start.revision),
            meta_only=meta_only,
            initial=initial,
            begins_behind=max(start.revision - 1, 0),
            timeout=timeout,
        )

    async def _read_proven(
        self, patterns: Sequence[str], is_history: bool, min_last: int, timeout: float | None
    ) -> tuple[list[Entry[bytes]], int]:
        """Entries in order up to a revision, and that revision: all that are kept, or the newest of each key.

        The revision is `min_last` or newer, and no key that exists there may be missing. A single read in revision
        order moves it along. Where patterns are read one after the other, it is the leader's newest one before the
        first, and moves on as far as keys were overwritten before their pattern was read.
        """
        is_direct = self.address.is_direct
        is_in_order = not is_direct or (is_history and len(patterns) == 1)
        is_plain = is_direct and is_in_order and self._context.session is None
        last = min_last if is_plain else await self._wait_for_leader(min_last, timeout)
        by = attrgetter("revision" if is_history else "key")
        kept: dict[str | int, Entry[bytes]] = {}
        later: list[Entry[bytes]] = []
        if is_direct and not is_history:
            newest = await self._latest_proven(patterns, last, timeout)
            kept.update((by(entry), entry) for entry in newest if entry.revision <= last)
            later += [entry for entry in newest if entry.revision > last]
        else:
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
            async for entries in self._read_each_pattern(patterns, start=last + 1, end=up_to, timeout=timeout):
                kept.update((by(entry), entry) for entry in entries)
            last = up_to
        return sorted(kept.values(), key=attrgetter("revision")), last

    async def _wait_for_leader(self, least: int, timeout: float | None) -> int:
        """Wait until the leader has a revision, and what the session or handle has seen; returns its newest."""

        def wanted() -> int:  # it falls if the bucket turns out to have been made again
            return max(least, self.seen().bucket)

        try:
            leader = await leader_with(self._context, self.address.stream, wanted, timeout=self._limit(timeout))
        except StreamNotFoundError as error:
            raise not_found(self.bucket) from error
        return leader.last_seq

    async def _least(self, min_last: int, timeout: float | None) -> int:
        """The revision that a read must have seen: the caller's, or the leader's newest where reads are the latest.

        What the session or the handle has seen comes to it later: it falls if the bucket was made again.
        """
        if not self._is_latest:
            return min_last
        try:
            return max(min_last, await self.stream.newest_seq(timeout=timeout))
        except StreamNotFoundError as error:
            raise not_found(self.bucket) from error

    def _limit(self, timeout: float | None) -> float:
        return self.js.timeout if timeout is None else check_seconds(timeout)

    def note_write(self, revision: int, subject: str = "") -> None:
        """Tell the session or the handle's state of a revision that was written."""
        # A session was told of it by the publish itself, as of its own write.
        if self._at_once is not None:
            self._at_once.written(revision)
        self._context.note(self.address.stream, revision, subject, is_own_write=self._state is not None)

    def _note_run(self, subjects: Sequence[str], revisions: Sequence[int]) -> None:
        """Tell the session or the handle's state of messages that arrived."""
        if self._state is not None:
            self._context.note_many(self.address.stream, subjects, revisions)
        else:
            self._context.note(self.address.stream, revisions[-1])

    async def _start_feed(
        self,
        patterns: Sequence[str],
        policy: DeliverPolicy,
        *,
        start_seq: int = 0,
        meta_only: bool,
        initial: Sequence[Entry[bytes]] = (),
        begins_behind: int = 0,
        min_last: int = 0,
        timeout: float | None,
    ) -> StreamFeed:
        """Create an ordered consumer of the patterns, and the feed that reads it."""
        filters = filters_for(patterns)
        consumer = self.stream.ordered_consumer(
            [self._prefix + pattern for pattern in filters],
            deliver_policy=policy.value,
            start_seq=start_seq,
            headers_only=meta_only,
            min_last_seq=min_last,
        )
        try:
            await consumer.start(timeout=self._limit(timeout))
        except StreamNotFoundError as error:
            raise not_found(self.bucket) from error
        return StreamFeed(
            consumer,
            self.bucket,
            self._prefix,
            is_connected=lambda: self.js.client.is_connected,
            is_wanted=any_of(patterns) if filters != tuple(patterns) else None,
            note=self._note_run,
            is_latest=policy is DeliverPolicy.LAST_PER_SUBJECT,
            is_one_key=len(patterns) == 1 and not {"*", ">"} & set(patterns[0].split(".")),
            initial=initial,
            begins_behind=begins_behind,
            changes_behind=max(start_seq - 1, 0),
        )

    def _entry(self, message: StoredMessage) -> Entry[bytes]:
        return entry_of(message, self.bucket, len(self._prefix))

    def _entries(self, columns: Columns) -> list[Entry[bytes]]:
        bucket, cut, stream, put = self.bucket, len(self._prefix), columns.stream, Operation.PUT
        rows = zip(columns.subjects, columns.seqs, columns.times, columns.headers, columns.data, strict=True)
        make = partial(Entry, bucket)
        return [
            make(subject[cut:], data, seq, time, None, *mark_of(header), stream, expiry_of(header, time))
            if header
            else make(subject[cut:], data, seq, time, None, put, "", stream)
            for subject, seq, time, header, data in rows
        ]

    # The bucket

    async def status(self, *, timeout: float | None = None) -> BucketStatus:
        """The stream's info, from its leader."""
        session, stream = self._context.session, self.address.stream
        mark = 0 if session is None else session.mark(stream)
        try:
            info = await self.stream.info(timeout=timeout)
        except StreamNotFoundError as error:
            raise not_found(self.bucket) from error
        if session is not None:
            session.learn(stream, info, mark)  # it may have been made again
            if info.config.mirror is not None:  # which its origin tells
                await self.stream.learn_generation(is_due=True, timeout=timeout)
        return BucketStatus(self.bucket, info)

    async def write_path(self, *, timeout: float | None = None) -> Sequence[BucketStatus]:
        """The stream's info and, of a mirror, that of each stream on the way to the one that takes the writes."""
        js, path = self.js, [await self.status(timeout=timeout)]
        while (mirror := path[-1].stream_info.config.mirror) is not None:
            if mirror.external is not None and mirror.external.api:
                js = JetStream(js.client, prefix=mirror.external.api, timeout=js.timeout)
            try:
                info = await js.stream(mirror.name).info(timeout=timeout)
            except NoRespondersError as error:
                raise OriginUnreachableError(self.bucket, self.address.origin or mirror.name, error.subject) from error
            except StreamNotFoundError as error:
                raise not_found(mirror.name.removeprefix(STREAM_PREFIX)) from error
            path.append(BucketStatus(mirror.name.removeprefix(STREAM_PREFIX), info))
        return path

    async def close(self) -> None:
        """Nothing to release: the connection is the caller's."""

    async def destroy(self, *, timeout: float | None = None) -> None:
        """Delete the stream."""
        try:
            await self.stream.delete(timeout=timeout)
        except StreamNotFoundError as error:
            raise not_found(self.bucket) from error


_UNANSWERED = (DirectGetNotAllowedError, StreamNotFoundError)
_POLICIES = {
    From.LATEST: DeliverPolicy.LAST_PER_SUBJECT,
    From.ALL: DeliverPolicy.ALL,
    From.NEW: DeliverPolicy.NEW,
    From.REVISION: DeliverPolicy.BY_START_SEQUENCE,
}
_HEADERS = {
    Operation.DELETE: {names.KV_OPERATION: names.KV_DELETE},
    Operation.PURGE: {names.KV_OPERATION: names.KV_PURGE},
}
_WRITER_HEADERS = {
    Operation.DELETE: {names.KV_OPERATION: names.KV_DELETE},
    Operation.PURGE: {names.KV_OPERATION: names.KV_PURGE, names.ROLLUP: names.ROLLUP_SUBJECT},
}


def not_found(bucket: str) -> BucketNotFoundError:
    return BucketNotFoundError(f"bucket {bucket!r} does not exist")


class StreamWriter:
    """Pipelined publishes; the storage notes the newest revision once they are stored."""

    def __init__(self, storage: StreamStorage, publisher: Publisher) -> None:
        self._storage = storage
        self._publisher = publisher
        self._prefix = storage.address.put_prefix

    async def append(self, key: str, value: bytes | None, operation: Operation = Operation.PUT) -> None:
        """Send one; waits only while too many are unacknowledged."""
        headers = _WRITER_HEADERS.get(operation)
        try:
            await self._publisher.publish(self._prefix + key, payload_of(value, operation), headers=headers)
        except (NoStreamError, RequestTimeoutError) as error:
            raise await self._cause_of(error) from error

    async def flush(self) -> int:
        """Wait until all are stored; returns the newest revision."""
        try:
            await self._publisher.flush()
        except (NoStreamError, RequestTimeoutError) as error:
            raise await self._cause_of(error) from error
        ack = self._publisher.last_ack
        if ack is None:
            return 0
        self._storage.note_write(ack.seq)  # of a read replica too: the acks name its origin
        return ack.seq

    async def _cause_of(self, error: Error) -> Error:
        if isinstance(error, RequestTimeoutError):
            return RequestTimeoutError(f"bucket {self._storage.bucket!r}: {error}")
        return await self._storage.cause_of(error)

    async def abandon(self) -> None:
        """Stop waiting for acknowledgements."""
        error = Error("abandoned: the block that wrote it raised")
        await self._publisher.__aexit__(Error, error, None)


# An entry is a tuple: entries are made of columns by `zip` and `map`, without a Python loop.
_new_entry: Callable[[type[Entry[bytes]], tuple[object, ...]], Entry[bytes]] = tuple.__new__
_ENTRIES: repeat[type[Entry[bytes]]] = repeat(Entry)
_ZEROS, _PUTS, _EMPTY = repeat(0), repeat(Operation.PUT), repeat("")


class StreamFeed:
    """Entries of an ordered consumer.

    `is_wanted` drops keys that a server could not filter. `initial` are entries read by other means, which the consumer
    starts behind: all of them lie behind the revision `begins_behind`, all others behind `changes_behind`. `is_latest`:
    the consumer begins with the newest message of each key; `is_one_key`: it has messages of one key alone. `note` is
    called with the subjects and revisions received.
    """

    def __init__(
        self,
        consumer: OrderedConsumer,
        bucket: str,
        prefix: str,
        *,
        is_connected: Callable[[], bool],
        is_wanted: Callable[[str], bool] | None,
        note: Callable[[Sequence[str], Sequence[int]], None],
        is_latest: bool,
        is_one_key: bool,
        initial: Sequence[Entry[bytes]],
        begins_behind: int,
        changes_behind: int,
    ) -> None:
        self.bucket = bucket
        self.listed: list[list[str]] | None = None  # the subjects received, if that is wanted
        self.pending = len(initial) or consumer.initial_pending
        self.revision = begins_behind if initial else max(changes_behind, consumer.starts_behind)
        self._consumer = consumer
        self._cut = len(prefix)
        self._is_connected = is_connected
        self._is_wanted = is_wanted
        self._note = note
        self._is_latest = is_latest
        self._is_one_key = is_one_key
        self._initial = list(initial)
        self._changes_behind = changes_behind
        self._to_come = 0 if initial else consumer.initial_pending

    @property
    def is_live(self) -> bool:
        """Whether there is a connection and a consumer."""
        return bool(self._consumer.consumer_name) and self._is_connected()

    async def next_entries(self, *, timeout: float | None = None) -> list[Entry[bytes]]:
        """The next entries; empty when the initial data turned out to be complete."""
        if self._initial:
            return self._take_initial()
        deadline = None if timeout is None else clock() + timeout
        while (run := await self._await_run(deadline, timeout)) is not None:
            entries = self._entries(run)
            if entries or not self.pending:
                return entries
        return []

    async def next_keys(self, *, timeout: float) -> Listing:
        """The next part of the initial data as keys only: the same without an entry for each."""
        if self._initial or self._is_wanted is not None:
            return listing_of(await self.next_entries(timeout=timeout))
        run = await self._await_run(clock() + timeout, timeout)
        if run is None:
            return Listing([], [])
        keys = self._received(run)
        if deleted := {at for at, mark in marks_of(run.headers()) if mark.operation is not Operation.PUT}:
            live = {key: at not in deleted for at, key in enumerate(keys)}  # the last message of a key counts
            return Listing([key for key, is_live in live.items() if is_live], [key for key in live if not live[key]])
        return Listing(keys, [])

    async def _await_run(self, deadline: float | None, timeout: float | None) -> MessageRun | None:
        """The next messages; None when the initial data turned out to be complete.

        Messages of the initial data may be removed before they are delivered. So while some are expected, a silence of
        `IDLE_CHECK` seconds makes it ask the server whether any are left.
        """
        while True:
            left = FOREVER if deadline is None else max(deadline - clock(), 0.0)
            try:
                run = await self._consumer.receive_run(timeout=left, idle=IDLE_CHECK if self.pending else None)
            except StreamNotFoundError as error:
                raise BucketNotFoundError(f"bucket {self.bucket!r} was deleted") from error
            except RequestTimeoutError as error:
                if self.pending and await self._consumer.is_drained():
                    self.pending = 0
                    return None
                if deadline is not None and clock() >= deadline:
                    raise RequestTimeoutError(f"bucket {self.bucket!r}: no entry within {timeout:g} s") from error
            else:
                if run is None:
                    raise ConnectionClosedError(f"the feed of bucket {self.bucket!r} is closed")
                return run

    def _take_initial(self) -> list[Entry[bytes]]:
        entries, self._initial = self._initial, []
        self.pending = 0
        self.revision = max(self._changes_behind, entries[-1].revision)
        return entries

    def _entries(self, run: MessageRun) -> list[Entry[bytes]]:
        """The entries of a run. A hot path: 10,000 keys are read at once, and most of them have no header."""
        deltas = self._deltas(run)
        keys = self._received(run)
        columns = zip(
            repeat(self.bucket),
            keys,
            run.payloads(),
            run.seqs,
            run.times,
            deltas,
            _PUTS,
            _EMPTY,
            repeat(run.stream),
            _ZEROS,
        )
        entries = list(map(_new_entry, _ENTRIES, columns))
        headers = run.headers()
        for at, (operation, marker) in marks_of(headers):
            entries[at] = entries[at]._replace(operation=operation, marker=marker)
        for at, expires in expiries_of(headers, run.times):
            entries[at] = entries[at]._replace(expires=expires)
        if self._is_wanted is not None:
            entries = [entry for entry in entries if self._is_wanted(entry.key)]
        if entries and entries[0].revision <= self._changes_behind:
            # A copy that is behind starts a consumer behind its own last message, whatever was asked for.
            entries = [entry for entry in entries if entry.revision > self._changes_behind]
        return entries

    def _deltas(self, run: MessageRun) -> Iterable[int | None]:
        """How many newer entries of its key the bucket held behind each message, None where the server did not say.

        It says how many messages the consumer has left. Of one key that is the answer; of several only if none is left.
        (A consumer of last messages counts keys, and on released servers not exactly.)
        """
        if not self._is_latest:
            return run.left if self._is_one_key else [None if left else 0 for left in run.left]
        newest = 0 if self._consumer.resets else self.pending
        if newest >= len(run.left):
            return _ZEROS
        return [0 if at < newest or not left else None for at, left in enumerate(run.left)]

    def _received(self, run: MessageRun) -> list[str]:
        """Count the messages of a run, and note the newest; returns their keys."""
        if self.pending:
            self._to_come -= len(run.seqs)
            # The initial data is complete when none was left behind a message, or as many as there were have arrived. A
            # replaced consumer has a count of its own: it starts behind the messages that have arrived.
            self.pending = run.left[-1] if self._consumer.resets else max(min(self._to_come, run.left[-1]), 0)
        self.revision = max(self.revision, run.seqs[-1])
        subjects = run.subjects()
        self._note(subjects, run.seqs)
        if self.listed is not None:
            self.listed.append(subjects)
        cut = self._cut
        return [subject[cut:] for subject in subjects]

    async def close(self) -> None:
        """End the feed; its consumer is deleted."""
        await self._consumer.close()
