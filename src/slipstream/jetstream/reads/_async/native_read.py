"""Reads from servers that keep `min_last_seq` themselves, over the asyncio client.

Such a server holds a read back until it has the wanted sequence, or rejects it (412): then another attempt may reach a
newer replica. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from functools import partial

import msgspec

from slipstream.api import GetRequest, encode_json
from slipstream.errors import (
    BadRequestError,
    ConnectionLostError,
    DirectGetNotAllowedError,
    MessageNotFoundError,
    RequestTimeoutError,
    StaleReadError,
)
from slipstream.jetstream import requests
from slipstream.jetstream.reads._async.direct_gets import DirectGets
from slipstream.jetstream.reads._async.leader_state import LeaderState
from slipstream.jetstream.reads._async.retry_loop import RetryLoop
from slipstream.jetstream.reads._async.scope import ReadScope
from slipstream.jetstream.reads.direct_get import StoredMessage, decode_one
from slipstream.jetstream.reads.retry import Retry

_EMPTY = GetRequest()


class NativeRead:
    """One read whose freshness is the server's business."""

    __slots__ = ("_context", "_direct", "_goal", "_leader", "_loop", "_policy")

    def __init__(self, scope: ReadScope, leader: LeaderState, direct: DirectGets, loop: RetryLoop) -> None:
        self._context, self._goal, self._policy = scope
        self._leader = leader
        self._direct = direct
        self._loop = loop

    async def is_possible(self) -> bool:
        """Whether servers here keep `min_last_seq`; found out once per connection, by what they do."""
        known = self._context.server_keeps_min
        return await self._loop.run(self._probe) if known is None else known

    async def _probe(self) -> bool | Retry:
        known = self._context.server_keeps_min  # another read may have found out
        if known is not None:
            return known
        call = self._context.api.probe_min_last_seq(self._goal.stream)
        try:
            keeps = await self._context.run(call, timeout=self._policy.for_one_try())
        except (RequestTimeoutError, ConnectionLostError, DirectGetNotAllowedError) as error:
            return Retry(error)
        self._context.server_keeps_min = keeps
        return keeps

    async def get(self, subject: str, request: GetRequest) -> StoredMessage:
        """A get from a server that keeps `min_last_seq`: its 412 means ask again, anything else is true.

        Also for the first read of a session, which wants nothing yet: then any server will do.
        """
        goal, session = self._goal, self._goal.session
        if goal.wanted and session is not None and not session.created(goal.stream):
            await self._loop.run(self._leader.learn_generation)

        async def attempt() -> StoredMessage | Retry:
            asked = msgspec.structs.replace(request, min_last_seq=goal.wanted)
            limit = self._policy.for_late_try() if goal.wanted else self._policy.for_one_try()
            replies = await self._direct.send(subject, asked, limit, has_body=asked != _EMPTY)
            if isinstance(replies, Retry):
                return replies
            if replies.is_missing:
                raise goal.missing(f"nothing fits {encode_json(asked).decode()}")
            message = replies.items[0].message
            if message.stream == goal.stream or await self._leader.is_whole_copy(message.stream):
                goal.reach(max(message.seq, goal.wanted))
                return message
            return Retry(goal.foreign(message.stream))

        return await self._loop.run(attempt)

    async def last_by_appended(self, subject: str) -> StoredMessage:
        """For users who may ask for one subject and nothing else: its newest message, if that proves itself.

        Servers that keep `min_last_seq` reject one that is no number, old ones reject any body, others ignore it.
        """
        goal = self._goal
        body = encode_json(GetRequest(min_last_seq=goal.wanted))

        async def attempt() -> StoredMessage | Retry:
            nonlocal body
            call = requests.Call(subject, body, partial(decode_one, asked=subject))
            try:
                found = await self._context.run(call, timeout=self._policy.left())
                if found.seq >= goal.wanted or (body and await self._rejects_bad_min(subject)):
                    goal.reach(found.seq)
                    return found
                return Retry(goal.behind(found.seq))
            except BadRequestError:
                if not body:
                    raise
                body = b""
                return Retry()
            except MessageNotFoundError:
                if body and await self._rejects_bad_min(subject):
                    raise
                return Retry(goal.behind(0))
            except RequestTimeoutError as silence:
                raise self._policy.why(silence) from silence
            except (ConnectionLostError, StaleReadError) as error:
                return Retry(error)

        return await self._loop.run(attempt)

    async def _rejects_bad_min(self, subject: str) -> bool:
        """Whether the server looks at `min_last_seq`."""
        call = requests.Call(subject, b'{"min_last_seq":"?"}', lambda msg: requests.is_bad_request(msg, subject))
        return await self._context.run(call, timeout=self._policy.left())
