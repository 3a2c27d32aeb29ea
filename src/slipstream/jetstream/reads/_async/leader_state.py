"""What the leader says of a stream (stream info), over the asyncio client: its state, and whom a read may believe.

A read believes the stream itself and its whole copies, and of those only the generation that exists now: messages from
before the stream was made belong to another stream of that name. Nothing here sleeps: one request, one answer or a
`Retry`. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from slipstream.api import StreamInfo, StreamState
from slipstream.errors import ApiError, AuthorizationError, ConnectionLostError, RequestTimeoutError, StaleReadError
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.proof import MOST_DELETED
from slipstream.jetstream.reads.retry import Retry

NO_LEADER = 503


class LeaderState:
    """Stream info of one stream, and what follows from it."""

    __slots__ = ("_context", "_stream", "cache")

    def __init__(self, context: JetStreamContext, stream: str) -> None:
        self._context = context
        self._stream = stream
        self.cache = context.read_state.stream(context.prefix, stream)

    async def info(self, goal: ReadGoal, *, deleted: bool = False, subject: str = "") -> StreamInfo | Retry:
        """Configuration and state by the leader, unless it was deposed before the stream was made again."""
        call = self._context.api.stream_info(self._stream, deleted_details=deleted, subjects_filter=subject)
        try:
            info = await self._context.run(call, timeout=goal.policy.for_one_try())
        except (RequestTimeoutError, ConnectionLostError) as error:
            return Retry(error)
        except ApiError as error:
            if error.code != NO_LEADER:
                raise
            return Retry(error)
        goal.policy.heard()
        if info.created < self.cache.created or not goal.learn(info):
            return Retry(goal.stale("the leader of an older stream of that name answered"))
        self.cache.made(info, self._context.client.now())
        return info

    async def state(self, goal: ReadGoal, seq: int) -> StreamState | Retry:
        """The state by the leader, with the deleted sequences where they are needed to tell about `seq`."""
        goal.with_leader = True
        info = await self.info(goal)
        if isinstance(info, Retry):
            return info
        state = info.state
        if 0 < state.num_deleted <= MOST_DELETED and state.first_seq <= seq <= state.last_seq:
            info = await self.info(goal, deleted=True)
            return info if isinstance(info, Retry) else info.state
        return state

    def knows_generation(self, goal: ReadGoal) -> bool:
        """Whether it is known since when the stream exists."""
        session, cache = goal.session, self.cache
        if session is not None and cache.created:
            session.made(self._stream, cache.created, 0)  # the session learns it, also if it need not be asked for
            if session.created(self._stream) > cache.created:
                return False  # a token may be foreign: what it says is not believed for the connection
        return cache.is_known(self._context.client.now())

    async def learn_generation(self, goal: ReadGoal) -> Retry | None:
        """Learn since when the stream exists, unless that is known."""
        cache, client = self.cache, self._context.client
        if self.knows_generation(goal):
            return None
        try:
            info = await self.info(goal)
        except AuthorizationError:  # this user may not ask: then it cannot be checked
            cache.asked_at = client.now()
            return None
        if isinstance(info, Retry) and not cache.created:
            return info.then(goal.stale("its leader does not answer, so it is unknown since when it exists"))
        return None

    async def distrust(self, goal: ReadGoal, source: str, oldest: int, *, wanted: int = 0) -> StaleReadError | None:
        """Why an answer of `source`, whose oldest message is of that time, is not to be believed; None if it is."""
        if source != self._stream and not await self.is_whole_copy(goal, source):
            return goal.foreign(source, wanted)
        if oldest < self.cache.floor and self.cache.may_ask(self._context.client.now()):
            await self.info(goal)
        if oldest < self.cache.floor:
            return goal.stale("an older stream of that name answered", wanted)
        return None

    async def is_whole_copy(self, goal: ReadGoal, mirror: str) -> bool:
        """Whether a mirror holds all that the stream holds, by their configurations; asked once."""
        known = self.cache.mirrors.get(mirror)
        if known is not None:
            return known
        if self.cache.config is None and isinstance(await self.info(goal), Retry):
            return False
        try:
            call = self._context.api.stream_info(mirror)
            config = (await self._context.run(call, timeout=goal.policy.for_one_try())).config
        except (RequestTimeoutError, ConnectionLostError):
            return False
        except (ApiError, AuthorizationError):  # of another account or domain: what it holds cannot be known
            is_whole = False
        else:
            is_whole = self.cache.is_whole_copy(config)
        self.cache.mirrors[mirror] = is_whole
        return is_whole
