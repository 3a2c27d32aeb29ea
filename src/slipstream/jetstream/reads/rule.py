"""The rule of trusted reads on servers that ignore `min_last_seq`: what is requested, in which order, what is trusted.

Sans I/O: each method is a generator that yields requests (`Direct`, `Info`, `LeaderGet`) and gets their outcomes, or a
`Retry` in place of one; `Wait` means that the attempt was in vain, and ends the read when its time is up. A driver
sends and waits, `drive.py`; a simulation answers from a model. What an answer proves, and why, is in `evidence`.

The order of a single read, cheapest proof first:

1. A Direct Get of whichever copy answers. Good if the message proves itself, if the session knew it already, if the
   copy is the only store there is, or if the stream keeps everything and the copy has reached the wanted sequence.
2. Is the leader settled, and has it reached the wanted sequence? Then any answer to a Message Get is right.
3. Right after an election no leader is settled. The newest messages: a Direct Get that names its responder, and the
   leader's word behind it; good if the copy was level with the leader, or was the leader's own. A message by its
   sequence, or the next one: by any replica, if the leader's state behind it still has that message; for a session, or
   where messages expire, if that state shows as well that nothing lies before the next one.
4. Pause, and again.

For a mirror that is read by its own name the leader's questions go to the stream at the end of its upstreams.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from slipstream.api import GetRequest, StreamInfo
from slipstream.errors import (
    ApiError,
    AuthorizationError,
    BadRequestError,
    RequestTimeoutError,
    StaleReadError,
    StreamNotFoundError,
    TokenMismatchError,
    TooManyResultsError,
)
from slipstream.jetstream.reads.direct_get import Replies, StoredMessage
from slipstream.jetstream.reads.evidence import (
    LeaderWord,
    begins_as,
    expires,
    has_any_from,
    has_everything,
    is_first_from,
    is_plain_mirror,
    is_whole_mirror,
    lacks_any_of,
    leader_word,
    newest,
    oldest_time,
    removed_of,
    source_of,
    state_has,
    takes_over_all,
    up_to,
)
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.read_state import ASK_AGAIN, GENERATION_AGE, MirrorFacts, StreamCache
from slipstream.jetstream.reads.retry import Retry
from slipstream.wire import has_wildcard

T = TypeVar("T")

ALONE_SILENCES = 2  # of the only server of a stream, after which nothing is to be expected
NAMED_TRIES = 8  # Direct Gets in a row for the leader's copy, one of a few
_FORBIDDEN = "only stream info could prove it, which this user may not ask for"


# What a driver is asked for


class Direct(NamedTuple):
    """A Direct Get of whichever copy answers: `Replies`, or a `Retry`. `is_named`: by message tracing, if it can be."""

    request: GetRequest
    is_named: bool = False


class Info(NamedTuple):
    """Stream info by the leader, sent after this was asked for: `StreamInfo`, or a `Retry`."""

    stream: str
    is_deleted: bool = False  # with the deleted sequences
    subjects_filter: str = ""


class LeaderGet(NamedTuple):
    """A Message Get: a message, None for "not found", or a `Retry`."""

    stream: str
    request: GetRequest


class Wait(NamedTuple):
    """The attempt was in vain, for these reasons."""

    retry: Retry


Action = Direct | Info | LeaderGet | Wait
Steps = Generator[Action, Any, T]


class Found(NamedTuple):
    """A proven answer: the message, or that there is none."""

    message: StoredMessage | None


class RangePage(NamedTuple):
    """A page of a range, or a part of one: who sent it, and what is in it."""

    source: str  # the stream that answered
    responder: str  # the server, if it was named
    seqs: Sequence[int]
    oldest: int  # time
    start: int  # the first sequence asked for
    asked_at: float
    is_of_all: bool  # subjects, not of some

    @property
    def has_holes(self) -> bool:
        """Whether sequences are not in it. A copy that skipped a message, because it was removed since, lacks it, and
        what removed it may lie behind the page: with neither, the page is of no state of the stream."""
        return len(self.seqs) <= self.seqs[-1] - self.start


class ReadRule:
    """How reads of one stream are proven; what it learns on the way is in the cache."""

    __slots__ = ("_now", "cache", "stream")

    def __init__(self, stream: str, cache: StreamCache, now: Callable[[], float]) -> None:
        self.stream: str = stream
        self.cache: StreamCache = cache
        self._now = now

    # Single messages

    def get(self, goal: ReadGoal, request: GetRequest) -> Steps[StoredMessage | None]:
        """The message with a sequence, the next one of a subject, or its last one; None if there is none."""
        while True:
            result: Found | Retry | None = None
            if not self._begins_at_leader(goal):
                result = yield from self._by_copy(goal, request)
            if result is None:
                result = yield from self._by_leader(goal, request)
            if isinstance(result, Found):
                return result.message
            yield Wait(result)

    def _begins_at_leader(self, goal: ReadGoal) -> bool:
        """Whether a copy need not be asked: the reads of late were older than what was wanted of them."""
        cache = self.cache
        return cache.is_leader_first and 0 < goal.wanted <= cache.settled and self._allows_direct()

    def _by_copy(self, goal: ReadGoal, request: GetRequest) -> Steps[Found | Retry | None]:
        """What one copy says, if that proves itself; None if only the leader can tell."""
        subject, cache = request.last_by_subj, self.cache
        is_multi = bool(subject) and self._keeps_in_replicas()
        if is_multi:
            asked = GetRequest(multi_last=(subject,))
        elif subject or request.next_by_subj:
            asked = request
        else:  # with what follows it: that shows that it is gone
            asked = GetRequest(seq=request.seq, next_by_subj=">")
        existed, asked_at = cache.reached, self._now()
        answer: Replies | Retry = yield Direct(asked)
        if isinstance(answer, Retry):
            return answer
        message = newest(answer.items, subject) if is_multi else answer.items[0].message if answer.items else None
        if message is None:
            return None
        doubt = yield from self._doubt(goal, message.stream, message.time)
        if doubt is not None:
            return Retry(doubt)
        if self._proves_itself(goal, request, message):
            goal.reach(message.seq)
            return Found(message)
        if cache.is_mute:
            return Retry(goal.stale(_FORBIDDEN))
        is_right = yield from self._is_right_copy(
            goal,
            message.stream,
            existed,
            asked_at,
            has=up_to(answer) if subject else message.seq,
            needs=goal.wanted if subject else message.seq,
        )
        if isinstance(is_right, Retry):
            return is_right
        if not subject and not request.next_by_subj and message.seq != request.seq:  # only what follows it exists
            is_gone = message.stream == self.origin and existed >= goal.wanted
            return Found(None) if is_gone and goal.session is None else None
        if not is_right:
            return None
        if request.next_by_subj and goal.session is not None and not cache.is_lossless:
            told = yield from self._word(goal)  # what lay before it may be gone: never show it again
            if isinstance(told, Retry):
                return told
            goal.reach(told.last_seq)
        goal.reach(goal.wanted)
        return Found(message)

    def _keeps_in_replicas(self) -> bool:
        """Whether the last sequence of a copy proves something: then it is asked for."""
        return self.cache.is_lossless and not self.cache.is_alone

    def _proves_itself(self, goal: ReadGoal, request: GetRequest, message: StoredMessage) -> bool:
        """A message that is new enough was the newest of its subject when it was stored; or the session knew it."""
        if request.last_by_subj:
            if message.seq >= goal.wanted:
                return True
            return message.subject == request.last_by_subj and goal.known(message.subject) == message.seq
        return not request.next_by_subj and message.seq == request.seq >= goal.wanted

    def _is_right_copy(
        self, goal: ReadGoal, source: str, existed: int, asked_at: float, *, has: int, needs: int
    ) -> Steps[bool | Retry]:
        """Whether a copy that has reached one sequence, and needs to have reached another, is right in what it shows.

        What is wanted must have existed when it was asked; where nothing was ever removed, a copy need not have reached
        it to be right about what lies before.
        """
        cache = self.cache
        if not cache.has_config(self._now()):
            told = yield from self.info(goal)
            if isinstance(told, Retry) and not cache.had_config(self._now()):
                return told
        config = cache.config
        if config is None or goal.wanted > max(existed, has):
            return False
        if source == self.origin and cache.is_alone:
            return True  # the only store there is
        if not cache.is_lossless or has < needs:
            return False
        if source == self.origin:
            return True
        return (yield from self._is_right_mirror(source, needs, asked_at))

    def _is_right_mirror(self, source: str, needs: int, asked_at: float) -> Steps[bool | Retry]:
        """Whether a mirror of a stream that keeps everything has all of it: asked after its answer, of itself.

        A `Retry` if it has, but was not known before the answer was requested, at `asked_at`.
        """
        before, sent = self.cache.mirrors.get(source), self._now()
        try:
            told: StreamInfo | Retry = yield Info(source)
        except (ApiError, AuthorizationError):  # of another account or domain
            return False
        if (
            isinstance(told, Retry)
            or not is_whole_mirror(told.config, self.origin)
            or not has_everything(told.state, self.cache.first_seq, needs)
            or not begins_as(told.state, self.cache.first_ts)
        ):
            return False
        self._note_mirror(source, told, sent)
        return True if before is not None and before.is_one(told.created, asked_at) else Retry()

    # By the leader

    def get_from_leader(self, goal: ReadGoal, request: GetRequest) -> Steps[StoredMessage | None]:
        """The same by the leader alone, as far as it can prove itself."""
        while True:
            result = yield from self._by_leader(goal, request)
            if isinstance(result, Found):
                return result.message
            yield Wait(result)

    def is_settled(self, goal: ReadGoal) -> Steps[bool]:
        """Whether every leader has what is wanted: asked until one has it, settled or not."""
        goal.with_leader = True
        while self.cache.settled < goal.wanted:
            word = yield from self._word(goal)
            if isinstance(word, LeaderWord):
                return word.is_settled
            yield Wait(word)
        return True

    def newest_seq(self, goal: ReadGoal) -> Steps[int]:
        """The newest sequence by the word of a leader that has what is wanted."""
        goal.with_leader = True
        while True:
            word = yield from self._word(goal)
            if isinstance(word, LeaderWord):
                return word.last_seq
            yield Wait(word)

    def _by_leader(self, goal: ReadGoal, request: GetRequest) -> Steps[Found | Retry]:
        """The leader's answer, if it can be proven."""
        cache = self.cache
        goal.with_leader = True
        if cache.settled < goal.wanted:
            told = yield from self._word(goal)
            if isinstance(told, Retry):
                return told
            if not told.is_settled:
                return (yield from self._unsettled(goal, request, told))
        return (yield from self._settled(goal, request))

    def _word(self, goal: ReadGoal) -> Steps[LeaderWord | Retry]:
        """The word of a leader that has reached the wanted sequence."""
        info = yield from self.info(goal)
        if isinstance(info, Retry):
            if not any(isinstance(reason, RequestTimeoutError) for reason in info.reasons):
                return info
            goal.leader_silences += 1
            if self.cache.is_alone and goal.leader_silences >= ALONE_SILENCES:
                raise goal.stale("its only server does not answer, and no other could prove more")
            return info.then(goal.stale("its leader does not answer"))
        word = leader_word(info)
        if word is None:
            return Retry(goal.stale("it has no leader"))
        if word.last_seq < goal.wanted:
            return Retry(goal.behind(word.last_seq))
        return word

    def _settled(self, goal: ReadGoal, request: GetRequest) -> Steps[Found | Retry]:
        """A Message Get: every leader has what is wanted, so whichever answers is right."""
        # Where nothing is wanted, a mirror's own leader speaks for the mirror.
        leader_of = self.origin if goal.wanted else self.stream
        message: StoredMessage | Retry | None = yield LeaderGet(leader_of, request)
        if isinstance(message, Retry):
            return message
        if message is None:
            return (yield from self._absent(goal, request))
        doubt = yield from self._doubt(goal, self.origin, message.time)
        if doubt is not None:
            return Retry(doubt)
        self.cache.is_leader_first = message.seq < goal.wanted and not self.cache.is_alone
        goal.reach(max(message.seq, goal.wanted))
        if request.next_by_subj and goal.session is not None:  # what lay before it may be gone: never show it again
            told = yield from self._vouched(goal)
            if isinstance(told, Retry):
                return told
            goal.reach(told.last_seq)
        return Found(message)

    def _vouched(self, goal: ReadGoal) -> Steps[LeaderWord | Retry]:
        """A word behind the answer of a leader that is at least as new as who answered: none was elected after it.

        Whichever leader answers a Message Get, another may answer for the word: one that was deposed meanwhile.
        """
        first = word = yield from self._word(goal)
        while not (isinstance(word, Retry) or word.is_heard_by_all):
            if isinstance(first, Retry) or not word.is_same_leader(first):
                return Retry(goal.stale("another leader was elected"))
            if word.led_at(first):
                break
            yield Wait(Retry(goal.stale(f"{word.name} leads it and does not hear from all replicas")))
            word = yield from self._word(goal)
        return word

    def _absent(self, goal: ReadGoal, request: GetRequest) -> Steps[Found | Retry]:
        """The leader found nothing: that is true, but for the last message of a pattern, which it may overlook.

        A session remembers the absence, by the word of a leader behind it.
        """
        if request.last_by_subj and has_wildcard(request.last_by_subj):
            told = yield from self.info(goal, subjects_filter=request.last_by_subj)
            if isinstance(told, Retry):
                return told
            if leader_word(told) is None or told.state.last_seq < goal.wanted:
                return Retry(goal.behind(told.state.last_seq))
            if told.state.subjects:
                return Retry(goal.stale(f"its leader finds no newest message of {request.last_by_subj}"))
            goal.reach(told.state.last_seq)  # as of that state: it shows the absence itself
        elif goal.session is not None:
            word = yield from self._vouched(goal)
            if isinstance(word, Retry):
                return word
            goal.reach(word.last_seq)
        goal.reach(goal.wanted)
        return Found(None)

    # After an election

    def _unsettled(self, goal: ReadGoal, request: GetRequest, before: LeaderWord) -> Steps[Found | Retry]:
        """Two leaders may answer, and one of them may be behind: a copy that is level, or the leader's own."""
        if not self._allows_direct():
            return (yield from self._unsettled_alone(goal, request, before))
        subject = request.last_by_subj
        is_single = not subject and request.start_time is None
        is_long = self.cache.needs_names  # the list of what was deleted: megabytes for one message
        if is_single and not is_long:
            found = yield from self._still_there(goal, request, before)
            if isinstance(found, Retry):
                return (yield from self._alone_or(found, goal, request, before))
            if found is not None:
                return found
        asked = GetRequest(multi_last=(subject,)) if subject and not has_wildcard(subject) else request
        try:
            answer = yield from self._by_leaders_copy(goal, asked, before)
        except BadRequestError:
            return Retry(goal.stale("only a multi-subject get could prove it: nats-server 2.11 or newer is needed"))
        if isinstance(answer, Retry):
            return (yield from self._alone_or(answer, goal, request, before))
        if isinstance(answer, Replies) and answer.items:
            return self._found_unsettled(goal, request, answer.items[0].message)
        if is_single and is_long and answer is None:
            found = yield from self._still_there(goal, request, before)
            if found is not None:
                return found
        return (yield from self._unsettled_alone(goal, request, before))

    def _alone_or(
        self, silence: Retry, goal: ReadGoal, request: GetRequest, before: LeaderWord
    ) -> Steps[Found | Retry]:
        """No replica answered. One that stands still gets a part of all Direct Gets for a minute: the leader may need
        none of them."""
        alone = yield from self._unsettled_alone(goal, request, before)
        return silence if isinstance(alone, Retry) else alone

    def _still_there(self, goal: ReadGoal, request: GetRequest, before: LeaderWord) -> Steps[Found | Retry | None]:
        """A message by its sequence, or the next one, by any replica: the leader's state behind it still has it.

        A replica has every message up to its own last sequence that still exists, so none lies before the one it found;
        whether that was removed since, only the leader knows. None if its state does not say.
        """
        answer: Replies | Retry = yield Direct(request, is_named=True)
        if isinstance(answer, Retry):
            return answer
        if source_of(answer) != self.origin:
            return None
        message, subject = answer.items[0].message, request.next_by_subj
        doubt = yield from self._doubt(goal, self.origin, message.time)
        if doubt is not None:
            return Retry(doubt)
        is_strict = self._needs_same_state(goal, request)
        counted = subject if is_strict and not has_wildcard(subject) else ""
        told = yield from self.info(goal, is_deleted=True, subjects_filter=counted)
        word = None if isinstance(told, Retry) else leader_word(told)
        if isinstance(told, Retry) or word is None or word.last_seq < max(goal.wanted, message.seq):
            return None
        is_by_name = bool(answer.responder) and answer.responder == before.name and word.is_same_leader(before)
        if not is_by_name:
            if not state_has(told.state, message.seq):
                return None
            if is_strict and not is_first_from(told.state, request.seq, message.seq, counted):
                return None
        return self._found_unsettled(goal, request, message)

    def _needs_same_state(self, goal: ReadGoal, request: GetRequest) -> bool:
        """Whether one state must show that a message is the next one: that it still exists is not enough.

        For a session: the replica may be ahead of the leader, which lacks what removed the messages before it, and a
        later read would show them again. Where messages expire: a replica whose clock is ahead lacks some that exist.
        """
        config = self.cache.config
        return bool(request.next_by_subj) and (goal.session is not None or config is None or expires(config))

    def _found_unsettled(self, goal: ReadGoal, request: GetRequest, message: StoredMessage) -> Found:
        goal.reach(max(goal.wanted, message.seq))
        if request.next_by_subj and self.cache.leader is not None:
            goal.reach(self.cache.leader.last_seq)  # what lay before it may be gone: a session never shows it again
        return Found(message)

    def _allows_direct(self) -> bool:
        config = self.cache.config
        return config is None or config.allow_direct or bool(self.cache.origin)

    def _unsettled_alone(self, goal: ReadGoal, request: GetRequest, before: LeaderWord) -> Steps[Found | Retry]:
        """What a leader can prove by itself: an absence by one of its states, a message that is new enough."""
        absent = yield from self._absent_in_state(goal, request)
        if absent is None and request.next_by_subj and self._allows_direct():
            absent = yield from self._absent_from(goal, request, before)
        if absent is not None:
            return absent
        message: StoredMessage | Retry | None = yield LeaderGet(self.origin, request)
        if isinstance(message, StoredMessage) and self._proves_itself(goal, request, message):
            doubt = yield from self._doubt(goal, self.origin, message.time)
            if doubt is None:
                goal.reach(message.seq)
                return Found(message)
        hint = (
            "its own copy did not answer"
            if self._allows_direct()
            else "only its copy could prove more: set allow_direct"
        )
        return Retry(goal.stale(f"{before.name} leads it since a moment, and {hint}"))

    def _absent_from(self, goal: ReadGoal, request: GetRequest, before: LeaderWord) -> Steps[Found | Retry | None]:
        """Whether nothing of a subject or pattern follows: the newest of each subject lies before."""
        if request.start_time is not None or (has_wildcard(request.next_by_subj) and self.may_leave_out()):
            return None
        asked = GetRequest(multi_last=(request.next_by_subj,))
        try:
            answer = yield from self._by_leaders_copy(goal, asked, before)
        except (BadRequestError, TooManyResultsError):
            return None
        if not isinstance(answer, Replies) or not answer.items or answer.end is None or answer.end.pending > 0:
            return answer if isinstance(answer, Retry) else None
        last = newest(answer.items, request.next_by_subj)
        if last is not None and last.seq >= max(request.seq, 1):
            return None
        if self.cache.leader is not None:
            goal.reach(self.cache.leader.last_seq)
        return Found(None)

    def _by_leaders_copy(
        self, goal: ReadGoal, request: GetRequest, before: LeaderWord
    ) -> Steps[Replies | Retry | None]:
        """`by_name`, several times: who answers is chance, and the next one may be the leader's own copy."""
        for _ in range(NAMED_TRIES):
            answer = yield from self.by_name(goal, request, before)
            if answer is not None:
                return answer
        return None

    def by_name(self, goal: ReadGoal, request: GetRequest, before: LeaderWord) -> Steps[Replies | Retry | None]:
        """An answer of the leader's own copy, or of one that is level with it; None if it was neither.

        `before` is the leader's word, which has reached the wanted sequence. An empty answer proves nothing.
        """
        answer: Replies | Retry = yield Direct(request, is_named=True)
        if isinstance(answer, Retry):
            return answer
        if not answer.items:
            return answer  # by an unknown responder
        if source_of(answer) != self.origin:
            return None
        doubt = yield from self._doubt(goal, self.origin, oldest_time(answer.items))
        if doubt is not None:
            return None
        is_named = bool(answer.responder) and answer.responder == before.name
        if not is_named and answer.responder and (_is_bounded(request) or up_to(answer) < before.last_seq):
            return None  # another copy, and one that is behind
        told = yield from self._word(goal)
        if isinstance(told, Retry):
            return told
        if is_named and told.is_same_leader(before):
            return answer
        if _is_bounded(request):
            return None
        reached = up_to(answer)
        is_level = reached == told.last_seq and told.is_heard_by_all
        is_as_of = self.cache.is_lossless and reached >= goal.wanted
        return answer if is_level or is_as_of else None

    def _absent_in_state(self, goal: ReadGoal, request: GetRequest) -> Steps[Found | Retry | None]:
        """Whether one state of a leader shows that there is no such message."""
        subject = request.last_by_subj or request.next_by_subj
        told = yield from self.info(goal, subjects_filter=subject)
        if isinstance(told, Retry):
            return told
        if leader_word(told) is None or told.state.last_seq < goal.wanted:
            return Retry(goal.behind(told.state.last_seq))
        if subject and not told.state.subjects:
            goal.reach(told.state.last_seq)
            return Found(None)
        if request.last_by_subj:
            return None
        if not subject or subject == ">":
            return (yield from self._absent_by_deletes(goal, request))
        return None

    def _absent_by_deletes(self, goal: ReadGoal, request: GetRequest) -> Steps[Found | Retry | None]:
        """Whether the leader's list of what was deleted shows that a sequence, or all from it on, is gone."""
        told = yield from self.info(goal, is_deleted=True)
        if isinstance(told, Retry):
            return told
        if leader_word(told) is None or told.state.last_seq < goal.wanted:
            return Retry(goal.behind(told.state.last_seq))
        state = told.state
        has_it = has_any_from(state, request.seq) if request.next_by_subj else state_has(state, request.seq)
        if has_it is not False or request.start_time is not None:
            return None
        goal.reach(state.last_seq)
        return Found(None)

    # The newest messages of many subjects, and pages of ranges

    def newest_page(
        self, goal: ReadGoal, request: GetRequest, subjects: Sequence[str]
    ) -> Steps[Replies | Retry | None]:
        """One page of a multi-subject get that is proven; None if nothing was found, which proves nothing."""
        cache, is_bounded = self.cache, _is_bounded(request)
        before: LeaderWord | None = None
        if not cache.has_config(self._now()) or cache.reached < goal.wanted:
            told = yield from self._word(goal)
            if isinstance(told, Retry):
                return told
        existed = cache.reached
        is_by_name = not cache.is_alone and (is_bounded or not cache.is_lossless)
        if is_by_name:
            before = cache.leader
            if before is None or before.last_seq < goal.wanted:
                word = yield from self._word(goal)
                if isinstance(word, Retry):
                    return word
                before = word
        asked_at = self._now()
        answer: Replies | Retry = yield Direct(request, is_named=is_by_name)
        if isinstance(answer, Retry):
            return answer
        if not answer.items:
            return None
        source = source_of(answer)
        doubt = yield from self._doubt(goal, source, oldest_time(answer.items))
        if doubt is not None:
            return Retry(doubt)
        end = answer.end
        reached = -1 if end is None or is_bounded else end.up_to_seq
        if not is_bounded and _all_new(answer, subjects, goal.wanted):
            return answer
        is_right = yield from self._is_right_copy(goal, source, existed, asked_at, has=reached, needs=goal.wanted)
        if is_right is True or isinstance(is_right, Retry):
            return answer if is_right is True else is_right
        if source != self.origin:
            return self._by_origin(source) or Retry(goal.foreign(source))
        if before is None:
            return Retry(goal.behind(reached))
        word = yield from self._word(goal)
        if isinstance(word, Retry):
            return word
        is_named = bool(answer.responder) and answer.responder == before.name and word.is_same_leader(before)
        is_level = not is_bounded and end is not None and reached == word.last_seq and word.is_heard_by_all
        if is_named or is_level:
            return answer
        return Retry(goal.stale("neither its leader's copy nor one level with it answered"))

    def may_leave_out(self) -> bool:
        """Whether a multi-subject get may miss subjects that have messages, as that of nats-server 2.15.1 does.

        That takes a newest message of a subject that is removed while an older one stays.
        """
        config = self.cache.config
        if self.cache.is_lossless or config is None:
            return not self.cache.is_lossless
        return config.max_msgs_per_subject != 1 and (not config.deny_delete or config.allow_msg_ttl)

    def exists(self, goal: ReadGoal) -> Steps[None]:
        """Wait until what is wanted is known to exist: an answer that was asked for before proves nothing about it."""
        while self.cache.reached < goal.wanted:
            word = yield from self._word(goal)
            if isinstance(word, Retry):
                yield Wait(word)

    def page(self, goal: ReadGoal, page: RangePage, before: LeaderWord | None) -> Steps[set[int] | Retry]:
        """Which messages of a page of a range are gone; the others are proven, and none is missing among them.

        A replica at its last sequence has all messages up to it that still exist, so nothing is missing; what is gone,
        one state of the leader shows. `before`: the leader's word from before the page was asked for.
        """
        source, seqs = page.source, page.seqs
        doubt = yield from self._doubt(goal, source, page.oldest)
        if doubt is not None:
            return Retry(doubt)
        cache = self.cache
        if not cache.has_config(self._now()):
            told = yield from self._word(goal)
            if isinstance(told, Retry) and not cache.had_config(self._now()):
                return told
        config = cache.config
        if config is None:
            return Retry(goal.stale("its configuration is unknown"))
        if source == self.origin and (cache.is_alone or cache.is_lossless):
            return set()
        if cache.is_lossless:
            is_right = yield from self._is_right_mirror(source, seqs[-1], page.asked_at)
            if isinstance(is_right, Retry):
                return is_right
            return set() if is_right else self._by_origin(source) or Retry(goal.foreign(source))
        return (yield from self._leftovers(goal, page, before))

    def removed_up_to(self, source: str) -> int:
        """Up to which sequence messages may have replaced others that a page of `source` has or lacks, by the last word
        of the leader; 0: none ever does, or the page is of the only store."""
        cache = self.cache
        is_exact = cache.is_lossless or (cache.is_alone and source == self.origin)
        return 0 if cache.leader is None or is_exact else cache.leader.last_seq

    def _leftovers(self, goal: ReadGoal, page: RangePage, before: LeaderWord | None) -> Steps[set[int] | Retry]:
        """What a copy still shows although it is gone, by the leader's state behind its answer."""
        cache, seqs = self.cache, page.seqs
        told = yield from self.info(goal, is_deleted=not cache.needs_names)
        if isinstance(told, Retry):
            return told
        word = leader_word(told)
        if word is None or word.last_seq < max(goal.wanted, seqs[-1]):
            return Retry(goal.behind(told.state.last_seq))
        is_replica = page.source == self.origin
        is_by_name = (
            is_replica
            and bool(page.responder)
            and before is not None
            and before.last_seq >= goal.wanted
            and page.responder == before.name
            and word.is_same_leader(before)
        )
        if is_by_name:
            return set()
        gone = removed_of(told.state, seqs)
        if gone is None:
            return Retry(goal.stale("too much of it was deleted for a list, and its leader's own copy did not answer"))
        if not is_replica and (not page.is_of_all or lacks_any_of(told.state, page.start, seqs)):
            return self._by_origin(page.source) or Retry(goal.foreign(page.source))
        return gone

    def _by_origin(self, source: str) -> Retry | None:
        """A mirror that is read by its own name could not prove something: its origin's copies are asked at once."""
        if source != self.stream or self.cache.is_origin_first:
            return None
        self.cache.is_origin_first = True
        return Retry()

    # Whom to believe

    @property
    def origin(self) -> str:
        """The stream whose leader is asked: this one, or the one at the end of a mirror's upstreams."""
        return self.cache.origin or self.stream

    @property
    def copies(self) -> str:
        """The stream whose copies are asked: this one, or the origin of a mirror that cannot prove what it has."""
        return self.cache.origin if self.cache.is_origin_first and self.cache.origin else self.stream

    def info(self, goal: ReadGoal, *, is_deleted: bool = False, subjects_filter: str = "") -> Steps[StreamInfo | Retry]:
        """Stream info of the origin, noted; a `Retry` also if it is of an older stream of that name.

        Raises StaleReadError if the origin of a mirror does not exist: what it had cannot be proven any more.
        """
        cache = self.cache
        while True:
            sent = self._now()
            try:
                told: StreamInfo | Retry = yield Info(self.origin, is_deleted, subjects_filter)
            except AuthorizationError:
                cache.is_mute, cache.asked_at = True, sent
                return Retry(goal.stale(_FORBIDDEN))
            except StreamNotFoundError as error:
                if self.origin == self.stream:
                    raise
                cache.asked_at = sent
                raise goal.stale(f"{self.origin!r}, which it mirrors, does not exist") from error
            if isinstance(told, Retry):
                cache.silent_at = sent
                return told
            upstream = told.config.mirror
            if upstream is None:
                break
            if (
                upstream.external is not None
                or not takes_over_all(told.config, upstream.name)
                or upstream.name == self.stream
            ):
                cache.asked_at = sent
                part = f"{self.origin!r} mirrors a part of a stream, or a stream elsewhere"
                reason = f"{part}: only a message that is new enough proves itself there"
                return Retry(goal.stale(reason))
            cache.follow(upstream.name)
        if not cache.learn(told, sent) or not goal.learn(told):
            return Retry(goal.stale("the leader of an older stream of that name answered"))
        return told

    def learn_generation(self, goal: ReadGoal, *, is_due: bool = False) -> Steps[None]:
        """Learn since when the stream exists, unless that is known; a leader that is away is not waited for."""
        cache, session, now = self.cache, goal.session, self._now()
        is_known = cache.is_known(now) and not is_due
        if session is not None and cache.created:
            session.made(self.stream, cache.created, 0)  # it learns it, also if it need not be asked for
            is_known = is_known and session.created(self.stream) <= cache.created  # a token may be foreign
        if is_known:
            return
        is_told = yield from self._look(goal)
        if not is_told:  # not by every read, but soon again: meanwhile it may have been made again
            cache.asked_at = now - GENERATION_AGE + ASK_AGAIN

    def _look(self, goal: ReadGoal) -> Steps[bool]:
        """Stream info, for a read that may be answered without; whether it was told.

        A mirror outlives the stream that it copies, and answers for what it has.
        """
        try:
            told = yield from self.info(goal)
        except TokenMismatchError:
            raise
        except StaleReadError:
            return False
        return not isinstance(told, Retry)

    def _doubt(self, goal: ReadGoal, source: str, oldest: int) -> Steps[StaleReadError | None]:
        """Why an answer of `source`, whose oldest message is of that time, is not to be believed; None if it is."""
        cache = self.cache
        if not cache.is_known(self._now()):
            yield from self.learn_generation(goal)
        if source != self.origin:
            is_plain = yield from self._is_plain_mirror(source)
            if not is_plain:
                return goal.foreign(source)
            if not cache.has_config(self._now()):  # a mirror may hold the messages of a stream that was deleted
                yield from self._look(goal)
        if cache.is_unsure(self._now()) and not goal.policy.is_late:
            return goal.stale("its leader does not answer, and it may have been recreated")
        if oldest >= cache.floor:
            return None
        if cache.may_ask(self._now()):
            yield from self._look(goal)
        return goal.stale("an older stream of that name answered") if oldest < cache.floor else None

    def _is_plain_mirror(self, source: str) -> Steps[bool]:
        """Whether a stream that answered is a mirror with the messages of this one, under their own subjects."""
        if source == self.stream:
            return True  # a mirror that is read by its own name: `info` has looked at it
        known, now = self.cache.mirrors.get(source), self._now()
        if known is not None and now - known.asked_at < GENERATION_AGE:
            return known.is_plain
        try:
            told: StreamInfo | Retry = yield Info(source)
        except (ApiError, AuthorizationError):  # of another account or domain: what it holds cannot be known
            self.cache.mirrors[source] = MirrorFacts(is_plain=False, created=0, asked_at=now, known_at=now)
            return False
        return not isinstance(told, Retry) and self._note_mirror(source, told, now)

    def _note_mirror(self, source: str, told: StreamInfo, sent: float) -> bool:
        """Take note of the info of a mirror; whether it is a plain one."""
        known, is_plain = self.cache.mirrors.get(source), is_plain_mirror(told.config, self.origin)
        since = known.known_at if known is not None and known.created == told.created else self._now()
        self.cache.mirrors[source] = MirrorFacts(is_plain, told.created, sent, since)
        return is_plain


def _is_bounded(request: GetRequest) -> bool:
    return bool(request.up_to_seq) or request.up_to_time is not None


def _all_new(answer: Replies, subjects: Sequence[str], wanted: int) -> bool:
    """Whether every subject that was asked for was found, with a message that proves itself."""
    if len(answer.items) < len(subjects) or any(item.message.seq < wanted for item in answer.items):
        return False
    return {item.message.subject for item in answer.items}.issuperset(subjects)
