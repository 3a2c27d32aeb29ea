"""Reads by a stream's leader alone (Message Get), over the asyncio client; new enough also when a leader was deposed.

A deposed leader answers for seconds with what it had. A server that keeps `min_last_seq` rejects what it has not; on
others a leader is believed when it is settled, and ranges are read from replicas until then, where the stream allows
Direct Gets. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import NamedTuple

import msgspec

from slipstream.api import GetRequest
from slipstream.errors import (
    ApiError,
    BadApiRequestError,
    ConnectionClosedError,
    ConnectionLostError,
    InvalidJsonError,
    MessageNotFoundError,
    MinLastSequenceError,
    RequestTimeoutError,
)
from slipstream.jetstream import requests
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.reads._async.drive import ReadDriver
from slipstream.jetstream.reads._async.leader_requests import NO_LEADER
from slipstream.jetstream.reads._async.range_read import RangeRead
from slipstream.jetstream.reads.columns import Columns
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.range_reader import RangeReader, RangeState
from slipstream.jetstream.reads.retry import Retry
from slipstream.jetstream.reads.rule import ReadRule

WINDOW = 64  # gets in flight while a range is read
_UNKNOWN_FIELD = (InvalidJsonError, BadApiRequestError)


class Window(NamedTuple):
    """What a window of gets brought: messages in order, none left out among them, and whether the end was seen."""

    found: list[StoredMessage]
    is_end: bool


class LeaderRead:
    """Gets and ranges of one stream by Message Get. `read_range` reads a range from replicas instead."""

    def __init__(
        self,
        context: JetStreamContext,
        rule: ReadRule,
        driver: ReadDriver,
        read_range: Callable[[ReadGoal, RangeReader], RangeRead],
    ) -> None:
        self._context = context
        self._rule = rule
        self._driver = driver
        self._read_range = read_range

    async def get(self, goal: ReadGoal, request: GetRequest) -> StoredMessage:
        """What the request asks for, at or after the wanted sequence."""
        context = self._context
        goal.with_leader = True
        # The field is sent until the server says that it does not know it.
        if goal.wanted and context.server_keeps_min is not False:
            try:
                return await self._get_natively(goal, request)
            except _UNKNOWN_FIELD:
                context.server_keeps_min = False
        found = await self._driver.run(goal, self._rule.get_from_leader(goal, request))
        if found is None:
            raise goal.missing_of(request)
        return found

    async def _get_natively(self, goal: ReadGoal, request: GetRequest) -> StoredMessage:
        """The same by a server that keeps `min_last_seq`."""

        async def attempt() -> StoredMessage | Retry:
            asked = msgspec.structs.replace(request, min_last_seq=goal.wanted)
            call = self._context.api.message_get(goal.stream, asked)
            try:  # such a server rejects late, which is no silence
                found = await self._context.run(call, timeout=goal.policy.for_late_try())
            except (RequestTimeoutError, ConnectionLostError, MinLastSequenceError) as error:
                return Retry(error)
            except ApiError as error:
                if error.code != NO_LEADER:
                    raise
                return Retry(error)
            goal.policy.heard()
            goal.reach(max(found.seq, goal.wanted))
            return found

        return await self._driver.repeat(goal, attempt)

    async def is_guaranteed(self, goal: ReadGoal) -> bool:
        """Whether servers here keep `min_last_seq`, by a Message Get: a stream may allow no Direct Gets."""
        known = self._context.server_keeps_min
        return await self._driver.repeat(goal, partial(self._probe, goal)) if known is None else known

    async def _probe(self, goal: ReadGoal) -> bool | Retry:
        call = self._context.api.message_get(goal.stream, GetRequest(seq=1, min_last_seq=1))
        keeps = True
        try:
            await self._context.run(call, timeout=goal.policy.for_late_try())
        except _UNKNOWN_FIELD:
            keeps = False
        except (MessageNotFoundError, MinLastSequenceError):
            pass
        except (RequestTimeoutError, ConnectionLostError) as error:
            return Retry(error)
        except ApiError as error:
            if error.code != NO_LEADER:
                raise
            return Retry(error)
        self._context.server_keeps_min = keeps
        return keeps

    async def columns(self, goal: ReadGoal, reader: RangeReader) -> AsyncIterator[Columns]:
        """The messages of a range, by gets in flight together; complete to its goal."""
        goal.with_leader = True
        if not reader.is_guaranteed and reader.goal:
            part = goal.for_all_of(reader.end)
            if not await self._driver.run(part, self._rule.is_settled(part)):
                async for columns in self._read_range(goal, reader).columns():
                    yield columns
                return
        width = 1

        async def attempt() -> Columns | Retry:
            nonlocal width
            start = reader.next_seq
            found, is_end = await self._window(goal, reader, width)
            width = min(width * 2, WINDOW) if len(found) == width else 1  # gaps: do not ask for the same one twice
            if found:
                return reader.accept(Columns.of(found, goal.stream), None)
            if is_end:  # every leader has what is wanted: there is no more
                reader.finish()
                return Columns.empty()
            reader.state = RangeState.READING
            return Retry(goal.behind(start - 1, reader.goal))

        while not reader.is_done:
            columns = await self._driver.repeat(goal, attempt)
            if columns.seqs:
                yield columns
                goal.policy.renew()

    async def _window(self, goal: ReadGoal, reader: RangeReader, width: int) -> Window:
        """Ask for several sequences at once. What was found behind an answer that is missing is left for the next."""
        client, stream = self._context.client, goal.stream
        reader.lower_goal(goal.adapt())
        last = min(reader.next_seq + width, reader.end + 1) if reader.end else reader.next_seq + width
        pending = []
        for seq in range(reader.next_seq, last):
            request = GetRequest(
                seq=seq, next_by_subj=reader.filter, min_last_seq=reader.goal if reader.is_guaranteed else 0
            )
            call, answer = self._context.api.message_get(stream, request), requests.Answer()
            pending.append((call, answer, client.start(call.subject, call.payload, answer)))
        found: dict[int, StoredMessage] = {}
        is_end = False
        limit = goal.policy.for_late_try if reader.is_guaranteed else goal.policy.for_one_try
        try:
            for call, answer, _ in pending:
                try:
                    await client.wait(answer.ready, timeout=limit(), what=call.awaited)
                    message = call.decode(answer.take())
                    found[message.seq] = message
                except MessageNotFoundError:
                    is_end = True
                    break
                except RequestTimeoutError as error:
                    self._driver.unanswered(goal, error)
                    break
                except ConnectionClosedError:
                    raise
                except (ConnectionLostError, MinLastSequenceError):
                    break
                except ApiError as error:
                    if error.code != NO_LEADER:
                        raise
                    break
                goal.policy.heard()
        finally:
            for _, _, token in pending:
                client.cancel(token)
        return Window([found[seq] for seq in sorted(found)], is_end)
