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
from slipstream.errors import (
    ApiError,
    ConnectionLostError,
    MessageNotFoundError,
    RequestTimeoutError,
    TooManyResultsError,
)
from slipstream.jetstream._async.context import JetStreamContext
from slipstream.jetstream.reads._async.direct_gets import DirectGets
from slipstream.jetstream.reads._async.drive import ReadDriver
from slipstream.jetstream.reads._async.leader_read import LeaderRead
from slipstream.jetstream.reads._async.leader_requests import NO_LEADER
from slipstream.jetstream.reads._async.native_read import NativeRead
from slipstream.jetstream.reads.direct_get import EndOfBatch, Replies, StoredMessage
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.retry import Retry
from slipstream.jetstream.reads.rule import ReadRule
from slipstream.jetstream.requests import SubjectsPage
from slipstream.wire import has_wildcard

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
        self, context: JetStreamContext, rule: ReadRule, direct: DirectGets, driver: ReadDriver, native: NativeRead
    ) -> None:
        self._context = context
        self._rule = rule
        self._direct = direct
        self._driver = driver
        self._native = native

    async def newest(self, goal: ReadGoal, subjects: Sequence[str], bound: Bound) -> dict[str, StoredMessage]:
        """Subject to newest message, in the order of their sequences."""
        keeps = not goal.wanted or await self._native.is_possible(goal)
        if not keeps:
            await self._driver.run(goal, self._rule.learn_generation(goal))
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

        `keeps`: the server keeps `min_last_seq`, or nothing is wanted.
        """
        found: list[StoredMessage] = []
        start, part = 0, goal

        async def attempt() -> list[StoredMessage] | Retry:
            nonlocal start, part
            answer = await self._page(part, subjects, bound, start, keeps=keeps)
            if isinstance(answer, Retry):
                return answer
            if answer is None and not found:
                return await self._not_found(goal, subjects, bound, keeps=keeps)
            if answer is None:  # what this page was to go on with is gone, or this copy has nothing
                found.clear()
                start = 0
                return Retry(part.behind(0))
            end = answer.end
            if end is None:
                return found
            found.extend(_messages_of(goal, answer, end))
            reached = 0 if bound else end.up_to_seq
            goal.reach(reached)
            if end.pending <= 0 or not answer.items:
                return found
            start, part = found[-1].seq + 1, part.for_all_of(reached)
            return Retry()

        return await self._driver.repeat(goal, attempt)

    async def _page(
        self, goal: ReadGoal, subjects: tuple[str, ...], bound: Bound, start: int, *, keeps: bool
    ) -> Replies | Retry | None:
        """One page that may be believed; None if nothing was found, which may have to be proven."""
        request = GetRequest(
            multi_last=subjects,
            seq=start,
            max_bytes=PAGE_BYTES,
            up_to_seq=bound.seq,
            up_to_time=None if bound.time is None else format_time(bound.time),
            min_last_seq=goal.wanted if keeps else 0,
        )
        if not keeps:
            return await self._driver.run(goal, self._rule.newest_page(goal, request, subjects))
        answer = await self._direct.ask(goal, request, is_late=bool(request.min_last_seq))
        return None if isinstance(answer, Replies) and answer.is_missing else answer

    async def _not_found(
        self, goal: ReadGoal, subjects: tuple[str, ...], bound: Bound, *, keeps: bool
    ) -> list[StoredMessage]:
        """Nothing was found, and it is not said by whom: the subjects one by one, without the bound.

        A file store finds nothing up to a bound beyond its last sequence.
        """
        if keeps and not bound.seq:
            return []
        if keeps:
            newest = await self._piece(goal, subjects, _UNBOUNDED, keeps=True)
        else:
            newest = []
            for subject in subjects:
                message = await self._driver.run(goal, self._rule.get(goal, GetRequest(last_by_subj=subject)))
                if message is not None:
                    newest.append(message)
        if any(has_wildcard(subject) for subject in subjects) and newest and not keeps:
            return await self._again(goal, subjects, bound)
        found = []
        for message in newest:
            is_beyond = bool(bound) and bound.excludes(message)
            older = await self._last_up_to(goal, message.subject, bound, keeps=keeps) if is_beyond else message
            if older is not None:
                found.append(older)
        return found

    async def _again(self, goal: ReadGoal, subjects: tuple[str, ...], bound: Bound) -> list[StoredMessage]:
        """There is something of a pattern of which a copy found nothing: by the names of its subjects."""
        names = [name for subject in subjects for name in await self._resolve(goal, subject)]
        found: list[StoredMessage] = []
        for piece in in_pieces(dict.fromkeys(names)):
            found += await self._piece(goal, piece, bound, keeps=False)
        return found

    async def _last_up_to(self, goal: ReadGoal, subject: str, bound: Bound, *, keeps: bool) -> StoredMessage | None:
        """The newest message of a literal subject up to a bound that is not beyond the stream's end."""

        async def attempt() -> StoredMessage | Retry | None:
            answer = await self._page(goal, (subject,), bound, 0, keeps=keeps)
            if isinstance(answer, Retry):
                return answer
            if answer is not None and answer.items:
                return answer.items[0].message
            if keeps:
                return None
            first = await self._driver.run(goal, self._rule.get(goal, GetRequest(seq=1, next_by_subj=subject)))
            return None if first is None or bound.excludes(first) else Retry(goal.behind(0))

        return await self._driver.repeat(goal, attempt)

    async def _resolve(self, goal: ReadGoal, pattern: str) -> list[str]:
        """The subjects behind a pattern, by the leader."""
        goal.with_leader = True
        found: list[str] = []
        while True:
            page = await self._driver.repeat(goal, partial(self._subjects_page, goal, pattern, len(found)))
            found += page.subjects
            if not page.subjects or len(found) >= page.total:
                return found

    async def _subjects_page(self, goal: ReadGoal, pattern: str, offset: int) -> SubjectsPage | Retry:
        call = self._context.api.subjects(self._rule.origin, pattern, offset=offset)
        try:
            page = await self._context.run(call, timeout=goal.policy.for_one_try())
        except (RequestTimeoutError, ConnectionLostError) as error:
            goal.policy.leader_silent()
            return Retry(error)
        except ApiError as error:
            if error.code != NO_LEADER:
                raise
            return Retry(error)
        goal.policy.leader_heard()
        if not page.is_leader:
            return Retry(goal.stale("it has no leader"))
        return Retry(goal.behind(page.last_seq)) if page.last_seq < goal.wanted else page


def _messages_of(goal: ReadGoal, answer: Replies, end: EndOfBatch) -> list[StoredMessage]:
    if end.up_to_seq < 0:
        raise goal.stale("the server does not know multi-subject gets: nats-server 2.11 or newer is needed")
    return [item.message for item in answer.items]


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
