"""Requests that a stream's leader answers, over the asyncio client: stream info, subjects, one message (Message Get).

One request, one answer or a `Retry`; what the answer proves is for the rule to say. Stream info is shared by the
reads that may share it: a read that finds one under way, with nothing received since it was sent, knows that it was
sent after its own answer arrived. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from typing import TypeVar

from slipstream.api import GetRequest, StreamInfo
from slipstream.errors import ApiError, ConnectionLostError, MessageNotFoundError, RequestTimeoutError
from slipstream.jetstream import requests
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.retry import Retry
from slipstream.jetstream.reads.rule import Info
from slipstream.jetstream.requests import SubjectsPage

T = TypeVar("T")

NO_LEADER = 503


class SharedInfo:
    """One request for stream info, and those who wait for it."""

    __slots__ = ("_decoded", "answer", "call", "sent_after")

    def __init__(self, call: requests.Call[StreamInfo], sent_after: int) -> None:
        self.call = call
        self.answer = requests.Answer()
        self.sent_after = sent_after  # bytes received
        self._decoded: StreamInfo | None = None

    def take(self) -> StreamInfo:
        """The answer, decoded once."""
        info = self._decoded
        if info is None:
            info = self._decoded = self.call.decode(self.answer.take())
        return info


class LeaderRequests:
    """The requests about one stream, and about its mirrors, that a leader answers."""

    __slots__ = ("_context", "_shared")

    def __init__(self, context: JetStreamContext) -> None:
        self._context = context
        self._shared: dict[Info, SharedInfo] = {}

    async def info(self, goal: ReadGoal, asked: Info) -> StreamInfo | Retry:
        """Stream info, sent now or by another read since the last byte was received."""
        client = self._context.client
        received = client.stats.in_bytes
        shared, token = self._shared.get(asked), ""
        if shared is None or shared.sent_after != received or shared.answer.ready():
            call = self._context.api.stream_info(
                asked.stream, deleted_details=asked.is_deleted, subjects_filter=asked.subjects_filter
            )
            shared = self._shared[asked] = SharedInfo(call, received)
            token = client.start(call.subject, call.payload, shared.answer)
        try:
            limit = goal.policy.for_one_try()
            await client.wait(shared.answer.ready, timeout=limit, what=shared.call.awaited)
            info = shared.take()
        except (RequestTimeoutError, ConnectionLostError) as error:
            goal.policy.leader_silent()
            return Retry(error)
        except ApiError as error:
            if error.code != NO_LEADER:
                raise
            return Retry(error)
        finally:
            if token:  # who sent it; another who waits longer asks again
                client.cancel(token)
                if self._shared.get(asked) is shared:
                    del self._shared[asked]
        goal.policy.leader_heard()
        return info

    async def message(self, goal: ReadGoal, stream: str, request: GetRequest) -> StoredMessage | Retry | None:
        """One message by a Message Get; None if the leader finds none."""
        try:
            return await self._run(goal, self._context.api.message_get(stream, request))
        except MessageNotFoundError:
            goal.policy.leader_heard()
            return None

    async def subjects(self, goal: ReadGoal, stream: str, pattern: str, *, offset: int) -> SubjectsPage | Retry:
        """A page of the subjects that match a pattern."""
        return await self._run(goal, self._context.api.subjects(stream, pattern, offset=offset))

    async def _run(self, goal: ReadGoal, call: requests.Call[T]) -> T | Retry:
        try:
            answer = await self._context.run(call, timeout=goal.policy.for_one_try())
        except (RequestTimeoutError, ConnectionLostError) as error:
            goal.policy.leader_silent()
            return Retry(error)
        except ApiError as error:
            if error.code != NO_LEADER:
                raise
            return Retry(error)
        goal.policy.leader_heard()
        return answer
