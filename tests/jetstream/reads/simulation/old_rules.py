"""The rules of version 0.1, as they were: a copy whose last sequence has reached W is believed.

A test asset: the simulator must find what is wrong with them (F1 to F4 and F9 of the audit). Each method has the
requests of the driver and the verdicts of the pure module of that time, in their order: mirrors are judged by their
configuration and asked once, absences are proven by an anchor, a range is complete when its last message was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeVar

from slipstream.api import GetRequest, StreamConfig, StreamInfo, StreamState
from slipstream.jetstream.reads.direct_get import BatchItem, Replies, StoredMessage
from slipstream.wire import has_wildcard, matches
from tests.jetstream.reads.simulation.actions import (
    Action,
    Answer,
    AskDirect,
    AskInfo,
    Direct,
    NotThere,
    Outcome,
    Read,
    Reading,
    Wait,
)
from tests.jetstream.reads.simulation.model import STREAM

GENERATION_AGE = 10.0
ASK_AGAIN = 1.0
CHAIN = 1_024
REST = 64
PAGE = 20_000

T = TypeVar("T")
Step = Generator[Action, Outcome, T]
Anchor = tuple[str, int]
PRESENT, ABSENT, BEHIND, UNPROVEN = "present", "absent", "behind", "unproven"


class Judged(NamedTuple):
    """A verdict, the message it is about, and the sequence that the responder is known to have reached."""

    verdict: str
    message: StoredMessage | None = None
    reached: int = 0


class OldRules:
    """The reads of one connection."""

    def __init__(self, now: Callable[[], float], _: str = STREAM) -> None:
        self._now = now
        self.created = 0
        self.floor = 0
        self.asked_at: float | None = None
        self.config: StreamConfig | None = None
        self.anchor: Anchor | None = None
        self.mirrors: dict[str, bool] = {}

    def read(self, read: Read) -> Reading:
        """Begin a read."""
        yield from self._learn_generation()
        wanted = read.wanted
        if read.kind == "last":
            message = yield from self._last(read.subject, wanted)
        elif read.kind == "seq":
            message = yield from self._by_seq(read.seq, wanted)
        elif read.kind == "next":
            message = yield from self._next(read.subject, max(read.seq, 1), wanted)
        elif read.kind == "many":
            return Answer(tuple((yield from self._many(read.subject, wanted))))
        else:
            return Answer(tuple((yield from self._range(read))))
        return Answer(() if message is None else (message,))

    def wrote(self, seq: int, subject: str, *, is_rollup: bool) -> None:
        """The session of this connection has written a message: the world counts what it has seen."""

    # The leader's word

    def _info(self, *, deleted: bool = False) -> Step[StreamInfo | None]:
        outcome = yield AskInfo(STREAM, deleted=deleted)
        if not isinstance(outcome, StreamInfo) or outcome.created < self.created:
            return None
        self.asked_at = self._now()
        state = outcome.state
        first = state.first_ts if state.messages else outcome.created
        self.floor = min(outcome.created, first)
        self.created, self.config = outcome.created, outcome.config
        return outcome

    def _state(self, seq: int) -> Step[StreamState]:
        while True:
            info = yield from self._info()
            if info is not None and info.state.num_deleted and info.state.first_seq <= seq <= info.state.last_seq:
                info = yield from self._info(deleted=True)
            if info is not None:
                return info.state
            yield Wait()

    def _learn_generation(self) -> Step[None]:
        while self.asked_at is None or self._now() - self.asked_at >= GENERATION_AGE:
            if (yield from self._info()) is None:
                if self.created:
                    return
                yield Wait()

    # Direct Gets, of those who are believed

    def _ask(self, request: GetRequest) -> Step[Replies]:
        while True:
            outcome = yield AskDirect(request)
            if isinstance(outcome, Direct):
                replies = outcome.replies
                if not replies.items or (yield from self._is_believed(replies.items)):
                    return replies
            yield Wait()

    def _is_believed(self, items: list[BatchItem]) -> Step[bool]:
        source, oldest = items[0].message.stream, min(item.message.time for item in items)
        if source != STREAM and not (yield from self._is_whole_copy(source)):
            return False
        if oldest < self.floor and (self.asked_at is None or self._now() - self.asked_at >= ASK_AGAIN):
            yield from self._info()
        return oldest >= self.floor

    def _is_whole_copy(self, mirror: str) -> Step[bool]:
        known = self.mirrors.get(mirror)
        if known is not None:
            return known
        outcome = yield AskInfo(mirror)
        if isinstance(outcome, StreamInfo):
            is_whole = self._is_whole(outcome.config)
        elif isinstance(outcome, NotThere):
            is_whole = False
        else:
            return False
        self.mirrors[mirror] = is_whole
        return is_whole

    def _is_whole(self, mirror: StreamConfig) -> bool:
        source, own = mirror.mirror, self.config
        if source is None or own is None or source.name != own.name or source.filter_subject or source.opt_start_seq:
            return False
        return all(
            limit <= 0 or limit == upstream
            for limit, upstream in (
                (mirror.max_msgs, own.max_msgs),
                (mirror.max_bytes, own.max_bytes),
                (mirror.max_msgs_per_subject, own.max_msgs_per_subject),
            )
        )

    # Proofs

    def _newest(self, subject: str, wanted: int) -> Step[Judged]:
        anchor: Anchor | None = None
        while True:
            subjects = (subject,) if anchor is None or anchor[0] == subject else (subject, anchor[0])
            answer = yield from self._ask(GetRequest(multi_last=subjects, batch=len(subjects)))
            judged = judge_last(answer, subject, wanted)
            if judged.verdict is UNPROVEN:
                anchor = yield from self._anchor(wanted, not_this=anchor)
                if anchor is None:
                    return Judged(ABSENT)
            elif judged.verdict is not BEHIND:
                return judged
            yield Wait()

    def _anchor(self, wanted: int, *, not_this: Anchor | None = None) -> Step[Anchor | None]:
        if self.anchor is not None and self.anchor != not_this:
            return self.anchor
        while True:
            for request in (GetRequest(last_by_subj=">"), GetRequest(seq=1, next_by_subj=">")):
                answer = yield from self._ask(request)
                if answer.items:
                    message = answer.items[0].message
                    self.anchor = (message.subject, message.seq)
                    return self.anchor
            state = yield from self._state(0)
            if state_shows_rest(state, 0, 0, wanted) is ABSENT:
                return None
            yield Wait()

    def _still_exists(self, message: StoredMessage, wanted: int) -> Step[bool]:
        if message.seq >= wanted:
            return True
        newest = yield from self._newest(message.subject, wanted)
        if newest.message is None or newest.message.seq < message.seq:
            return False
        if newest.message.seq == message.seq:
            return True
        while True:
            state = yield from self._state(message.seq)
            verdict = state_shows(state, message.seq, wanted)
            if verdict is UNPROVEN:
                request = GetRequest(seq=message.seq, next_by_subj=message.subject, batch=CHAIN)
                verdict = judge_chain((yield from self._ask(request)), message, newest.message.seq)
            if verdict in (PRESENT, ABSENT):
                return verdict is PRESENT
            yield Wait()

    def _exists(self, seq: int, wanted: int) -> Step[bool]:
        while True:
            anchor = yield from self._anchor(wanted)
            if anchor is None:
                return False
            answer = yield from self._ask(GetRequest(multi_last=(anchor[0],), batch=1))
            if answer.end is None:
                self.anchor = None
            elif answer.end.up_to_seq >= wanted:
                if seq > answer.end.up_to_seq:
                    return False
                verdict = state_shows((yield from self._state(seq)), seq, wanted)
                if verdict in (PRESENT, ABSENT):
                    return verdict is PRESENT
            yield Wait()

    def _rest(self, pattern: str, after: int, wanted: int) -> Step[bool]:
        """Whether there is anything of a pattern behind a sequence."""
        tried: Anchor | None = None
        batch = REST
        while True:
            anchor = yield from self._anchor(wanted, not_this=tried)
            if anchor is None:
                return False
            subjects = (pattern,) if pattern == anchor[0] else (pattern, anchor[0])
            request = GetRequest(multi_last=subjects, seq=min(after + 1, anchor[1]), batch=batch)
            answer = yield from self._ask(request)
            verdict = judge_rest(answer, pattern, after, wanted)
            if verdict in (PRESENT, ABSENT):
                return verdict is PRESENT
            if verdict is UNPROVEN:
                if answer.items and batch:
                    batch = 0
                else:
                    tried = anchor
            yield Wait()

    # Reads

    def _last(self, subject: str, wanted: int) -> Step[StoredMessage | None]:
        if not has_wildcard(subject):
            return (yield from self._newest(subject, wanted)).message
        while True:
            answer = yield from self._ask(GetRequest(last_by_subj=subject))
            candidate = answer.items[0].message if answer.items else None
            if candidate is not None and candidate.seq >= wanted:
                return candidate
            if candidate is None and not (yield from self._rest(subject, 0, wanted)):
                return None
            start = candidate.seq if candidate is not None else 0
            judged = judge_last((yield from self._ask(GetRequest(multi_last=(subject,), seq=start))), subject, wanted)
            if judged.verdict is PRESENT:
                return judged.message
            yield Wait()

    def _by_seq(self, seq: int, wanted: int) -> Step[StoredMessage | None]:
        while True:
            answer = yield from self._ask(GetRequest(seq=seq, next_by_subj=">", batch=1))
            if not answer.items:
                if not (yield from self._exists(seq, wanted)):
                    return None
                yield Wait()
                continue
            found, pending = answer.items[0]
            if found.seq > seq:
                return None
            if found.seq + max(pending, 0) >= wanted or (yield from self._still_exists(found, wanted)):
                return found
            return None

    def _next(self, subject: str, seq: int, wanted: int) -> Step[StoredMessage | None]:
        while True:
            answer = yield from self._ask(GetRequest(seq=seq, next_by_subj=subject, batch=1))
            if not answer.items:
                if not (yield from self._rest(subject, seq - 1, wanted)):
                    return None
            else:
                found = answer.items[0].message
                if found.seq >= wanted or (yield from self._still_exists(found, wanted)):
                    return found
                seq = found.seq + 1
            yield Wait()

    def _many(self, pattern: str, wanted: int) -> Step[list[StoredMessage]]:
        anchor: Anchor | None = None
        while True:
            answer = yield from self._ask(GetRequest(multi_last=(pattern,) if anchor is None else (pattern, anchor[0])))
            if answer.end is None:
                anchor = yield from self._anchor(wanted, not_this=anchor)
                if anchor is None:
                    return []
            elif answer.end.up_to_seq >= wanted:
                return [item.message for item in answer.items if matches(pattern, item.message.subject)]
            yield Wait()

    def _range(self, read: Read) -> Step[list[StoredMessage]]:
        found: list[StoredMessage] = []
        start, end = read.seq, read.end
        goal = end or read.wanted
        while True:
            batch = end - start + 1 if end else PAGE
            answer = yield from self._ask(GetRequest(seq=start, next_by_subj=read.subject, batch=batch))
            messages = [item.message for item in answer.items]
            if messages:
                self.anchor = (messages[-1].subject, messages[-1].seq)
                start = messages[-1].seq + 1
            found += [message for message in messages if not end or message.seq <= end]
            last = start - 1
            if end and last >= end:
                return found
            is_over = answer.end is None or answer.end.pending <= 0
            if is_over and (last >= goal or not (yield from self._rest(read.subject, last, goal))):
                return found
            yield Wait()


# Verdicts


def judge_last(answer: Replies, subject: str, wanted: int) -> Judged:
    """The newest message of a subject, by the answer to a multi-subject get."""
    if answer.end is None:
        return Judged(UNPROVEN)
    newest: StoredMessage | None = None
    for message, _ in answer.items:
        if (newest is None or message.seq > newest.seq) and matches(subject, message.subject):
            newest = message
    reached = max(answer.end.up_to_seq, newest.seq if newest is not None else 0)
    if reached < wanted:
        return Judged(BEHIND, newest, reached)
    if answer.end.pending > 0:
        return Judged(PRESENT if newest is not None and newest.seq >= wanted else UNPROVEN, newest, reached)
    return Judged(ABSENT if newest is None else PRESENT, newest, reached)


def judge_chain(answer: Replies, message: StoredMessage, newest: int) -> str:
    """Whether a message is among those of its subject from it on, up to at least `newest`."""
    seqs = [item.message.seq for item in answer.items]
    if not seqs or seqs[-1] < newest:
        return BEHIND if seqs else UNPROVEN
    return PRESENT if seqs[0] == message.seq else ABSENT


def judge_rest(answer: Replies, pattern: str, after: int, goal: int) -> str:
    """Whether a multi-subject get of a pattern and an anchor shows messages behind a sequence."""
    if answer.end is None or not answer.items:
        return UNPROVEN
    for message, _ in answer.items:
        if message.seq > after and matches(pattern, message.subject):
            return PRESENT
    if answer.end.pending > 0:
        return UNPROVEN
    return ABSENT if answer.end.up_to_seq >= goal else BEHIND


def state_shows(state: StreamState, seq: int, wanted: int) -> str:
    """Whether a message exists, by one state of one server."""
    if state.last_seq < wanted:
        return BEHIND
    if not state.messages or not state.first_seq <= seq <= state.last_seq:
        return ABSENT
    if not state.num_deleted:
        return PRESENT
    if not state.deleted:
        return UNPROVEN
    return ABSENT if seq in state.deleted else PRESENT


def state_shows_rest(state: StreamState, after: int, end: int, goal: int) -> str:
    """Whether any message lies behind a sequence, by one state of one server."""
    if state.last_seq < goal:
        return BEHIND
    first, last = max(after + 1, state.first_seq), min(end or state.last_seq, state.last_seq)
    return ABSENT if not state.messages or first > last else PRESENT
