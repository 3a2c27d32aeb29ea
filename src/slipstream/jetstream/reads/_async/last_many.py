"""The newest messages of many subjects, over the asyncio client: multi-subject gets in pages, within server limits.

A server answers for 1,024 subjects at most and ends a page by its bytes. Longer lists are cut; a pattern that matches
more is resolved by the leader first. A page continues the one before only if its responder is at least as far: on an
older copy a subject could lie in front of that sequence and would be missed. The blocking twin is generated from this
file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from slipstream.api import GetRequest
from slipstream.api.times import format_time
from slipstream.errors import ApiError, MessageNotFoundError, TooManyResultsError
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.reads._async.direct_gets import DirectGets
from slipstream.jetstream.reads._async.leader_read import LeaderRead
from slipstream.jetstream.reads._async.leader_state import NO_LEADER, LeaderState
from slipstream.jetstream.reads._async.native_read import NativeRead
from slipstream.jetstream.reads._async.proofs import Anchor, Proofs
from slipstream.jetstream.reads._async.proven_get import ProvenGet
from slipstream.jetstream.reads._async.retry_loop import RetryLoop
from slipstream.jetstream.reads.direct_get import EndOfBatch, Replies, StoredMessage
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.proof import Verdict, judge_page
from slipstream.jetstream.reads.retry import Retry
from slipstream.jetstream.requests import SubjectsPage
from slipstream.wire import has_wildcard, matches

MOST_SUBJECTS = 1_024
MOST_SUBJECT_BYTES = 256 * 1024  # of one request
PAGE_BYTES = 4 * 1024 * 1024


class Bound(NamedTuple):
    """Messages behind that sequence, or from that time on, do not count."""

    seq: int = 0
    time: int | None = None

    def __bool__(self) -> bool:
        return bool(self.seq) or self.time is not None

    def excludes(self, message: StoredMessage) -> bool:
        """Whether a message lies beyond it."""
        return message.seq > self.seq if self.time is None else message.time >= self.time


_UNBOUNDED = Bound()


class LastMany:
    """The newest message of each of many subjects of one stream."""

    def __init__(
        self,
        context: JetStreamContext,
        leader: LeaderState,
        direct: DirectGets,
        loop: RetryLoop,
        native: NativeRead,
        proofs: Proofs,
        proven: ProvenGet,
    ) -> None:
        self._context = context
        self._leader = leader
        self._direct = direct
        self._loop = loop
        self._native = native
        self._proofs = proofs
        self._proven = proven

    async def newest(self, goal: ReadGoal, subjects: Sequence[str], bound: Bound) -> dict[str, StoredMessage]:
        """Subject to newest message, in the order of their sequences."""
        keeps = not goal.wanted or await self._native.is_possible(goal)
        if not keeps:
            await self._loop.run(goal, partial(self._leader.learn_generation, goal))
        found: dict[str, StoredMessage] = {}
        pieces = list(in_pieces(dict.fromkeys(subjects)))
        while pieces:
            piece = pieces.pop(0)
            try:
                part = await self._piece(goal, piece, bound, keeps=keeps)
            except TooManyResultsError:
                literal = [subject for subject in piece if not has_wildcard(subject)]
                for pattern in piece:
                    if has_wildcard(pattern):
                        literal += await self._resolve(goal, pattern)
                if len(literal) <= MOST_SUBJECTS and tuple(literal) == piece:
                    raise  # there is nothing left to cut
                pieces += in_pieces(dict.fromkeys(literal))
                continue
            for message in part:
                known = found.get(message.subject)
                if known is None or message.seq > known.seq:
                    found[message.subject] = message
        return in_order(found)

    async def newest_by_leader(
        self, goal: ReadGoal, leader: LeaderRead, subjects: Sequence[str]
    ) -> dict[str, StoredMessage]:
        """The same by the leader alone, one Message Get for each."""
        literal: list[str] = []
        for subject in subjects:
            literal += await self._resolve(goal, subject) if has_wildcard(subject) else [subject]
        found: dict[str, StoredMessage] = {}
        for subject in dict.fromkeys(literal):
            try:
                found[subject] = await leader.get(goal, GetRequest(last_by_subj=subject))
            except MessageNotFoundError:
                continue
        return in_order(found)

    async def _piece(
        self, goal: ReadGoal, subjects: tuple[str, ...], bound: Bound, *, keeps: bool
    ) -> list[StoredMessage]:
        """One request's worth of subjects, page by page, each at least as far as the wanted sequence and the last.

        `keeps`: the server keeps `min_last_seq`.
        """
        if bound and not keeps:
            return await self._bounded_piece(goal, subjects, bound, keeps=keeps)
        found: list[StoredMessage] = []
        start, wanted = 0, goal.wanted
        anchor: Anchor | None = None

        async def attempt() -> list[StoredMessage] | Retry:
            nonlocal start, wanted, anchor
            request = GetRequest(
                multi_last=(*subjects, anchor[0]) if anchor and anchor[0] not in subjects else subjects,
                seq=start,
                max_bytes=PAGE_BYTES,
                up_to_seq=bound.seq,
                up_to_time=None if bound.time is None else format_time(bound.time),
                min_last_seq=wanted if keeps else 0,
            )
            answer = await self._direct.ask(goal, request, late=bool(request.min_last_seq))
            if isinstance(answer, Retry):
                return answer
            end, verdict = answer.end, judge_page(answer, wanted, is_bounded=bool(bound))
            if end is None or verdict is Verdict.UNPROVEN:
                if bound.seq:  # a file store finds nothing beyond its last sequence
                    return await self._bounded_piece(goal, subjects, bound, keeps=keeps)
                anchor = None if keeps else await self._proofs.anchor(goal, wanted, not_this=anchor)
                return found if anchor is None else Retry()
            if verdict is Verdict.BEHIND:
                return Retry(goal.behind(end.up_to_seq, wanted))
            found.extend(self._wanted_of(goal, answer, end, subjects))
            reached = 0 if bound else end.up_to_seq
            goal.reach(reached)
            if end.pending <= 0 or not answer.items:
                return found
            start, wanted = found[-1].seq + 1, max(wanted, reached)
            return Retry()

        return await self._loop.run(goal, attempt)

    async def _bounded_piece(
        self, goal: ReadGoal, subjects: tuple[str, ...], bound: Bound, *, keeps: bool
    ) -> list[StoredMessage]:
        """With a bound, on a server that ignores `min_last_seq`: the newest, and again for those beyond the bound."""
        found = []
        for message in await self._piece(goal, subjects, _UNBOUNDED, keeps=keeps):
            is_beyond = bound.excludes(message)
            older = await self._proven.last_up_to(goal, message.subject, *bound) if is_beyond else message
            if older is not None:
                found.append(older)
        return found

    async def _resolve(self, goal: ReadGoal, pattern: str) -> list[str]:
        """The subjects behind a pattern, by the leader."""
        goal.with_leader = True
        found: list[str] = []
        while True:
            page = await self._loop.run(goal, partial(self._subjects_page, goal, pattern, len(found)))
            found += page.subjects
            if not page.subjects or len(found) >= page.total:
                return found

    async def _subjects_page(self, goal: ReadGoal, pattern: str, offset: int) -> SubjectsPage | Retry:
        call = self._context.api.subjects(goal.stream, pattern, offset=offset)
        try:
            page = await self._context.run(call, timeout=goal.policy.left())
        except ApiError as error:
            if error.code != NO_LEADER:
                raise
            return Retry(error)
        return Retry(goal.behind(page.last_seq)) if page.last_seq < goal.wanted else page

    def _wanted_of(
        self, goal: ReadGoal, answer: Replies, end: EndOfBatch, subjects: tuple[str, ...]
    ) -> list[StoredMessage]:
        """The messages of the subjects in question: an anchor was asked for the proof alone."""
        if end.up_to_seq < 0:
            raise goal.stale("the server does not know multi-subject gets: nats-server 2.11 or newer is needed")
        messages = [item.message for item in answer.items]
        if len(subjects) == 1:
            return [message for message in messages if matches(subjects[0], message.subject)]
        asked = set(subjects)
        return [message for message in messages if message.subject in asked]


def in_order(found: dict[str, StoredMessage]) -> dict[str, StoredMessage]:
    """The same in the order of their sequences."""
    return dict(sorted(found.items(), key=lambda item: item[1].seq))


def in_pieces(subjects: Sequence[str] | dict[str, None]) -> Iterator[tuple[str, ...]]:
    """Subjects in the sizes that one request may have; a pattern, which may stand for many, has one of its own."""
    piece: list[str] = []
    size = 0
    for subject in subjects:
        if has_wildcard(subject):
            yield (subject,)
            continue
        if len(piece) >= MOST_SUBJECTS or size + len(subject) > MOST_SUBJECT_BYTES:
            yield tuple(piece)
            piece, size = [], 0
        piece.append(subject)
        size += len(subject) + 3
    if piece:
        yield tuple(piece)
