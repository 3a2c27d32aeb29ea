"""Blocks of publishes: each item is acknowledged, rejected or lost with the connection, however the answers are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.client.session import Session
from slipstream.errors import (
    AuthorizationError,
    ConnectionLostError,
    NoStreamError,
    StreamMessageTooLargeError,
    UsageError,
)
from slipstream.jetstream.publish.bulk_window import BlockWindow, Draft
from slipstream.wire import Parser, Pub, Side
from tests.client.test_session import Sink, connected

TOO_LARGE = b'{"type":"x","error":{"code":400,"err_code":10054,"description":"x"}}'
BODIES = {
    "server": b'{"stream":"S", "seq":%d}',
    "ours": b'{"stream":"S","seq":%d}',
    "domain": b'{"stream":"S", "domain":"hub", "seq":%d}',
    "duplicate": b'{"stream":"S", "seq":%d,"duplicate": true}',
    "duplicate of ours": b'{"stream":"S","seq":%d,"duplicate":true}',
    "counter": b'{"stream":"S","seq":%d,"val":"7"}',
    "rejected": TOO_LARGE,
    "no_responders": b"",
}


def drafts(count: int, subject: str = "s") -> list[Draft]:
    return [(subject, b"%d" % n, b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % n if n % 2 else b"") for n in range(count)]


def send(session: Session, window: BlockWindow[str], names: list[str], subject: str = "s") -> list[Pub]:
    window.stage(names)
    session.requests.start_many(drafts(len(names), subject), window)
    return [event for event in Parser(Side.CLIENT).feed(session.outgoing.take()) if isinstance(event, Pub)]


def answer(pub: Pub, kind: str, seq: int) -> bytes:
    if kind == "no_responders":
        return b"HMSG %b 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" % pub.reply.encode()
    body = BODIES[kind] % seq if b"%d" in BODIES[kind] else BODIES[kind]
    return b"MSG %b 1 %d\r\n%b\r\n" % (pub.reply.encode(), len(body), body)


@given(st.data())
def test_every_publish_is_acknowledged_or_rejected_however_the_answers_are_cut(data: st.DataObject) -> None:
    session, window = connected(), BlockWindow[str](100)
    kinds = data.draw(st.lists(st.lists(st.sampled_from(list(BODIES)), min_size=1, max_size=6), min_size=1, max_size=4))
    stream, seq, rejected, lost_count = b"", 0, [], 0
    for number, block in enumerate(kinds):
        names = [f"{number}.{at}" for at in range(len(block))]
        pubs = send(session, window, names)
        assert [pub.payload for pub in pubs] == [b"%d" % at for at in range(len(block))]
        for name, pub, kind in data.draw(st.permutations(list(zip(names, pubs, block, strict=True)))):
            seq += 1
            stream += answer(pub, kind, seq) + data.draw(st.sampled_from([b"", b"", b"PING\r\n"]))
            if kind in ("rejected", "no_responders"):
                rejected.append(name)
                lost_count += 1
        if data.draw(st.booleans()):
            stream += b"MSG _INBOX.N.999999 1 2\r\n{}\r\n"  # a reply that no request waits for
    assert window.in_flight == sum(map(len, kinds))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        session.received(stream[begin:end], 0)
    assert window.in_flight == 0
    assert [item for item, _ in window.rejected] == rejected
    assert window.acked == sum(map(len, kinds)) - lost_count
    assert window.duplicates == sum(kind.startswith("duplicate") for block in kinds for kind in block)
    send(session, window, ["last"])
    assert (len(session.requests.sinks), len(window._blocks)) == (1, 1)  # nothing is left of what was answered


def test_a_rejection_says_why() -> None:
    session, window = connected(), BlockWindow[str](10)
    pubs = send(session, window, ["a", "b"])
    session.received(answer(pubs[1], "rejected", 1) + answer(pubs[0], "no_responders", 1), 0)
    assert [(item, type(error)) for item, error in window.rejected] == [
        ("b", StreamMessageTooLargeError),
        ("a", NoStreamError),
    ]


def test_an_ack_goes_to_the_window_that_waits_for_it_and_replies_of_others_to_them() -> None:
    session, one, two, sink = connected(), BlockWindow[str](10), BlockWindow[str](10), Sink()
    first = send(session, one, ["a", "b"])
    token = session.requests.start("ask", b"", sink)
    session.outgoing.take()
    second = send(session, two, ["c"])
    other = b"MSG _INBOX.N.%b 1 2\r\nhi\r\n" % token.encode()
    session.received(answer(first[0], "server", 1) + answer(second[0], "server", 2) + other, 0)
    assert (one.acked, two.acked, one.in_flight, sink.got) == (1, 1, 1, [b"hi"])
    session.received(answer(first[1], "server", 3), 0)
    assert (one.acked, one.last_seq, two.last_seq) == (2, 3, 2)


def test_a_lost_connection_and_a_rejected_subject_end_the_window() -> None:
    session, window = connected(), BlockWindow[str](10)
    send(session, window, ["a"])
    session.lost(ConnectionLostError("gone"), now=0, random=0)
    assert isinstance(window.error, ConnectionLostError)
    assert window.in_flight == 0
    window.stage(["b"])
    with pytest.raises(ConnectionLostError, match="not buffered"):
        session.requests.start_many(drafts(1), window)
    denied, own, others = connected(), BlockWindow[str](10), BlockWindow[str](10)
    send(denied, own, ["a"], "secret")
    send(denied, others, ["a"], "open")
    denied.received(b"-ERR 'Permissions Violation for Publish to \"secret\"'\r\n", 0)
    assert isinstance(own.error, AuthorizationError)
    assert others.error is None


def test_a_publish_that_would_end_the_connection_is_not_sent() -> None:
    session, window = connected(), BlockWindow[str](10)
    window.stage(["a", "b"])
    for bad, text in ((("s", b"x" * 1_000_001, b""), "got 1000001"), (("a b", b"", b""), "subject must be")):
        with pytest.raises(UsageError, match=text):
            session.requests.start_many([("s", b"", b""), bad], window)
    assert (session.outgoing.take().count(b"PUB"), window.in_flight) == (0, 0)


def test_the_window_admits_whole_blocks() -> None:
    session, window = connected(), BlockWindow[str](3)
    assert window.has_capacity(3)
    assert not window.has_capacity(4)
    pubs = send(session, window, ["a", "b"])
    assert (window.has_capacity(1), window.has_capacity(2), window.fewer_than(2), window.fewer_than(3)) == (
        True, False, False, True,
    )  # fmt: skip
    session.received(answer(pubs[0], "server", 1), 0)
    assert window.has_capacity(2)


def test_a_missing_answer_holds_back_its_own_block_only() -> None:
    session, window = connected(), BlockWindow[str](10)
    stuck = send(session, window, ["a", "b"])
    session.received(answer(stuck[1], "server", 1), 0)
    for seq in range(2, 40, 2):
        pubs = send(session, window, ["c", "d"])
        session.received(answer(pubs[0], "server", seq) + answer(pubs[1], "server", seq + 1), 0)
    assert len(window._blocks) == 2
    session.received(answer(stuck[0], "rejected", 0), 0)
    assert [item for item, _ in window.rejected] == ["a"]


def test_a_responder_that_imitates_the_end_of_an_ack_and_another_frame_is_left_to_the_parser() -> None:
    session, window = connected(), BlockWindow[str](10)
    first, second = send(session, window, ["one", "two"])
    forged = b'{"stream":"S","seq":1}\r\n' + answer(second, "ours", 2)[:-2]
    data = b"MSG %b 1 %d\r\n%b\r\n" % (first.reply.encode(), len(forged), forged)
    assert window.scan(data, 0) == (0, 0)
    session.received(data, 0)
    assert [rejected.item for rejected in window.rejected] == ["one"]
    assert window.in_flight == 1


@pytest.mark.parametrize("token", ["²", "9" * 5000, "-1", "+1", "1_0", "x"])
def test_a_reply_with_a_token_that_a_peer_made_up_is_dropped(token: str) -> None:
    session, window = connected(), BlockWindow[str](10)
    (pub,) = send(session, window, ["one"])
    prefix = pub.reply.rpartition(".")[0]
    session.received(b"MSG %b.%b 1 2\r\n{}\r\n" % (prefix.encode(), token.encode()), 0)
    assert (window.in_flight, window.error, session.effects.take()) == (1, None, [])
    session.received(answer(pub, "ours", 1), 0)
    assert window.acked == 1


def test_a_message_to_the_token_of_the_window_is_no_answer_and_does_not_end_it() -> None:
    session, window = connected(), BlockWindow[str](10)
    (pub,) = send(session, window, ["one"])
    session.received(answer(pub._replace(reply=f"_INBOX.N.{window.token}"), "ours", 9), 0)
    assert (window.in_flight, window.acked, window.error) == (1, 0, None)
    session.received(answer(pub, "no_responders", 1), 0)
    assert [rejected.item for rejected in window.rejected] == ["one"]
