"""Single messages with a proof, over the asyncio client, from servers that know nothing of `min_last_seq`.

A get by sequence, the next message of a subject, its last one, or its last one up to a bound. The blocking twin is
generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from slipstream.api import GetRequest, format_time
from slipstream.errors import TooManyResultsError
from slipstream.jetstream.reads._async.direct_gets import DirectGets
from slipstream.jetstream.reads._async.leader_state import LeaderState
from slipstream.jetstream.reads._async.proofs import REST, Proofs
from slipstream.jetstream.reads._async.range_read import RangeRead
from slipstream.jetstream.reads._async.retry_loop import RetryLoop
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.proof import Verdict, judge_bounded, judge_last, judge_next, judge_seq
from slipstream.jetstream.reads.range_reader import RangeReader
from slipstream.jetstream.reads.retry import Retry
from slipstream.wire import has_wildcard


class ProvenGet:
    """Gets of one message. Each method returns what is proven, or raises. `read_range` begins a range read."""

    __slots__ = ("_direct", "_leader", "_loop", "_proofs", "_read_range")

    def __init__(
        self,
        leader: LeaderState,
        direct: DirectGets,
        loop: RetryLoop,
        proofs: Proofs,
        read_range: Callable[[ReadGoal, RangeReader], RangeRead],
    ) -> None:
        self._leader = leader
        self._direct = direct
        self._loop = loop
        self._proofs = proofs
        self._read_range = read_range

    async def get(self, goal: ReadGoal, request: GetRequest) -> StoredMessage:
        """What the request asks for: a sequence, the next message of a subject, or its last one."""
        if request.last_by_subj:
            return await self.last(goal, request.last_by_subj)
        if not self._leader.knows_generation(goal):
            await self._loop.run(goal, partial(self._leader.learn_generation, goal))
        if request.next_by_subj:
            return await self._next(goal, request.next_by_subj, max(request.seq, 1))
        return await self._loop.run(goal, partial(self._by_seq, goal, request.seq))

    async def last(self, goal: ReadGoal, subject: str) -> StoredMessage:
        """The newest message of a subject, which may have wildcards."""
        if not self._leader.knows_generation(goal):
            await self._loop.run(goal, partial(self._leader.learn_generation, goal))
        if has_wildcard(subject):
            return await self._loop.run(goal, partial(self._last_of_pattern, goal, subject))
        newest = await self._proofs.newest(goal, subject)
        if newest.message is None:
            raise goal.missing(f"no message on {subject}")
        return newest.message

    async def _by_seq(self, goal: ReadGoal, seq: int) -> StoredMessage | Retry:
        answer = await self._direct.ask(goal, GetRequest(seq=seq, next_by_subj=">", batch=1))
        if isinstance(answer, Retry):
            return answer
        verdict, found, reached = judge_seq(answer, seq, goal.wanted)
        if verdict is Verdict.UNPROVEN:
            is_there = await (
                self._proofs.exists(goal, seq) if found is None else self._proofs.still_exists(goal, found)
            )
            verdict = Verdict.PRESENT if is_there else Verdict.ABSENT
        if verdict is Verdict.ABSENT:
            raise goal.missing(f"no message with sequence {seq}")
        if found is None:
            return Retry(goal.behind(seq - 1))  # it exists, on another replica
        goal.reach(reached)
        return found

    async def _next(self, goal: ReadGoal, subject: str, seq: int) -> StoredMessage:
        """The first message of a subject at or after `seq`."""

        async def attempt() -> StoredMessage | Retry:
            nonlocal seq
            answer = await self._direct.ask(goal, GetRequest(seq=seq, next_by_subj=subject, batch=1))
            if isinstance(answer, Retry):
                return answer
            verdict, found, reached = judge_next(answer, goal.wanted)
            if found is None:
                if await self._proofs.rest(goal, subject, seq - 1, 0, goal.wanted) is Verdict.ABSENT:
                    raise goal.missing(f"no message on {subject} from {seq} on")
                return Retry(goal.behind(seq - 1))
            if verdict is Verdict.PRESENT or await self._proofs.still_exists(goal, found):
                goal.reach(reached)
                return found
            seq = found.seq + 1  # an old copy had it; it is gone
            return Retry()

        return await self._loop.run(goal, attempt)

    async def _last_of_pattern(self, goal: ReadGoal, pattern: str) -> StoredMessage | Retry:
        """The newest message of a pattern: a plain get gives a candidate, the proof is about what is not older.

        A server whose last message was deleted finds nothing for `>`: no candidate is not yet an absence.
        """
        answer = await self._direct.ask(goal, GetRequest(last_by_subj=pattern))
        if isinstance(answer, Retry):
            return answer
        verdict, candidate, reached = judge_next(answer, goal.wanted)
        if candidate is not None and verdict is Verdict.PRESENT:
            goal.reach(reached)
            return candidate
        if candidate is None and await self._proofs.rest(goal, pattern, 0, 0, goal.wanted) is Verdict.ABSENT:
            raise goal.missing(f"no message on {pattern}")
        try:
            answer = await self._direct.ask(goal, GetRequest(multi_last=(pattern,), seq=reached))
        except TooManyResultsError:
            found = await self._last_by_ranges(goal, pattern)
            return Retry(goal.behind(reached)) if found is None else found
        if isinstance(answer, Retry):
            return answer.then(goal.behind(reached))
        judged = judge_last(answer, pattern, goal.wanted)
        if judged.verdict is not Verdict.PRESENT or judged.message is None:
            return Retry(goal.behind(reached))
        goal.reach(judged.reached)
        return judged.message

    async def _last_by_ranges(self, goal: ReadGoal, pattern: str) -> StoredMessage | None:
        """The same where a server does not tell of so many subjects at once: read back from the wanted sequence."""
        width = REST
        while True:
            start = max(goal.wanted - width, 1)
            newest: StoredMessage | None = None
            reader = RangeReader(start=start, end=goal.wanted, subject=pattern)
            async for columns in self._read_range(goal, reader).columns():
                newest = columns.messages()[-1]
            if newest is not None:
                return newest if await self._proofs.still_exists(goal, newest) else None
            if start == 1:
                raise goal.missing(f"no message on {pattern}")
            width *= 8

    async def last_up_to(self, goal: ReadGoal, subject: str, seq: int, time: int | None) -> StoredMessage | None:
        """The newest message of a literal subject up to a sequence or a time, if it exists at the wanted sequence."""
        return await self._loop.run(goal, partial(self._last_up_to, goal, subject, seq, time))

    async def _last_up_to(
        self, goal: ReadGoal, subject: str, seq: int, time: int | None
    ) -> StoredMessage | Retry | None:
        bound = None if time is None else format_time(time)
        bounded = await self._direct.ask(
            goal, GetRequest(multi_last=(subject,), batch=1, up_to_seq=seq, up_to_time=bound)
        )
        if isinstance(bounded, Retry):
            return bounded
        newest = bounded.items[0].message if bounded.items else None
        chain = await self._direct.ask(goal, GetRequest(seq=newest.seq if newest else 1, next_by_subj=subject, batch=2))
        if isinstance(chain, Retry):
            return chain
        verdict = judge_bounded(chain, newest)
        if verdict is Verdict.BEHIND:
            return Retry(goal.behind(chain.items[-1].message.seq if chain.items else 0))
        if newest is None or verdict is Verdict.ABSENT:
            return None
        return newest if await self._proofs.still_exists(goal, newest) else None
