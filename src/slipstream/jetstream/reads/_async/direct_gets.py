"""Direct Gets of one stream over the asyncio client: one request, and an answer that may be judged or a `Retry`.

Whichever replica answers, its answer is returned only if its source may be believed; what it proves is for `proof` to
say. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from slipstream.api import GetRequest, encode_json
from slipstream.errors import ConnectionLostError, DirectGetNotAllowedError, RequestTimeoutError, StaleReadError
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.reads._async.leader_state import LeaderState
from slipstream.jetstream.reads.direct_get import Replies
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.proof import oldest_time, responder
from slipstream.jetstream.reads.retry import Retry


class DirectGets:
    """The requests about one stream that any replica may answer."""

    __slots__ = ("_client", "_leader", "_stream", "subject")

    def __init__(self, context: JetStreamContext, stream: str, leader: LeaderState) -> None:
        self._client = context.client
        self._stream = stream
        self._leader = leader
        self.subject = f"{context.prefix}.DIRECT.GET.{stream}"  # the name was checked when its handle was made

    async def ask(self, goal: ReadGoal, request: GetRequest, *, late: bool = False) -> Replies | Retry:
        """Send one request. `late`: the server may hold its answer back until it is new enough.

        Raises what will not be different the next time (a bad request, too many subjects).
        """
        policy = goal.policy
        limit = policy.for_late_try() if late else policy.for_one_try()
        try:
            replies = await self.send(self.subject, encode_json(request), limit, min_last_seq=request.min_last_seq)
        except DirectGetNotAllowedError as error:
            return Retry(error)
        if isinstance(replies, Retry):
            return replies
        policy.heard()
        if not replies.items:
            return replies
        source, oldest = responder(replies.items), oldest_time(replies.items)
        if source != self._stream or oldest < self._leader.cache.floor:
            reason = await self._leader.distrust(goal, source, oldest)
            if reason is not None:
                return Retry(reason)
        return replies

    async def send(self, subject: str, body: bytes, limit: float, *, min_last_seq: int = 0) -> Replies | Retry:
        """Send one request and wait for all its replies, without a look at who answered."""
        client, replies = self._client, Replies(subject, min_last_seq=min_last_seq)
        try:
            token = client.start(subject, body, replies)
            try:
                await client.wait(replies.ready, timeout=limit, what=f"an answer on {subject}")
            finally:
                client.cancel(token)
            if replies.error is not None:
                raise replies.error
        except (RequestTimeoutError, ConnectionLostError, StaleReadError) as error:
            return Retry(error)
        return replies
