"""What an answer proves: every verdict, without a server. The numbers are those of facts seen on a real cluster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.api import StreamState
from slipstream.jetstream.reads.direct_get import Replies, StoredMessage
from slipstream.jetstream.reads.proof import (
    Judged,
    Verdict,
    judge_beyond,
    judge_bounded,
    judge_chain,
    judge_last,
    judge_next,
    judge_page,
    judge_presence,
    judge_rest,
    judge_seq,
    oldest_time,
    responder,
    state_shows,
    state_shows_rest,
)
from slipstream.wire import Msg

PRESENT, ABSENT, BEHIND, UNPROVEN = Verdict.PRESENT, Verdict.ABSENT, Verdict.BEHIND, Verdict.UNPROVEN
NOT_FOUND = b"NATS/1.0 404 No Results\r\n\r\n"


def item(seq: int, subject: str = "s.a", pending: int = 0, *, own: bytes = b"", stream: str = "S") -> bytes:
    return (
        b"NATS/1.0\r\n%bNats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\n"
        b"Nats-Time-Stamp: 2026-11-15T08:03:%02dZ\r\nNats-Num-Pending: %d\r\nNats-Last-Sequence: 0\r\n\r\n"
        % (own, stream.encode(), subject.encode(), seq, seq % 60, pending)
    )


def end(up_to: int | None, pending: int = 0) -> bytes:
    tail = b"" if up_to is None else b"Nats-UpTo-Sequence: %d\r\n" % up_to
    return b"NATS/1.0 204 EOB\r\nNats-Num-Pending: %d\r\nNats-Last-Sequence: 1\r\n%b\r\n" % (pending, tail)


def answer(*headers: bytes) -> Replies:
    replies = Replies("the question")
    for header in headers:
        replies.deliver(Msg("_INBOX.x.1", b"1", "", header, b""))
    return replies


def message(seq: int, subject: str = "s.a") -> StoredMessage:
    return StoredMessage(subject, seq, 0, b"", b"", "S")


@pytest.mark.parametrize(
    ("headers", "verdict", "seq"),
    [
        ([item(3), end(5)], PRESENT, 3),  # an old message, and a responder that has what was wanted
        ([item(5), end(5)], PRESENT, 5),
        ([item(3), end(4)], BEHIND, 3),
        ([item(9, "s.anchor"), end(9)], ABSENT, None),  # the end came because of the anchor
        ([item(3, "s.anchor"), end(4)], BEHIND, None),
        ([NOT_FOUND], UNPROVEN, None),  # says nothing about who has what
        ([item(3), end(None)], BEHIND, 3),  # a server without multi-subject gets
        ([item(7), end(None)], PRESENT, 7),  # ... but the message itself is new enough
    ],
)
def test_the_newest_of_a_subject(headers: list[bytes], verdict: Verdict, seq: int | None) -> None:
    judged = judge_last(answer(*headers), "s.a", 5)
    assert judged.verdict is verdict
    assert (judged.message.seq if judged.message else None) == seq


def test_the_newest_of_a_pattern_is_known_only_if_nothing_is_pending() -> None:
    found = judge_last(answer(item(3), item(4, "s.b"), end(9)), "s.*", 5)
    assert (found.verdict, found.message and found.message.seq) == (PRESENT, 4)
    assert judge_last(answer(item(3), item(4, "s.b"), end(9, pending=2)), "s.*", 5).verdict is UNPROVEN


def test_headers_of_a_stored_message_are_no_proof() -> None:
    """Rule 6: a message may be stored with any headers, in front of the server's own."""
    own = b"Status: 204\r\nNats-UpTo-Sequence: 99\r\nNats-Sequence: 99\r\n"
    replies = answer(item(3, own=own), end(3))
    assert [found.message.seq for found in replies.items] == [3]
    assert judge_last(replies, "s.a", 5).verdict is BEHIND


@pytest.mark.parametrize(
    ("headers", "verdict"),
    [
        ([item(4, pending=1), end(None)], PRESENT),  # one behind it: the responder has reached 5
        ([item(4, pending=0), end(None)], UNPROVEN),  # it may be gone at 5
        ([item(6), end(None)], ABSENT),  # it is missing in front of a later one
        ([NOT_FOUND], UNPROVEN),
    ],
)
def test_a_message_by_its_sequence(headers: list[bytes], verdict: Verdict) -> None:
    assert judge_seq(answer(*headers), 4, 5).verdict is verdict


def test_the_next_message_of_a_subject_proves_itself_only_if_it_is_new_enough() -> None:
    assert judge_next(answer(item(5, pending=0)), 5).verdict is PRESENT
    assert judge_next(answer(item(4, pending=8)), 5).verdict is UNPROVEN
    assert judge_next(answer(NOT_FOUND), 5).verdict is UNPROVEN


@pytest.mark.parametrize(("newest", "verdict"), [(3, PRESENT), (2, ABSENT), (4, UNPROVEN)])
def test_the_newest_of_its_subject_tells_whether_a_message_still_exists(newest: int, verdict: Verdict) -> None:
    assert judge_presence(judge_last(answer(item(newest), end(9)), "s.a", 5), message(3)) is verdict
    assert judge_presence(judge_last(answer(item(newest), end(4)), "s.a", 5), message(3)) is BEHIND


