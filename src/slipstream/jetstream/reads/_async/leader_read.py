"""Reads by a stream's leader alone (Message Get), over the asyncio client; new enough also when a leader was deposed.

A deposed leader answers for seconds with what it had. So its word alone is believed where it proves itself: a message
at or after the wanted sequence, or one state (stream info) that has reached it. Else replicas are asked for the proof,
where the stream allows Direct Gets. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import NamedTuple

import msgspec

from slipstream.api import GetRequest
from slipstream.errors import (
    ApiError,
    BadApiRequestError,
    ConnectionClosedError,
    ConnectionLostError,
    DirectGetNotAllowedError,
    InvalidJsonError,
    MessageNotFoundError,
    MinLastSequenceError,
    RequestTimeoutError,
    StaleReadError,
)
from slipstream.jetstream import requests
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.reads._async.leader_state import NO_LEADER, LeaderState
from slipstream.jetstream.reads._async.proofs import Proofs
from slipstream.jetstream.reads._async.proven_get import ProvenGet
from slipstream.jetstream.reads._async.retry_loop import RetryLoop
from slipstream.jetstream.reads.columns import Columns
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.proof import Verdict, state_shows, state_shows_rest
from slipstream.jetstream.reads.range_reader import RangeReader, RangeState
from slipstream.jetstream.reads.retry import Retry

WINDOW = 64  # gets in flight while a range is read
_UNKNOWN_FIELD = (InvalidJsonError, BadApiRequestError)


class Window(NamedTuple):
    """What a window of gets brought: messages in order, and whether the end of the stream was seen."""

    found: list[StoredMessage]
    is_end: bool


class LeaderRead:
    """Gets and ranges of one stream by Message Get."""

    def __init__(
        self, context: JetStreamContext, leader: LeaderState, loop: RetryLoop, proofs: Proofs, proven: ProvenGet
    ) -> None:
        self._context = context
        self._leader = leader
        self._loop = loop
        self._proofs = proofs
        self._proven = proven

    async def get(self, goal: ReadGoal, request: GetRequest) -> StoredMessage:
        """What the request asks for, at or after the wanted sequence."""
        context = self._context
        goal.with_leader = True
        # The field is sent until the server says that it does not know it.
        keeps = context.server_keeps_min is not False or not goal.wanted
        if not keeps:
            await self._loop.run(goal, partial(self._leader.learn_generation, goal))

        async def attempt() -> StoredMessage | Retry:
            nonlocal keeps
            asked = msgspec.structs.replace(request, min_last_seq=goal.wanted if keeps else 0)
            try:
                found = await self._message_get(goal, asked)
            except _UNKNOWN_FIELD:
                if not asked.min_last_seq:
                    raise
                keeps = context.server_keeps_min = False
                await self._loop.run(goal, partial(self._leader.learn_generation, goal))
                return Retry()
            except MessageNotFoundError:
                is_proven = keeps or await self._is_absent(goal, asked)
                if is_proven is True:
                    raise
            else:
                if isinstance(found, Retry):
                    return found
                is_proven = keeps or await self._is_good(goal, found, asked)
                if is_proven is True:
                    goal.reach(found.seq)
                    return found
            failed = is_proven if isinstance(is_proven, Retry) else Retry()
            return failed.then(goal.behind(0))

        return await self._loop.run(goal, attempt)

    async def columns(self, goal: ReadGoal, reader: RangeReader) -> AsyncIterator[Columns]:
        """The messages of a range, by gets in flight together; complete to its goal."""
        goal.with_leader = True
        width = 1

        async def attempt() -> Columns | Retry:
            nonlocal width
            start = reader.next_seq
            found, is_end = await self._window(goal, reader, width)
            width = min(width * 2, WINDOW) if len(found) == width else 1  # gaps: do not ask for the same one twice
            if found:
                return reader.accept(Columns.of(found, goal.stream), None)
            is_complete = await self._is_complete(goal, reader) if is_end else False
            if is_complete is True:
                reader.finish()
                return Columns.empty()
            reader.state = RangeState.READING
            failed = is_complete if isinstance(is_complete, Retry) else Retry()
            return failed.then(goal.behind(start - 1, reader.goal))

        while not reader.is_done:
            columns = await self._loop.run(goal, attempt)
            if columns.seqs:
                yield columns
                goal.policy.renew()

    async def _window(self, goal: ReadGoal, reader: RangeReader, width: int) -> Window:
        """Ask for several sequences at once."""
        client, stream = self._context.client, goal.stream
        last = min(reader.next_seq + width, reader.end + 1) if reader.end else reader.next_seq + width
        pending = []
        for seq in range(reader.next_seq, last):
            request = GetRequest(seq=seq, next_by_subj=reader.filter)
            call, answer = self._context.api.message_get(stream, request), requests.Answer()
            pending.append((call, answer, client.start(call.subject, call.payload, answer)))
        found: dict[int, StoredMessage] = {}
        is_end = False
        try:
            for call, answer, _ in pending:
                try:
                    await client.wait(answer.ready, timeout=goal.policy.for_one_try(), what=call.subject)
                    message = call.decode(answer.take())
                    found[message.seq] = message
                except MessageNotFoundError:
                    is_end = True
                except RequestTimeoutError as error:
                    self._loop.unanswered(goal, error)
                    break
                except ConnectionClosedError:
                    raise
                except ConnectionLostError:
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

    async def _is_complete(self, goal: ReadGoal, reader: RangeReader) -> bool | Retry:
        """The leader has no more: is it the leader, or was it one?"""
        after = reader.next_seq - 1
        if not reader.goal or after >= reader.goal:
            return True
        info = await self._leader.info(goal, subject=reader.filter)
        if isinstance(info, Retry):
            return info
        verdict = state_shows_rest(info.state, after, reader.end, reader.goal)
        if verdict is Verdict.UNPROVEN or (verdict is Verdict.PRESENT and reader.filter != ">"):
            if info.state.last_seq >= reader.goal and not info.state.subjects:
                return True  # nothing at all of that filter
            try:
                verdict = await self._proofs.rest(goal, reader.filter, after, reader.end, reader.goal)
            except DirectGetNotAllowedError as error:
                raise _unprovable(goal) from error
        return verdict is Verdict.ABSENT

    async def _is_good(self, goal: ReadGoal, found: StoredMessage, request: GetRequest) -> bool | Retry:
        """Whether the leader's message is the answer at or after the wanted sequence."""
        if found.seq >= goal.wanted:
            return True
        try:
            if request.last_by_subj:
                return found.seq >= (await self._proven.last(goal, request.last_by_subj)).seq
            return await self._proofs.still_exists(goal, found)
        except MessageNotFoundError:
            return False
        except DirectGetNotAllowedError as error:
            state = await self._leader.state(goal, found.seq)
            if isinstance(state, Retry):
                return state
            verdict = state_shows(state, found.seq, goal.wanted)
            if verdict is Verdict.UNPROVEN or (request.last_by_subj and verdict is not Verdict.BEHIND):
                raise _unprovable(goal) from error
            return verdict is Verdict.PRESENT

    async def _is_absent(self, goal: ReadGoal, request: GetRequest) -> bool | Retry:
        """Whether the leader's "not found" is true at or after the wanted sequence, by its state at that time."""
        subject = request.last_by_subj or request.next_by_subj
        if not subject:
            state = await self._leader.state(goal, request.seq)
            if isinstance(state, Retry):
                return state
            return state_shows(state, request.seq, goal.wanted) is Verdict.ABSENT
        info = await self._leader.info(goal, subject=subject)
        if isinstance(info, Retry):
            return info
        if info.state.last_seq < goal.wanted:
            return False
        if not info.state.subjects:
            return True
        try:
            return await self._proofs.rest(goal, subject, max(request.seq - 1, 0), 0, goal.wanted) is Verdict.ABSENT
        except DirectGetNotAllowedError as error:
            raise _unprovable(goal) from error

    async def _message_get(self, goal: ReadGoal, request: GetRequest) -> StoredMessage | Retry:
        """One Message Get; a `Retry` also if the one that answered is no leader any more and says so."""
        policy = goal.policy
        call = self._context.api.message_get(goal.stream, request)
        # A server that keeps `min_last_seq` rejects late, which is no silence.
        limit = policy.for_late_try() if request.min_last_seq else policy.for_one_try()
        try:
            found = await self._context.run(call, timeout=limit)
        except (RequestTimeoutError, ConnectionLostError, MinLastSequenceError) as error:
            return Retry(error)
        except ApiError as error:
            if error.code != NO_LEADER:
                raise
            return Retry(error)
        policy.heard()
        reason = await self._leader.distrust(goal, goal.stream, found.time)
        return found if reason is None else Retry(reason)


def _unprovable(goal: ReadGoal) -> StaleReadError:
    return goal.stale(
        f"its leader's answer is older than {goal.wanted}, and only Direct Gets could prove it: "
        "set allow_direct on the stream"
    )
