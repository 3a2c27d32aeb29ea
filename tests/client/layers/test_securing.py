"""TLS as the state machine sees it: when it starts, what may come before it, what is never sent without it."""

from __future__ import annotations

import pytest

from slipstream.client.events import Effect, StartTls
from slipstream.client.session import Session, State
from slipstream.errors import RemoteProtocolError, RequestTimeoutError, TlsError
from tests.client.test_session import BOUNDS, GONE, Bulk, connect, connected, drop_of, make

REQUIRED = b'INFO {"tls_required":true,"headers":true}\r\n'
AVAILABLE = b'INFO {"tls_available":true}\r\n'
PLAIN = b"INFO {}\r\n"


def greeted(session: Session, info: bytes) -> list[Effect]:
    session.dial(0)
    session.opened()
    return session.received(info, 0)


def test_a_server_that_requires_tls_gets_connect_only_inside_it() -> None:
    session = make(user="u", password="hunter2")
    assert greeted(session, REQUIRED) == [StartTls()]
    assert (session.state, session.outgoing.take()) == (State.SECURING, b"")
    assert session.opened() == []
    sent = session.outgoing.take()
    assert b"hunter2" in sent
    assert b'"tls_required":true' in sent
    session.received(b"PONG\r\n", 0)
    assert session.is_connected


@pytest.mark.parametrize(
    ("servers", "options", "info", "is_started"),
    [
        ("nats://one", {}, REQUIRED, True),
        ("nats://one", {}, AVAILABLE, False),
        ("nats://one", {}, PLAIN, False),
        ("tls://one", {}, AVAILABLE, True),
        ("nats://one", {"tls": True}, AVAILABLE, True),
        ("nats://one", {"tls": True}, REQUIRED, True),
        ("nats://one", {"tls": True, "tls_first": True}, REQUIRED, False),  # it is there already
        ("wss://one", {}, REQUIRED, False),
        ("ws://one", {}, REQUIRED, False),
    ],
)
def test_tls_starts_where_it_is_wanted_and_not_there_yet(
    servers: str, options: dict[str, bool], info: bytes, is_started: bool
) -> None:
    session = make(servers, **options)
    assert greeted(session, info) == ([StartTls()] if is_started else [])
    assert session.state is (State.SECURING if is_started else State.HANDSHAKE)


@pytest.mark.parametrize(("servers", "options"), [("tls://one", {}), ("nats://one", {"tls": True})])
def test_a_server_that_does_not_offer_tls_when_it_is_a_must_is_left(servers: str, options: dict[str, bool]) -> None:
    session = make(servers, **options)
    error = drop_of(greeted(session, PLAIN))
    assert isinstance(error, TlsError)
    assert session.outgoing.take() == b""


@pytest.mark.parametrize("more", [b"PING\r\n", b"MSG a 2 0\r\n\r\n", b"INFO {}\r\n", b"MS", b"-ERR 'x'\r\n"])
def test_what_follows_info_in_the_clear_is_not_believed(more: bytes) -> None:
    session = connected()
    box = session.subscriptions.subscribe("a", **BOUNDS)
    session.lost(GONE, now=0, random=0)
    error = drop_of(greeted(session, REQUIRED + more))
    assert isinstance(error, RemoteProtocolError)
    assert box.pending == 0


@pytest.mark.parametrize("info", [b"", PLAIN])
def test_messages_before_the_server_accepted_us_are_not_believed(info: bytes) -> None:
    session = connected()
    box, bulk = session.subscriptions.subscribe("a", **BOUNDS), Bulk()
    session.lost(GONE, now=0, random=0)
    session.requests.start_bulk("b", b"", bulk)
    frames = bulk.prefix + b"4 7\r\nHHHHab!\r\n"
    assert isinstance(drop_of(greeted(session, info + frames)), RemoteProtocolError)
    assert (box.pending, bulk.scanned) == (0, [])
    session.lost(GONE, now=0, random=0)
    connect(session)
    session.received(frames, 0)
    assert bulk.scanned == [b"ab!"]


def test_messages_right_behind_the_pong_are_taken() -> None:
    session = connected()
    box = session.subscriptions.subscribe("a", **BOUNDS)
    session.lost(GONE, now=0, random=0)
    session.dial(0)
    session.opened()
    session.received(PLAIN + b"PONG\r\nMSG a 2 1\r\nx\r\n", 0)
    assert box.take().payload == b"x"


def test_one_reason_to_drop_is_enough() -> None:
    session = make()
    session.dial(0)
    session.opened()
    assert "first" in str(drop_of(session.received(PLAIN + b"-ERR 'first'\r\n-ERR 'second'\r\n", 0)))


def test_securing_has_a_deadline() -> None:
    session = make()
    greeted(session, REQUIRED)
    error = drop_of(session.tick(5.0))
    assert isinstance(error, RequestTimeoutError)
    assert "no end of the TLS handshake within 5 s" in str(error)
