"""A time before a message was sent is known, however late and in whatever pieces it is read."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from slipstream.client.session import Session
from slipstream.jetstream.consume.prefetch import AckRules
from slipstream.wire import Msg
from tests.client.test_session import BOUNDS, GONE, connect, connected

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("mark"), st.floats(0, 2)),
        st.tuples(st.just("serve"), st.integers(1, 3)),
        st.tuples(st.just("send"), st.integers(1, 200)),
        st.tuples(st.just("read"), st.integers(1, 400)),
        st.tuples(st.just("take"), st.booleans()),
        st.tuples(st.just("wait"), st.floats(0.01, 5)),
        st.tuples(st.just("reconnect"), st.just(0)),
    ),
    max_size=80,
)


class Link:
    """A session, and a server whose messages name the time they were sent; bytes wait until they are read."""

    def __init__(self) -> None:
        self.now = 0.0
        self.session: Session = connected()
        self.box = self.session.subscriptions.subscribe("jobs", **BOUNDS)
        self.session.outgoing.take()
        self.down = b""
        self.pings = 0  # sent, and not answered yet
        self.sent = 0
        self.taken: list[tuple[float, float]] = []  # when each was sent, and the time before that which is known

    def mark(self, interval: float) -> None:
        self.session.mark(self.now, interval=interval)
        self.pings += self.session.outgoing.take().count(b"PING\r\n")

    def serve(self, pings: int) -> None:
        answered = min(pings, self.pings)
        self.pings -= answered
        self.down += b"PONG\r\n" * answered

    def send(self, size: int) -> None:
        payload = repr(self.now).encode().ljust(size)
        self.down += b"MSG jobs %b %d\r\n%b\r\n" % (self.box.sid, len(payload), payload)
        self.sent += 1

    def read(self, size: int) -> None:
        data, self.down = self.down[:size], self.down[size:]
        if data:
            self.session.received(data, self.now)

    def take(self, is_all: bool) -> None:
        while self.box.items:
            msgs, sent_after = self.box.take_all_dated() if is_all else _one(self.box.take_dated())
            self.taken += [(float(msg.payload), sent_after) for msg in msgs]

    def reconnect(self, _: int) -> None:
        self.session.lost(GONE, now=self.now, random=0.0)
        self.down, self.pings = b"", 0
        connect(self.session, now=self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds


def _one(dated: tuple[Msg, float]) -> tuple[list[Msg], float]:
    return [dated[0]], dated[1]


@given(STEPS)
def test_no_message_was_sent_before_the_time_that_is_known(steps: list[tuple[str, float]]) -> None:
    link = Link()
    for name, argument in steps:
        getattr(link, name)(argument)
    link.read(10**9)
    link.take(is_all=True)
    for sent_at, sent_after in link.taken:
        assert sent_after <= sent_at


@given(st.integers(1, 40), st.integers(1, 5_000))
def test_on_a_connection_that_is_always_full_messages_stay_fresh(count: int, size: int) -> None:
    """Each read leaves something behind; what counts is that PONGs are among it."""
    link, rules = Link(), AckRules()
    step = rules.look_every * 0.9
    for _ in range(count):
        link.mark(rules.look_every)
        link.send(size)
        link.serve(1)
        link.send(size)
        link.wait(step)
        link.read(len(link.down) - size // 2)
        link.take(is_all=True)
    for sent_at, sent_after in link.taken[2:]:
        assert sent_at - sent_after <= 3 * rules.look_every


def test_a_ping_is_sent_once_per_interval_and_anew_on_another_connection() -> None:
    link = Link()
    assert link.session.subscriptions.sent_after == -math.inf
    for interval in (1.0, 1.0, 0.0):
        link.mark(interval)
    assert link.pings == 2
    link.wait(0.5)
    link.mark(1.0)
    assert link.pings == 2
    link.reconnect(0)
    link.mark(1.0)
    assert link.pings == 1
    link.serve(1)
    link.read(100)
    assert link.session.subscriptions.sent_after == 0.5
