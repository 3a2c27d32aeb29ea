"""Reads by a stream's leader alone (Message Get) become answers that are new enough, also when a leader was deposed.

A deposed leader answers for seconds with what it had. So its word alone is believed where it proves itself: a message
at or after the wanted sequence, or one state (stream info) that has reached it. Else replicas are asked for the proof,
where the stream allows Direct Gets. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

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
from slipstream.jetstream._async.proofs import TrustedRead
from slipstream.jetstream.reads.columns import Columns
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.jetstream.reads.proof import Verdict, state_shows, state_shows_rest
from slipstream.jetstream.reads.range_reader import RangeReader, RangeState

WINDOW = 64  # gets in flight while a range is read
_UNKNOWN_FIELD = (InvalidJsonError, BadApiRequestError)


class LeaderRead(TrustedRead):
    """The same reads by Message Get."""

    async def get(self, request: GetRequest) -> StoredMessage:
        """What the request asks for, at or after the wanted sequence."""
        self.with_leader = True
        keeps = self.knows_keeping is not False or not self._wanted  # until it says that it does not know the field
        if not keeps:
            await self._know_stream()
        while True:
            request = msgspec.structs.replace(request, min_last_seq=self._wanted if keeps else 0)
            try:
                found = await self._message_get(request)
            except _UNKNOWN_FIELD:
                if not request.min_last_seq:
                    raise
                keeps = self.knows_keeping = False
                await self._know_stream()
                continue
            except MessageNotFoundError:
                if keeps or await self._is_absent(request):
                    raise
            else:
                if found is None:
                    continue
                if keeps or await self._is_good(found, request):
                    self.reached = max(found.seq, self.reached)
                    return found
            await self._pause(self._behind(0))

    async def pages(self, reader: RangeReader) -> AsyncIterator[Columns]:
        """The messages of a range, by gets in flight together; complete to its goal."""
        self.with_leader = True
        width = 1
        while not reader.is_done:
            start = reader.next_seq
            found, is_end = await self._window(reader, width)
            width = min(width * 2, WINDOW) if len(found) == width else 1  # gaps: do not ask for the same one twice
            if not found and is_end and await self._is_complete(reader):
                return
            if not found:
                reader.state = RangeState.READING
                await self._pause(self._behind(start - 1, reader.goal))
                continue
            columns = reader.accept(Columns.of(found, self._name), None)
            if columns.seqs:
                yield columns
                self._patience.renew()

    async def _window(self, reader: RangeReader, width: int) -> tuple[list[StoredMessage], bool]:
        """Ask for several sequences at once; what was found, in order, and whether the end of the stream was seen."""
        last = min(reader.next_seq + width, reader.end + 1) if reader.end else reader.next_seq + width
        pending = []
        for seq in range(reader.next_seq, last):
            request = GetRequest(seq=seq, next_by_subj=reader.filter)
            call, answer = self._api.message_get(self._name, request), requests.Answer()
            pending.append((call, answer, self._client.start(call.subject, call.payload, answer)))
        found: dict[int, StoredMessage] = {}
        is_end = False
        try:
            for call, answer, _ in pending:
                try:
                    await self._client.wait(answer.ready, timeout=self._patience.for_one_try(), what=call.subject)
                    message = call.decode(answer.take())
                    found[message.seq] = message
                except MessageNotFoundError:
                    is_end = True
                except RequestTimeoutError as error:
                    await self._unanswered(error)
                    break
                except ConnectionClosedError:
                    raise
                except ConnectionLostError:
                    break
                self._patience.heard()
        finally:
            for _, _, token in pending:
                self._client.cancel(token)
        return [found[seq] for seq in sorted(found)], is_end

    async def _is_complete(self, reader: RangeReader) -> bool:
        """The leader has no more: is it the leader, or was it one?"""
        if not reader.goal:
            return True
        after = reader.next_seq - 1
        if after >= reader.goal:
            return True
        info = await self._info(subject=reader.filter)
        if info is None:
            return False
        verdict = state_shows_rest(info.state, after, reader.end, reader.goal)
        if verdict is Verdict.UNPROVEN or (verdict is Verdict.PRESENT and reader.filter != ">"):
            if info.state.last_seq >= reader.goal and not info.state.subjects:
                return True  # nothing at all of that filter
            try:
                verdict = await self.rest(reader.filter, after, reader.end, reader.goal)
            except DirectGetNotAllowedError as error:
                raise self._unprovable() from error
        return verdict is Verdict.ABSENT

    async def _is_good(self, found: StoredMessage, request: GetRequest) -> bool:
        """Whether the leader's message is the answer at or after the wanted sequence."""
        if found.seq >= self._wanted:
            return True
        try:
            if request.last_by_subj:
                self.with_leader = True
                return found.seq >= (await self.last(request.last_by_subj)).seq
            return await self._is_there(found)
        except MessageNotFoundError:
            return False
        except DirectGetNotAllowedError as error:
            state = await self._state(found.seq)
            verdict = Verdict.BEHIND if state is None else state_shows(state, found.seq, self._wanted)
            if verdict is Verdict.UNPROVEN or (request.last_by_subj and verdict is not Verdict.BEHIND):
                raise self._unprovable() from error
            return verdict is Verdict.PRESENT

    async def _is_absent(self, request: GetRequest) -> bool:
        """Whether the leader's "not found" is true at or after the wanted sequence, by its state at that time."""
        subject = request.last_by_subj or request.next_by_subj
        if not subject:
            state = await self._state(request.seq)
            return state is not None and state_shows(state, request.seq, self._wanted) is Verdict.ABSENT
        info = await self._info(subject=subject)
        if info is None or info.state.last_seq < self._wanted:
            return False
        if not info.state.subjects:
            return True
        try:
            return await self.rest(subject, max(request.seq - 1, 0), 0, self._wanted) is Verdict.ABSENT
        except DirectGetNotAllowedError as error:
            raise self._unprovable() from error

    async def _message_get(self, request: GetRequest) -> StoredMessage | None:
        """One try; None if nobody answered, or one that is no leader any more said so."""
        try:
            call = self._api.message_get(self._name, request)  # a rejection comes late, which is no silence
            limit = self._patience.for_late_try() if request.min_last_seq else self._patience.for_one_try()
            found = await self._context.run(call, timeout=limit)
        except RequestTimeoutError as error:
            await self._unanswered(error)
            return None
        except ConnectionClosedError:
            raise
        except (ConnectionLostError, MinLastSequenceError) as error:
            await self._pause(error)
            return None
        except ApiError as error:
            if error.code != 503:  # there is no leader at the moment
                raise
            await self._pause(error)
            return None
        self._patience.heard()
        if reason := await self._distrust(self._name, found.time):
            await self._pause(StaleReadError(reason, stream=self._name, min_last_seq=self._wanted))
            return None
        return found

    def _unprovable(self) -> StaleReadError:
        why = (
            f"{self._name}: its leader's answer is older than {self._wanted}, and only Direct Gets could prove it: "
            "set allow_direct on the stream"
        )
        return StaleReadError(why, stream=self._name, min_last_seq=self._wanted)
