"""A stream over the asyncio client: its state, its messages (one, many or a range) and its consumers.

A plain read is one request. A read that must be new enough is carried out by the trusted reads beside this module, or
by a server that guarantees it itself. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from slipstream.api import ConsumerConfig, ConsumerInfo, GetRequest, ReplayPolicy, StreamInfo, encode_json
from slipstream.errors import AuthorizationError, Error, MessageNotFoundError, UsageError
from slipstream.jetstream import requests
from slipstream.jetstream._async.consumer import Consumer
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream._async.last_many import ManyRead
from slipstream.jetstream._async.leader_read import LeaderRead
from slipstream.jetstream._async.ordered import OrderedConsumer
from slipstream.jetstream._async.proofs import TrustedRead
from slipstream.jetstream._async.trusted_read import Asking
from slipstream.jetstream.consume import ordered
from slipstream.jetstream.consumer_requests import Action
from slipstream.jetstream.reads.columns import Columns, Part
from slipstream.jetstream.reads.direct_get import StoredMessage, decode_one
from slipstream.jetstream.reads.range_reader import RangeReader
from slipstream.jetstream.reads.retry import RetryPolicy
from slipstream.wire import check_filter, has_wildcard

R = TypeVar("R", bound=Asking)


class Stream:
    """One stream: what it is, its messages and its consumers.

    Where a call takes `min_last_seq`, the answer is at least as new as that sequence, whichever replica gives it; if
    that cannot be had in time, StaleReadError is raised and no data returned. Deletes and purges of messages do not
    move a stream's sequence and are not covered. With `from_leader` the leader answers, and nobody else.

    Four errors say four things: MessageNotFoundError (it is not there), StaleReadError (nobody was new enough, or could
    prove it), BadRequestError (the server did not understand), and RequestTimeoutError or DirectGetNotAllowedError
    (nobody answers; the second says which setting is missing).
    """

    def __init__(self, context: JetStreamContext, name: str) -> None:
        self._context = context
        self._direct = context.api.direct_subject(name)
        self.name = name

    async def info(
        self, *, subjects_filter: str = "", deleted_details: bool = False, timeout: float | None = None
    ) -> StreamInfo:
        """The stream's configuration and state, from its leader."""
        call = self._context.api.stream_info(
            self.name, subjects_filter=subjects_filter, deleted_details=deleted_details
        )
        return await self._context.run(call, timeout=timeout)

    async def subjects(self, pattern: str = ">", *, timeout: float | None = None) -> AsyncIterator[str]:
        """The subjects that the stream has messages of and that match, asked for page by page."""
        async for subject in self._context.each(
            partial(self._context.api.subject_names, self.name, pattern), timeout=timeout
        ):
            yield subject

    async def delete(self, *, timeout: float | None = None) -> None:
        """Remove the stream and all its messages."""
        await self._context.run(self._context.api.delete_stream(self.name), timeout=timeout)

    async def purge(
        self, *, subject: str = "", below: int | None = None, keep: int = 0, timeout: float | None = None
    ) -> int:
        """Remove messages, and tell how many: all, those that match `subject`, those under the sequence `below`, or all
        but the newest `keep`. Not covered by `min_last_seq`: the last sequence stays what it was."""
        call = self._context.api.purge_stream(self.name, subject=subject, below=below, keep=keep)
        return 0 if call is None else await self._context.run(call, timeout=timeout)

    async def delete_message(self, seq: int, *, erase: bool = True, timeout: float | None = None) -> None:
        """Remove one message. Not covered by `min_last_seq`: the last sequence stays what it was."""
        await self._context.run(self._context.api.delete_message(self.name, seq, erase=erase), timeout=timeout)

    # Messages

    async def get(
        self, seq: int, *, min_last_seq: int = 0, from_leader: bool = False, timeout: float | None = None
    ) -> StoredMessage:
        """The message with that sequence. Raises MessageNotFoundError if there is none (any more)."""
        requests.check_seq(seq, "seq", least=1)
        request = GetRequest(seq=seq)
        if from_leader:
            return await self._get_by_leader(request, min_last_seq, timeout)
        if not self._wants(min_last_seq):
            return await self._plain(self._direct, encode_json(request), timeout)
        read = self._read(TrustedRead, min_last_seq, timeout)
        with self._counted(read):
            if not read.wanted or await read.keeps_min_last_seq():
                return await read.native(self._direct, request)
            return await read.by_seq(seq)

    async def get_next(
        self,
        subject: str,
        *,
        seq: int = 1,
        min_last_seq: int = 0,
        from_leader: bool = False,
        timeout: float | None = None,
    ) -> StoredMessage:
        """The first message at or after `seq` whose subject matches."""
        requests.check_seq(seq, "seq")
        request = GetRequest(seq=seq, next_by_subj=check_filter(subject))
        if from_leader:
            return await self._get_by_leader(request, min_last_seq, timeout)
        if not self._wants(min_last_seq):
            return await self._plain(self._direct, encode_json(request), timeout)
        read = self._read(TrustedRead, min_last_seq, timeout)
        with self._counted(read):
            if not read.wanted or await read.keeps_min_last_seq():
                return await read.native(self._direct, request)
            return await read.next(subject, seq)

    async def get_last(
        self, subject: str, *, min_last_seq: int = 0, from_leader: bool = False, timeout: float | None = None
    ) -> StoredMessage:
        """The newest message whose subject matches. Raises MessageNotFoundError if there is none."""
        is_literal = not has_wildcard(check_filter(subject))
        if from_leader:
            return await self._get_by_leader(GetRequest(last_by_subj=subject), min_last_seq, timeout)
        asked = self._context.api.direct_subject(self.name, subject) if is_literal else self._direct
        request = GetRequest(last_by_subj="" if is_literal else subject)
        if not self._wants(min_last_seq):
            return await self._plain(asked, b"" if is_literal else encode_json(request), timeout)
        read = self._read(TrustedRead, min_last_seq, timeout)
        with self._counted(read):
            try:
                if not read.wanted or await read.keeps_min_last_seq():
                    return await read.native(asked, request)
                return await read.last(subject)
            except AuthorizationError:
                if not is_literal:
                    raise
                return await read.last_by_appended(asked)

    async def get_last_many(
        self,
        subjects: Sequence[str],
        *,
        up_to_seq: int = 0,
        up_to_time: int | None = None,
        min_last_seq: int = 0,
        from_leader: bool = False,
        timeout: float | None = None,
    ) -> dict[str, StoredMessage]:
        """Subject to newest message, for any number of subjects and patterns; those without a message are left out.

        With `up_to_seq` or `up_to_time` (nanoseconds since the epoch) the newest up to there. It is not one state of
        the stream: subjects are read in pieces, each of which is at or after `min_last_seq`.
        """
        if isinstance(subjects, str):
            raise UsageError(f"bad subjects {subjects!r}: a sequence of subjects is allowed, not one text")
        if (up_to_time is not None and (up_to_seq or from_leader)) or (up_to_seq and from_leader):
            raise UsageError("up_to_seq, up_to_time and from_leader: one of them is allowed")
        asked = tuple(check_filter(subject) for subject in subjects)
        requests.check_seq(up_to_seq, "up_to_seq")
        read = self._read(ManyRead, min_last_seq, timeout)
        with self._counted(read):
            if from_leader:
                return await read.newest_by_leader(asked)
            read.bound(up_to_seq=up_to_seq, up_to_time=up_to_time)
            found = await read.newest(asked)
        for message in found.values():
            self._note(message.seq)
        return found

    async def get_from_leader(self, request: GetRequest, *, timeout: float | None = None) -> StoredMessage:
        """Message Get as it is: answered by the stream's leader alone, or by one that does not know it was deposed."""
        return await self._context.run(self._context.api.message_get(self.name, request), timeout=timeout)

    async def get_last_from_leader(self, subject: str, *, timeout: float | None = None) -> StoredMessage:
        """The newest message whose subject matches, as the stream's leader has it."""
        return await self.get_from_leader(GetRequest(last_by_subj=check_filter(subject)), timeout=timeout)

    async def read(
        self,
        *,
        start: int = 1,
        end: int = 0,
        subject: str = "",
        start_time: int | None = None,
        min_last_seq: int = 0,
        from_leader: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """Every message that matches `subject`, in order, from `start` (or `start_time`, nanoseconds since 1970) to
        `end` (inclusive; 0: to the last)."""
        chunks = self.read_columns(
            start=start,
            end=end,
            subject=subject,
            start_time=start_time,
            min_last_seq=min_last_seq,
            from_leader=from_leader,
            timeout=timeout,
        )
        async for columns in chunks:
            for message in columns.messages():
                yield message

    async def read_chunks(
        self,
        *,
        start: int = 1,
        end: int = 0,
        subject: str = "",
        start_time: int | None = None,
        min_last_seq: int = 0,
        from_leader: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[list[StoredMessage]]:
        """The same in lists, as they arrive."""
        chunks = self.read_columns(
            start=start,
            end=end,
            subject=subject,
            start_time=start_time,
            min_last_seq=min_last_seq,
            from_leader=from_leader,
            timeout=timeout,
        )
        async for columns in chunks:
            yield columns.messages()

    async def read_columns(
        self,
        *,
        start: int = 1,
        end: int = 0,
        subject: str = "",
        start_time: int | None = None,
        min_last_seq: int = 0,
        from_leader: bool = False,
        parts: Part = Part.ALL,
        timeout: float | None = None,
    ) -> AsyncIterator[Columns]:
        """The same in columns, as they arrive: the fast way. `parts` says what is wanted beside the sequences: the rest
        may be blank, and is not paid for then.

        `timeout` is for each wait, not for the whole read. A range with an `end` is complete, whichever replica
        answered: one that is behind is asked again, not believed.
        """
        if subject:
            check_filter(subject)
        for what, seq in (("start", start), ("end", end), ("min_last_seq", min_last_seq)):
            requests.check_seq(seq, what)
        if start_time is not None and (start > 1 or from_leader):
            raise UsageError("start_time together with start or from_leader: one of them is allowed")
        if end and start > end:
            return
        read = self._read(LeaderRead, min_last_seq, timeout)
        wanted = read.wanted
        with self._counted(read):
            goal = end or wanted
            trusting = bool(goal) and not from_leader and await read.keeps_min_last_seq()
            reader = RangeReader(
                start=start,
                end=end,
                subject=subject,
                at_least=wanted,
                since=start_time or 0,
                trusting=trusting,
                parts=parts,
            )
            chunks = read.pages(reader) if from_leader else read.columns(reader, plain=trusting or not goal)
            async for columns in chunks:
                read.reached = columns.seqs[-1]
                yield columns

    # Consumers

    async def create_consumer(self, config: ConsumerConfig | str, *, timeout: float | None = None) -> Consumer:
        """Make a consumer: a durable pull consumer of that name, or as configured.

        Raises ConsumerExistsError if there is one of that name with another configuration.
        """
        return await self._make_consumer(config, Action.CREATE, timeout)

    async def update_consumer(self, config: ConsumerConfig, *, timeout: float | None = None) -> Consumer:
        """Change a consumer; raises ConsumerDoesNotExistError if there is none of that name."""
        return await self._make_consumer(config, Action.UPDATE, timeout)

    async def create_or_update_consumer(
        self, config: ConsumerConfig | str, *, timeout: float | None = None
    ) -> Consumer:
        """Make a consumer, or change the one of that name."""
        return await self._make_consumer(config, Action.CREATE_OR_UPDATE, timeout)

    async def _make_consumer(self, config: ConsumerConfig | str, action: Action, timeout: float | None) -> Consumer:
        if isinstance(config, str):
            config = ConsumerConfig(durable_name=requests.check_name(config, "consumer"))
        info = await self._context.run(self._context.consumer_api.create(self.name, config, action), timeout=timeout)
        return Consumer(self._context, self.name, info.name, info)

    async def consumer(self, name: str, *, timeout: float | None = None) -> Consumer:
        """An existing consumer; raises ConsumerNotFoundError if there is none of that name."""
        info = await self._context.run(self._context.consumer_api.info(self.name, name), timeout=timeout)
        return Consumer(self._context, self.name, name, info)

    async def delete_consumer(self, name: str, *, timeout: float | None = None) -> None:
        """Remove a consumer; the stream keeps its messages."""
        await self._context.run(self._context.consumer_api.delete(self.name, name), timeout=timeout)

    async def consumer_names(self, *, timeout: float | None = None) -> AsyncIterator[str]:
        """The names of all consumers, asked for page by page."""
        async for name in self._context.each(partial(self._context.consumer_api.names, self.name), timeout=timeout):
            yield name

    async def consumers(self, *, timeout: float | None = None) -> AsyncIterator[ConsumerInfo]:
        """The infos of all consumers, asked for page by page."""
        async for info in self._context.each(partial(self._context.consumer_api.list, self.name), timeout=timeout):
            yield info

    def ordered_consumer(
        self,
        subjects: str | Sequence[str] = (),
        *,
        start_seq: int = 0,
        start_time: int | None = None,
        deliver_policy: str = "",
        headers_only: bool = False,
        replay_policy: str = ReplayPolicy.INSTANT.value,
        metadata: Mapping[str, str] | None = None,
        heartbeat: float = ordered.HEARTBEAT,
    ) -> OrderedConsumer:
        """Messages in order, each once, whatever happens to connection and server: `async for message in …`.

        Those of `subjects` (one filter or several; none: all), from the beginning, from a sequence, from a time
        (nanoseconds since the epoch), or as `deliver_policy` says (`new`, `last`, `last_per_subject`). Nothing is asked
        of the server before the first read, `start` or `async with`.
        """
        config = ordered.template(
            subjects,
            start_seq=start_seq,
            start_time=start_time,
            deliver_policy=deliver_policy,
            headers_only=headers_only,
            replay_policy=replay_policy,
            metadata=metadata,
        )
        return OrderedConsumer(self._context, self.name, config, heartbeat=heartbeat)

    # How it is read

    async def _plain(self, asked: str, body: bytes, timeout: float | None) -> StoredMessage:
        """A Direct Get of whichever replica answers."""
        client, state = self._context.client, self._context.read_state
        answer = requests.Answer()
        token = client.start(asked, body, answer)
        try:
            limit = self._context.timeout if timeout is None else timeout
            await client.wait(answer.ready, timeout=limit, what=f"an answer on {asked}")
            found = decode_one(answer.take(), asked=asked)
        except MessageNotFoundError:
            state.at_once += 1
            raise
        except Error:
            state.failed += 1
            raise
        finally:
            client.cancel(token)
        state.at_once += 1
        return found

    async def _get_by_leader(self, request: GetRequest, min_last_seq: int, timeout: float | None) -> StoredMessage:
        read = self._read(LeaderRead, min_last_seq, timeout)
        with self._counted(read):
            return await read.get(request)

    def _wants(self, min_last_seq: int) -> bool:
        """Whether the answer must be new enough, for the caller or for a session."""
        return bool(requests.check_seq(min_last_seq, "min_last_seq")) or self._context.session is not None

    def _note(self, seq: int) -> None:
        self._context.note(self.name, seq)

    def _read(self, kind: type[R], min_last_seq: int, timeout: float | None) -> R:
        context = self._context
        wanted = requests.check_seq(min_last_seq, "min_last_seq")
        patience = RetryPolicy(context.timeout if timeout is None else timeout, context.client.now)
        return kind(context, self.name, wanted=wanted, patience=patience)

    @contextmanager
    def _counted(self, read: Asking) -> Iterator[None]:
        """A read belongs to the figures, and to the session, however it ends."""
        state = self._context.read_state
        try:
            yield
        except (MessageNotFoundError, GeneratorExit):
            state.count(tries=read.tries, with_leader=read.with_leader)
            self._note(read.reached)
            raise
        except BaseException:
            state.failed += 1
            raise
        state.count(tries=read.tries, with_leader=read.with_leader)
        self._note(read.reached)
