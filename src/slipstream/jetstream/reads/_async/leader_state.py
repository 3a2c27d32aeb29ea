"""What the leader says of a stream (stream info), over the asyncio client: its state, and whom a read may believe.

A read believes the stream itself and its whole copies, and of those only the generation that exists now: messages from
before the stream was made belong to another stream of that name. Nothing here sleeps: one request, one answer or a
`Retry`. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from slipstream.api import StreamInfo, StreamState
from slipstream.errors import ApiError, AuthorizationError, ConnectionLostError, RequestTimeoutError, StaleReadError
from slipstream.jetstream.reads._async.scope import ReadScope
from slipstream.jetstream.reads.proof import MOST_DELETED
from slipstream.jetstream.reads.retry import Retry

NO_LEADER = 503


class LeaderState:
    """Stream info for one read, and what follows from it."""

    __slots__ = ("_context", "_goal", "_policy", "cache")

    def __init__(self, scope: ReadScope) -> None:
        self._context, self._goal, self._policy = scope
        self.cache = self._context.read_state.stream(self._context.prefix, self._goal.stream)

    async def info(self, *, deleted: bool = False, subject: str = "") -> StreamInfo | Retry:
        """Configuration and state by the leader, unless it was deposed before the stream was made again."""
        call = self._context.api.stream_info(self._goal.stream, deleted_details=deleted, subjects_filter=subject)
        try:
            info = await self._context.run(call, timeout=self._policy.for_one_try())
        except (RequestTimeoutError, ConnectionLostError) as error:
            return Retry(error)
        except ApiError as error:
            if error.code != NO_LEADER:
                raise
            return Retry(error)
        self._policy.heard()
        if info.created < self.cache.created:
            return Retry(self._goal.stale("the leader of an older stream of that name answered"))
        self.cache.made(info, self._context.client.now())
        self._goal.learn(info)
        return info

    async def state(self, seq: int) -> StreamState | Retry:
        """The state by the leader, with the deleted sequences where they are needed to tell about `seq`."""
        self._goal.with_leader = True
        info = await self.info()
        if isinstance(info, Retry):
            return info
        state = info.state
        if 0 < state.num_deleted <= MOST_DELETED and state.first_seq <= seq <= state.last_seq:
            info = await self.info(deleted=True)
            return info if isinstance(info, Retry) else info.state
        return state

    def knows_generation(self) -> bool:
        """Whether it is known since when the stream exists."""
        session = self._goal.session
        if session is not None:
            self.cache.know(session.created(self._goal.stream))
        return self.cache.is_known(self._context.client.now())

    async def learn_generation(self) -> Retry | None:
        """Learn since when the stream exists, unless that is known."""
        cache, client = self.cache, self._context.client
        if self.knows_generation():
            return None
        try:
            info = await self.info()
        except AuthorizationError:  # this user may not ask: then it cannot be checked
            cache.asked_at = client.now()
            return None
        if isinstance(info, Retry) and not cache.created:
            return info.then(self._goal.stale("its leader does not answer, so it is unknown since when it exists"))
        return None

    async def distrust(self, source: str, oldest: int, *, goal: int = 0) -> StaleReadError | None:
        """Why an answer of `source`, whose oldest message is of that time, is not to be believed; None if it is."""
        if source != self._goal.stream and not await self.is_whole_copy(source):
            return self._goal.foreign(source, goal)
        if oldest < self.cache.floor and self.cache.may_ask(self._context.client.now()):
            await self.info()
        if oldest < self.cache.floor:
            return self._goal.stale("an older stream of that name answered", goal)
        return None

    async def is_whole_copy(self, mirror: str) -> bool:
        """Whether a mirror holds all that the stream holds, by their configurations; asked once."""
        known = self.cache.mirrors.get(mirror)
        if known is not None:
            return known
        if self.cache.config is None and isinstance(await self.info(), Retry):
            return False
        try:
            call = self._context.api.stream_info(mirror)
            config = (await self._context.run(call, timeout=self._policy.for_one_try())).config
        except (RequestTimeoutError, ConnectionLostError):
            return False
        except (ApiError, AuthorizationError):  # of another account or domain: what it holds cannot be known
            is_whole = False
        else:
            is_whole = self.cache.is_whole_copy(config)
        self.cache.mirrors[mirror] = is_whole
        return is_whole
