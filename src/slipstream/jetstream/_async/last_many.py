"""The newest messages of many subjects become multi-subject gets: pages, pieces below the servers' limits, proofs.

A server answers for 1,024 subjects at most and ends a page by its bytes. Longer lists are cut; a pattern that matches
more is resolved by the leader first. A page goes on where the one before ended only if its responder is at least as
far: on an older copy a subject could lie in front of that place and would be missed. The blocking twin is generated
from this file (`tools/unasync.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slipstream.api import GetRequest
from slipstream.api.times import format_time
from slipstream.errors import ApiError, MessageNotFoundError, StaleReadError, TooManyResultsError
from slipstream.jetstream._async.leader_read import LeaderRead
from slipstream.jetstream.reads.direct_get import Replies, StoredMessage
from slipstream.wire import has_wildcard, matches

MOST_SUBJECTS = 1_024
MOST_SUBJECT_BYTES = 256 * 1024  # of one request
PAGE_BYTES = 4 * 1024 * 1024


class ManyRead(LeaderRead):
    """The newest message of each of many subjects, up to a sequence or a time if one is given."""

    up_to_seq = 0
    up_to_time: int | None = None
    keeps = False  # whether the server keeps `min_last_seq`

    def bound(self, *, up_to_seq: int, up_to_time: int | None) -> None:
        """Messages behind that sequence or time do not count."""
        self.up_to_seq, self.up_to_time = up_to_seq, up_to_time

    async def newest(self, subjects: Sequence[str]) -> dict[str, StoredMessage]:
        """Subject to newest message, in the order of their sequences."""
        self.keeps = not self._wanted or await self.keeps_min_last_seq()
        if not self.keeps:
            await self._know_stream()
        found: dict[str, StoredMessage] = {}
        pieces = list(in_pieces(dict.fromkeys(subjects)))
        while pieces:
            piece = pieces.pop(0)
            try:
                part = await self._piece(piece)
            except TooManyResultsError:
                literal = [subject for subject in piece if not has_wildcard(subject)]
                for pattern in piece:
                    if has_wildcard(pattern):
                        literal += await self._resolve(pattern)
                if len(literal) <= MOST_SUBJECTS and tuple(literal) == piece:
                    raise  # there is nothing left to cut
                pieces += in_pieces(dict.fromkeys(literal))
                continue
            for message in part:
                known = found.get(message.subject)
                if known is None or message.seq > known.seq:
                    found[message.subject] = message
        return dict(sorted(found.items(), key=lambda item: item[1].seq))

    async def newest_by_leader(self, subjects: Sequence[str]) -> dict[str, StoredMessage]:
        """The same by the leader alone, one Message Get for each."""
        literal: list[str] = []
        for subject in subjects:
            literal += await self._resolve(subject) if has_wildcard(subject) else [subject]
        found: dict[str, StoredMessage] = {}
        for subject in dict.fromkeys(literal):
            try:
                found[subject] = await self.get(GetRequest(last_by_subj=subject))
            except MessageNotFoundError:
                continue
        return dict(sorted(found.items(), key=lambda item: item[1].seq))

    async def _piece(self, subjects: tuple[str, ...]) -> list[StoredMessage]:
        """One request's worth of subjects, page by page, each at least as far as the wanted sequence and the last."""
        is_bound = bool(self.up_to_seq or self.up_to_time is not None)
        if is_bound and not self.keeps:
            return await self._bounded_piece(subjects)
        found: list[StoredMessage] = []
        start, goal = 0, self._wanted
        anchor: tuple[str, int] | None = None
        while True:
            request = GetRequest(
                multi_last=(*subjects, anchor[0]) if anchor and anchor[0] not in subjects else subjects,
                seq=start,
                max_bytes=PAGE_BYTES,
                up_to_seq=self.up_to_seq,
                up_to_time=None if self.up_to_time is None else format_time(self.up_to_time),
                min_last_seq=goal if self.keeps else 0,
            )
            answer = await self._try(request, late=bool(request.min_last_seq))
            if answer is None:
                continue
            if answer.end is None and self.up_to_seq:
                return await self._bounded_piece(subjects)  # a file store finds nothing beyond its last sequence
            if answer.end is None:
                anchor = None if self.keeps else await self._anchor(goal, not_this=anchor)
                if anchor is None:
                    return found
                continue
            reached = answer.end.up_to_seq
            if reached < goal and not is_bound:
                await self._pause(self._behind(reached, goal))
                continue
            found += self._messages(answer, subjects)
            self.reached = max(self.reached, 0 if is_bound else reached)
            if answer.end.pending <= 0 or not answer.items:
                return found
            start, goal = found[-1].seq + 1, max(goal, 0 if is_bound else reached)

    async def _bounded_piece(self, subjects: tuple[str, ...]) -> list[StoredMessage]:
        """With a bound, on a server that ignores `min_last_seq`: the newest, and again for those beyond the bound."""
        seq, time = self.up_to_seq, self.up_to_time
        self.up_to_seq, self.up_to_time = 0, None
        try:
            newest = await self._piece(subjects)
        finally:
            self.up_to_seq, self.up_to_time = seq, time
        found = []
        for message in newest:
            is_beyond = message.seq > seq if time is None else message.time >= time
            older = await self.up_to(message.subject, seq, time) if is_beyond else message
            if older is not None:
                found.append(older)
        return found

    async def _resolve(self, pattern: str) -> list[str]:
        """The subjects behind a pattern, by the leader."""
        self.with_leader = True
        found: list[str] = []
        while True:
            try:
                call = self._api.subjects(self._name, pattern, offset=len(found))
                page = await self._context.run(call, timeout=self._patience.left())
            except ApiError as error:
                if error.code != 503:
                    raise
                await self._pause(error)
                continue
            if page.last_seq < self._wanted:
                await self._pause(self._behind(page.last_seq))
                continue
            found += page.subjects
            if not page.subjects or len(found) >= page.total:
                return found

    def _messages(self, answer: Replies, subjects: tuple[str, ...]) -> list[StoredMessage]:
        """Those that were asked for: an anchor was asked for the proof alone."""
        if answer.end is not None and answer.end.up_to_seq < 0:
            why = f"{self._name}: the server does not know multi-subject gets: nats-server 2.11 or newer is needed"
            raise StaleReadError(why, stream=self._name, min_last_seq=self._wanted)
        messages = [item.message for item in answer.items]
        if len(subjects) == 1:
            return [message for message in messages if matches(subjects[0], message.subject)]
        asked = set(subjects)
        return [message for message in messages if message.subject in asked]


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
