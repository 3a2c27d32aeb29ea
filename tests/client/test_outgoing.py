"""Frames are what the encoder would make of the same message, however they are built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.client.events import Report
from slipstream.client.outgoing import BIG_PAYLOAD
from slipstream.errors import ConnectionLostError, Error, RemoteProtocolError, UsageError
from slipstream.wire import Headers, Msg, Parser, Pub, Side
from tests.client.test_session import INFO, Sink, connect, connected

PAYLOADS = st.binary(max_size=50) | st.integers(BIG_PAYLOAD - 2, BIG_PAYLOAD + 2).map(lambda size: b"x" * size)
HEADERS = st.sampled_from([b"", Headers({"A": "1"}).encode()])


@given(st.lists(st.tuples(PAYLOADS, HEADERS, st.booleans(), st.booleans()), max_size=8))
def test_requests_and_publishes_are_framed_as_they_were_meant(sent: list[tuple[bytes, bytes, bool, bool]]) -> None:
    session = connected()
    expected = []
    for count, (payload, header, is_request, is_array) in enumerate(sent, 1):
        given_payload: Any = bytearray(payload) if is_array else payload
        if is_request:
            token = session.requests.start(f"s.{count}", given_payload, Sink(), header)
            expected.append(Pub(f"s.{count}", f"_INBOX.N.{token}", header, payload))
        else:
            session.outgoing.publish(f"s.{count}", given_payload, "", header)
            expected.append(Pub(f"s.{count}", "", header, payload))
        assert session.outgoing.size == sum(map(len, session.outgoing.frames))
    data = session.outgoing.take()
    events = [event for event in Parser(Side.CLIENT).feed(data) if isinstance(event, Pub)]
    assert events == expected
    assert session.stats.out_msgs == len(sent)
    assert len({event.reply for event in events if event.reply}) == sum(event.reply != "" for event in events)


def test_a_request_is_checked_as_a_publish_is() -> None:
    session = connected()
    bad: list[tuple[Any, str]] = [(b"x" * 1_000_001, "got 1000001"), ("text", "not str"), (7, "not int")]
    for payload, text in bad:
        with pytest.raises(UsageError, match=text):
            session.requests.start("a", payload, Sink())
    with pytest.raises(UsageError, match="subject must be"):
        session.requests.start("a b", b"", Sink())
    assert session.requests.sinks == {}
    connect_again = connected()
    connect_again.lost(ConnectionLostError("gone"), now=0, random=0)
    connect(connect_again, info=b'INFO {"max_payload":1000000}\r\n')
    with pytest.raises(UsageError, match="does not support headers"):
        connect_again.requests.start("a", b"", Sink(), b"NATS/1.0\r\n\r\n")


def test_what_was_kept_and_is_too_large_for_the_next_server_is_left_out_and_reported() -> None:
    session = connected()
    session.lost(ConnectionLostError("gone"), now=0, random=0)
    session.outgoing.publish("a", b"x" * 20_000)
    session.outgoing.publish("a", b"y" * 50)
    session.ping()
    session.dial(0)
    session.opened()
    session.received(INFO.replace(b"1000000", b"100"), 0)
    session.outgoing.take()
    effects = session.received(b"PONG\r\n", 0)
    reports = [str(effect.event.error) for effect in effects if isinstance(effect, Report) and effect.event.error]
    assert reports == ["1 message(s) kept for the next connection are larger than its max_payload of 100 bytes"]
    assert session.outgoing.take() == b"PUB a 50\r\n" + b"y" * 50 + b"\r\nPING\r\n"
    assert session.stats.out_msgs == 1


def test_an_answer_is_sent_to_a_subject_that_a_peer_made_and_cannot_break_out_of_its_line() -> None:
    core = connected().outgoing
    core.take()
    core.answer("$JS.ACK.S.C.1.1.1.1.0", b"+ACK")
    assert core.take() == b"PUB $JS.ACK.S.C.1.1.1.1.0 4\r\n+ACK\r\n"
    assert not core._prefixes  # each is used once: nothing is remembered
    for bad in ("a b", "a\rb", "a\nPUB x 0", "a\tb"):
        with pytest.raises(RemoteProtocolError, match="reply subject"):
            core.answer(bad, b"")
    assert core.take() == b""


NO_SUBJECT: list[Any] = [None, 5, 1.5, b"a", ["a"], {}, Ellipsis, "", "a b"]
NO_PAYLOAD: list[Any] = [None, 5, "text", ["a"], {}, Ellipsis]
NO_NUMBER: list[Any] = [None, "5", 1.5, b"5", ["a"], {}, True, -1]


class Window:
    """A `SingleWindowSink` that takes no answer."""

    token = ""

    def __init__(self) -> None:
        self.registered: list[int] = []

    def attach(self, _: bytes) -> None: ...

    def register(self, token: int, _: None) -> None:
        self.registered.append(token)

    def awaits(self, _: int) -> bool:
        return False

    def deny(self, _: Error, __: str) -> bool:
        return False

    def scan(self, _: bytes, pos: int) -> tuple[int, int]:
        return pos, 0

    def deliver(self, _: Msg) -> bool:
        return True

    def fail(self, _: Error) -> None: ...


@pytest.mark.parametrize("bad", NO_SUBJECT, ids=repr)
def test_what_is_no_subject_is_a_usage_error_of_every_form(bad: Any) -> None:
    session, window = connected(), Window()
    requests, outgoing = session.requests, session.outgoing
    calls: list[Callable[[], object]] = [
        lambda: outgoing.publish(bad, b""),
        lambda: outgoing.publish("a", b"", bad or "a b"),
        lambda: requests.start(bad, b"", Sink()),
        lambda: requests.start_one(bad, b"", window, None, b""),
        lambda: session.subscriptions.subscribe(bad, max_msgs=1, max_bytes=1),
        lambda: session.subscriptions.subscribe("a", queue=bad or None, max_msgs=1, max_bytes=1),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=r"subject (filter )?must be"):
            call()
    assert outgoing.try_publish(bad, b"") == 0
    assert (window.registered, requests.sinks.keys() - {window.token}, len(session.subscriptions)) == ([], set(), 0)
    assert not [event for event in Parser(Side.CLIENT).feed(outgoing.take()) if isinstance(event, Pub)]


@pytest.mark.parametrize("bad", NO_PAYLOAD, ids=repr)
def test_what_is_no_payload_is_a_usage_error_of_every_form(bad: Any) -> None:
    session, window = connected(), Window()
    session.outgoing.publish("a", b"")
    session.outgoing.take()
    calls: list[Callable[[], object]] = [
        lambda: session.outgoing.publish("a", bad),
        lambda: session.requests.start("a", bad, Sink()),
        lambda: session.requests.start_one("a", bad, window, None, b""),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="payload must be bytes, not "):
            call()
    assert session.outgoing.try_publish("a", bad) == 0
    assert window.registered == []


@pytest.mark.parametrize("bad", NO_NUMBER, ids=repr)
def test_what_is_no_limit_is_a_usage_error_of_every_form(bad: Any) -> None:
    session = connected()
    box = session.subscriptions.subscribe("a", max_msgs=1, max_bytes=1)
    for call, name in (
        (lambda: session.subscriptions.subscribe("a", max_msgs=bad, max_bytes=1), "max_pending_msgs"),
        (lambda: session.subscriptions.subscribe("a", max_msgs=1, max_bytes=bad), "max_pending_bytes"),
        (lambda: session.subscriptions.unsubscribe(box, bad), "max_msgs"),
    ):
        with pytest.raises(UsageError, match=f"^{name} must be"):
            call()
    assert len(session.subscriptions) == 1


@given(st.lists(st.tuples(st.sampled_from(["a", "b.c"]), PAYLOADS), max_size=8))
def test_the_usual_case_of_a_publish_is_framed_as_any(sent: list[tuple[str, bytes]]) -> None:
    session, other = connected(), connected()
    for subject, payload in sent:
        other.outgoing.publish(subject, payload, "", b"")
        before = session.outgoing.size
        size = session.outgoing.try_publish(subject, payload)
        if not size:
            assert session.outgoing.size == before
            session.outgoing.publish(subject, payload)
        assert session.outgoing.size == sum(map(len, session.outgoing.frames)) > before
    assert session.outgoing.take() == other.outgoing.take()
    assert session.stats.out_msgs == len(sent)
    session.lost(ConnectionLostError("gone"), now=0, random=0)
    assert session.outgoing.try_publish("a", b"x") == 0
