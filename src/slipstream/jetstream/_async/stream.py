"""A stream over the asyncio client: its state, its messages (one, many or a range) and its consumers.

A plain read is one request. A read that must be new enough is carried out by the trusted reads beside this module, or
by a server that guarantees it itself. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Unpack

from slipstream.api import ConsumerConfig, ConsumerFields, ConsumerInfo, GetRequest, ReplayPolicy, StreamInfo
from slipstream.api.fields_set import configuration
from slipstream.api.notebook import facts
from slipstream.api.times import instant
from slipstream.errors import (
    DirectGetNotAllowedError,
    Error,
    MessageNotFoundError,
    StaleReadError,
    StreamNotFoundError,
    UsageError,
)
from slipstream.jetstream import requests
from slipstream.jetstream._async.consumer import Consumer
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream._async.fresh_consumers import create_consumer
from slipstream.jetstream._async.ordered import OrderedConsumer
from slipstream.jetstream.consume import ordered
from slipstream.jetstream.consumer_requests import Action
from slipstream.jetstream.reads._async.last_many import Bound
from slipstream.jetstream.reads._async.stream_reads import StreamReads
from slipstream.jetstream.reads.columns import Columns, Part
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.jetstream.reads.read_state import StreamCache
from slipstream.jetstream.reads.retry import SHORTEST_TRY
from slipstream.wire import check_filter
from slipstream.wire.arguments import Duration, check_timeout

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from slipstream.frames.options import FrameOptions, RangeOptions

_PARTS = {
    "subject": Part.SUBJECT,
    "sequence": Part.NOTHING,
    "timestamp": Part.TIME,
    "headers": Part.HEADER,
    "data": Part.DATA,
}
CAUSE_TIMEOUT = 1.0  # seconds to find out why a Direct Get had no responders


class Stream:
    """One stream: its configuration and state, its messages and its consumers.

    Where a call takes `min_last_seq`, the answer is at least as new as that sequence, whichever replica gives it; if no
    replica can provide that in time, StaleReadError is raised and no data is returned. Deletes and purges of messages
    do not move a stream's sequence and are not covered. With `from_leader` only the leader answers, and likewise for a
    stream without Direct Get (`allow_direct`).

    Five kinds of errors: MessageNotFoundError (there is no such message), StreamNotFoundError (nor such a stream),
    StaleReadError (no replica was new enough, or could prove it), BadRequestError (the server rejected the request),
    and RequestTimeoutError or DirectGetNotAllowedError (no replica answered; the second names the missing setting).
    """

    def __init__(self, context: JetStreamContext, name: str) -> None:
        self._context = context
        self._reads = StreamReads(context, name)
        self.name = name

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}>"

    def _repr_html_(self) -> str:
        return facts(f"Stream {self.name}", [("State", "info() shows it, to_pandas() its messages")])

    async def info(
        self, *, subjects_filter: str = "", deleted_details: bool = False, timeout: Duration | None = None
    ) -> StreamInfo:
        """The stream's configuration and state, from its leader."""
        call = self._context.api.stream_info(
            self.name, subjects_filter=subjects_filter, deleted_details=deleted_details
        )
        return await self._context.run(call, timeout=timeout)

    async def subjects(self, pattern: str = ">", *, timeout: Duration | None = None) -> AsyncIterator[str]:
        """The subjects that the stream has messages of and that match, asked for page by page."""
        async for subject in self._context.each(
            partial(self._context.api.subject_names, self.name, pattern), timeout=timeout
        ):
            yield subject

    async def delete(self, *, timeout: Duration | None = None) -> None:
        """Remove the stream and all its messages."""
        await self._context.run(self._context.api.delete_stream(self.name), timeout=timeout)

    async def purge(
        self, *, subject: str = "", below: int | None = None, keep: int = 0, timeout: Duration | None = None
    ) -> int:
        """Remove messages, and return how many: all, those that match `subject`, those below the sequence `below`, or
        all but the newest `keep`. Not covered by `min_last_seq`: the last sequence does not change."""
        timeout = check_timeout(timeout)
        call = self._context.api.purge_stream(self.name, subject=subject, below=below, keep=keep)
        return 0 if call is None else await self._context.run(call, timeout=timeout)

    async def delete_message(self, seq: int, *, erase: bool = True, timeout: Duration | None = None) -> None:
        """Remove one message. Not covered by `min_last_seq`: the last sequence does not change."""
        await self._context.run(self._context.api.delete_message(self.name, seq, erase=erase), timeout=timeout)

    async def step_down(self, *, preferred: str = "", timeout: Duration | None = None) -> None:
        """Have the leader hand over to another replica: to the server called `preferred`, if one is named.

        Raises an ApiError for a stream without replicas, and if no replica is current enough to lead.
        """
        await self._context.run(self._context.api.step_down(self.name, preferred=preferred), timeout=timeout)

    async def remove_peer(self, peer: str, *, timeout: Duration | None = None) -> None:
        """Move the replica on the server called `peer` to another server of the cluster."""
        await self._context.run(self._context.api.remove_peer(self.name, peer), timeout=timeout)

    # Messages

    async def get(
        self, seq: int, *, min_last_seq: int = 0, from_leader: bool = False, timeout: Duration | None = None
    ) -> StoredMessage:
        """The message with that sequence. Raises MessageNotFoundError if there is none (any more)."""
        requests.check_seq(seq, "seq", least=1)
        return await self._get(GetRequest(seq=seq), min_last_seq, from_leader, timeout)

    async def get_next(
        self,
        subject: str,
        *,
        seq: int = 1,
        min_last_seq: int = 0,
        from_leader: bool = False,
        timeout: Duration | None = None,
    ) -> StoredMessage:
        """The first message at or after `seq` whose subject matches."""
        requests.check_seq(seq, "seq")
        request = GetRequest(seq=seq, next_by_subj=check_filter(subject))
        return await self._get(request, min_last_seq, from_leader, timeout)

    async def get_last(
        self, subject: str, *, min_last_seq: int = 0, from_leader: bool = False, timeout: Duration | None = None
    ) -> StoredMessage:
        """The newest message whose subject matches. Raises MessageNotFoundError if there is none."""
        request = GetRequest(last_by_subj=check_filter(subject))
        return await self._get(request, min_last_seq, from_leader, timeout)

    async def _get(
        self, request: GetRequest, min_last_seq: int, from_leader: bool, timeout: Duration | None
    ) -> StoredMessage:
        timeout = check_timeout(timeout)
        read = partial(self._reads.get, request, min_last_seq=min_last_seq)
        begin, by_leader = self._context.client.now(), from_leader or self._cache.is_leader_only
        try:
            try:
                return await read(from_leader=by_leader, timeout=timeout)
            except DirectGetNotAllowedError as error:
                await self._go_on_by_leader(error, from_leader=by_leader)
                return await read(from_leader=True, timeout=self._left(begin, timeout))
        except MessageNotFoundError:
            raise requests.missing(self.name, request) from None

    @property
    def _cache(self) -> StreamCache:
        return self._context.read_state.stream(self._context.prefix, self.name)

    def _left(self, begin: float, timeout: float | None) -> float:
        """What is left of a timeout that began then."""
        limit = self._context.timeout if timeout is None else timeout
        return max(limit - (self._context.client.now() - begin), SHORTEST_TRY)

    async def _go_on_by_leader(self, error: DirectGetNotAllowedError, *, from_leader: bool, needs: str = "") -> None:
        """No responders. Returns, and remembers it, if the stream allows no Direct Gets: then its leader is asked.

        Raises StreamNotFoundError if there is no such stream, and otherwise the error: it has Direct Get, but no
        replica of it is there, or it cannot be found out. `needs` names an argument that Direct Get alone knows.
        """
        try:
            info = await self.info(timeout=min(self._context.timeout, CAUSE_TIMEOUT))
        except StreamNotFoundError as found:
            raise found from None
        except Error:  # it is not said, or this user may not ask
            raise error from None
        if info.config.allow_direct or from_leader:
            raise error
        if needs:
            why = f"{needs} needs Direct Get: set allow_direct on stream {self.name!r}"
            raise DirectGetNotAllowedError(error.subject, why) from None
        self._cache.is_leader_only = True
        self._context.read_state.failed -= 1  # the read goes on, and is counted once

    async def get_last_many(
        self,
        subjects: str | Sequence[str],
        *,
        up_to_seq: int = 0,
        up_to_time: int | datetime | None = None,
        min_last_seq: int = 0,
        from_leader: bool = False,
        timeout: Duration | None = None,
    ) -> dict[str, StoredMessage]:
        """Subject to newest message, for one or any number of subjects and patterns; those without one are left out.

        With `up_to_seq` or `up_to_time` (a datetime, or nanoseconds since the epoch) the newest up to there. It is not
        one state of the stream: subjects are read in pieces, each of which is at or after `min_last_seq`.
        """
        if (up_to_time is not None and (up_to_seq or from_leader)) or (up_to_seq and from_leader):
            raise UsageError("up_to_seq, up_to_time and from_leader are mutually exclusive")
        if not isinstance(subjects, str | Sequence) or isinstance(subjects, bytes):
            raise UsageError(f"subjects must be a subject or a sequence of subjects, got {subjects!r}")
        asked = tuple(check_filter(subject) for subject in ((subjects,) if isinstance(subjects, str) else subjects))
        requests.check_seq(up_to_seq, "up_to_seq")
        timeout = check_timeout(timeout)
        bound = Bound(up_to_seq, None if up_to_time is None else instant(up_to_time, "up_to_time"))
        read = partial(self._reads.last_many, asked, bound, min_last_seq=min_last_seq)
        begin = self._context.client.now()
        by_leader = from_leader or (not bound and self._cache.is_leader_only)
        try:
            return await read(from_leader=by_leader, timeout=timeout)
        except DirectGetNotAllowedError as error:
            needs = "up_to_seq" if up_to_seq else "up_to_time" if up_to_time is not None else ""
            await self._go_on_by_leader(error, from_leader=by_leader, needs=needs)
            return await read(from_leader=True, timeout=self._left(begin, timeout))

    async def newest_seq(self, *, timeout: Duration | None = None) -> int:
        """The newest sequence, by the leader when this was called; of a mirror, that of the stream it copies.

        A read with it as `min_last_seq` shows all that was stored before the call. The request is shared by those who
        wait for the same.
        """
        timeout = check_timeout(timeout)
        return await self._reads.newest_seq(timeout=timeout)

    async def learn_generation(self, *, is_due: bool = False, timeout: Duration | None = None) -> None:
        """Ask the leader when the stream was made, unless that was done a moment ago: for the layers above.

        `is_due`: in any case.
        """
        timeout = check_timeout(timeout)
        await self._reads.learn_generation(is_due=is_due, timeout=timeout)

    async def get_from_leader(self, request: GetRequest, *, timeout: Duration | None = None) -> StoredMessage:
        """Message Get as it is: answered by the stream's leader alone, or by one that does not know it was deposed.

        In a session the answer is as new as any read of it.
        """
        timeout = check_timeout(timeout)
        if self._context.session is not None:
            return await self._reads.get(request, min_last_seq=0, from_leader=True, timeout=timeout)
        return await self._context.run(self._context.api.message_get(self.name, request), timeout=timeout)

    async def get_last_from_leader(self, subject: str, *, timeout: Duration | None = None) -> StoredMessage:
        """The newest message whose subject matches, as the stream's leader has it."""
        return await self.get_from_leader(GetRequest(last_by_subj=check_filter(subject)), timeout=timeout)

    async def read(
        self,
        *,
        start: int = 1,
        end: int = 0,
        subject: str = "",
        start_time: int | datetime | None = None,
        min_last_seq: int = 0,
        from_leader: bool = False,
        timeout: Duration | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """Every message that matches `subject`, in order, from `start` (or `start_time`, a datetime or nanoseconds
        since the epoch) to `end` (inclusive; 0: to the last).

        A range with an `end` is complete: it waits until the stream has that sequence, and raises StaleReadError where
        it has not in time. For what there is up to a sequence, end at `min(end, (await stream.info()).state.last_seq)`.
        """
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
            for message in columns.each():
                yield message

    async def read_chunks(
        self,
        *,
        start: int = 1,
        end: int = 0,
        subject: str = "",
        start_time: int | datetime | None = None,
        min_last_seq: int = 0,
        from_leader: bool = False,
        timeout: Duration | None = None,
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
        start_time: int | datetime | None = None,
        min_last_seq: int = 0,
        from_leader: bool = False,
        parts: Part = Part.ALL,
        timeout: Duration | None = None,
    ) -> AsyncIterator[Columns]:
        """The same in columns, as they arrive: the fast way. `parts` selects what is read besides the sequences; other
        parts may be blank, and cost nothing.

        `timeout` is for each wait, not for the whole read. A range with an `end` is complete, whichever replica
        answered: a lagging one is asked again.
        """
        if subject:
            check_filter(subject)
        for what, seq in (("start", start), ("end", end), ("min_last_seq", min_last_seq)):
            requests.check_seq(seq, what)
        if start_time is not None and (start > 1 or from_leader):
            raise UsageError("start_time cannot be combined with start or from_leader")
        timeout = check_timeout(timeout)
        since = None if start_time is None else instant(start_time, "start_time")
        if end and start > end:
            return
        read = partial(
            self._reads.columns, end=end, subject=subject, min_last_seq=min_last_seq, parts=parts, timeout=timeout
        )
        by_leader, last = from_leader or (since is None and self._cache.is_leader_only), start - 1
        try:
            try:
                async for columns in read(start=start, start_time=since, from_leader=by_leader):
                    last = columns.seqs[-1]
                    yield columns
            except DirectGetNotAllowedError as error:
                needs = "start_time" if since is not None and last < start else ""
                await self._go_on_by_leader(error, from_leader=by_leader, needs=needs)
                if not end or last < end:
                    async for columns in read(start=last + 1, start_time=None, from_leader=True):
                        yield columns
        except StaleReadError as error:
            if error.min_last_seq != end or end <= min_last_seq:
                raise
            why = f"{error}; a range with an end waits for it: end={end} must be a sequence that the stream reaches"
            raise StaleReadError(why, stream=self.name, min_last_seq=end) from error

    # Data frames

    async def to_arrow(
        self,
        *,
        start: int = 1,
        end: int = 0,
        subject: str = "",
        start_time: int | datetime | None = None,
        min_last_seq: int = 0,
        from_leader: bool = False,
        timeout: Duration | None = None,
        **options: Unpack[FrameOptions],
    ) -> pa.Table:
        """The messages as an Arrow table: of a range as for `read`, by default the whole stream.

        `columns`, `schema` and `errors` are FrameOptions: `await stream.to_arrow(schema=Order)` decodes JSON into the
        fields of a type. Needs the extra `arrow`.
        """
        from slipstream.frames.arrow import TableBuilder  # with its dependencies, which are optional

        builder = TableBuilder(**options)
        parts = Part.DATA if options.get("schema") is not None else Part.NOTHING
        for name in builder.columns:
            parts |= _PARTS[name]
        chunks = self.read_columns(
            start=start,
            end=end,
            subject=subject,
            start_time=start_time,
            min_last_seq=min_last_seq,
            from_leader=from_leader,
            parts=parts | (Part.SUBJECT if options.get("schema") is not None else Part.NOTHING),
            timeout=timeout,
        )
        async for columns in chunks:
            builder.add_columns(columns)
        return builder.table()

    async def to_pandas(self, **options: Unpack[RangeOptions]) -> pd.DataFrame:
        """The same as a pandas data frame, its columns backed by Arrow; takes the arguments of `to_arrow`."""
        from slipstream.frames.arrow import pandas_of

        return pandas_of(await self.to_arrow(**options))

    async def to_polars(self, **options: Unpack[RangeOptions]) -> pl.DataFrame:
        """The same as a polars data frame; takes the arguments of `to_arrow`."""
        from slipstream.frames.arrow import polars_of

        return polars_of(await self.to_arrow(**options))

    # Consumers

    async def create_consumer(
        self, config: ConsumerConfig | str, *, timeout: Duration | None = None, **fields: Unpack[ConsumerFields]
    ) -> Consumer:
        """Create a consumer: a durable one of that name with these fields (`create_consumer("workers", ack_wait=60)`),
        or as configured.

        Raises ConsumerExistsError if one of that name exists with another configuration. On a server that does not keep
        the configuration's `min_last_seq` a stream with one replica is waited for, and StaleReadError raised if it has
        not the sequence in time; with others MinLastSequenceUnsupportedError is raised and nothing created.
        """
        return await self._create_consumer(config, Action.CREATE, timeout, fields)

    async def update_consumer(
        self, config: ConsumerConfig | str, *, timeout: Duration | None = None, **fields: Unpack[ConsumerFields]
    ) -> Consumer:
        """Update a consumer; raises ConsumerDoesNotExistError if none of that name exists."""
        return await self._create_consumer(config, Action.UPDATE, timeout, fields)

    async def create_or_update_consumer(
        self, config: ConsumerConfig | str, *, timeout: Duration | None = None, **fields: Unpack[ConsumerFields]
    ) -> Consumer:
        """Create a consumer, or update the one of that name."""
        return await self._create_consumer(config, Action.CREATE_OR_UPDATE, timeout, fields)

    async def _create_consumer(
        self, config: ConsumerConfig | str, action: Action, timeout: Duration | None, fields: ConsumerFields
    ) -> Consumer:
        if isinstance(config, str):
            requests.check_name(config, "consumer")
        timeout = check_timeout(timeout)
        config = configuration(ConsumerConfig, config, fields)
        request = partial(self._context.consumer_api.create, self.name, action=action)
        info = await create_consumer(self._context, self.name, config, request, timeout=timeout)
        return Consumer(self._context, self.name, info.name, info)

    async def consumer(self, name: str, *, timeout: Duration | None = None) -> Consumer:
        """An existing consumer; raises ConsumerNotFoundError if none of that name exists."""
        info = await self._context.run(self._context.consumer_api.info(self.name, name), timeout=timeout)
        return Consumer(self._context, self.name, name, info)

    async def delete_consumer(self, name: str, *, timeout: Duration | None = None) -> None:
        """Delete a consumer; the stream keeps its messages."""
        await self._context.run(self._context.consumer_api.delete(self.name, name), timeout=timeout)

    async def consumer_names(self, *, timeout: Duration | None = None) -> AsyncIterator[str]:
        """The names of all consumers, asked for page by page."""
        async for name in self._context.each(partial(self._context.consumer_api.names, self.name), timeout=timeout):
            yield name

    async def consumers(self, *, timeout: Duration | None = None) -> AsyncIterator[ConsumerInfo]:
        """The infos of all consumers, asked for page by page."""
        async for info in self._context.each(partial(self._context.consumer_api.list, self.name), timeout=timeout):
            yield info

    def ordered_consumer(
        self,
        subjects: str | Sequence[str] = (),
        *,
        start_seq: int = 0,
        start_time: int | datetime | None = None,
        deliver_policy: str = "",
        headers_only: bool = False,
        replay_policy: str = ReplayPolicy.INSTANT.value,
        metadata: Mapping[str, str] | None = None,
        heartbeat: Duration = ordered.HEARTBEAT,
        min_last_seq: int = 0,
    ) -> OrderedConsumer:
        """Messages in order, each once, across reconnects and restarts of the server: `async for message in …`.

        Those of `subjects` (one filter or several; none: all), from the beginning, from a sequence, from a time (a
        datetime, or nanoseconds since the epoch), or as `deliver_policy` says (`new`, `last`, `last_per_subject`). No
        request is sent before the first read, `start` or `async with`.

        With `min_last_seq` it reads a copy that has that sequence, and `initial_pending` counts its messages; in a
        session it reflects everything the session has seen. The start waits for such a copy, and raises StaleReadError
        on timeout; `async for` alone waits without limit.
        """
        config = ordered.template(
            subjects,
            start_seq=start_seq,
            start_time=start_time,
            deliver_policy=deliver_policy,
            headers_only=headers_only,
            replay_policy=replay_policy,
            metadata=metadata,
            min_last_seq=min_last_seq,
        )
        return OrderedConsumer(self._context, self.name, config, heartbeat=heartbeat)
