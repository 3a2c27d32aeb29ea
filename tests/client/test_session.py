"""The state machine without sockets: time is a number, the server is a few bytes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.client.events import Connected, Drop, Effect, Ended, Ready, Report
from slipstream.client.mailbox import Mailbox
from slipstream.client.options import MAX_PENDING_BYTES, MAX_PENDING_MSGS, ClientOptions
from slipstream.client.outgoing import KNOWN_SUBJECTS
from slipstream.client.secrets import read_login
from slipstream.client.session import _TABLE, Session, State, Step
from slipstream.errors import (
    AuthorizationError,
    ConnectionClosedError,
    ConnectionLostError,
    Error,
    RemoteProtocolError,
    RequestTimeoutError,
    ServerError,
    TlsError,
    UsageError,
)
from slipstream.wire import Msg, Parser, Pub, Side

INFO = b'INFO {"server_id":"S","headers":true,"max_payload":1000000}\r\n'
BOUNDS: dict[str, Any] = {"max_msgs": MAX_PENDING_MSGS, "max_bytes": MAX_PENDING_BYTES}
GONE = ConnectionLostError("gone")


class Sink:
    """Counts what it gets: a request must end once, and only once."""

    def __init__(self, wanted: int = 1) -> None:
        self.got: list[bytes] = []
        self.errors: list[Error] = []
        self._wanted = wanted

    def deliver(self, msg: Msg) -> bool:
        self.got.append(msg.payload)
        return len(self.got) == self._wanted

    def fail(self, error: Error) -> None:
        self.errors.append(error)


def make(servers: str = "nats://one:1", **options: Any) -> Session:
    session = Session(ClientOptions(servers, **options), nonce="N")
    session.login = read_login(session.options)
    return session


def connect(session: Session, *, now: float = 0.0, info: bytes = INFO) -> bytes:
    """The handshake; returns what is sent after it."""
    session.dial(now)
    session.opened()
    assert session.received(info, now) == []
    assert session.outgoing.take().startswith(b"CONNECT {")
    effects = session.received(b"PONG\r\n", now)
    assert Ready() in effects
    return session.outgoing.take()


def connected(**options: Any) -> Session:
    session = make(**options)
    connect(session)
    return session


def kinds(effects: list[Effect]) -> list[str]:
    return [str(effect.event.kind) for effect in effects if isinstance(effect, Report)]


def drop_of(effects: list[Effect]) -> Error:
    drops = [effect.error for effect in effects if isinstance(effect, Drop)]
    assert len(drops) == 1
    return drops[0]


# The handshake


def test_the_handshake_waits_for_info_and_then_for_the_pong() -> None:
    session = make(name="n", user="u", password="p", echo=False)
    assert str(session.dial(1.0)) == "nats://one:1"
    session.opened()
    assert (session.state, session.outgoing.take()) == (State.GREETING, b"")
    session.received(INFO, 1.0)
    sent = session.outgoing.take()
    assert session.state is State.HANDSHAKE
    assert sent.endswith(b"}\r\nPING\r\n")
    for part in (
        b'"user":"u"', b'"pass":"p"', b'"verbose":false', b'"pedantic":false', b'"echo":false', b'"headers":true',
        b'"no_responders":true', b'"protocol":1', b'"lang":"python-slipstream"',
    ):  # fmt: skip
        assert part in sent
    connected = Connected("nats://one:1", "server 'S', version unknown, without JetStream")
    assert session.received(b"+OK\r\nPONG\r\n", 2.0) == [Ready(), connected]
    assert (session.state, session.is_connected, session.outgoing.max_payload) == (State.CONNECTED, True, 1000000)


def test_credentials_of_the_url_go_before_those_of_the_options() -> None:
    session = make("nats://tok@one", user="u", password="p")
    session.dial(0)
    session.opened()
    session.received(INFO, 0)
    sent = session.outgoing.take()
    assert b'"auth_token":"tok"' in sent
    assert b'"user"' not in sent


@pytest.mark.parametrize("step", list(Step))
@pytest.mark.parametrize("state", list(State))
def test_an_illegal_step_raises_and_changes_nothing(state: State, step: Step) -> None:
    session = make()
    session.state = state
    if (state, step) in _TABLE:
        session._move(step)
        assert session.state is _TABLE[state, step]
        assert state is not State.CLOSED
        return
    with pytest.raises(UsageError, match=f"{step.name} is not possible in state {state.name}"):
        session._move(step)
    assert session.state is state


@pytest.mark.parametrize(
    ("steps", "awaited"), [(0, "no connection within 5 s"), (1, "no INFO within 5 s"), (2, "no PONG within 5 s")]
)
def test_a_handshake_has_a_deadline(steps: int, awaited: str) -> None:
    session = make()
    session.dial(10.0)
    if steps > 0:
        session.opened()
    if steps > 1:
        session.received(INFO, 11.0)
    assert session.timer == 15.0
    assert session.tick(14.9) == []
    error = drop_of(session.tick(15.0))
    assert isinstance(error, RequestTimeoutError)
    assert awaited in str(error)
    assert session.tick(16.0) == []


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"-ERR 'Authorization Violation'\r\n", AuthorizationError),
        (b"-ERR 'User Authentication Expired'\r\n", AuthorizationError),
        (b"-ERR 'maximum connections exceeded'\r\n", ServerError),
        (b"NONSENSE\r\n", RemoteProtocolError),
        (b"PUB a 0\r\n\r\n", RemoteProtocolError),
    ],
)
def test_a_server_error_during_the_handshake_ends_the_attempt(data: bytes, kind: type[Error]) -> None:
    session = make()
    session.dial(0)
    session.opened()
    session.received(INFO, 0)
    error = drop_of(session.received(data, 0))
    assert type(error) is kind
    effects = session.lost(error, now=0, random=0)
    assert Ended(error) in effects
    assert session.error is error


def test_an_unsolicited_pong_is_ignored() -> None:
    session = make()
    session.dial(0)
    session.opened()
    assert session.received(b"PONG\r\n", 0) == []
    assert session.state is State.GREETING


# Servers


def test_at_first_every_server_is_tried_once_and_without_a_pause() -> None:
    session = make("one:1,two:2,one:1")
    tried = []
    while session.state is not State.CLOSED:
        tried.append(str(session.dial(7.0)))
        session.lost(ConnectionLostError(f"{session.server}: refused"), now=7.0, random=0.5)
    assert tried == ["nats://one:1", "nats://two:2"]
    assert "2 attempts: nats://one:1: refused; nats://two:2: refused" in str(session.error)


def attempts(session: Session, *errors: Error, lasting: float = 0.0) -> list[tuple[float, str]]:
    """Let attempts at the first connection fail until it is given up: when each was made, and where."""
    made, now, left = [], 0.0, list(errors)
    while session.state is not State.CLOSED:
        made.append((now, str(session.dial(now))))
        session.lost(left.pop(0) if left else GONE, now=now + lasting, random=1.0)
        now = session.timer
    return made


def test_wait_for_server_tries_all_servers_in_rounds_until_the_time_is_up() -> None:
    session = make("one:1,two:2", wait_for_server=10, reconnect_wait=1.0, reconnect_max_wait=4.0, max_reconnects=0)
    made = attempts(session)
    assert [when for when, _ in made] == [0, 0, 1, 1, 3, 3, 7, 7, 10, 10]  # the last pause ends with the wait
    assert [where for _, where in made] == ["nats://one:1", "nats://two:2"] * 5
    assert isinstance(session.error, ConnectionLostError)
    assert str(session.error) == (
        "no server could be reached within 10.0 s, in 10 attempts, at nats://one:1, nats://two:2; "
        "the last error was: gone"
    )
    assert session.error.__cause__ is GONE


def test_wait_for_server_gives_every_server_its_whole_timeout_once() -> None:
    made = attempts(make("one:1,two:2", wait_for_server=1, timeout=5), lasting=5.0)
    assert [where for _, where in made] == ["nats://one:1", "nats://two:2"]


def test_each_failure_of_the_first_connection_is_reported_but_the_last_one_is_raised() -> None:
    session = make("one:1", wait_for_server=1, reconnect_wait=1.0)
    reported = []
    for now in (0.0, 1.0):
        session.dial(now)
        reported.append(kinds(session.lost(GONE, now=now, random=1.0)))
    assert reported == [["connect_failed"], ["closed"]]


@pytest.mark.parametrize(
    "error", [AuthorizationError("Authorization Violation"), TlsError("expired"), UsageError("a mistake")]
)
@pytest.mark.parametrize("wait", [True, 60], ids=str)
def test_what_no_wait_mends_ends_the_wait_for_a_server_at_once(error: Error, wait: bool | int) -> None:
    session = make("one:1", wait_for_server=wait)
    assert len(attempts(session, GONE, GONE, error)) == 3
    assert session.error is error


def test_a_server_that_rejects_the_credentials_does_not_keep_the_others_from_being_tried() -> None:
    rejected = AuthorizationError("Authorization Violation")
    session = make("one:1,two:2,three:3", wait_for_server=True)
    assert [where for _, where in attempts(session, GONE, rejected)][-1] == "nats://three:3"
    assert session.error is rejected
    session = make("one:1,two:2", wait_for_server=True)
    session.dial(0)
    session.lost(rejected, now=0, random=0)
    connect(session)
    assert session.is_connected


def test_after_the_first_connection_the_wait_for_a_server_means_nothing() -> None:
    session = connected(wait_for_server=True, reconnect=False)
    session.lost(GONE, now=1, random=0)
    assert session.state is State.CLOSED


def test_a_reconnect_says_to_which_server() -> None:
    session = connected()
    session.lost(GONE, now=1, random=0)
    session.dial(2)
    session.opened()
    session.received(b'INFO {"server_name":"n2","version":"2.15.1","jetstream":true,"headers":true}\r\n', 2)
    effects = session.received(b"PONG\r\n", 2)
    details = [effect.event.detail for effect in effects if isinstance(effect, Report)]
    assert details == ["server 'n2', version 2.15.1, with JetStream"]


def test_pauses_grow_from_round_to_round_and_are_spread() -> None:
    session = connected(servers="one:1,two:2", reconnect_wait=1.0, reconnect_max_wait=4.0)
    pauses = []
    for _ in range(8):
        session.lost(GONE, now=100.0, random=1.0)
        pauses.append(session.timer - 100.0)
        session.dial(100.0)
    assert pauses == [1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0]
    session.lost(GONE, now=100.0, random=0.0)
    assert session.timer == 102.0


def test_after_a_connection_the_count_of_tries_begins_again() -> None:
    session = connected(max_reconnects=1)
    for _ in range(5):
        session.lost(GONE, now=0, random=0)
        assert session.state is State.WAITING
        connect(session)
    session.lost(GONE, now=0, random=0)
    session.dial(0)
    session.lost(GONE, now=0, random=0)
    assert session.state is State.CLOSED


def test_learned_servers_are_tried_in_turn_with_the_credentials_of_the_one_that_named_them() -> None:
    session = make("nats://u:p@one:1")
    connect(session, info=INFO.replace(b'"headers"', b'"connect_urls":["one:1","two:2","::bad::"],"headers"'))
    session.lost(GONE, now=0, random=0)
    server = session.dial(0)
    assert (str(server), server.user, server.password) == ("nats://two:2", "u", "p")
    session.lost(GONE, now=0, random=0)
    assert str(session.dial(0)) == "nats://one:1"


def test_credentials_refused_twice_are_not_tried_again() -> None:
    session = connected(servers="one:1")
    session.lost(GONE, now=0, random=0)
    refused = AuthorizationError("Authorization Violation")
    session.dial(0)
    session.lost(refused, now=0, random=0)
    assert session.state is State.WAITING
    session.dial(0)
    assert Ended(refused) in session.lost(refused, now=0, random=0)


# Staying connected


def test_a_ping_is_answered() -> None:
    session = connected()
    assert session.received(b"PING\r\n", 0) == []
    assert session.outgoing.take() == b"PONG\r\n"


def test_pings_go_out_and_silence_is_noticed() -> None:
    session = connected(ping_interval=10.0, max_pings_out=2)
    assert session.timer == 10.0
    assert session.tick(9.0) == []
    assert session.tick(10.0) == []
    assert session.outgoing.take() == b"PING\r\n"
    session.received(b"PONG\r\n", 11.0)
    for now in (20.0, 30.0):
        assert session.tick(now) == []
    error = drop_of(session.tick(40.0))
    assert "one:1 is silent, 2 PINGs 10 s apart" in str(error)
    assert kinds(session.lost(error, now=40.0, random=0)) == ["disconnected"]


def test_any_byte_is_a_sign_of_life() -> None:
    session = connected(ping_interval=10.0, max_pings_out=1)
    session.tick(10.0)
    session.received(b"MS", 15.0)
    assert session.tick(20.0) == []


def test_flushes_are_answered_in_order_among_pings() -> None:
    session = connected(ping_interval=10.0)
    first = session.ping()
    session.tick(10.0)
    second = session.ping()
    session.received(b"PONG\r\nPONG\r\n", 10.0)
    assert (first.is_answered, second.is_answered) == (True, False)
    session.received(b"PONG\r\nPONG\r\n", 10.0)
    assert second.is_answered


def test_new_infos_are_taken_over_and_a_lame_duck_is_reported_once() -> None:
    session = connected()
    assert session.received(b'INFO {"max_payload":5}\r\n', 0) == []
    assert session.outgoing.max_payload == 5
    lame = b'INFO {"ldm":true}\r\n'
    assert kinds(session.received(lame + lame, 0)) == ["lame_duck"]


# Errors that the server reports


def test_a_denied_publish_is_reported_and_nothing_else() -> None:
    session = connected()
    effects = session.received(b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n", 0)
    assert kinds(effects) == ["error"]
    assert isinstance(session.effects.last_error, AuthorizationError)
    assert "gone" in str(failure_of(session, GONE))


def failure_of(session: Session, error: Error) -> Error:
    sink = Sink()
    session.requests.start("x", b"", sink)
    session.lost(error, now=0, random=0)
    return sink.errors[0]


def test_a_server_error_is_the_reason_of_the_loss_that_follows_it() -> None:
    session = connected()
    session.received(b"-ERR 'Stale Connection'\r\n", 0)
    error = failure_of(session, GONE)
    assert isinstance(error, ConnectionLostError)
    assert "Stale Connection" in str(error)


def test_a_server_error_that_leaves_the_connection_open_is_not() -> None:
    session = connected()
    session.received(b"-ERR 'Invalid Subject'\r\n", 0)
    session.received(b"PING\r\n", 0)
    assert "gone" in str(failure_of(session, GONE))


def test_a_denied_subscription_ends_with_the_error() -> None:
    session = connected()
    boxes = [session.subscriptions.subscribe("a", queue=queue, **BOUNDS) for queue in ("", "q")]
    session.received(b'-ERR \'Permissions Violation for Subscription to "a" using queue "q"\'\r\n', 0)
    assert [box.is_ended for box in boxes] == [False, True]
    with pytest.raises(AuthorizationError):
        boxes[1].take()
    session.received(b"-ERR 'Permissions Violation for Subscription to \"a\"'\r\n", 0)
    assert boxes[0].is_ended


def test_a_denied_inbox_fails_the_requests_and_is_asked_for_again() -> None:
    session = connected()
    sink = Sink()
    session.requests.start("a", b"", sink)
    session.received(b"-ERR 'Permissions Violation for Subscription to \"_INBOX.N.*\"'\r\n", 0)
    assert isinstance(sink.errors[0], AuthorizationError)
    session.outgoing.take()
    session.requests.start("a", b"", Sink())
    assert session.outgoing.take().startswith(b"SUB _INBOX.N.* 1\r\n")


# Publishing


@pytest.mark.parametrize(
    ("args", "frame"),
    [
        (("a", b"xy"), b"PUB a 2\r\nxy\r\n"),
        (("a", b"", "r"), b"PUB a r 0\r\n\r\n"),
        (("a", b"xy", "", b"NATS/1.0\r\n\r\n"), b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nxy\r\n"),
        (("a", memoryview(b"xy")), b"PUB a 2\r\nxy\r\n"),
    ],
)
def test_a_publish_becomes_a_frame(args: Any, frame: bytes) -> None:
    session = connected()
    session.outgoing.publish(*args)
    assert (session.outgoing.size, session.outgoing.take(), session.outgoing.size) == (len(frame), frame, 0)


@given(size=st.integers(0, 40_000), reply=st.sampled_from(["", "r.s"]), header=st.booleans(), is_open=st.booleans())
def test_every_publish_is_what_the_server_reads(size: int, reply: str, header: bool, is_open: bool) -> None:
    session = connected()
    if not is_open:
        session.lost(GONE, now=0, random=0)
    block = b"NATS/1.0\r\nA: 1\r\n\r\n" if header else b""
    payload = b"x" * size
    session.outgoing.publish("sub.ject", payload, reply, block)
    assert session.outgoing.size == sum(map(len, session.outgoing.frames))
    sent = session.outgoing.take() if is_open else connect(session)
    assert Parser(Side.CLIENT).feed(sent) == [Pub("sub.ject", reply, block, payload)]


def test_what_cannot_be_sent_is_refused() -> None:
    session = connected()
    session.received(b'INFO {"max_payload":10}\r\n', 0)
    header = b"NATS/1.0\r\n\r\n"
    for args, text in [
        (("a", b"x" * 11), "at most 10 bytes .* got 11"),
        (("a", b"", "", header), "got 12"),
        (("a b", b""), "subject must be"),
        (("a", b"", "r.*"), "subject must be"),
        (("a", 5), "not int"),
        (("a" * 5000, b""), "got 5000"),
    ]:
        with pytest.raises(UsageError, match=text):
            session.outgoing.publish(*args)  # type: ignore[arg-type]
    session.received(b'INFO {"max_payload":100}\r\n', 0)
    with pytest.raises(UsageError, match="does not support headers"):
        session.outgoing.publish("a", b"", "", header)
    assert session.outgoing.take() == b""


def test_the_memory_of_checked_subjects_is_bounded() -> None:
    session = connected()
    for i in range(KNOWN_SUBJECTS + 10):
        session.outgoing.publish(f"s.{i}", b"")
    assert len(session.outgoing._prefixes) <= KNOWN_SUBJECTS


# Requests


def test_replies_go_to_the_sink_until_it_is_satisfied() -> None:
    session = connected()
    one, two, gone = Sink(), Sink(wanted=2), Sink()
    assert session.requests.start("a", b"1", one) == "1"
    assert session.outgoing.take() == b"SUB _INBOX.N.* 1\r\nPUB a _INBOX.N.1 1\r\n1\r\n"
    session.requests.start("a", b"2", two, b"NATS/1.0\r\n\r\n")
    assert session.outgoing.take() == b"HPUB a _INBOX.N.2 12 13\r\nNATS/1.0\r\n\r\n2\r\n"
    session.requests.cancel(session.requests.start("a", b"3", gone))
    session.requests.cancel("3")
    reply = b"MSG _INBOX.N.%d 1 1\r\n%d\r\n"
    session.received(b"".join(reply % (n, n) for n in (2, 1, 1, 3, 2, 2, 9)), 0)
    assert (one.got, two.got, gone.got) == ([b"1"], [b"2", b"2"], [])
    assert session.stats.in_msgs == 7


def test_a_loss_fails_what_was_in_flight_and_keeps_what_was_not_sent() -> None:
    session = connected()
    before, during = Sink(), Sink()
    flush = session.ping()
    session.requests.start("a", b"", before)
    session.outgoing.publish("lost", b"")
    effects = session.lost(GONE, now=0, random=0)
    assert kinds(effects) == ["disconnected"]
    assert [str(error) for error in before.errors] == ["the connection to nats://one:1 was lost: gone"]
    session.requests.start("b", b"", during)
    session.outgoing.publish("kept", b"")
    late = session.ping()
    session.dial(0)
    session.lost(GONE, now=0, random=0)
    assert during.errors == []
    assert connect(session) == b"SUB _INBOX.N.* 1\r\nPUB b _INBOX.N.2 0\r\n\r\nPUB kept 0\r\n\r\nPING\r\n"
    session.received(b"MSG _INBOX.N.2 1 2\r\nok\r\nPONG\r\n", 0)
    assert during.got == [b"ok"]
    assert (flush.is_answered, late.is_answered) == (False, True)
    assert session.stats.reconnects == 1
    assert session.epoch == 1


def test_what_is_kept_is_bounded() -> None:
    session = connected(reconnect_buffer_bytes=30)
    session.lost(GONE, now=0, random=0)
    session.outgoing.publish("a", b"x" * 10)
    with pytest.raises(ConnectionLostError, match="22 of 30 bytes"):
        session.outgoing.publish("a", b"x" * 10)
    with pytest.raises(ConnectionLostError, match="of 30 bytes"):
        session.outgoing.publish("a", b"x" * 20_000)


# Subscriptions


def test_messages_go_to_the_mailbox_of_their_sid() -> None:
    session = connected()
    one = session.subscriptions.subscribe("a.*", **BOUNDS)
    two = session.subscriptions.subscribe("b", queue="q", **BOUNDS)
    assert session.outgoing.take() == b"SUB a.* 2\r\nSUB b q 3\r\n"
    session.received(b"MSG a.x 2 1\r\n1\r\nMSG b 3 1\r\n2\r\nMSG c 99 1\r\n3\r\n", 0)
    assert (one.take().payload, two.take().payload) == (b"1", b"2")
    session.subscriptions.unsubscribe(one)
    assert session.outgoing.take() == b"UNSUB 2\r\n"
    session.received(b"MSG a.x 2 1\r\n1\r\n", 0)
    assert one.pending == 0
    session.subscriptions.unsubscribe(one)
    assert session.outgoing.take() == b""


def test_subscriptions_come_back_with_what_is_left_of_their_count() -> None:
    session = connected()
    box = session.subscriptions.subscribe("a", **BOUNDS)
    gone = session.subscriptions.subscribe("b", **BOUNDS)
    session.received(b"MSG a 2 0\r\n\r\n", 0)
    session.subscriptions.unsubscribe(box, 5)
    assert session.outgoing.take().endswith(b"UNSUB 2 5\r\n")
    session.received(b"MSG a 2 0\r\n\r\n", 0)
    session.lost(GONE, now=0, random=0)
    session.subscriptions.unsubscribe(gone)
    session.subscriptions.subscribe("c", queue="q", **BOUNDS)
    assert connect(session) == b"SUB a 2\r\nUNSUB 2 3\r\nSUB c q 4\r\n"
    session.subscriptions.unsubscribe(box, 4)
    assert session.outgoing.take() == b"UNSUB 2 2\r\n"
    session.received(b"MSG a 2 0\r\n\r\n" * 3, 0)
    assert (box.pending, box.received, box.is_ended) == (4, 4, True)
    assert session.state is State.CONNECTED


def test_a_count_that_is_reached_already_ends_at_once() -> None:
    session = connected()
    box = session.subscriptions.subscribe("a", **BOUNDS)
    session.received(b"MSG a 2 0\r\n\r\n" * 3, 0)
    session.outgoing.take()
    session.subscriptions.unsubscribe(box, 2)
    assert session.outgoing.take() == b"UNSUB 2\r\n"
    assert box.is_ended
    assert not box.is_over
    with pytest.raises(UsageError, match="max_msgs must be an integer of at least 0, got -1"):
        session.subscriptions.unsubscribe(box, -1)


def test_bad_subscriptions_are_refused() -> None:
    session = connected()
    with pytest.raises(UsageError):
        session.subscriptions.subscribe("a b", **BOUNDS)
    with pytest.raises(UsageError):
        session.subscriptions.subscribe("a", queue="a b", **BOUNDS)
    with pytest.raises(UsageError, match="at least 1"):
        session.subscriptions.subscribe("a", max_msgs=0, max_bytes=1)
    assert session.outgoing.take() == b""


def test_an_overflow_is_reported_once_per_gap() -> None:
    session = connected()
    session.subscriptions.subscribe("a", max_msgs=1, max_bytes=100)
    effects = session.received(b"MSG a 2 0\r\n\r\n" * 5, 0)
    assert kinds(effects) == ["error"]


# The end


def test_close_ends_everything() -> None:
    session = connected()
    sink, box, flush = Sink(), session.subscriptions.subscribe("a", **BOUNDS), session.ping()
    session.requests.start("a", b"", sink)
    session.received(b"MSG a 2 1\r\nx\r\n", 0)
    assert kinds(session.close()) == ["closed"]
    assert isinstance(sink.errors[0], ConnectionClosedError)
    assert box.take().payload == b"x"
    assert box.is_over
    assert not flush.is_answered
    assert session.timer == math.inf
    assert session.close() == []
    for call in (
        lambda: session.outgoing.publish("a", b""),
        lambda: session.requests.start("a", b"", Sink()),
        lambda: session.subscriptions.subscribe("a", **BOUNDS),
        session.ping,
        session.outgoing.check,
    ):
        with pytest.raises(ConnectionClosedError, match="the client was closed"):
            call()
    assert session.tick(math.inf) == []


def test_without_reconnect_a_loss_is_the_end() -> None:
    session = connected(reconnect=False)
    box = session.subscriptions.subscribe("a", **BOUNDS)
    effects = session.lost(GONE, now=0, random=0)
    assert kinds(effects) == ["disconnected", "closed"]
    assert any(isinstance(effect, Ended) for effect in effects)
    with pytest.raises(ConnectionLostError, match="gone"):
        box.take()
    with pytest.raises(ConnectionClosedError, match="gone") as caught:
        session.outgoing.check()
    assert caught.value.__cause__ is session.error


def test_inboxes_are_never_the_same() -> None:
    session = make(inbox_prefix="mine.box")
    names = {session.new_inbox() for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("mine.box.") for name in names)


# Whatever happens

STEPS = st.lists(st.sampled_from(["request", "reply", "publish", "lose", "dial", "greet", "tick", "close", "cancel"]))


@given(STEPS)
def test_every_request_ends_exactly_once_whatever_happens(steps: list[str]) -> None:
    session = connected()
    sinks: dict[str, Sink] = {}
    cancelled: set[str] = set()
    now = 0.0
    for step in steps:
        now += 1.0
        token = next((t for t, s in sinks.items() if not s.got and not s.errors and t not in cancelled), None)
        if step == "request" and session.state is not State.CLOSED:
            sink = Sink()
            sinks[session.requests.start("a", b"", sink)] = sink
        elif step == "reply" and token is not None and session.is_connected:
            session.received(b"MSG _INBOX.N.%b 1 0\r\n\r\n" % token.encode(), now)
        elif step == "cancel" and token is not None:
            session.requests.cancel(token)
            cancelled.add(token)
        elif step == "publish" and session.state is not State.CLOSED:
            session.outgoing.publish("a", b"x")
        elif step == "lose" and session.state in (State.DIALING, State.GREETING, State.HANDSHAKE, State.CONNECTED):
            session.lost(GONE, now=now, random=0.5)
        elif step == "dial" and session.state is State.WAITING:
            session.dial(now)
            session.opened()
        elif step == "greet" and session.state is State.GREETING:
            session.received(INFO + b"PONG\r\n", now)
        elif step == "tick":
            session.tick(now)
        elif step == "close":
            session.close()
        assert session.outgoing.size == sum(map(len, session.outgoing.frames))
        assert session.outgoing._kept_size == sum(len(kept.frame) for kept in session.outgoing.kept)
    session.close()
    for token, sink in sinks.items():
        assert len(sink.got) + len(sink.errors) == (0 if token in cancelled else 1)


def test_a_mailbox_without_a_reporter_counts_all_the_same() -> None:
    box = Mailbox(b"2", "a", queue="", max_msgs=1, max_bytes=10)
    for _ in range(3):
        box.add(Msg("a", b"2", "", b"", b"x"))
    assert (box.pending, box.received) == (1, 3)


class Bulk(Sink):
    """Takes its whole frames of three payload bytes out of the received bytes."""

    def __init__(self, last: int = 99) -> None:
        super().__init__(last)
        self.prefix = b""
        self.scanned: list[bytes] = []

    def attach(self, prefix: bytes) -> None:
        self.prefix = prefix

    def scan(self, data: bytes, pos: int) -> tuple[int, int]:
        had = len(self.scanned)
        while data.startswith(self.prefix, pos) and (end := data.find(b"!\r\n", pos)) >= 0:
            self.scanned.append(data[end - 2 : end + 1])
            pos = end + 3
        return pos, len(self.scanned) - had


def test_bulk_sinks_read_their_frames_and_get_the_rest_delivered() -> None:
    session = connected()
    one, two = Bulk(), Bulk(last=1)
    tokens = [session.requests.start_bulk("ask", b"", sink) for sink in (one, two)]
    frames = {token: b"%b4 7\r\nHHHHab!\r\n" % sink.prefix for token, sink in zip(tokens, (one, two), strict=True)}
    session.received(frames[tokens[0]] + frames[tokens[1]] + frames[tokens[0]] + b"PING\r\n", now=1.0)
    assert one.scanned == [b"ab!"] * 2
    assert two.scanned == [b"ab!"]
    assert session.stats.in_msgs == 3
    reply = two.prefix.split()[1]
    session.received(b"MSG %b 1 1\r\nx\r\n" % reply, now=1.0)
    assert two.got == [b"x"]
    assert tokens[1] not in session._scanner.readers
    session.requests.cancel(tokens[0])
    session.received(frames[tokens[0]], now=1.0)
    assert len(one.scanned) == 2


def test_a_bulk_request_made_while_disconnected_reads_for_itself_later() -> None:
    session = connected()
    session.lost(ConnectionLostError("gone"), now=1.0, random=0.5)
    sink = Bulk()
    session.requests.start_bulk("ask", b"", sink)
    connect(session, now=5.0)
    session.received(sink.prefix + b"4 7\r\nHHHHab!\r\n", now=6.0)
    assert sink.scanned == [b"ab!"]


def test_a_request_given_up_while_disconnected_is_never_sent() -> None:
    session = connected()
    session.lost(GONE, now=1.0, random=0.5)
    kept, given_up = Sink(), Sink()
    session.requests.start("keep", b"1", kept)
    token = session.requests.start("drop", b"2", given_up)
    session.outgoing.publish("plain", b"3")
    session.requests.cancel(token)
    session.requests.cancel(token)
    sent = connect(session, now=5.0)
    assert b"PUB keep " in sent
    assert b"PUB plain " in sent
    assert b"PUB drop " not in sent
    assert session.stats.out_msgs == 2
    assert given_up.errors == []


def test_other_servers_get_little_time_when_a_silent_one_is_left_until_each_was_tried() -> None:
    """A frozen server accepts the connection and says nothing; the read that moves has better things to wait for."""
    session = make("nats://one:1,nats://two:2,nats://three:3", timeout=5)
    connect(session)
    silence = RequestTimeoutError("no answer")
    assert drop_of(session.leave(silence, 10.0)) is silence
    tried, given = [], []
    for _ in range(4):
        session.lost(silence, now=10.0, random=0.0)
        tried.append(str(session.dial(10.0)))
        given.append(session.timer - 10.0)
    assert tried[:3] == ["nats://two:2", "nats://three:3", "nats://one:1"]
    assert given == [1.0, 1.0, 5.0, 5.0]


def test_the_time_of_an_attempt_to_move_is_in_its_error() -> None:
    session = make("nats://one:1,nats://two:2", timeout=5)
    connect(session)
    session.leave(RequestTimeoutError("no answer"), 10.0)
    session.lost(RequestTimeoutError("no answer"), now=10.0, random=0.0)
    session.dial(10.0)
    session.opened()
    assert str(drop_of(session.tick(11.0))) == "nats://two:2: no INFO within 1 s"


def test_a_connection_that_was_lost_gives_each_server_all_its_time() -> None:
    session = make("nats://one:1,nats://two:2", timeout=5)
    connect(session)
    session.leave(RequestTimeoutError("no answer"), 10.0)
    session.lost(RequestTimeoutError("no answer"), now=10.0, random=0.0)
    connect(session, now=10.0)
    session.lost(RequestTimeoutError("the server closed the connection"), now=20.0, random=0.0)
    session.dial(20.0)
    assert session.timer == 25.0
