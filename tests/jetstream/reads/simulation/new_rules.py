"""The client's own rules as the simulator runs them: `ReadRule`, with the world in place of the driver.

What the drivers add to the rule is repeated here in the same order: the first request of a get (`stream_reads.py`),
pages of a range (`range_read.py`) and of a listing (`last_many.py`), and a look at the leader for the sake of a session
(`drive.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

import msgspec

from slipstream.api import GetRequest, StreamInfo
from slipstream.errors import RequestTimeoutError, StaleReadError
from slipstream.jetstream.reads.columns import Columns
from slipstream.jetstream.reads.direct_get import Replies, StoredMessage
from slipstream.jetstream.reads.evidence import leader_word
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.range_reader import RangeReader, RangeState
from slipstream.jetstream.reads.read_state import StreamCache
from slipstream.jetstream.reads.retry import Retry, RetryPolicy
from slipstream.jetstream.reads.rule import Direct, Info, LeaderGet, RangePage, ReadRule, Steps
from slipstream.jetstream.reads.session import SessionState
from slipstream.wire import has_wildcard
from tests.jetstream.reads.simulation import actions
from tests.jetstream.reads.simulation.actions import Action, Answer, Outcome, Read, Reading, RefusedError
from tests.jetstream.reads.simulation.model import STREAM

FOREVER = 1e9  # the world ends reads, not their policy
PAGE_MESSAGES = 3
PAGE_BYTES = 1  # the model sends two messages then

T = TypeVar("T")
Step = Generator[Action, Outcome, T]


class NewRules:
    """The reads of one connection."""

    make_rule = ReadRule

    def __init__(self, now: Callable[[], float], stream: str = STREAM) -> None:
        self._now = now
        self._stream = stream
        self._cache = StreamCache()
        self._rule = self.make_rule(stream, self._cache, now)
        self._session = SessionState()

    def wrote(self, seq: int, subject: str, *, is_rollup: bool) -> None:
        """The session of this connection has written a message."""
        self._session.note(self._stream, seq, subject, is_own_write=True, breaks_run=is_rollup)

    def read(self, read: Read) -> Reading:
        """Begin a read."""
        session = self._session if read.is_session else None
        if read.kind == "last" and not read.is_from_leader and not has_wildcard(read.subject):
            proven = yield from self._last_at_once(read, session)
            if proven is not None:
                return Answer((proven,))
        goal = ReadGoal(self._stream, 0 if read.is_session else read.wanted, session, RetryPolicy(FOREVER, self._now))
        try:
            messages = yield from self._messages(goal, read)
        except StaleReadError as error:
            raise RefusedError from error
        if session is not None:
            for message in messages:
                if read.kind == "last" and read.subject == message.subject:
                    session.note_state(self._stream, max(message.seq, goal.wanted), message.subject, message.seq)
                else:
                    session.note(self._stream, message.seq, message.subject)
            session.note(self._stream, goal.reached)
        return Answer(tuple(messages))

    def _last_at_once(self, read: Read, session: SessionState | None) -> Step[StoredMessage | None]:
        """The newest message of a literal subject by one request, as `stream_reads.py` does it before all else."""
        wanted = read.wanted if session is None else session.seen(self._stream)
        cache, now = self._cache, self._now()
        existed, is_fresh = cache.reached, cache.has_config(now)
        if cache.is_leader_first or not cache.is_known(now) or not cache.created or cache.origin:
            return None
        told = yield actions.AskDirect(GetRequest(last_by_subj=read.subject), stream=self._stream)
        if not isinstance(told, actions.Direct) or not told.replies.items:
            return None
        found = told.replies.items[0].message
        if found.stream != self._stream or found.time < cache.floor:
            return None
        if found.seq < wanted and not (is_fresh and cache.is_alone and wanted <= existed):
            return None
        if session is not None:
            session.note_state(self._stream, max(found.seq, wanted), found.subject, found.seq)
        return found

    def _messages(self, goal: ReadGoal, read: Read) -> Step[list[StoredMessage]]:
        get = self._rule.get_from_leader if read.is_from_leader else self._rule.get
        if read.kind == "last":
            message = yield from self._run(goal, get(goal, GetRequest(last_by_subj=read.subject)))
        elif read.kind == "seq":
            message = yield from self._run(goal, get(goal, GetRequest(seq=read.seq)))
        elif read.kind == "next":
            message = yield from self._run(goal, get(goal, GetRequest(seq=read.seq, next_by_subj=read.subject)))
        elif read.kind == "many":
            return (yield from self._many(goal, read.subject))
        elif read.is_from_leader:
            return (yield from self._range_by_leader(goal, read))
        else:
            return (yield from self._range(goal, read))
        return [] if message is None else [message]

    # The newest of many subjects

    def _many(self, goal: ReadGoal, pattern: str) -> Step[list[StoredMessage]]:
        yield from self._run(goal, self._rule.learn_generation(goal))
        newest: dict[str, StoredMessage] = {}
        for message in (yield from self._piece(goal, (pattern,))):
            known = newest.get(message.subject)
            if known is None or known.seq < message.seq:
                newest[message.subject] = message
        return sorted(newest.values(), key=lambda message: message.seq)

    def _piece(self, goal: ReadGoal, subjects: tuple[str, ...]) -> Step[list[StoredMessage]]:
        found: list[StoredMessage] = []
        start, part = 0, goal
        while True:
            request = GetRequest(multi_last=subjects, seq=start, max_bytes=PAGE_BYTES)
            answer = yield from self._run(part, self._rule.newest_page(part, request, subjects))
            if isinstance(answer, Retry):
                yield from self._wait(goal, answer)
            elif answer is None and not found:
                return (yield from self._not_found(goal, subjects))
            elif answer is None:
                found.clear()
                start = 0
                yield from self._wait(goal, Retry(part.behind(0)))
            elif answer.end is None:
                return found
            else:
                found += [item.message for item in answer.items]
                goal.reach(answer.end.up_to_seq)
                if answer.end.pending <= 0 or not answer.items:
                    return found
                start, part = found[-1].seq + 1, part.for_all_of(answer.end.up_to_seq)

    def _not_found(self, goal: ReadGoal, subjects: tuple[str, ...]) -> Step[list[StoredMessage]]:
        found = []
        for subject in subjects:
            message = yield from self._run(goal, self._rule.get(goal, GetRequest(last_by_subj=subject)))
            if message is not None:
                found.append(message)
        if not found or "*" not in subjects[0]:
            return found
        names = yield from self._resolve(goal, subjects[0])
        return (yield from self._piece(goal, tuple(names))) if names else []

    def _resolve(self, goal: ReadGoal, pattern: str) -> Step[list[str]]:
        while True:
            told = yield actions.AskInfo(self._rule.origin, subjects=pattern, is_noted=False)
            is_leader = isinstance(told, StreamInfo) and leader_word(told) is not None
            if isinstance(told, StreamInfo) and is_leader and told.state.last_seq >= goal.wanted:
                return list(told.state.subjects)
            yield actions.Wait()

    # Ranges

    def _range(self, goal: ReadGoal, read: Read) -> Step[list[StoredMessage]]:
        reader = RangeReader(start=read.seq, end=read.end, subject=read.subject, at_least=goal.wanted)
        found: list[StoredMessage] = []
        part = goal.for_all_of(reader.end)
        yield from self._run(part, self._rule.learn_generation(part))
        yield from self._run(part, self._rule.exists(part))
        while not reader.is_done:
            if reader.state is RangeState.DOUBTFUL:
                columns = yield from self._resolve_doubt(goal, reader)
            else:
                columns = yield from self._page(goal, reader)
            if isinstance(columns, Retry):
                yield from self._wait(goal, columns)
            elif columns.seqs:
                found += columns.messages()
                goal.reached = columns.seqs[-1]
        return found

    def _range_by_leader(self, goal: ReadGoal, read: Read) -> Step[list[StoredMessage]]:
        """By Message Gets, if every leader has what is wanted (`leader_read.py`); here one after the other."""
        reader = RangeReader(start=read.seq, end=read.end, subject=read.subject, at_least=goal.wanted)
        part = goal.for_all_of(reader.end)
        if not (yield from self._run(part, self._rule.is_settled(part))):
            return (yield from self._range(goal, read))
        found: list[StoredMessage] = []
        while not reader.is_done:
            request = GetRequest(seq=reader.next_seq, next_by_subj=reader.filter)
            told = yield actions.AskLeader(request)
            if not isinstance(told, actions.Got):
                yield actions.Wait()
            elif told.message is None:
                reader.finish()
            else:
                columns = reader.accept(Columns.of([told.message], STREAM), None)
                found += columns.messages()
                goal.reached = told.message.seq
        return found

    def _page(self, goal: ReadGoal, reader: RangeReader) -> Step[Columns | Retry]:
        reader.lower_goal(goal.adapt())
        start, before, request = reader.next_seq, self._cache.leader, reader.request()
        request = msgspec.structs.replace(request, batch=min(request.batch, PAGE_MESSAGES))
        asked_at = self._now()
        answer = yield from self._direct(Direct(request, self._cache.needs_names))
        if isinstance(answer, Retry):
            return answer
        if not answer.items:
            reader.state = RangeState.DOUBTFUL  # as a page that ends at once
            return Columns.empty()
        messages = [item.message for item in answer.items]
        columns = Columns.of(messages, messages[0].stream)
        page = RangePage(
            columns.stream, answer.responder, columns.seqs, columns.times[0], start, asked_at, reader.is_of_all
        )
        gone = yield from self._run(goal, self._rule.page(goal, page, before))
        if isinstance(gone, Retry):
            return gone
        has_more = answer.end is not None and answer.end.pending > 0
        whole = not (gone or page.has_holes or has_more)
        reader.take_over(self._rule.removed_up_to(columns.stream), is_whole=whole)
        if gone:
            reader.pass_over(columns.seqs[-1])
            columns = columns.without(gone)
        return reader.accept(columns, answer.end)

    def _resolve_doubt(self, goal: ReadGoal, reader: RangeReader) -> Step[Columns | Retry]:
        request = GetRequest(seq=reader.next_seq, next_by_subj=reader.filter)
        part = goal.for_all_of(reader.floor)
        following = yield from self._run(part, self._rule.get(part, request))
        if following is None or (reader.end and following.seq > reader.end):
            reader.finish()
            return Columns.empty()
        reader.resume()
        return Retry(goal.behind(reader.next_seq - 1, reader.goal))

    # The driver

    def _run(self, goal: ReadGoal, steps: Steps[T]) -> Step[T]:
        outcome: Any = None
        while True:
            try:
                action = steps.send(outcome)
            except StopIteration as stop:
                result: T = stop.value
                return result
            if isinstance(action, Direct):
                outcome = yield from self._direct(action)
            elif isinstance(action, Info):
                told = yield actions.AskInfo(action.stream, action.is_deleted, action.subjects_filter)
                outcome = told if isinstance(told, StreamInfo) else _SILENCE
            elif isinstance(action, LeaderGet):
                told = yield actions.AskLeader(action.request)
                outcome = told.message if isinstance(told, actions.Got) else _SILENCE
            else:
                yield from self._wait(goal, action.retry)
                outcome = None

    def _direct(self, action: Direct) -> Step[Replies | Retry]:
        told = yield actions.AskDirect(action.request, action.is_named, self._stream)
        if not isinstance(told, actions.Direct):
            return _SILENCE
        told.replies.responder = told.node or ""
        return told.replies

    def _wait(self, goal: ReadGoal, retry: Retry) -> Step[None]:
        is_stale = any(isinstance(reason, StaleReadError) for reason in retry.reasons)
        if is_stale and goal.session is not None and not goal.has_looked:
            goal.has_looked = True
            yield from self._run(goal, self._rule.info(goal))
        yield actions.Wait(str(retry))


_SILENCE = Retry(RequestTimeoutError("no reply"))
