"""The newest messages of many subjects, over the asyncio client: multi-subject gets in pages, within server limits.

A server answers for 1,024 subjects at most and ends a page by its bytes. Longer lists are cut; a pattern that matches
more is resolved by the leader first. A page continues the one before only if its responder is at least as far: on an
older copy a subject could lie in front of that sequence and would be missed.

One page is one state of its responder. Between two pages the newest message of a subject may be removed while an older
one stays: it then lies in front of the next page. So after an answer of several pages, the subjects that were not found
are requested again, until one page has answered for each of them; those of a pattern are named by the leader. The same
if nats-server breaks off in the middle of an answer, as it does if a message is removed before its turn comes.

nats-server (2.15.1) also leaves out subjects whose newest message was deleted without being erased, if the older ones
are in an earlier block of its file. A trusted read of a stream in which that may happen requests the newest message of
each subject that is missing, which nats-server finds.

The blocking twin is generated from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from slipstream.api import GetRequest
from slipstream.api.times import format_time
from slipstream.errors import MessageNotFoundError, TooManyResultsError
from slipstream.jetstream.reads._async.direct_gets import DirectGets
from slipstream.jetstream.reads._async.drive import ReadDriver
from slipstream.jetstream.reads._async.leader_read import LeaderRead
from slipstream.jetstream.reads._async.leader_requests import LeaderRequests
from slipstream.jetstream.reads._async.native_read import NativeRead
from slipstream.jetstream.reads.direct_get import Replies, StoredMessage
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
        self, leader: LeaderRequests, rule: ReadRule, direct: DirectGets, driver: ReadDriver, native: NativeRead
    ) -> None:
        self._leader = leader
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
        """One request's worth of subjects; none is left out that had a message all the time.

        `keeps`: the server keeps `min_last_seq`, or nothing is wanted.
        """
        found, is_whole = await self._pages(goal, subjects, bound, keeps=keeps)
        is_doubtful = not keeps and self._rule.may_leave_out()
        if is_whole and not is_doubtful:
            return found
        names: list[str] = []
        for subject in subjects:
            names += await self._resolve(goal, subject) if has_wildcard(subject) else [subject]
        missing = _without(names, found)
        if is_doubtful:
            return found + await self._one_by_one(goal, missing, bound, keeps=False)
        left = list(in_pieces(missing))
        while left:
            piece = left.pop()
            more, is_whole = await self._pages(goal, piece, bound, keeps=keeps)
            found += more
            if not is_whole:  # at least one fewer than before
                left += in_pieces(_without(piece, more))
        return found

    async def _pages(
        self, goal: ReadGoal, subjects: tuple[str, ...], bound: Bound, *, keeps: bool
    ) -> tuple[list[StoredMessage], bool]:
        """The pages of an answer, each at least as far as the wanted sequence and the last; whether it was only one."""
        found: list[StoredMessage] = []
        start, part, is_whole = 0, goal, True

        async def attempt() -> list[StoredMessage] | Retry:
            nonlocal start, part, is_whole
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
            found.extend(_messages_of(goal, answer))
            reached = 0 if bound or end is None else end.up_to_seq
            goal.reach(reached)
            if end is None:
                is_whole = False
                if not answer.items:
                    return Retry(goal.stale("messages were removed while they were read"))
            elif end.pending <= 0 or not answer.items:
                return found
            is_whole = False
            start, part = found[-1].seq + 1, part.for_all_of(reached)
            return Retry()

        return await self._driver.repeat(goal, attempt), is_whole

    async def _page(
        self, goal: ReadGoal, subjects: tuple[str, ...], bound: Bound, start: int, *, keeps: bool
    ) -> Replies | Retry | None:
        """One page that may be believed; None if nothing was found, which may have to be proven. Without an end, it was
        broken off."""
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
        is_empty = isinstance(answer, Replies) and answer.is_missing and not answer.items and not answer.is_broken_off
        return None if is_empty else answer

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
            return await self._up_to(goal, newest, bound, keeps=True)
        if any(has_wildcard(subject) for subject in subjects):
            for subject in subjects:
                if await self._driver.run(goal, self._rule.get(goal, GetRequest(last_by_subj=subject))) is not None:
                    return await self._again(goal, subjects, bound)
            return []
        return await self._one_by_one(goal, subjects, bound, keeps=False)

    async def _one_by_one(
        self, goal: ReadGoal, subjects: Iterable[str], bound: Bound, *, keeps: bool
    ) -> list[StoredMessage]:
        """The newest messages of literal subjects, each by a request and a proof of its own."""
        newest = []
        for subject in subjects:
            message = await self._driver.run(goal, self._rule.get(goal, GetRequest(last_by_subj=subject)))
            if message is not None:
                newest.append(message)
        return await self._up_to(goal, newest, bound, keeps=keeps)

    async def _up_to(
        self, goal: ReadGoal, newest: Sequence[StoredMessage], bound: Bound, *, keeps: bool
    ) -> list[StoredMessage]:
        """Newest messages, where they lie beyond a bound those before it."""
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
        """The subjects behind a pattern, by the leader.

        Pages are cut from a sorted list by position. So each begins with the last subject of the one before: otherwise
        subjects in front of it were removed meanwhile, and others would be skipped.
        """
        goal.with_leader = True
        found: list[str] = []
        while True:
            offset = max(len(found) - 1, 0)
            page = await self._driver.repeat(goal, partial(self._subjects_page, goal, pattern, offset))
            names = sorted(page.subjects)
            if found and (not names or names[0] != found[-1]):
                found.clear()
                await self._driver.wait(goal, Retry(goal.stale("its subjects change while they are listed")))
                continue
            found += names[1:] if found else names
            if len(names) <= 1 or offset + len(names) >= page.total:
                return found

    async def _subjects_page(self, goal: ReadGoal, pattern: str, offset: int) -> SubjectsPage | Retry:
        page = await self._leader.subjects(goal, self._rule.origin, pattern, offset=offset)
        if isinstance(page, Retry):
            return page
        if not page.is_leader:
            return Retry(goal.stale("it has no leader"))
        return Retry(goal.behind(page.last_seq)) if page.last_seq < goal.wanted else page


def _without(subjects: Sequence[str], found: Sequence[StoredMessage]) -> dict[str, None]:
    """The subjects of which no message was found."""
    there = {message.subject for message in found}
    return dict.fromkeys(subject for subject in subjects if subject not in there)


def _messages_of(goal: ReadGoal, answer: Replies) -> list[StoredMessage]:
    if answer.end is not None and answer.end.up_to_seq < 0:
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
