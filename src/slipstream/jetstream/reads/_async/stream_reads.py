"""The reads of one stream over the asyncio client: which way a read takes, and how it is counted.

A plain read is one request. A read that must be new enough goes to a server that guarantees it, or is proven; a read by
the leader goes to the leader alone. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

from slipstream.api import GetRequest, encode_json
from slipstream.errors import AuthorizationError, Error, MessageNotFoundError
from slipstream.jetstream import requests
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.reads._async.last_many import Bound
from slipstream.jetstream.reads._async.trusted_read import TrustedRead
from slipstream.jetstream.reads.columns import Columns, Part
from slipstream.jetstream.reads.direct_get import StoredMessage, decode_one
from slipstream.jetstream.reads.range_reader import RangeReader
from slipstream.wire import has_wildcard


class StreamReads:
    """Reads of one stream, as new as they must be."""

    def __init__(self, context: JetStreamContext, stream: str) -> None:
        self._context = context
        self._stream = stream
        self._direct = context.api.direct_subject(stream)

    async def get(
        self, request: GetRequest, *, min_last_seq: int, from_leader: bool, timeout: float | None
    ) -> StoredMessage:
        """One message: by its sequence, the next one of a subject, or the last one."""
        requests.check_seq(min_last_seq, "min_last_seq")
        if from_leader:
            read = self._begin(min_last_seq, timeout)
            with self._counted(read):
                return await read.by_leader.get(request)
        subject, asked = self._direct, request
        is_appended = bool(request.last_by_subj) and not has_wildcard(request.last_by_subj)
        if is_appended:  # the subject of the request names it: permissions can be granted for it
            subject, asked = self._context.api.direct_subject(self._stream, request.last_by_subj), GetRequest()
        if not min_last_seq and self._context.session is None:
            return await self._plain(subject, b"" if is_appended else encode_json(asked), timeout)
        read = self._begin(min_last_seq, timeout)
        with self._counted(read):
            try:
                if await read.is_guaranteed():
                    return await read.native.get(subject, asked)
                return await read.proven.get(request)
            except AuthorizationError:
                if not is_appended:
                    raise
                return await read.native.last_by_appended(subject)

    async def last_many(
        self, subjects: Sequence[str], bound: Bound, *, min_last_seq: int, from_leader: bool, timeout: float | None
    ) -> dict[str, StoredMessage]:
        """Subject to newest message."""
        requests.check_seq(min_last_seq, "min_last_seq")
        read = self._begin(min_last_seq, timeout)
        with self._counted(read):
            if from_leader:
                return await read.last_many.newest_by_leader(read.by_leader, subjects)
            found = await read.last_many.newest(subjects, bound)
        for message in found.values():
            self._context.note(self._stream, message.seq)
        return found

    async def columns(
        self,
        *,
        start: int,
        end: int,
        subject: str,
        start_time: int | None,
        min_last_seq: int,
        from_leader: bool,
        parts: Part,
        timeout: float | None,
    ) -> AsyncIterator[Columns]:
        """The messages of a range in columns, as they arrive."""
        read = self._begin(min_last_seq, timeout)
        wanted = read.goal.wanted
        with self._counted(read):
            has_goal = bool(end or wanted)
            trusting = has_goal and not from_leader and await read.native.is_possible()
            reader = RangeReader(
                start=start,
                end=end,
                subject=subject,
                at_least=wanted,
                since=start_time or 0,
                trusting=trusting,
                parts=parts,
            )
            if from_leader:
                chunks = read.by_leader.columns(reader)
            else:
                chunks = read.range(reader, is_plain=trusting or not has_goal).columns()
            async for columns in chunks:
                read.goal.reached = columns.seqs[-1]
                yield columns

    async def _plain(self, subject: str, body: bytes, timeout: float | None) -> StoredMessage:
        """A Direct Get of whichever replica answers."""
        client, state = self._context.client, self._context.read_state
        answer = requests.Answer()
        token = client.start(subject, body, answer)
        try:
            limit = self._context.timeout if timeout is None else timeout
            await client.wait(answer.ready, timeout=limit, what=f"an answer on {subject}")
            found = decode_one(answer.take(), asked=subject)
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

    def _begin(self, min_last_seq: int, timeout: float | None) -> TrustedRead:
        return TrustedRead(self._context, self._stream, min_last_seq=min_last_seq, timeout=timeout)

    @contextmanager
    def _counted(self, read: TrustedRead) -> Iterator[None]:
        """Count the read, and tell the session of it, however it ends."""
        context, goal = self._context, read.goal
        try:
            yield
        except (MessageNotFoundError, GeneratorExit):
            context.read_state.count(tries=read.tries, with_leader=goal.with_leader)
            context.note(self._stream, goal.reached)
            raise
        except BaseException:
            context.read_state.failed += 1
            raise
        context.read_state.count(tries=read.tries, with_leader=goal.with_leader)
        context.note(self._stream, goal.reached)
