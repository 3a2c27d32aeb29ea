"""Messages in packs are the messages, in their order, however the bytes were cut and whatever came between them."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.client import raw_columns
from slipstream.client.mailbox import Mailbox
from slipstream.client.raw_columns import Packed
from slipstream.client.session import Session
from slipstream.errors import ConnectionLostError, SlowConsumerError
from slipstream.wire import Msg, Parser, Side
from tests.client.test_session import BOUNDS, Sink, connect, connected

names = st.sampled_from(["a", "$KV.b.k", "ä.b", "x.y.z"])
payloads = st.sampled_from([b"", b"x", b"\r\n", b"MSG a 2 b 1\r\nx\r\n", b"y" * 300])
FRAMES = st.one_of(
    st.tuples(st.just(b"2"), names, names, payloads).map(
        lambda one: b"MSG %b %b %b %d\r\n%b\r\n" % (one[1].encode(), one[0], one[2].encode(), len(one[3]), one[3])
    ),
    st.sampled_from(
        [
            b"MSG a 2 1\r\nx\r\n",  # no reply
            b"msg a 2 b 1\r\nx\r\n",
            b"MSG  a 2 b 1\r\nx\r\n",
            b"MSG a 3 b 1\r\nx\r\n",  # of another subscription
            b"HMSG a 2 b 12 13\r\nNATS/1.0\r\n\r\nx\r\n",
            b"HMSG a 2 c 12 13\r\nNATS/1.0\r\n\r\nx\r\n",
            b"HMSG a 2 b 16 16\r\nNATS/1.0\r\nA:1\r\n\r\n\r\n",
            b"HMSG ab 2 b.1 16 16\r\nNATS/1.0\r\nA:2\r\n\r\n\r\n",
            b"HMSG a 2 x.y.1 16 17\r\nNATS/1.0\r\nA:2\r\n\r\nx\r\n",
            b"HMSG a 2 x.y.10 16 17\r\nNATS/1.0\r\nA:3\r\n\r\ny\r\n",
            b"HMSG a 2 16 16\r\nNATS/1.0 100\r\n\r\n\r\n",
            b"MSG _INBOX.N.1 1 2\r\nhi\r\n",
            b"PING\r\n",
            b"MSG \xff 2 b 1\r\nx\r\n",
        ]
    ),
)


def taken(box: Mailbox) -> list[Msg]:
    found: list[Msg] = []
    while box.items:
        for piece in box.take_pieces():
            found += piece.messages() if isinstance(piece, Packed) else piece
    return found


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(bounds)]


@given(
    st.lists(st.tuples(FRAMES, st.integers(1, 4)).map(lambda one: one[0] * one[1]), max_size=20),
    st.lists(st.integers(0, 10_000), max_size=5),
    st.booleans(),
    st.sampled_from(["", "b", "x."]),
)
def test_packs_hold_what_the_parser_would_have_given(
    frames: list[bytes], places: list[int], one_by_one: bool, prefix: str
) -> None:
    data = b"".join(frames)
    events = [event for event in Parser(Side.SERVER).feed(data) if isinstance(event, Msg)]
    session, sink = connected(), Sink(wanted=100)
    box, other = session.subscriptions.subscribe("a", **BOUNDS), session.subscriptions.subscribe("b", **BOUNDS)
    session.requests.start("ask", b"", sink)
    session.subscriptions.pack(box, prefix)
    before = session.stats.in_msgs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_columns, "_RUN_LENGTH", 2)
        for chunk in cut(data, places):
            session.received(chunk, 0)
    assert (box.pending, session.stats.in_msgs - before) == (sum(one.sid == b"2" for one in events), len(events))
    found = [box.take() for _ in range(box.pending)] if one_by_one else taken(box)
    assert found == [event for event in events if event.sid == b"2"]
    assert other.pending == sum(one.sid == b"3" for one in events)
    assert (len(sink.got), box.pending) == (sum(one.sid == b"1" for one in events), 0)


FRAME = b"MSG a 2 b 10\r\n0123456789\r\n"


def packed_box(session: Session, *, max_msgs: int = 100, max_bytes: int = 10_000) -> Mailbox:
    box = session.subscriptions.subscribe("a", max_msgs=max_msgs, max_bytes=max_bytes)
    session.subscriptions.pack(box, "")
    return box


@pytest.mark.parametrize("bounds", [{"max_msgs": 4}, {"max_bytes": 45}])
def test_what_does_not_fit_is_a_gap_behind_what_does(bounds: dict[str, int]) -> None:
    session = connected()
    box = packed_box(session, **bounds)
    session.received(FRAME * 3, 0)
    session.received(FRAME * 3, 0)
    assert (box.pending, box.dropped) == (4, 2)
    assert len(taken_once(box)) == 4
    with pytest.raises(SlowConsumerError):
        box.take_pieces()
    session.received(FRAME, 0)
    assert len(taken(box)) == 1


def taken_once(box: Mailbox) -> list[Msg]:
    return [msg for piece in box.take_pieces() for msg in (piece.messages() if isinstance(piece, Packed) else piece)]


def test_a_subscription_that_ends_gets_no_more_packs() -> None:
    session = connected()
    box = packed_box(session)
    session.received(FRAME, 0)
    session.subscriptions.unsubscribe(box)
    session.received(FRAME, 0)
    assert (box.pending, box.is_ended, session._scanner.readers, session._parser.scan) == (1, True, {}, None)
    limited = connected()
    box = packed_box(limited)
    limited.subscriptions.unsubscribe(box, 2)
    limited.received(FRAME * 3, 0)
    assert (box.pending, box.is_ended, limited._scanner.readers) == (2, True, {})
    drained = connected()
    box = packed_box(drained)
    drained.drain(box)
    drained.received(FRAME + b"PONG\r\n" + FRAME, 0)
    assert (box.pending, box.is_ended, drained._scanner.readers) == (1, True, {})


def test_packs_go_on_over_the_next_connection() -> None:
    session = connected()
    box = packed_box(session)
    session.lost(ConnectionLostError("gone"), now=0, random=0)
    connect(session)
    session.received(FRAME * 2, 0)
    assert isinstance(box.take_pieces()[0], Packed)


def test_packs_have_a_time_before_they_were_sent() -> None:
    session = connected()
    box = packed_box(session)
    times = []
    for now, chunk in ((5.0, FRAME), (6.0, b"PONG\r\n" + FRAME), (7.0, FRAME + b"PONG\r\n" + FRAME), (8.0, FRAME)):
        session.mark(now, interval=0.0)
        session.received(chunk, 0)
        times.append((len(box.items), box.take_all_dated()[1]))
    # The first PONG answers the first PING. What is in front of a PONG may be as old as what was there before.
    assert times == [(1, -math.inf), (1, 5.0), (2, 5.0), (1, 6.0)]


def test_nothing_behind_the_limit_of_a_subscription_is_delivered_when_a_run_reaches_it() -> None:
    session = connected()
    box = packed_box(session)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_columns, "_RUN_LENGTH", 2)
        session.received(FRAME * 2, 0)
        session.subscriptions.unsubscribe(box, 4)
        other = b"MSG a 2 b 1\r\nx\r\n"  # behind the run, in a pack of its own
        session.received(FRAME * 3 + other * 2, 0)
    assert (box.pending, box.is_ended) == (4, True)


def test_a_line_feed_in_a_name_moves_no_other_name() -> None:
    """No server sends one."""
    session = connected()
    box = session.subscriptions.subscribe("a", **BOUNDS)
    session.subscriptions.pack(box, "b")
    session.received(b"MSG a\nx 2 b.1 1\r\nx\r\nMSG c 2 b\n.2 1\r\ny\r\nMSG d 2 b.3 1\r\nz\r\n", 0)
    assert [(msg.subject, msg.reply) for msg in taken(box)] == [("a\nx", "b.1"), ("c", "b\n.2"), ("d", "b.3")]


@pytest.mark.parametrize("prefix", ["", "1", "b"])
def test_the_size_of_a_message_without_reply_is_no_reply(prefix: str) -> None:
    payload = b"x 2\r\nyy"
    data = FRAME * 3 + b"MSG a 2 %d\r\n%b\r\n" % (len(payload), payload) + b"MSG a 2 1 2\r\nhi\r\n" * 3
    data += b"MSG a 2 12\r\nx 2\r\nab\r\nMSG\r\n" + b"MSG a 2 b 2\r\nhi\r\n" * 3
    session = connected()
    box = session.subscriptions.subscribe("a", **BOUNDS)
    session.subscriptions.pack(box, prefix)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_columns, "_RUN_LENGTH", 2)
        for _ in range(3):
            session.received(data, 0)
    assert taken(box) == [event for _ in range(3) for event in Parser(Side.SERVER).feed(data)]


def test_the_first_frames_show_the_run_that_the_others_belong_to() -> None:
    session = connected()
    box = packed_box(session)
    session.received(FRAME * 100, 0)
    assert [len(piece.subjects) for piece in box.take_pieces() if isinstance(piece, Packed)] == [32, 68]
    assert session._scanner.msgs == 100
    other = packed_box(session)
    sid = other.sid
    frames = b"".join(b"MSG a %b b %d\r\n%b\r\n" % (sid, size, b"x" * size) for size in range(1, 101))
    session.received(frames, 0)  # no run: once is enough
    assert [len(piece.subjects) for piece in other.take_pieces() if isinstance(piece, Packed)] == [32, 68]
