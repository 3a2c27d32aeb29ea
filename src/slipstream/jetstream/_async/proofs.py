"""Reads that must be new enough become requests and proofs, on servers that know nothing of `min_last_seq`.

Every answer is judged by `proof.py`, alone; what proves nothing is asked again, of whichever replica answers next. A
read ends with a proven answer or, when its time is up, with an error that says what was missing. The blocking twin is
generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from slipstream.api import GetRequest, encode_json, format_time
from slipstream.errors import (
    BadRequestError,
    ConnectionLostError,
    DirectGetNotAllowedError,
    RequestTimeoutError,
    StaleReadError,
    TooManyResultsError,
)
from slipstream.jetstream._async.trusted_read import Asking
from slipstream.jetstream.reads.columns import ColumnPage, Columns
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.jetstream.reads.proof import (
    Judged,
    Verdict,
    judge_chain,
    judge_last,
    judge_next,
    judge_rest,
    judge_seq,
    state_shows,
    state_shows_rest,
)
from slipstream.jetstream.reads.range_reader import RangeReader, RangeState
from slipstream.wire import has_wildcard

CHAIN = 1_024  # messages of one subject that are read to prove that an older one of them is still there
REST = 64  # newest messages that are looked at to prove that a range is complete


class TrustedRead(Asking):
    """The reads themselves. Each method returns what is proven, or raises."""

    # What can be read

    async def last(self, subject: str) -> StoredMessage:
        """The newest message of a subject, which may have wildcards."""
        await self._know_stream()
        if has_wildcard(subject):
            return await self._last_of_many(subject)
        judged = await self._newest(subject)
        if judged.message is None:
            raise self._missing(f"no message on {subject}")
        return judged.message

    async def by_seq(self, seq: int) -> StoredMessage:
        """The message with that sequence."""
        await self._know_stream()
        while True:
            answer = await self._try(GetRequest(seq=seq, next_by_subj=">", batch=1))
            if answer is None:
                continue
            verdict, found, reached = judge_seq(answer, seq, self._wanted)
            if verdict is Verdict.UNPROVEN:
                is_there = await (self._exists(seq) if found is None else self._is_there(found))
                verdict = Verdict.PRESENT if is_there else Verdict.ABSENT
            if verdict is Verdict.ABSENT:
                raise self._missing(f"no message with sequence {seq}")
            if found is not None:
                self.reached = max(reached, self.reached)
                return found
            await self._pause(self._behind(seq - 1))  # it is there, on another replica

    async def next(self, subject: str, seq: int) -> StoredMessage:
        """The first message of a subject at or after `seq`."""
        await self._know_stream()
        seq = max(seq, 1)
        while True:
            answer = await self._try(GetRequest(seq=seq, next_by_subj=subject, batch=1))
            if answer is None:
                continue
            verdict, found, reached = judge_next(answer, self._wanted)
            if found is None:
                if await self.rest(subject, seq - 1, 0, self._wanted) is Verdict.ABSENT:
                    raise self._missing(f"no message on {subject} from {seq} on")
                await self._pause(self._behind(seq - 1))
            elif verdict is Verdict.PRESENT or await self._is_there(found):
                self.reached = max(reached, self.reached)
                return found
            else:
                seq = found.seq + 1  # an old copy had it; it is gone

    async def rest(self, pattern: str, after: int, end: int, goal: int, *, since: int = 0) -> Verdict:
        """Whether there is anything of `pattern` behind `after`, at or after `goal`: PRESENT or ABSENT.

        UNPROVEN: there are too many subjects to tell, and something of any subject is there up to `end`.
        """
        tried: tuple[str, int] | None = None
        batch = REST
        while True:
            anchor = await self._anchor(goal, not_this=tried)
            if anchor is None:
                return Verdict.ABSENT
            subjects = (pattern,) if pattern == anchor[0] else (pattern, anchor[0])
            request = GetRequest(multi_last=subjects, seq=min(after + 1, anchor[1]), batch=batch)
            try:
                answer = await self._try(request)
            except TooManyResultsError:
                return await self._rest_by_leader(after, end, goal)
            if answer is None:
                continue
            verdict = judge_rest(answer, pattern, after, goal, since=since)
            if verdict in (Verdict.PRESENT, Verdict.ABSENT):
                return verdict
            if verdict is Verdict.BEHIND:
                await self._pause(self._behind(answer.end.up_to_seq if answer.end else 0, goal))
            elif answer.items and batch:
                batch = 0  # more of them lie between the anchor and the place in question: all of them, then
            else:
                tried = anchor

    async def up_to(self, subject: str, seq: int, time: int | None) -> StoredMessage | None:
        """The newest message of a literal subject up to a sequence or a time, at a state at or after the wanted one.

        A request with a bound proves nothing about the responder. A copy of the message, right in front of one beyond
        the bound, shows that it was the newest there; then it must still exist.
        """
        bound = None if time is None else format_time(time)
        while True:
            bounded = await self._try(GetRequest(multi_last=(subject,), batch=1, up_to_seq=seq, up_to_time=bound))
            if bounded is None:
                continue
            first = bounded.items[0].message if bounded.items else None
            chain = await self._try(GetRequest(seq=first.seq if first else 1, next_by_subj=subject, batch=2))
            if chain is None:
                continue
            seen = [item.message.seq for item in chain.items]
            if first is None and seen:
                return None  # the first there is lies beyond the bound
            if first is not None and len(seen) == 2 and seen[0] == first.seq:
                return first if await self._is_there(first) else None
            await self._pause(self._behind(seen[-1] if seen else 0))

    # Parts of proofs

    async def _newest(self, subject: str) -> Judged:
        """The newest message of a literal subject, or that there is none: PRESENT or ABSENT, proven."""
        subjects: tuple[str, ...] = (subject,)
        anchor: tuple[str, int] | None = None
        while True:
            try:
                answer = await self._try(GetRequest(multi_last=subjects, batch=len(subjects)))
            except BadRequestError:
                return await self._newest_by_itself(subject)
            if answer is None:
                continue
            judged = judge_last(answer, subject, self._wanted)
            if judged.verdict in (Verdict.PRESENT, Verdict.ABSENT):
                self.reached = max(judged.reached, self.reached)
                return judged
            if judged.verdict is Verdict.BEHIND:
                await self._pause(self._behind(judged.reached))
                continue
            anchor = await self._anchor(self._wanted, not_this=anchor)
            if anchor is None:
                return Judged(Verdict.ABSENT)
            subjects = (subject,) if anchor[0] == subject else (subject, anchor[0])

    async def _newest_by_itself(self, subject: str) -> Judged:
        """The same on servers before 2.11, which have no multi-subject gets: a message that is new enough itself."""
        while True:
            answer = await self._try(GetRequest(last_by_subj=subject))
            if answer is None:
                continue
            found = answer.items[0].message if answer.items else None
            if found is not None and found.seq >= self._wanted:
                self.reached = max(found.seq, self.reached)
                return Judged(Verdict.PRESENT, found, found.seq)
            why = (
                f"{self._name}: the newest message on {subject} is older than {self._wanted}, and only a multi-subject "
                "get could prove that there is no newer one: nats-server 2.11 or newer is needed"
            )
            await self._pause(StaleReadError(why, stream=self._name, min_last_seq=self._wanted))

    async def _last_of_many(self, pattern: str) -> StoredMessage:
        """The newest message of a pattern: a plain get gives a candidate, the proof is about what is not older.

        A server whose last message was deleted finds nothing for `>`: no candidate is not yet an absence.
        """
        while True:
            answer = await self._try(GetRequest(last_by_subj=pattern))
            if answer is None:
                continue
            hint = answer.items[0].message.seq if answer.items else 0
            if hint >= self._wanted:
                self.reached = max(hint, self.reached)
                return answer.items[0].message
            if not hint and await self.rest(pattern, 0, 0, self._wanted) is Verdict.ABSENT:
                raise self._missing(f"no message on {pattern}")
            try:
                answer = await self._try(GetRequest(multi_last=(pattern,), seq=hint))
            except TooManyResultsError:
                found = await self._last_by_ranges(pattern)
            else:
                judged = Judged(Verdict.UNPROVEN) if answer is None else judge_last(answer, pattern, self._wanted)
                found = judged.message if judged.verdict is Verdict.PRESENT else None
                self.reached = max(judged.reached if found else 0, self.reached)
            if found is not None:
                return found
            await self._pause(self._behind(hint))

    async def _last_by_ranges(self, pattern: str) -> StoredMessage | None:
        """The same where there are more subjects than a server tells of at once: read back from the wanted sequence."""
        width = REST
        while True:
            start = max(self._wanted - width, 1)
            newest: StoredMessage | None = None
            async for columns in self.columns(RangeReader(start=start, end=self._wanted, subject=pattern)):
                newest = columns.messages()[-1]
            if newest is not None:
                return newest if await self._is_there(newest) else None
            if start == 1:
                raise self._missing(f"no message on {pattern}")
            width *= 8

    async def _is_there(self, message: StoredMessage) -> bool:
        """Whether a message that some copy has still exists at or after the wanted sequence."""
        if message.seq >= self._wanted:
            return True
        judged = await self._newest(message.subject)
        if judged.message is None or judged.message.seq <= message.seq:
            return judged.message is not None and judged.message.seq == message.seq
        while True:
            state = await self._state(message.seq)
            if state is None:
                continue
            verdict = state_shows(state, message.seq, self._wanted)
            if verdict is Verdict.UNPROVEN:
                verdict = await self._chain(message, judged.message.seq)
            if verdict in (Verdict.PRESENT, Verdict.ABSENT):
                return verdict is Verdict.PRESENT
            await self._pause(self._behind(state.last_seq))

    async def _chain(self, message: StoredMessage, newest: int) -> Verdict:
        request = GetRequest(seq=message.seq, next_by_subj=message.subject, batch=CHAIN)
        answer = await self._try(request)
        return Verdict.BEHIND if answer is None else judge_chain(answer, message, newest)

    async def _exists(self, seq: int) -> bool:
        """Whether a message exists that one replica has not, nor any after it."""
        while True:
            anchor = await self._anchor(self._wanted)
            if anchor is None:
                return False
            answer = await self._try(GetRequest(multi_last=(anchor[0],), batch=1))
            if answer is None or answer.end is None:
                self._notes.anchor = None
                continue
            reached = answer.end.up_to_seq
            if reached >= self._wanted and seq > reached:
                self.reached = max(reached, self.reached)
                return False
            if reached < self._wanted:
                await self._pause(self._behind(reached))
                continue
            state = await self._state(seq)
            if state is None:
                continue
            verdict = state_shows(state, seq, self._wanted)
            if verdict in (Verdict.PRESENT, Verdict.ABSENT):
                return verdict is Verdict.PRESENT
            await self._pause(self._behind(state.last_seq))

    async def _rest_by_leader(self, after: int, end: int, goal: int) -> Verdict:
        while True:
            state = await self._state(after + 1)
            if state is None:
                continue
            verdict = state_shows_rest(state, after, end, goal)
            if verdict is Verdict.BEHIND:
                await self._pause(self._behind(state.last_seq, goal))
                continue
            return Verdict.ABSENT if verdict is Verdict.ABSENT else Verdict.UNPROVEN

    async def _anchor(self, goal: int, *, not_this: tuple[str, int] | None = None) -> tuple[str, int] | None:
        """A subject that has a message, and its sequence; None if the stream is proven to be empty at `goal`."""
        known = self._notes.anchor
        if known is not None and known != not_this:
            return known
        is_last_gone = False
        while True:  # the last message, unless it was deleted; then the first
            request = GetRequest(seq=1, next_by_subj=">") if is_last_gone else GetRequest(last_by_subj=">")
            answer = await self._try(request)
            if answer is None:
                continue
            if answer.items:
                message = answer.items[0].message
                found = self._notes.anchor = (message.subject, message.seq)
                if found == not_this:  # it is there, and the last responder did not have it
                    await self._pause(self._behind(0, goal))
                return found
            if not is_last_gone:
                is_last_gone = True
                continue
            is_last_gone = False
            state = await self._state(0)
            if state is not None:
                if state_shows_rest(state, 0, 0, goal) is Verdict.ABSENT:
                    self.reached = max(state.last_seq, self.reached)
                    return None
                await self._pause(self._behind(state.last_seq, goal))

    # Ranges

    async def columns(self, reader: RangeReader, *, plain: bool = False) -> AsyncIterator[Columns]:
        """The messages of a range, complete to its goal whoever answers, as they arrive.

        `plain`: there is no goal, or the server sees to it.
        """
        if not plain:
            await self._know_stream()
        page, token = self._next_page(reader)
        try:
            while not reader.is_done:
                if reader.state is RangeState.DOUBTFUL:
                    await self._settle(reader)
                    page, token = self._next_page(reader)
                    continue
                columns = await self._take(page, reader, plain=plain)
                if columns is None:
                    self._client.cancel(token)
                    page, token = self._next_page(reader)
                    continue
                if page.is_done_with and reader.state is RangeState.READING:
                    page, token = self._next_page(reader)  # it is under way while this one is handled
                if columns.seqs:
                    yield columns
                    self._patience.renew()
        finally:
            self._client.cancel(token)

    def _next_page(self, reader: RangeReader) -> tuple[ColumnPage, str]:
        page = reader.page(self._direct)
        return page, self._client.start_bulk(self._direct, encode_json(reader.request()), page)

    async def _take(self, page: ColumnPage, reader: RangeReader, *, plain: bool) -> Columns | None:
        """What arrived of a page; None if it is of no use, and the page must be asked for again."""
        seen = self._client.stats.in_bytes
        try:
            tries = self._patience.for_late_try if plain else self._patience.for_one_try
            limit = tries() if reader.goal else self._patience.left()
            await self._client.wait(page.ready, timeout=limit, what=f"messages of {self._name}")
            over = page.finished  # before the take: what ends the page comes behind all it holds
            columns = page.take()
        except RequestTimeoutError as error:
            if self._client.stats.in_bytes - seen > len(self._direct) and not self._patience.is_over:
                return Columns([], [], [], [], [], "")  # large messages on a slow line are no silence
            await self._unanswered(error)
            return None
        except (ConnectionLostError, DirectGetNotAllowedError, StaleReadError) as error:
            if not reader.goal:
                raise
            await self._again(error)
            return None
        self._patience.heard()
        oldest = columns.times[0] if columns.seqs and reader.goal else None
        reason = await self._distrust(columns.stream, oldest)
        if reason:
            await self._pause(StaleReadError(reason, stream=self._name, min_last_seq=reader.goal))
            return None
        page.is_done_with = over
        if columns.seqs and reader.goal:
            self._notes.anchor = (columns.subjects[-1], columns.seqs[-1])
        return reader.accept(columns, page.end if over else None)

    async def _settle(self, reader: RangeReader) -> None:
        """A responder ended early: did it lag, or is the rest of the range gone?"""
        after = reader.next_seq - 1
        verdict = await self.rest(reader.filter, after, reader.end, reader.goal, since=reader.since)
        if verdict is Verdict.UNPROVEN:
            reader.widen()
        elif verdict is Verdict.ABSENT:
            reader.finish()
            return
        else:
            reader.resume()
        await self._pause(self._behind(after, reader.goal))
