"""The rule of trusted reads step by step, with scripted answers of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from slipstream.api import GetRequest, StreamConfig, StreamInfo, StreamState
from slipstream.api.times import format_time
from slipstream.errors import RequestTimeoutError, StaleReadError
from slipstream.jetstream.reads.direct_get import BatchItem, EndOfBatch, Replies, StoredMessage
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.read_state import StreamCache
from slipstream.jetstream.reads.retry import Retry, RetryPolicy
from slipstream.jetstream.reads.rule import Direct, Info, LeaderGet, ReadRule, Steps, Wait
from slipstream.jetstream.reads.session import SessionState

CREATED = 1_000_000_000_000
LAST = 9
OLD = StoredMessage("s.a", 4, CREATED + 4, b"", b"4", "S")

NEXT = GetRequest(seq=2, next_by_subj="s.a")
SEQ = GetRequest(seq=4)


def info(*, deleted: tuple[int, ...] = ()) -> StreamInfo:
    """By a leader that was elected a second ago."""
    return StreamInfo(
        config=StreamConfig(name="S", subjects=("s.>",), max_msgs=5, num_replicas=3, allow_direct=True),
        created=CREATED,
        ts=CREATED + 2_000_000_000,
        state=StreamState(
            messages=LAST - 3 - len(deleted),
            first_seq=4,
            last_seq=LAST,
            num_deleted=len(deleted),
            deleted=deleted,
            subjects={"s.a": 1},
        ),
        cluster={
            "leader": "n3",
            "leader_since": format_time(CREATED + 1_000_000_000),
            "replicas": [{"name": "n1", "active": 1}, {"name": "n2", "active": 1}],
        },
    )


def run(steps: Steps[Any], answer: Callable[[object], object], *, is_patient: bool = False) -> Any:
    """Carry a read out; it gives up with its first attempt that was in vain, unless `answer` is told of those too."""
    reply: object = None
    try:
        while True:
            action = steps.send(reply)
            if isinstance(action, Wait) and not is_patient:
                raise action.retry.reasons[-1]
            reply = answer(action)
    except StopIteration as end:
        return end.value


def by_a_follower(action: object, leader: StreamInfo) -> object:
    """Every Direct Get is answered by n2, which has not reached what is wanted; the leader is n3."""
    if isinstance(action, Info):
        return leader
    if isinstance(action, LeaderGet):
        return OLD
    assert isinstance(action, Direct)
    replies = Replies("S")
    replies.items.append(BatchItem(OLD, -1))
    replies.end = EndOfBatch(-1, OLD.seq, -1)
    replies.responder = "n2" if action.is_named else ""
    return replies


def read(request: GetRequest, leader: StreamInfo) -> StoredMessage | None:
    rule = ReadRule("S", StreamCache(), lambda: 0.0)
    goal = ReadGoal("S", LAST, None, RetryPolicy(1.0, lambda: 0.0))
    found: StoredMessage | None = run(rule.get(goal, request), lambda action: by_a_follower(action, leader))
    return found


@pytest.mark.parametrize("request_", [NEXT, SEQ], ids=["next", "seq"])
def test_after_an_election_the_state_of_the_leader_proves_a_message_of_any_replica(request_: GetRequest) -> None:
    assert read(request_, info()) == OLD


def test_after_an_election_a_next_message_that_is_gone_is_not_returned() -> None:
    with pytest.raises(StaleReadError, match="n3 leads it since a moment"):
        read(NEXT, info(deleted=(4,)))


def test_after_an_election_a_message_that_is_gone_is_absent() -> None:
    assert read(SEQ, info(deleted=(4,))) is None


@pytest.mark.parametrize("request_", [GetRequest(last_by_subj="s.a"), SEQ, NEXT], ids=["last", "seq", "next"])
def test_after_an_election_the_leader_proves_an_absence_while_a_replica_stands_still(request_: GetRequest) -> None:
    """A server that is frozen stays in the queue group of Direct Gets: questions whose responder is to be named are
    not answered, however often they are repeated."""
    gone = info(deleted=(4,))
    leader = replace(gone, state=replace(gone.state, subjects={}))

    def answer(action: object) -> object:
        if isinstance(action, Direct):
            if action.is_named:
                return Retry(RequestTimeoutError("timed out after 0.5 s"))
            return Replies("")
        return leader if isinstance(action, Info) else None

    goal = ReadGoal("S", LAST, None, RetryPolicy(1.0, lambda: 0.0))
    assert run(ReadRule("S", StreamCache(), lambda: 0.0).get(goal, request_), answer) is None


# Sessions: an answer that is ahead of the leader that vouches for it

AHEAD = StoredMessage("s.b", 2, CREATED + 2, b"", b"2", "S")
BEHIND = StoredMessage("s.a", 1, CREATED + 1, b"", b"1", "S")
FIRST = GetRequest(seq=1, next_by_subj="s.*")
SECOND = 1_000_000_000


class Split:
    """A bucket of s.a to s.e as of 5, by its leader n1. That was deposed: n2 leads, and has replaced s.a (sequence 6).

    `silence`: for how many seconds n1 has not heard from the others; `ahead` answers Direct Gets as of 6.
    """

    def __init__(self, *, led_for: float, silence: float, gone: bool = False) -> None:
        self.now = CREATED + 100 * SECOND
        self.led_for = led_for
        self.silence = silence
        self.is_ahead = True
        self.leader_has = (2, 3, 4, 5, 6) if gone else (1, 2, 3, 4, 5)
        self.responder = "n3"

    def info(self, action: Info) -> StreamInfo:
        has = self.leader_has
        subjects = dict.fromkeys(("s.a", "s.b", "s.c", "s.d", "s.e"), 1) if action.subjects_filter == "s.*" else {}
        if action.subjects_filter == "s.b":
            subjects = {"s.b": 1}
        return StreamInfo(
            config=StreamConfig(name="S", subjects=("s.>",), max_msgs_per_subject=1, num_replicas=3, allow_direct=True),
            created=CREATED,
            ts=self.now,
            state=StreamState(messages=5, first_seq=has[0], last_seq=has[-1], subjects=subjects),
            cluster={
                "leader": "n1",
                "leader_since": format_time(self.now - int(self.led_for * SECOND)),
                "replicas": [{"name": n, "active": int(self.silence * SECOND)} for n in ("n2", "n3")],
            },
        )

    def answer(self, action: object) -> object:
        if isinstance(action, Info):
            return self.info(action)
        message = AHEAD if self.is_ahead else BEHIND
        if isinstance(action, LeaderGet):
            return message
        assert isinstance(action, Direct)
        replies = Replies("S")
        replies.items.append(BatchItem(message, -1))
        replies.responder = self.responder if action.is_named else ""
        return replies

    def read(self, request: GetRequest, session: SessionState) -> StoredMessage | None:
        rule = ReadRule("S", StreamCache(), lambda: 0.0)
        goal = ReadGoal("S", 0, session, RetryPolicy(1.0, lambda: 0.0))
        found: StoredMessage | None = run(rule.get(goal, request), self.answer)
        session.note("S", goal.reached)
        return found


def session_at(seq: int) -> SessionState:
    session = SessionState()
    session.note("S", seq, "s.e", is_own_write=True)
    return session


def test_an_answer_need_not_show_what_its_session_wrote_after_it() -> None:
    """A read and a write of one session at once. The answer is noted as of what was wanted when the read began.

    Noted as of the write, it would pass for the newest message afterwards, in place of the one just written.
    """
    session = session_at(3)
    goal = ReadGoal("S", 0, session, RetryPolicy(1.0, lambda: 0.0), subject="s.b")
    session.note("S", 5, "s.b", is_own_write=True)
    info = StreamInfo(created=1_000, state=StreamState(messages=5, first_seq=1, last_seq=5))
    assert goal.learn(info)
    assert (goal.wanted, goal.adapt(), session.wanted("S", "s.b")) == (3, 3, 5)


@pytest.mark.parametrize("led_for", [8.0, 60.0], ids=["unsettled", "settled"])
def test_a_session_takes_no_next_message_that_is_ahead_of_the_leader(led_for: float) -> None:
    split, session = Split(led_for=led_for, silence=4.0), session_at(5)
    with pytest.raises(StaleReadError):
        split.read(FIRST, session)
    assert session.seen("S") == 5


def test_a_session_takes_no_absence_that_is_ahead_of_the_leader() -> None:
    split, session = Split(led_for=60.0, silence=4.0), session_at(5)
    goal = ReadGoal("S", 0, session, RetryPolicy(1.0, lambda: 0.0))
    rule = ReadRule("S", StreamCache(), lambda: 0.0)

    def answer(action: object) -> object:
        if isinstance(action, Direct):
            return Replies("S")
        return None if isinstance(action, LeaderGet) else split.answer(action)

    with pytest.raises(StaleReadError):
        run(rule.get(goal, GetRequest(seq=1, next_by_subj="s.z")), answer)


def test_a_session_takes_the_next_message_of_a_leader_that_hears_from_all() -> None:
    split, session = Split(led_for=60.0, silence=0.5, gone=True), session_at(5)
    assert split.read(FIRST, session) == AHEAD
    assert session.seen("S") == 6  # what lay before it is never shown again


def test_a_session_takes_the_next_message_of_a_leader_that_a_majority_followed_since() -> None:
    split, session = Split(led_for=60.0, silence=4.0, gone=True), session_at(5)
    rule = ReadRule("S", StreamCache(), lambda: 0.0)
    goal = ReadGoal("S", 0, session, RetryPolicy(1.0, lambda: 0.0))
    since, waits = split.now - 60 * SECOND, 0

    def answer(action: object) -> object:
        nonlocal waits
        if isinstance(action, Wait):  # n2 answers a heartbeat; n3 is away for good
            waits += 1
            split.now += SECOND
            return None
        if not isinstance(action, Info):
            return split.answer(action)
        heard = 100_000_000 if waits else 4 * SECOND
        replicas = [{"name": "n2", "active": heard}, {"name": "n3", "active": 90 * SECOND}]
        cluster = {"leader": "n1", "leader_since": format_time(since), "replicas": replicas}
        return replace(split.info(action), cluster=cluster)

    found = run(rule.get(goal, FIRST), answer, is_patient=True)
    assert (found, waits, goal.reached) == (AHEAD, 1, 6)


@pytest.mark.parametrize("request_", [FIRST, GetRequest(seq=1, next_by_subj="s.b")], ids=["pattern", "subject"])
def test_after_an_election_a_session_takes_what_one_state_of_the_leader_shows(request_: GetRequest) -> None:
    is_first = request_ is FIRST  # all before it are gone; otherwise it is the only one of its subject
    split, session = Split(led_for=8.0, silence=4.0, gone=is_first), session_at(5)
    assert split.read(request_, session) == AHEAD
    assert session.seen("S") == (6 if is_first else 5)


def test_after_an_election_a_session_takes_the_next_message_of_the_leaders_own_copy() -> None:
    split, session = Split(led_for=8.0, silence=4.0), session_at(5)
    split.responder, split.is_ahead = "n1", False
    assert split.read(FIRST, session) == BEHIND


# Messages that expire, by the clock of each replica


@pytest.mark.parametrize("limit", [{"max_age": timedelta(hours=1)}, {"allow_msg_ttl": True}], ids=["age", "ttl"])
def test_after_an_election_a_replica_proves_no_next_message_where_messages_expire(limit: dict[str, Any]) -> None:
    """Its clock may be ahead: then it lacks messages that the leader still has."""
    leader = info()
    ahead = GetRequest(seq=1, next_by_subj="s.*")
    first = StreamState(messages=7, first_seq=3, last_seq=LAST, subjects={"s.a": 6, "s.b": 1})
    leader = replace(leader, config=leader.config.replace(**limit), state=first)
    with pytest.raises(StaleReadError):
        read(ahead, leader)
    assert read(SEQ, leader) == OLD


# What a proof costs


def test_after_an_election_a_long_list_of_deleted_sequences_is_the_last_resort() -> None:
    long = replace(info(), state=StreamState(messages=2, first_seq=1, last_seq=LAST, num_deleted=60_000))
    asked: list[Info] = []

    def by_the_leader(action: object) -> object:
        if isinstance(action, Info):
            asked.append(action)
        found = by_a_follower(action, long)
        if isinstance(found, Replies) and found.responder:
            found.responder = "n3"
        return found

    rule = ReadRule("S", StreamCache(), lambda: 0.0)
    goal = ReadGoal("S", LAST, None, RetryPolicy(1.0, lambda: 0.0))
    assert run(rule.get(goal, NEXT), by_the_leader) == OLD
    assert not any(action.is_deleted for action in asked)


# Absences after an election

ELSEWHERE = StoredMessage("s.a", 4, CREATED + 4, b"", b"4", "S")
GONE = GetRequest(seq=5, next_by_subj="s.a")


def test_after_an_election_copies_are_asked_until_the_leaders_own_shows_that_nothing_follows() -> None:
    """Who answers a Direct Get is chance: one answer of a follower is no reason to give the attempt up."""
    responders = iter(("n1", "n2", "n1", "n2", "n3"))

    def answer(action: object) -> object:
        if isinstance(action, Info):
            return info()
        if isinstance(action, LeaderGet):
            return None
        assert isinstance(action, Direct)
        replies = Replies("S")
        if action.request.multi_last:
            replies.items.append(BatchItem(ELSEWHERE, -1))
            replies.end = EndOfBatch(0, 0, LAST - 1)
            replies.responder = next(responders)
        return replies

    rule = ReadRule("S", StreamCache(), lambda: 0.0)
    goal = ReadGoal("S", LAST, None, RetryPolicy(1.0, lambda: 0.0))
    assert run(rule.get(goal, GONE), answer) is None
    assert next(responders, None) is None


# A stream that was made again while its leader cannot be asked


def test_what_only_an_older_stream_has_is_not_believed_while_the_leader_is_silent() -> None:
    """A mirror, or a server that was away, still has its messages: they are newer than what was seen of the new one."""
    clock = [0.0]
    old = replace(info(), cluster={}, state=StreamState(messages=400, first_seq=1, last_seq=400))
    new = replace(old, created=CREATED + 50 * SECOND, state=StreamState(messages=2, first_seq=1, last_seq=2))
    stale = StoredMessage("s.a", 399, CREATED + 10 * SECOND, b"", b"old", "S")
    found = StoredMessage("s.a", 2, CREATED + 60 * SECOND, b"", b"new", "S")
    rule = ReadRule("S", StreamCache(), lambda: clock[0])
    rule.cache.learn(old, 0.0)
    silences = 3

    def answer(action: object) -> object:
        nonlocal silences
        if isinstance(action, Wait):
            clock[0] += 0.6
            return None
        if isinstance(action, Info):
            silences -= 1
            return Retry(RequestTimeoutError("silence")) if silences >= 0 else new
        assert isinstance(action, Direct)
        replies = Replies("S")
        replies.items.append(BatchItem(stale if silences >= 0 else found, -1))
        return replies

    clock[0] = 25.0
    goal = ReadGoal("S", 2, None, RetryPolicy(15.0, lambda: clock[0]))
    assert run(rule.get(goal, GetRequest(last_by_subj="s.a")), answer, is_patient=True) == found
    assert silences < 0


def test_a_message_that_proves_itself_is_returned_though_its_leader_stays_away() -> None:
    """A mirror whose origin is offline goes on answering: after half of the time no word is to be expected."""
    clock = [25.0]
    rule = ReadRule("S", StreamCache(), lambda: clock[0])
    rule.cache.learn(info(), 0.0)
    message = StoredMessage("s.a", LAST, CREATED + 4, b"", b"4", "S")

    def answer(action: object) -> object:
        if isinstance(action, Wait):
            clock[0] += 0.25
            return None
        if isinstance(action, Info):
            return Retry(RequestTimeoutError("silence"))
        assert isinstance(action, Direct)
        replies = Replies("S")
        replies.items.append(BatchItem(message, -1))
        return replies

    goal = ReadGoal("S", LAST, None, RetryPolicy(10.0, lambda: clock[0]))
    assert run(rule.get(goal, GetRequest(last_by_subj="s.a")), answer, is_patient=True) == message
    assert 5.0 <= clock[0] - 25.0 < 6.0
