"""Messages that want an answer and nothing else are answered as they arrive, while little is pending."""

from __future__ import annotations

import asyncio
import threading

import pytest

from slipstream import connect, connect_blocking
from slipstream.client._async.subscription import Subscription
from slipstream.client._sync.transport import Transport
from slipstream.client.events import SendNow
from slipstream.client.mailbox import Mailbox
from slipstream.client.session import Session
from slipstream.client.subscriptions import ANSWER_BELOW
from slipstream.jetstream.consume.ack_subject import ACK_PREFIX
from slipstream.jetstream.consume.status import flow_control_subject
from tests.client.support import LIMIT, FakeServer, Peer
from tests.client.test_raw_columns import taken
from tests.client.test_session import BOUNDS, connected

REPLY = f"{ACK_PREFIX}s.c.1.1.1.1.0".encode()
STATUS = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
BEAT = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Consumer-Stalled: fc.1\r\n\r\n"


def message(payload: bytes = b"x", reply: bytes = REPLY) -> bytes:
    return b"MSG a 2 %b %d\r\n%b\r\n" % (reply, len(payload), payload)


def status(header: bytes, reply: bytes = b"") -> bytes:
    return b"HMSG a 2 %b%d %d\r\n%b\r\n" % (reply + b" " if reply else b"", len(header), len(header), header)


@pytest.fixture
def session() -> Session:
    return connected()


@pytest.fixture
def box(session: Session) -> Mailbox:
    box = session.subscriptions.subscribe("a", **BOUNDS)
    session.subscriptions.pack(box, ACK_PREFIX)
    session.subscriptions.answer_on_arrival(box, flow_control_subject)
    session.outgoing.take()
    return box


def test_flow_control_is_answered_before_its_reader_takes_anything(session: Session, box: Mailbox) -> None:
    effects = session.received(message() + status(STATUS, b"fc.1") + message() * 2, 0)
    assert effects == [SendNow()]
    assert session.outgoing.take() == b"PUB fc.1 0\r\n\r\n"
    assert [msg.payload for msg in taken(box)] == [b"x"] * 3


def test_messages_and_other_statuses_are_left_to_the_reader(session: Session, box: Mailbox) -> None:
    imitated = status(STATUS, REPLY)  # the headers are a publisher's
    assert session.received(imitated + status(BEAT) + message(reply=b"fc.1") + message(b""), 0) == []
    assert session.outgoing.take() == b""
    assert len(taken(box)) == 4


def test_flow_control_is_the_readers_while_much_is_pending(session: Session, box: Mailbox) -> None:
    session.received(message(b"x" * (ANSWER_BELOW + 1)) + status(STATUS, b"fc.1"), 0)
    assert session.outgoing.take() == b""
    assert [msg.reply for msg in taken(box)] == [REPLY.decode(), "fc.1"]
    assert session.received(status(STATUS, b"fc.2"), 0) == [SendNow()]


def test_messages_without_a_byte_are_much_too_if_they_are_many(session: Session, box: Mailbox) -> None:
    for _ in range(20):
        session.received(message(b"") * 1000 + status(STATUS, b"fc.1"), 0)
    answered = session.outgoing.take().count(b"PUB fc.1")
    assert 10 <= answered < 20
    assert sum(msg.reply == "fc.1" for msg in taken(box)) == 20 - answered


def test_an_answer_to_no_valid_subject_is_the_readers_affair(session: Session, box: Mailbox) -> None:
    assert session.received(status(STATUS, b"fc\v1") + status(STATUS, b"fc.2"), 0) == [SendNow()]
    assert session.outgoing.take() == b"PUB fc.2 0\r\n\r\n"
    assert [msg.reply for msg in taken(box)] == ["fc\v1"]


async def test_the_answer_is_sent_before_the_reader_has_its_turn() -> None:
    is_answered = threading.Event()

    async def read(subscription: Subscription) -> bool:
        await subscription.next()
        return is_answered.wait(LIMIT)  # keeps the loop to itself

    def script(peer: Peer) -> None:
        peer.greet()
        peer.expect(b"PING\r\n")
        peer.send(b"PONG\r\n" + message() + status(STATUS, b"fc.1"))
        peer.expect(b"PUB fc.1 0\r\n\r\n")
        is_answered.set()
        peer.until_closed()

    with FakeServer(script) as server:
        async with connect(server.url) as nc:
            subscription = await nc.subscribe("a")
            subscription.pack(ACK_PREFIX)
            subscription.answer_on_arrival(flow_control_subject)
            reader = asyncio.create_task(read(subscription))
            await asyncio.sleep(0)
            await nc.flush()
            assert await reader


def test_an_answer_that_cannot_be_sent_loses_the_connection_once_whatever_is_behind_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_read, is_reset = threading.Event(), threading.Event()
    read = Transport.read

    def read_before_the_reset(transport: Transport, timeout: float) -> bytes | None:
        data = read(transport, timeout)
        if data and b"nonsense" in data:
            is_read.set()
            assert is_reset.wait(LIMIT)
        return data

    def breaks(peer: Peer) -> None:
        peer.greet()
        peer.expect(b"SUB a 2\r\n")
        peer.send(status(STATUS, b"fc.1") + b"nonsense\r\n")
        assert is_read.wait(LIMIT)
        peer.reset()
        is_reset.set()

    def goes_on(peer: Peer) -> None:
        peer.greet()
        peer.send(message(b"on"))
        peer.until_closed()

    monkeypatch.setattr(Transport, "read", read_before_the_reset)
    with FakeServer(breaks, goes_on) as server, connect_blocking(server.url) as nc:
        with nc._connection.lock:
            subscription = nc.subscribe("a")
            subscription.pack(ACK_PREFIX)
            subscription.answer_on_arrival(flow_control_subject)
        assert subscription.next(timeout=LIMIT).data == b"on"
        assert nc.stats.reconnects == 1
