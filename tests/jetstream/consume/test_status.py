"""Automatic status management of push subscriptions: flow control, heartbeats, gaps, errors; no server, no clock."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slipstream.errors import (
    ConsumerDeletedError,
    ConsumerGoneError,
    MessageGapError,
    PullRefusedError,
    StatusError,
    StrayMessageError,
)
from slipstream.jetstream.consume.status import ControlReply, HeartbeatMonitor, Meaning, PushState, judge, pieces_of
from slipstream.wire import Headers, Msg
from tests.jetstream.frames import flow_control, heartbeat, message, message_v2, status


@pytest.mark.parametrize(
    ("code", "text", "meaning", "error"),
    [
        (100, "Idle Heartbeat", Meaning.ALIVE, None),
        (404, "No Messages", Meaning.ENDED, None),
        (408, "Request Timeout", Meaning.ENDED, None),
        (408, "Requests Pending", Meaning.ENDED, None),
        (409, "Batch Completed", Meaning.ENDED, PullRefusedError),
        (409, "Message Size Exceeds MaxBytes", Meaning.ENDED, PullRefusedError),
        (409, "Leadership Change", Meaning.MOVED, StatusError),
        (409, "Server Shutdown", Meaning.MOVED, StatusError),
        (409, "Consumer Deleted", Meaning.ERROR, ConsumerDeletedError),
        (409, "Exceeded MaxWaiting", Meaning.ERROR, PullRefusedError),
        (409, "Consumer is push based", Meaning.ERROR, PullRefusedError),
        (400, "Bad Request", Meaning.ERROR, PullRefusedError),
        (423, "Nats-Pin-Id mismatch", Meaning.ERROR, PullRefusedError),
        (503, "", Meaning.ABSENT, ConsumerGoneError),
        (999, "What is this", Meaning.ERROR, StatusError),
    ],
)
def test_every_status_has_a_meaning(code: int, text: str, meaning: Meaning, error: type[StatusError] | None) -> None:
    judgement = judge(status(code, text))
    assert judgement.meaning is meaning
    assert type(judgement.error) is (error or type(None))
    if isinstance(judgement.error, StatusError):
        assert judgement.error.code == code


def test_a_foreign_message_is_an_error_and_a_stored_status_line_is_a_message() -> None:
    meaning, error = judge(Msg("_INBOX.x", b"7", "", b"", b"hello"))
    assert (meaning, type(error)) == (Meaning.ERROR, StrayMessageError)
    assert str(error) == (
        "a message on '_INBOX.x' was not sent by a consumer but published there: it has no ack subject"
    )
    odd = replace(message(1), header=b"NATS/1.0 404 No Messages\r\n\r\n", payload=b"")
    assert pieces_of([odd]) == [[odd]]


def test_statuses_split_the_messages_around_them() -> None:
    one, two, beat = message(1), message(2), heartbeat(2)
    assert pieces_of([one, two]) == [[one, two]]
    assert pieces_of([one, beat, beat, two]) == [[one], beat, beat, [two]]
    assert pieces_of([beat]) == [beat]


@pytest.mark.spec("SW-15", on="C")
def test_flow_control_is_replied_to_once_behind_the_messages_before_it() -> None:
    state = PushState("C", gaps=True)
    state.feed([message(1), message(2), flow_control("$JS.FC.1"), message(3)])
    assert state.take() == [message(1), message(2)]
    assert state.take() == ControlReply("$JS.FC.1")
    assert state.take() == [message(3)]
    state.feed([flow_control("$JS.FC.1"), heartbeat(3, stalled="$JS.FC.1"), heartbeat(3, stalled="$JS.FC.1")])
    assert state.take() is None  # answered already
    state.feed([heartbeat(3, stalled="$JS.FC.2"), flow_control("$JS.FC.2")])  # the request itself was lost
    assert state.take() == ControlReply("$JS.FC.2")
    assert state.take() is None


def test_a_gap_is_reported_in_place_and_the_messages_behind_it_are_returned() -> None:
    state = PushState("C", gaps=True, first=5)  # bound to a consumer that was used before
    state.feed([message(10, cseq=5)])
    state.feed([message(11, cseq=6), message(12, cseq=8)])
    state.feed([message(13, cseq=9)])
    assert state.take() == [message(10, cseq=5)]
    gap = state.take()
    assert isinstance(gap, MessageGapError)
    assert (gap.expected, gap.seen) == (7, 8)
    assert state.take() == [message(11, cseq=6), message(12, cseq=8)]
    assert state.take() == [message(13, cseq=9)]
    state.feed([heartbeat(11)])
    tail = state.take()
    assert isinstance(tail, MessageGapError)
    assert (tail.expected, tail.seen) == (10, 12)
    state.feed([heartbeat(11), message(14, cseq=12)])
    assert state.take() == [message(14, cseq=12)]
    assert state.take() is None


@pytest.mark.spec("SW-21")
def test_messages_missing_before_the_first_one_are_a_gap() -> None:
    own = PushState("C", gaps=True)
    own.feed([heartbeat(0)])
    assert own.take() is None
    own.feed([heartbeat(3), message(4)])
    gap = own.take()
    assert isinstance(gap, MessageGapError)
    assert (gap.expected, gap.seen) == (1, 4)
    assert [own.take(), own.take()] == [[message(4)], None]
    bound = PushState("C", gaps=True, first=8)
    bound.feed([heartbeat(7)])
    assert bound.take() is None
    bound.feed([message(20, cseq=10)])
    gap = bound.take()
    assert isinstance(gap, MessageGapError)
    assert (gap.expected, gap.seen) == (8, 10)


@pytest.mark.spec("SW-21")
def test_what_a_bound_consumer_delivered_before_it_was_bound_is_no_gap() -> None:
    """Up to `first` the messages may have come here, as those that were on the way, or have gone elsewhere."""
    for begin in range(1, 9):
        state = PushState("C", gaps=True, first=8)
        state.feed([heartbeat(7), *(message(n, cseq=n) for n in range(begin, 12)), heartbeat(11)])
        assert isinstance(state.take(), list), begin
        assert state.take() is None, begin
    state = PushState("C", gaps=True, first=8)  # followed from the first one on
    state.feed([message(5), message(7)])
    gap = state.take()
    assert isinstance(gap, MessageGapError)
    assert (gap.expected, gap.seen) == (6, 7)
    for cseq in (1, 2):  # deleted and created again before the first message
        state = PushState("C", gaps=True, first=8)
        state.feed([heartbeat(0), message(30, cseq=cseq), message(31, cseq=cseq + 1), heartbeat(cseq + 1)])
        assert [type(state.take()) for _ in range(2)] == [list, type(None)]


def test_a_deliver_subject_of_several_consumers_has_no_sequence_to_follow() -> None:
    state = PushState("C", gaps=True)
    foreign = replace(message(7), reply=message(7).reply.replace(".C.", ".D."))
    state.feed([message(1), foreign, message(3)])
    state.feed([heartbeat(9)])
    assert [type(state.take()) for _ in range(2)] == [list, type(None)]


def test_duplicates_and_a_recreated_consumer_are_no_gaps() -> None:
    state = PushState("C", gaps=True)
    state.feed([message(1), message(2), message(2), message(3)])
    state.feed([message(9, cseq=1), message(10, cseq=2)])
    found = [state.take() for _ in range(3)]
    assert found == [[message(1), message(2), message(2), message(3)], [message(9, cseq=1), message(10, cseq=2)], None]


def test_members_of_a_queue_follow_no_sequences() -> None:
    state = PushState("C", gaps=False)
    state.feed([message(1), message(7), heartbeat(20)])
    assert state.take() == [message(1), message(7)]
    assert state.take() is None


def test_gaps_are_seen_in_the_longer_format_too() -> None:
    state = PushState("C", gaps=True)
    state.feed([message_v2(1), message_v2(3, extra=".more")])
    assert isinstance(state.take(), MessageGapError)


def test_an_error_is_due_behind_the_messages_before_it() -> None:
    state = PushState("C", gaps=True)
    state.feed([message(1), status(409, "Consumer Deleted"), status(408, "Request Timeout"), status(555, "New")])
    assert state.take() == [message(1)]
    assert isinstance(state.take(), ConsumerDeletedError)
    assert isinstance(state.take(), StatusError)
    assert state.take() is None


def test_three_missed_heartbeats_are_an_error_and_only_time_spent_reading_counts() -> None:
    monitor = HeartbeatMonitor(5.0, now=100.0)
    monitor.resume(100.0)
    assert monitor.left(100.0) == 15.0
    assert monitor.left(115.0) == 0.0
    monitor.hear(110.0)
    assert monitor.left(115.0) == 10.0
    monitor.suspend(116.0)
    monitor.resume(123.0)
    assert monitor.left(123.0) == 9.0
    assert HeartbeatMonitor(0.0, now=0.0).left(1e9) == float("inf")


def test_malformed_numbers_in_status_headers_are_ignored() -> None:
    from slipstream.jetstream.consume.status import last_delivered, pending_of

    assert last_delivered(status(100, "Idle Heartbeat", Nats_Last_Consumer="x", Nats_Last_Stream="-1")) == (-1, -1)
    assert pending_of(status(408, "Request Timeout", Nats_Pending_Messages="5", Nats_Pending_Bytes="10")) == (5, 10)
    assert Headers.parse(status(408, "x").header).get("Nats-Pending-Messages") is None