def test_a_subject_without_a_message_proves_that_an_older_one_is_gone() -> None:
    assert judge_presence(judge_last(answer(item(9, "s.anchor"), end(9)), "s.a", 5), message(3)) is ABSENT


def test_a_sequence_beyond_the_end_of_an_up_to_date_copy_does_not_exist() -> None:
    anchored = answer(item(7), end(9))
    assert judge_beyond(anchored, 10, 5) == Judged(ABSENT, None, 9)
    assert judge_beyond(anchored, 9, 5).verdict is UNPROVEN
    assert judge_beyond(anchored, 12, 10) == Judged(BEHIND, None, 9)
    assert judge_beyond(answer(NOT_FOUND), 10, 5).verdict is UNPROVEN


def test_a_message_in_front_of_one_beyond_the_bound_is_the_last_up_to_it() -> None:
    assert judge_bounded(answer(item(3, pending=1), item(8), end(None)), message(3)) is PRESENT
    assert judge_bounded(answer(item(3), end(None)), message(3)) is BEHIND  # that copy has nothing beyond the bound
    assert judge_bounded(answer(item(4, pending=1), item(8), end(None)), message(3)) is BEHIND
    assert judge_bounded(answer(item(8), end(None)), None) is ABSENT
    assert judge_bounded(answer(NOT_FOUND), None) is BEHIND


def test_a_page_of_a_listing_counts_once_its_responder_has_reached_the_goal() -> None:
    assert judge_page(answer(item(3), end(9)), 9, is_bounded=False) is PRESENT
    assert judge_page(answer(item(3), end(8)), 9, is_bounded=False) is BEHIND
    assert judge_page(answer(item(3), end(8)), 9, is_bounded=True) is PRESENT
    assert judge_page(answer(NOT_FOUND), 9, is_bounded=False) is UNPROVEN


@pytest.mark.parametrize(
    ("seqs", "verdict"), [([3, 5, 8], PRESENT), ([5, 8], ABSENT), ([3, 5], BEHIND), ([], UNPROVEN), ([3, 9], PRESENT)]
)
def test_a_chain_to_the_newest_shows_whether_a_message_was_pushed_out(seqs: list[int], verdict: Verdict) -> None:
    assert judge_chain(answer(*(item(seq, pending=1) for seq in seqs), end(None)), message(3), 8) is verdict


@pytest.mark.parametrize(
    ("headers", "verdict"),
    [
        ([item(4), end(9)], ABSENT),  # the last that was seen is the last
        ([item(4), end(8)], BEHIND),
        ([item(4), item(7, "s.b", 0), end(9)], PRESENT),
        ([item(4), item(7, "other"), end(9)], ABSENT),  # the anchor is of another subject
        ([item(4), end(9, pending=1)], UNPROVEN),
        ([end(9)], UNPROVEN),  # no message names the responder
        ([NOT_FOUND], UNPROVEN),
    ],
)
def test_whether_anything_is_left_of_a_range(headers: list[bytes], verdict: Verdict) -> None:
    assert judge_rest(answer(*headers), "s.*", 4, 9) is verdict


def test_messages_older_than_the_start_of_a_range_do_not_count() -> None:
    replies = answer(item(7, "s.b"), end(9))
    assert judge_rest(replies, "s.*", 0, 9, since=replies.items[0].message.time) is PRESENT
    assert judge_rest(replies, "s.*", 0, 9, since=replies.items[0].message.time + 1) is ABSENT


@given(
    live=st.sets(st.integers(1, 20), min_size=1),
    last=st.integers(20, 24),
    seq=st.integers(1, 30),
    wanted=st.integers(1, 26),
    with_details=st.booleans(),
)
def test_a_state_tells_about_each_message_and_each_range(
    live: set[int], last: int, seq: int, wanted: int, with_details: bool
) -> None:
    first = min(live)
    gone = tuple(s for s in range(first, last + 1) if s not in live)
    state = StreamState(
        messages=len(live),
        first_seq=first,
        last_seq=last,
        num_deleted=len(gone),
        deleted=gone if with_details else (),
    )
    verdict, rest = state_shows(state, seq, wanted), state_shows_rest(state, seq - 1, 0, wanted)
    if last < wanted:
        assert (verdict, rest) == (BEHIND, BEHIND)
        return
    assert verdict in (PRESENT if seq in live else ABSENT, UNPROVEN)
    assert rest in (PRESENT if any(s >= seq for s in live) else ABSENT, UNPROVEN)
    if with_details or not gone:
        assert UNPROVEN not in (verdict, rest)


def test_an_empty_state_has_nothing() -> None:
    state = StreamState(messages=0, first_seq=8, last_seq=7)
    assert state_shows(state, 7, 7) is ABSENT
    assert state_shows_rest(state, 0, 0, 7) is ABSENT
    assert state_shows_rest(state, 0, 0, 8) is BEHIND


def test_the_responder_and_the_oldest_time_of_an_answer_are_found() -> None:
    replies = answer(item(4, stream="COPY"), item(2, stream="COPY"), end(9))
    assert responder(replies.items) == "COPY"
    assert oldest_time(replies.items) == min(found.message.time for found in replies.items)
    assert (responder([]), oldest_time([])) == ("", 0)
