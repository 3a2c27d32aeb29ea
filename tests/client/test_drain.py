"""Many replies to one request, and ends without loss: of one subscription, of the connection."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.client._sync import client as blocking
from slipstream.client.events import PendingPing
from slipstream.client.request_many import RequestMany
from slipstream.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    NoRespondersError,
    RequestTimeoutError,
    UsageError,
)
from slipstream.wire import Msg
from tests.client.support import Driver, FakeServer, Peer, eventually
from tests.client.test_session import BOUNDS, GONE, connect, connected, kinds

# The session


def test_a_drained_subscription_gets_what_was_sent_before_the_answer() -> None:
    session = connected()
    box, other = session.subscriptions.subscribe("a", **BOUNDS), session.subscriptions.subscribe("b", **BOUNDS)
    session.outgoing.take()
    answer = session.drain(box)
    assert session.outgoing.take() == b"UNSUB 2\r\nPING\r\n"
    session.received(b"MSG a 2 1\r\n1\r\nMSG b 3 1\r\n2\r\n", 0)
    assert (answer.is_answered, box.is_ended) == (False, False)
    session.received(b"MSG a 2 1\r\n3\r\nPONG\r\nMSG a 2 1\r\n4\r\n", 0)
    assert answer.is_answered
    assert [msg.payload for msg in box.take_all()] == [b"1", b"3"]
    assert box.is_over
    assert not other.is_ended
    assert session.drain(box).draining == []


def test_a_loss_ends_what_is_draining_and_it_does_not_come_back() -> None:
    session = connected()
    box = session.subscriptions.subscribe("a", **BOUNDS)
    limited = session.subscriptions.subscribe("b", **BOUNDS)
    session.subscriptions.unsubscribe(limited, 1)
    answer = session.drain()
    assert session.subscriptions.is_draining
    session.received(b"MSG b 3 0\r\n\r\n", 0)
    assert (limited.is_ended, box.is_ended) == (True, False)
    session.lost(GONE, now=0, random=0)
    assert (answer.is_answered, box.is_over) == (False, True)
    assert connect(session) == b""
    with pytest.raises(UsageError, match="draining: no new subscription of 'c'"):
        session.subscriptions.subscribe("c", **BOUNDS)


def test_without_a_connection_a_drain_is_done_at_once() -> None:
    session = connected()
    box = session.subscriptions.subscribe("a", **BOUNDS)
    session.lost(GONE, now=0, random=0)
    assert session.drain(box).is_answered
    assert box.is_over
    session.close()
    with pytest.raises(ConnectionClosedError):
        session.drain()


def test_a_server_that_shuts_down_and_servers_that_appear_are_events() -> None:
    session = connected()
    assert kinds(session.received(b'INFO {"connect_urls":["two:2","one:1"]}\r\n', 0)) == ["discovered"]
    assert kinds(session.received(b'INFO {"connect_urls":["two:2"]}\r\n', 0)) == []
    assert [str(server) for server in session.servers] == ["nats://one:1", "nats://two:2"]
    assert kinds(session.received(b"-ERR 'Server Shutdown'\r\n", 0)) == ["server_shutdown"]
    assert kinds(session.lost(GONE, now=0, random=0)) == ["disconnected"]
    assert "Server Shutdown" in str(session.effects.last_error)
    session.dial(0)
    assert kinds(session.lost(GONE, now=0, random=0)) == ["reconnect_failed"]


def test_a_pong_without_a_drain_ends_no_subscription() -> None:
    assert PendingPing().draining == ()


# Many replies, without a driver


def reply(payload: bytes) -> Msg:
    return Msg("_INBOX.N.1", b"1", "", b"", payload)


@given(st.integers(1, 5), st.lists(st.binary(max_size=3), max_size=10))
def test_replies_are_kept_up_to_the_number_wanted(wanted: int, payloads: list[bytes]) -> None:
    many = RequestMany("a", now=0, timeout=1, idle_timeout=None, max_messages=wanted)
    ended = [many.deliver(reply(payload)) for payload in payloads[:wanted]]
    assert ended == [number == wanted for number in range(1, len(ended) + 1)]
    assert [many.box.take().payload for _ in ended] == payloads[:wanted]
    assert many.box.is_over == (len(payloads) >= wanted)


def test_the_idle_time_begins_with_the_first_reply() -> None:
    many = RequestMany("a", now=100, timeout=10, idle_timeout=2, max_messages=None)
    assert many.time_left(101) == 9
    assert many.time_left(102) == 2
    assert many.time_left(109) == 1
    assert many.time_left(111) == 0
    patient = RequestMany("a", now=100, timeout=10, idle_timeout=None, max_messages=None)
    assert [patient.time_left(now) for now in (100, 101)] == [10, 9]
    many.fail(GONE)
    with pytest.raises(ConnectionLostError):
        many.box.take()


@pytest.mark.parametrize("bad", [{"timeout": 0}, {"idle_timeout": 0}, {"max_messages": 0}])
def test_bounds_that_make_no_sense_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="must be"):
        RequestMany("a", **{"now": 0, "timeout": 1, "idle_timeout": None, "max_messages": None, **bad})


# Many replies, with the drivers


def serve(nc: Any, subject: str, *payloads: bytes) -> None:
    """Answer each request with all of `payloads`; its own payload where there are none."""
    real = getattr(nc, "_real", None)  # a callback of asyncio runs on the loop, where nobody may wait for the loop
    if real is None:

        def answer(message: Any) -> None:
            for payload in payloads or [message.data]:
                nc.publish(message.reply, payload)
    else:

        async def answer(message: Any) -> None:  # type: ignore[misc]
            for payload in payloads or [message.data]:
                await real.publish(message.reply, payload)

    nc.subscribe(subject, callback=answer)


def test_all_replies_are_iterated_over_until_one_of_the_bounds(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc:
        serve(nc, "many", b"1", b"2", b"", b"4")

        def data(**bounds: Any) -> list[bytes]:
            return [message.data for message in nc.request_many("many", b"?", **bounds)]

        assert data(max_messages=2) == [b"1", b"2"]
        assert data(max_messages=4, headers={"A": "1"}) == [b"1", b"2", b"", b"4"]
        assert data(sentinel=lambda message: not message.data) == [b"1", b"2"]
        began = time.monotonic()
        eventually(lambda: data(timeout=60, idle_timeout=0.3) == [b"1", b"2", b"", b"4"])  # once none is late
        assert time.monotonic() - began < 30
        eventually(lambda: data(timeout=0.4) == [b"1", b"2", b"", b"4"])
        assert nc._session.requests.sinks == {}


def test_request_many_raises_without_responders_and_ends_without_replies(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc:
        with pytest.raises(NoRespondersError, match=r"nobody\.here"):
            list(nc.request_many("nobody.here"))
        nc.subscribe("silent")
        assert list(nc.request_many("silent", timeout=0.05)) == []
        with pytest.raises(UsageError):
            list(nc.request_many("silent", max_messages=0))
        assert nc._session.requests.sinks == {}


def test_an_iteration_given_up_forgets_its_request(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc:
        serve(nc, "endless", *[b"x"] * 100)
        replies = nc.request_many("endless")
        assert next(replies).data == b"x"
        if driver.name == "blocking":
            replies.close()
        else:
            replies._run(replies._real.aclose())
        assert nc._session.requests.sinks == {}


def test_a_loss_ends_an_iteration_with_an_error(driver: Driver) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        inbox = peer.expect(b"PUB many ") and peer.expect(b" ").strip()
        peer.expect(b"\r\n")
        peer.send(b"MSG %b 1 1\r\n1\r\n" % inbox)

    with FakeServer(script) as server:
        nc = driver.connect(server.url, reconnect=False)
        replies = nc.request_many("many")
        assert next(replies).data == b"1"
        with pytest.raises(ConnectionLostError):
            next(replies)
        nc.close()


# Drain, with the drivers


def test_a_subscription_that_is_drained_loses_nothing(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc, driver.connect(nats_url) as other:
        seen: list[bytes] = []

        def handle(message: Any) -> None:
            time.sleep(0.001)
            seen.append(message.data)

        sub, slow = nc.subscribe("drain.sub"), nc.subscribe("drain.sub", callback=handle)
        nc.flush()
        for i in range(100):
            other.publish("drain.sub", b"%d" % i)
        other.flush()
        slow.drain()
        assert len(seen) == 100
        sub.drain()
        other.publish("drain.sub", b"late")
        other.flush()
        assert [message.data for message in sub] == [b"%d" % i for i in range(100)]
        assert len(seen) == 100
        sub.drain()
        assert nc.is_connected


def test_an_unsubscribe_ends_the_iteration_of_another_thread_at_once(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as nc:
        sub = nc.subscribe("quiet")
        reader = threading.Thread(target=lambda: list(sub))
        reader.start()
        if driver.name == "blocking":
            eventually(lambda: nc._connection._is_pumping)  # it waits in the socket, where nothing will come
        sub.unsubscribe()
        reader.join(0.9)
        assert not reader.is_alive()


def test_a_callback_may_drain_its_own_subscription(nats_url: str) -> None:
    drained = threading.Event()
    with blocking.connect(nats_url) as nc:

        def callback(_: Any) -> None:
            sub.drain()
            drained.set()

        sub = nc.subscribe("drain.own", callback=callback)
        nc.publish("drain.own")
        assert drained.wait(5)


def test_a_drained_client_hands_over_sends_and_closes(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url) as asker:
        nc = driver.connect(nats_url, on_event=lambda _: None)
        serve(nc, "drain.all")
        read: list[bytes] = []
        sub = nc.subscribe("drain.read")
        reader = threading.Thread(target=lambda: read.extend(message.data for message in sub))
        reader.start()
        answers = asker.subscribe("drain.answers")
        asker.flush()
        nc.flush()
        for i in range(50):
            asker.publish("drain.all", b"%d" % i, reply="drain.answers")
            asker.publish("drain.read", b"%d" % i)
        asker.flush()
        nc.drain()
        assert nc.is_closed
        assert nc.is_draining
        reader.join(5)
        assert len(read) == 50
        for i in range(50):
            assert answers.next().data == b"%d" % i
        with pytest.raises(ConnectionClosedError):
            nc.drain()


@pytest.mark.steady
def test_a_drain_without_a_reader_times_out_and_closes(driver: Driver, nats_url: str) -> None:
    nc = driver.connect(nats_url)
    sub = nc.subscribe("drain.unread")
    for _ in range(3):
        nc.publish("drain.unread")
    with pytest.raises(RequestTimeoutError, match=r"within 1 s: 3 of 'drain\.unread'"):
        nc.drain(timeout=1)
    assert nc.is_closed
    assert len(list(sub)) == 3


@pytest.mark.steady
def test_a_callback_that_does_not_end_ends_a_drain_by_its_timeout(driver: Driver, nats_url: str) -> None:
    go_on = threading.Event()
    nc = driver.connect(nats_url)
    if driver.name == "blocking":
        callback: Any = lambda _: go_on.wait(5)  # noqa: E731
    else:

        async def callback(_: Any) -> None:
            while not go_on.is_set():
                await asyncio.sleep(0.01)

    sub = nc.subscribe("drain.stuck", callback=callback)
    nc.publish("drain.stuck")
    nc.flush()
    with pytest.raises(RequestTimeoutError, match=r"within 1 s: a callback is still running"):
        sub.drain(timeout=1)
    go_on.set()
    nc.close()


def test_a_loss_during_a_drain_is_an_error_and_closes(driver: Driver) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.expect(b"UNSUB 2\r\n")

    with FakeServer(script) as server:
        nc = driver.connect(server.url, on_event=lambda _: None)
        nc.subscribe("a")
        with pytest.raises(ConnectionLostError):
            nc.drain()
        assert nc.is_closed


def test_what_was_dropped_is_counted(driver: Driver, nats_url: str) -> None:
    with driver.connect(nats_url, on_event=lambda _: None) as nc:
        sub = nc.subscribe("dropped", max_pending_msgs=2)
        for _ in range(5):
            nc.publish("dropped")
        nc.flush()
        eventually(lambda: sub.dropped == 3)
        assert sub.pending == 2
        assert nc.servers == (nats_url,)
