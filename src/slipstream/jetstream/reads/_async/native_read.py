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
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.reads._async.direct_gets import DirectGets
from slipstream.jetstream.reads._async.drive import ReadDriver
from slipstream.jetstream.reads.direct_get import StoredMessage, decode_one
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.retry import Retry
from slipstream.jetstream.reads.rule import ReadRule
from slipstream.jetstream.reads.session import SessionState

_EMPTY = GetRequest()


class NativeRead:
    """Reads of one stream whose freshness the server guarantees."""

    __slots__ = ("_context", "_direct", "_driver", "_rule")

    def __init__(self, context: JetStreamContext, rule: ReadRule, direct: DirectGets, driver: ReadDriver) -> None:
        self._context = context
        self._rule = rule
        self._direct = direct
        self._driver = driver

    async def is_possible(self, goal: ReadGoal) -> bool:
        """Whether servers here keep `min_last_seq`; found out once per connection, by what they do."""
        known = self._context.server_keeps_min
        return await self._driver.repeat(goal, partial(self._probe, goal)) if known is None else known

    async def _probe(self, goal: ReadGoal) -> bool | Retry:
        known = self._context.server_keeps_min  # another read may have found out
        if known is not None:
            return known
        call = self._context.api.probe_min_last_seq(goal.stream)
        try:
            keeps = await self._context.run(call, timeout=goal.policy.for_one_try())
        except (RequestTimeoutError, ConnectionLostError, DirectGetNotAllowedError) as error:
            return Retry(error)
        self._context.server_keeps_min = keeps
        return keeps

    async def get(self, goal: ReadGoal, original: GetRequest) -> StoredMessage:
        """A get from a server that keeps `min_last_seq`: its 412 means ask again, anything else is true.

        Also for the first read of a session, which wants nothing yet: then any server will do.
        """
        appended = self._direct.appended(original)
        subject, request = (appended, _EMPTY) if appended else (self._direct.subject, original)
        session = goal.session
        if session is not None and not self._rule.cache.created:  # also whether it is a mirror: see `_is_older`
            await self._driver.run(goal, self._rule.learn_generation(goal))

        async def attempt() -> StoredMessage | Retry:
            # A session must know as of when something is absent: a copy that is behind may still have it.
            has_stamp = session is not None
            asked = msgspec.structs.replace(request, min_last_seq=goal.wanted, as_of=has_stamp)
            limit = goal.policy.for_late_try() if goal.wanted else goal.policy.for_one_try()
            body = b"" if asked == _EMPTY else encode_json(asked)
            replies = await self._direct.send(subject, body, limit, min_last_seq=goal.wanted, has_stamp=has_stamp)
            if isinstance(replies, Retry):
                return replies
            stamp = replies.stamp
            if session is not None and stamp is not None and self._is_older(session, stamp.created):
                return Retry(goal.stale("a copy of an older stream of that name answered"))
            if stamp is not None and (replies.is_missing or original.next_by_subj):
                goal.reach(stamp.as_of)  # what lay before it may be gone
            if replies.is_missing:
                self._context.note_state(goal.stream, goal.reached, original.last_by_subj)
                raise goal.missing_of(original)
            message = replies.items[0].message
            goal.reach(max(message.seq, goal.wanted))
            return message

        return await self._driver.repeat(goal, attempt)

    def _is_older(self, session: SessionState, created: int) -> bool:
        """Whether an answer is of an older stream of that name than the session knows; it learns of a newer one.

        A copy says when the stream was made that it was asked for. Of a mirror that is no generation: its sequences are
        those of its origin, which is older, and whose leader is asked (`ReadRule.info`). Where neither is known the two
        must not be confused either: a session that takes the mirror for the stream believes no leader any more.
        """
        cache = self._rule.cache
        return bool(cache.created) and not cache.origin and not session.made(self._rule.stream, created, 0)

    async def last_by_appended(self, goal: ReadGoal, subject: str) -> StoredMessage:
        """For users who may ask for one subject and nothing else: its newest message, if that proves itself.

        Servers that keep `min_last_seq` reject one that is no number, old ones reject any body, others ignore it.
        """
        body = encode_json(GetRequest(min_last_seq=goal.wanted))

        async def attempt() -> StoredMessage | Retry:
            nonlocal body
            call = requests.Call(subject, body, partial(decode_one, asked=subject))
            try:
                found = await self._context.run(call, timeout=goal.policy.for_late_try())
                if found.seq >= goal.wanted or (body and await self._rejects_bad_min(goal, subject)):
                    goal.reach(found.seq)
                    return found
                return Retry(goal.behind(found.seq))
            except BadRequestError:
                if not body:
                    raise
                body = b""
                return Retry()
            except MessageNotFoundError:
                if body and await self._rejects_bad_min(goal, subject):
                    raise
                return Retry(goal.behind(0))
            except StaleReadError:
                return Retry(goal.behind(0))
            except (RequestTimeoutError, ConnectionLostError) as error:
                return Retry(error)

        return await self._driver.repeat(goal, attempt)

    async def _rejects_bad_min(self, goal: ReadGoal, subject: str) -> bool:
        """Whether the server looks at `min_last_seq`."""
        call = requests.Call(subject, b'{"min_last_seq":"?"}', lambda msg: requests.is_bad_request(msg, subject))
        return await self._context.run(call, timeout=goal.policy.for_one_try())
