"""Proofs by replicas, over the asyncio client: what exists at or after the wanted sequence, and what does not.

For servers that know nothing of `min_last_seq`. Each method asks until one answer proves the matter; what an answer
proves is decided by `proof`, alone. The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from functools import partial

from slipstream.api import GetRequest
from slipstream.errors import BadRequestError, TooManyResultsError
from slipstream.jetstream.reads._async.direct_gets import DirectGets
from slipstream.jetstream.reads._async.leader_state import LeaderState
from slipstream.jetstream.reads._async.retry_loop import RetryLoop
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.proof import (
    Judged,
    Verdict,
    judge_beyond,
    judge_chain,
    judge_last,
    judge_next,
    judge_presence,
    judge_rest,
    state_shows,
    state_shows_rest,
)
from slipstream.jetstream.reads.retry import Retry

CHAIN = 1_024  # messages of one subject that are read to prove that an older one of them is still there
REST = 64  # newest messages that are looked at to prove that a range is complete

Anchor = tuple[str, int]  # a literal subject that has a message, and the sequence of one


class Proofs:
    """What a read of one stream can have proven. Each method returns a proven result, or raises when the time is up."""

    __slots__ = ("_direct", "_leader", "_loop")

    def __init__(self, leader: LeaderState, direct: DirectGets, loop: RetryLoop) -> None:
        self._leader = leader
        self._direct = direct
        self._loop = loop

    async def newest(self, goal: ReadGoal, subject: str) -> Judged:
        """The newest message of a literal subject, or that there is none: PRESENT or ABSENT."""
        anchor: Anchor | None = None

        async def attempt() -> Judged | Retry:
            nonlocal anchor
            subjects = (subject,) if anchor is None or anchor[0] == subject else (subject, anchor[0])
            try:
                answer = await self._direct.ask(goal, GetRequest(multi_last=subjects, batch=len(subjects)))
            except BadRequestError:
                return await self._loop.run(goal, partial(self._newest_alone, goal, subject))
            if isinstance(answer, Retry):
                return answer
            judged = judge_last(answer, subject, goal.wanted)
            if judged.verdict is Verdict.BEHIND:
                return Retry(goal.behind(judged.reached))
            if judged.verdict is Verdict.UNPROVEN:
                anchor = await self.anchor(goal, goal.wanted, not_this=anchor)
                return Judged(Verdict.ABSENT) if anchor is None else Retry()
            goal.reach(judged.reached)
            return judged

        return await self._loop.run(goal, attempt)

    async def _newest_alone(self, goal: ReadGoal, subject: str) -> Judged | Retry:
        """The same on servers before 2.11, which have no multi-subject gets: a message that is new enough itself."""
        answer = await self._direct.ask(goal, GetRequest(last_by_subj=subject))
        if isinstance(answer, Retry):
            return answer
        judged = judge_next(answer, goal.wanted)
        if judged.verdict is Verdict.PRESENT:
            goal.reach(judged.reached)
            return judged
        why = (
            f"the newest message on {subject} is older than {goal.wanted}, and only a multi-subject "
            "get could prove that there is no newer one: nats-server 2.11 or newer is needed"
        )
        return Retry(goal.stale(why))

    async def still_exists(self, goal: ReadGoal, message: StoredMessage) -> bool:
        """Whether a message that some copy has still exists at or after the wanted sequence."""
        if message.seq >= goal.wanted:
            return True
        newest = await self.newest(goal, message.subject)
        verdict = judge_presence(newest, message)
        if verdict is not Verdict.UNPROVEN or newest.message is None:
            return verdict is Verdict.PRESENT
        newest_seq = newest.message.seq

        async def attempt() -> bool | Retry:
            state = await self._leader.state(goal, message.seq)
            if isinstance(state, Retry):
                return state
            verdict = state_shows(state, message.seq, goal.wanted)
            if verdict is Verdict.UNPROVEN:
                request = GetRequest(seq=message.seq, next_by_subj=message.subject, batch=CHAIN)
                answer = await self._direct.ask(goal, request)
                if isinstance(answer, Retry):
                    return answer.then(goal.behind(state.last_seq))
                verdict = judge_chain(answer, message, newest_seq)
            if verdict in (Verdict.PRESENT, Verdict.ABSENT):
                return verdict is Verdict.PRESENT
            return Retry(goal.behind(state.last_seq))

        return await self._loop.run(goal, attempt)

    async def exists(self, goal: ReadGoal, seq: int) -> bool:
        """Whether a message exists of which one replica had neither it nor any after it."""
        return await self._loop.run(goal, partial(self._try_exists, goal, seq))

    async def _try_exists(self, goal: ReadGoal, seq: int) -> bool | Retry:
        anchor = await self.anchor(goal, goal.wanted)
        if anchor is None:
            return False
        answer = await self._direct.ask(goal, GetRequest(multi_last=(anchor[0],), batch=1))
        if isinstance(answer, Retry) or answer.end is None:
            self._leader.cache.anchor = None  # it may be gone
            return answer if isinstance(answer, Retry) else Retry()
        beyond = judge_beyond(answer, seq, goal.wanted)
        if beyond.verdict is Verdict.BEHIND:
            return Retry(goal.behind(beyond.reached))
        if beyond.verdict is Verdict.ABSENT:
            goal.reach(beyond.reached)
            return False
        state = await self._leader.state(goal, seq)
        if isinstance(state, Retry):
            return state
        verdict = state_shows(state, seq, goal.wanted)
        if verdict in (Verdict.PRESENT, Verdict.ABSENT):
            return verdict is Verdict.PRESENT
        return Retry(goal.behind(state.last_seq))

    async def rest(self, goal: ReadGoal, pattern: str, after: int, end: int, wanted: int, *, since: int = 0) -> Verdict:
        """Whether there is anything of `pattern` behind `after`, at or after `wanted`: PRESENT or ABSENT.

        UNPROVEN: there are too many subjects to tell, and something of any subject is there up to `end`.
        """
        tried: Anchor | None = None
        batch = REST

        async def attempt() -> Verdict | Retry:
            nonlocal tried, batch
            anchor = await self.anchor(goal, wanted, not_this=tried)
            if anchor is None:
                return Verdict.ABSENT
            subjects = (pattern,) if pattern == anchor[0] else (pattern, anchor[0])
            request = GetRequest(multi_last=subjects, seq=min(after + 1, anchor[1]), batch=batch)
            try:
                answer = await self._direct.ask(goal, request)
            except TooManyResultsError:
                return await self._loop.run(goal, partial(self._rest_by_leader, goal, after, end, wanted))
            if isinstance(answer, Retry):
                return answer
            verdict = judge_rest(answer, pattern, after, wanted, since=since)
            if verdict is Verdict.BEHIND:
                return Retry(goal.behind(answer.end.up_to_seq if answer.end else 0, wanted))
            if verdict is Verdict.UNPROVEN:
                if answer.items and batch:
                    batch = 0  # more of them lie between the anchor and `after`: ask for all of them
                else:
                    tried = anchor
                return Retry()
            return verdict

        return await self._loop.run(goal, attempt)

    async def _rest_by_leader(self, goal: ReadGoal, after: int, end: int, wanted: int) -> Verdict | Retry:
        state = await self._leader.state(goal, after + 1)
        if isinstance(state, Retry):
            return state
        verdict = state_shows_rest(state, after, end, wanted)
        if verdict is Verdict.BEHIND:
            return Retry(goal.behind(state.last_seq, wanted))
        return Verdict.ABSENT if verdict is Verdict.ABSENT else Verdict.UNPROVEN

    async def anchor(self, goal: ReadGoal, wanted: int, *, not_this: Anchor | None = None) -> Anchor | None:
        """A subject that has a message, and its sequence; None if the stream is proven to be empty at `wanted`.

        Asked for with other subjects, an anchor makes a multi-subject get end with the responder's last sequence.
        """
        known = self._leader.cache.anchor
        if known is not None and known != not_this:
            return known
        found = await self._loop.run(goal, partial(self._find_anchor, goal, wanted))
        if found is not None and found == not_this:  # it exists, and the last responder did not have it
            await self._loop.wait(goal, Retry(goal.behind(0, wanted)))
        return found

    async def _find_anchor(self, goal: ReadGoal, wanted: int) -> Anchor | Retry | None:
        # The last message, unless it was deleted: then the first.
        for request in (GetRequest(last_by_subj=">"), GetRequest(seq=1, next_by_subj=">")):
            answer = await self._loop.run(goal, partial(self._direct.ask, goal, request))
            if answer.items:
                message = answer.items[0].message
                found = self._leader.cache.anchor = (message.subject, message.seq)
                return found
        state = await self._leader.state(goal, 0)
        if isinstance(state, Retry):
            return state
        if state_shows_rest(state, 0, 0, wanted) is Verdict.ABSENT:
            goal.reach(state.last_seq)
            return None
        return Retry(goal.behind(state.last_seq, wanted))
