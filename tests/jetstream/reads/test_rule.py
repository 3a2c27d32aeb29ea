"""The rule of trusted reads step by step, with scripted answers of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slipstream.api import GetRequest, StreamConfig, StreamInfo, StreamState
from slipstream.api.times import format_time
from slipstream.errors import StaleReadError
from slipstream.jetstream.reads.direct_get import BatchItem, EndOfBatch, Replies, StoredMessage
from slipstream.jetstream.reads.goal import ReadGoal
from slipstream.jetstream.reads.read_state import StreamCache
from slipstream.jetstream.reads.retry import RetryPolicy
from slipstream.jetstream.reads.rule import Direct, Info, LeaderGet, ReadRule, Steps, Wait

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


def run(steps: Steps[Any], answer: Callable[[object], object]) -> Any:
    """Carry a read out; it gives up with its first attempt that was in vain."""
    reply: object = None
    try:
        while True:
            action = steps.send(reply)
            if isinstance(action, Wait):
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
