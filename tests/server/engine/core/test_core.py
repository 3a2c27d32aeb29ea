"""Core NATS on the engine alone: handshake, routing, queue groups, no responders, limits, keep-alive."""

from __future__ import annotations

import msgspec
import pytest

from slipstream.errors import UsageError
from slipstream.server.engine.auth.users import User
from slipstream.server.engine.core.routing import REMOVALS
from slipstream.server.engine.core.session import Session
from slipstream.wire import ConnectOptions, Err, Info, Ok, Ping, Pong
from tests.server.support import HELLO, Rig

BARE = b'CONNECT {"verbose":false,"pedantic":false}\r\n'


def test_a_client_is_greeted_with_info() -> None:
    rig = Rig(port=4223, slipstream="9.9.9")
    client = rig.client(b"")
    (greeting,) = client.take()
    assert isinstance(greeting, Info)
    info = greeting.info
    assert (info.version, info.proto, info.headers, info.jetstream) == ("2.15.1", 1, True, True)
    assert (info.port, info.client_id, info.client_ip, info.max_payload) == (4223, 1, "127.0.0.1", 1024 * 1024)
    raw = msgspec.json.decode(client.raw[5:])
    assert raw["max_payload"] == 1024 * 1024  # also when it is the default
    assert raw["slipstream"] == "9.9.9"
    assert raw["go"] == ""  # some clients do not go on without it
    assert "auth_required" not in raw


def test_ping_is_answered_before_and_after_connect() -> None:
    client = Rig().client(b"")
    client.take()
    client.send(b"PING\r\n" + HELLO + b"PING\r\n")
    assert client.take() == [Pong(), Pong()]


def test_verbose_clients_get_an_ok_for_every_line_but_ping() -> None:
    client = Rig().client(b"")
    client.take()
    client.send(b'CONNECT {"verbose":true,"pedantic":false}\r\nSUB a 1\r\nPUB a 1\r\nx\r\nUNSUB 1\r\nPING\r\n')
    assert client.raw.partition(b"\r\n")[2] == b"+OK\r\n+OK\r\n+OK\r\nMSG a 1 1\r\nx\r\n+OK\r\nPONG\r\n"


def test_subscribers_receive_messages_with_reply_and_headers() -> None:
    rig = Rig()
    one, two = rig.client(), rig.client()
    one.send(b"SUB a.* 1\r\nSUB a.> 2\r\n")
    two.send(b"SUB a.b 3\r\n")
    two.send(b"PUB a.b answer.here 5\r\nhello\r\n")
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    two.send(b"HPUB a.b.c %d %d\r\n%bhi\r\n" % (len(block), len(block) + 2, block))
    seen = one.messages()
    assert sorted((m.sid, m.subject, m.reply, m.header, m.payload) for m in seen) == [
        (b"1", "a.b", "answer.here", b"", b"hello"),
        (b"2", "a.b", "answer.here", b"", b"hello"),
        (b"2", "a.b.c", "", block, b"hi"),
    ]
    assert [(m.sid, m.payload) for m in two.messages()] == [(b"3", b"hello")]


def test_a_client_without_headers_gets_the_message_without_them() -> None:
    rig = Rig()
    old, new = rig.client(BARE), rig.client()
    old.send(b"SUB a 1\r\nSUB a q 2\r\n")
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    new.send(b"HPUB a %d %d\r\n%bhi\r\n" % (len(block), len(block) + 2, block))
    assert old.raw.endswith(b"MSG a 1 2\r\nhi\r\nMSG a 2 2\r\nhi\r\n")
    old.send(b"HPUB a %d %d\r\n%bhi\r\n" % (len(block), len(block) + 2, block))
    assert old.closed


def test_echo_can_be_switched_off() -> None:
    rig = Rig()
    quiet = rig.client(
        b'CONNECT {"verbose":false,"pedantic":false,"echo":false,"headers":true,"no_responders":true}\r\n'
    )
    quiet.send(b"SUB a 1\r\nPUB a 1\r\nx\r\n")
    assert quiet.messages() == []
    other = rig.client()
    other.send(b"PUB a 1\r\ny\r\n")
    assert [m.payload for m in quiet.messages()] == [b"y"]
    (nobody,) = quiet.ask("a", b"anyone else?")
    assert nobody.header.startswith(b"NATS/1.0 503")


def test_one_member_of_a_queue_group_gets_a_message_and_all_get_some() -> None:
    rig = Rig()
    members = [rig.client() for _ in range(3)]
    for member in members:
        member.send(b"SUB work.* group 7\r\n")
    outsider = rig.client()
    outsider.send(b"SUB work.1 1\r\n")
    for _ in range(60):
        outsider.send(b"PUB work.1 1\r\nx\r\n")
    counts = [len(member.messages()) for member in members]
    assert sum(counts) == 60
    assert min(counts) > 5
    assert len(outsider.messages()) == 60


def test_a_queue_member_that_may_not_hear_itself_leaves_the_message_to_another() -> None:
    rig = Rig()
    quiet = rig.client(b'CONNECT {"verbose":false,"pedantic":false,"echo":false}\r\n')
    other = rig.client()
    quiet.send(b"SUB a q 1\r\n")
    other.send(b"SUB a q 1\r\n")
    for _ in range(20):
        quiet.send(b"PUB a 1\r\nx\r\n")
    assert len(other.messages()) == 20


def test_a_request_without_responders_is_answered_with_503() -> None:
    client = Rig().client()
    client.send(b"SUB mine 5\r\nPUB nobody mine 2\r\nhi\r\n")
    assert client.raw.endswith(b"HMSG mine 5 38 38\r\nNATS/1.0 503\r\nNats-Subject: nobody\r\n\r\n\r\n")
    plain = client.rig.client(BARE)
    plain.send(b"SUB mine2 5\r\nPUB nobody mine2 2\r\nhi\r\n")
    assert plain.messages() == []  # it did not ask for that


def test_unsub_ends_a_subscription_now_or_after_so_many_messages() -> None:
    client = Rig().client()
    client.send(b"SUB a 1\r\nSUB a 2\r\nUNSUB 1\r\nUNSUB 2 2\r\nUNSUB 99\r\n")
    client.send(b"PUB a 1\r\nx\r\n" * 4)
    assert [m.sid for m in client.messages()] == [b"2", b"2"]
    client.send(b"SUB a 3\r\nPUB a 1\r\nx\r\nUNSUB 3 1\r\nPUB a 1\r\nx\r\n")
    assert [m.sid for m in client.messages()] == [b"3"]


def test_a_sid_that_is_taken_stays_with_its_first_subject() -> None:
    client = Rig().client()
    client.send(b"SUB a 1\r\nSUB b 1\r\nPUB a 1\r\nx\r\nPUB b 1\r\ny\r\n")
    assert [m.subject for m in client.messages()] == ["a"]


def test_a_client_may_not_join_the_queue_group_of_the_direct_get_responders() -> None:
    client = Rig().client()
    client.create("S")
    client.publish("s.1", b"true")
    client.take()
    client.send(b"SUB $JS.API.DIRECT.GET.S _sys_ 9\r\n")
    text = 'Permissions Violation for Subscription to "$JS.API.DIRECT.GET.S" using queue "_sys_"'
    assert client.take() == [Err(text)]
    assert not client.closed
    for _ in range(10):
        (answer,) = client.direct("S", {"seq": 1})
        assert answer.payload == b"true"


@pytest.mark.parametrize("subject", ["a..b", ".a", "a.", "a.>.b"])
def test_a_bad_subject_is_refused_and_the_connection_lives(subject: str) -> None:
    client = Rig().client()
    client.send(f"SUB {subject} 9\r\n".encode())
    assert client.take() == [Err("Invalid Subject")]
    client.send(b"SUB > 8\r\n")
    client.send(f"PUB {subject} 1\r\nx\r\n".encode())
    assert client.take() == []
    pedantic = client.rig.client(b'CONNECT {"verbose":false,"pedantic":true}\r\n')
    pedantic.send(f"PUB {subject} 1\r\nx\r\n".encode())
    assert pedantic.take() == [Err("Invalid Publish Subject")]
    pedantic.send(b"PING\r\n")
    assert pedantic.take() == [Pong()]


def test_a_protocol_violation_is_reported_and_closes_the_connection() -> None:
    rig = Rig(max_payload=1000)
    for line, text in (
        (b"FOO bar\r\n", "Unknown Protocol Operation"),
        (b"PUB a 1001\r\n", "Maximum Payload Violation"),
        (b"SUB " + b"a" * 5000 + b" 1\r\n", "maximum control line exceeded"),
        (b"+OK\r\n", "Unknown Protocol Operation"),
    ):
        client = rig.client()
        client.send(line + b"PING\r\n")
        assert client.take() == [Err(text)]
        assert client.closed


def test_authentication_is_required_before_any_command() -> None:
    rig = Rig(users=(User(name="joe", password="secret"),))
    client = rig.client(b"")
    (greeting,) = client.take()
    assert isinstance(greeting, Info)
    assert greeting.info.auth_required
    client.send(b"PING\r\n")
    assert client.take() == [Err("Authorization Violation")]
    assert client.closed
    for login in (
        b'"user":"joe","pass":"wrong"',
        b'"user":"joe"',
        b'"auth_token":"secret"',
        b'"user":"","pass":"secret"',
    ):
        stranger = rig.client(b"")
        stranger.take()
        stranger.send(b"CONNECT {%b}\r\nPING\r\n" % login)
        assert stranger.take() == [Err("Authorization Violation")]
        assert stranger.closed
    friend = rig.client(b"")
    friend.take()
    friend.send(b'CONNECT {"verbose":false,"user":"joe","pass":"secret"}\r\nPING\r\n')
    assert friend.take() == [Pong()]


def test_no_responders_needs_headers() -> None:
    client = Rig().client(b"")
    client.take()
    client.send(b'CONNECT {"no_responders":true,"headers":false}\r\n')
    assert client.take() == [Err("no responders requires headers support")]
    assert client.closed


def test_a_pedantic_client_gets_an_error_for_a_wildcard_in_a_publish() -> None:
    client = Rig().client(b'CONNECT {"verbose":false,"pedantic":true}\r\n')
    client.send(b"PUB a.* 1\r\nx\r\n")
    assert client.take() == [Err("Invalid Publish Subject")]


def test_a_member_of_a_queue_group_in_the_server_answers_among_clients() -> None:
    """A client may subscribe to the responders' subject outside their group: it hears along, and changes nothing."""
    client = Rig().client()
    client.create("S")
    client.publish("s.1", b"true")
    client.send(b"SUB $JS.API.DIRECT.GET.S 9\r\nSUB $JS.API.DIRECT.GET.S others 8\r\n")
    answers = client.direct("S", {"seq": 1})
    assert [m.payload for m in answers] == [b"true"]


def test_a_client_that_does_not_introduce_itself_in_time_is_cut_off() -> None:
    rig = Rig(users=(User(token="t"),))
    silent, quick = rig.client(b""), rig.client(b"")
    silent.take()
    quick.send(b'CONNECT {"verbose":false,"auth_token":"t"}\r\n')
    rig.wait(2.1)
    assert silent.take() == [Err("Authentication Timeout")]
    assert silent.closed
    assert not quick.closed


def test_a_silent_client_is_pinged_and_then_closed() -> None:
    rig = Rig(ping_interval=10_000_000_000)
    silent, alive = rig.client(), rig.client()
    for _ in range(2):
        rig.wait(10)
        assert silent.take() == [Ping()]
        alive.send(b"PONG\r\n")
    rig.wait(10)
    assert silent.take() == [Err("Stale Connection")]
    assert silent.closed
    assert not alive.closed


def test_a_client_that_does_not_read_is_cut_off_before_its_output_fills_memory() -> None:
    rig = Rig(max_pending_bytes=10_000)
    slow, busy = rig.client(), rig.client()
    slow.send(b"SUB flood 1\r\n")
    for _ in range(200):
        busy.send(b"PUB flood 100\r\n%b\r\n" % (b"x" * 100), settle=False)
    (session,) = [s for s in rig.engine.take_output() if s.cid == slow.cid][:1]
    assert b"".join(session.out) == b"-ERR 'Slow Consumer'\r\n"
    assert session.closed
    busy.send(b"PING\r\n")
    assert busy.take() == [Pong()]


def test_subscriptions_of_a_client_are_bounded() -> None:
    rig = Rig(max_subscriptions=3)
    client = rig.client()
    client.send(b"SUB a 1\r\nSUB a 2\r\nSUB a 3\r\n")
    assert client.take() == [Err("maximum subscriptions exceeded")]
    client.send(b"PUB a 1\r\nx\r\n")
    assert len(client.messages()) == 2


def test_a_disconnected_client_leaves_no_subscription() -> None:
    rig = Rig()
    gone, other = rig.client(), rig.client()
    gone.send(b"SUB a 1\r\nSUB b q 2\r\n")
    rig.engine.disconnect(gone.cid)
    (nobody,) = other.ask("a", b"x")
    assert nobody.header.startswith(b"NATS/1.0 503")
    rig.engine.receive(gone.cid, [], rig.now)
    rig.engine.disconnect(gone.cid)
    rig.engine.close(gone.cid)


def test_acks_reach_every_subscriber_of_the_reply_as_subscriptions_change() -> None:
    """The shortcuts past the router never outlive the subscriptions they stand for."""
    rig = Rig()
    client, other = rig.client(), rig.client()
    client.create("S")
    assert client.publish("s.1")["seq"] == 1
    other.send(b"SUB %b5 exact\r\n" % client.inbox.encode())
    client.take()
    client.send(b"PUB s.1 %b5 1\r\nx\r\n" % client.inbox.encode())
    assert len(client.messages()) == len(other.messages()) == 1
    other.send(b"UNSUB exact\r\nSUB _INBOX.> all\r\n")
    client.send(b"PUB s.1 %b5 1\r\nx\r\n" % client.inbox.encode())
    assert len(client.messages()) == len(other.messages()) == 1
    other.send(b"UNSUB all\r\nSUB _INBOX.*.5 middle\r\n")
    client.send(b"PUB s.1 %b5 1\r\nx\r\n" % client.inbox.encode())
    assert len(client.messages()) == len(other.messages()) == 1
    other.send(b"UNSUB middle\r\n")
    client.send(b"PUB s.1 %b5 1\r\nx\r\n" % client.inbox.encode())
    assert (len(client.messages()), len(other.messages())) == (1, 0)
    other.send(b"SUB s.* late\r\n")
    client.send(b"PUB s.1 1\r\nx\r\n")
    assert len(other.messages()) == 1
    client.send(b"UNSUB inbox 0\r\nUNSUB inbox\r\n")
    client.send(b"PUB s.1 %b5 1\r\nx\r\n" % client.inbox.encode())
    assert client.messages() == []
    assert rig.engine.streams["S"].log.committed.messages == 7


def test_an_inbox_that_ends_after_some_messages_gets_no_more_acks_than_that() -> None:
    client = Rig().client()
    client.create("S")
    client.publish("s.1")
    client.send(b"SUB box.* 5\r\nUNSUB 5 3\r\n")
    client.send(b"PUB s.1 box.1 1\r\nx\r\n" * 5)
    assert len(client.messages()) == 3


def test_a_sid_of_odd_bytes_is_given_back_as_it_came() -> None:
    client = Rig().client()
    client.create("S")
    client.send(b"SUB odd.* \xff\xfe\r\nPUB s.1 odd.1 1\r\nx\r\n")
    assert [m.sid for m in client.messages()] == [b"\xff\xfe"]


def test_a_session_moves_only_along_its_table() -> None:
    session = Session(1, 1000)
    session.introduce(ConnectOptions())
    assert session.state.value == "ready"
    session.close("bye")
    session.close("again")
    assert session.out == [b"-ERR 'bye'\r\n"]
    with pytest.raises(UsageError, match="closed cannot become ready"):
        session.introduce(ConnectOptions())
    assert session.state.value == "closed"


def test_ok_is_sent_to_verbose_clients_only() -> None:
    client = Rig().client()
    client.send(b"SUB a 1\r\nUNSUB 1\r\n")
    assert Ok() not in client.take()


def test_subscriptions_of_a_client_that_leaves_are_removed_in_slices() -> None:
    rig = Rig()
    leaver, other = rig.client(), rig.client()
    router = rig.engine.account("").router
    before = len(router.matcher)
    leaver.send(b"".join(b"SUB many.%d.* %d\r\n" % (at, at) for at in range(3000)))
    rig.engine.disconnect(leaver.cid)
    assert len(router.matcher) == before - 1 + 3000 - REMOVALS + 1  # its inbox is the first one, and goes last
    # Until they are gone they are no interest, and get nothing.
    for subject in ("many.5.x", "many.2999.x"):
        assert router.interest(subject) == (False, False)
        assert router.sole_client(subject) is None
    other.send(b"PUB many.5.x _INBOX.c2.q 0\r\n\r\n", settle=False)
    rig.flush()
    assert [message.header for message in other.messages()] == [b"NATS/1.0 503\r\nNats-Subject: many.5.x\r\n\r\n"]
    rig.settle()
    assert len(router.matcher) == before - 1


def test_push_consumer_of_a_client_that_leaves_with_many_subscriptions_is_not_bound() -> None:
    rig = Rig()
    leaver, other = rig.client(), rig.client()
    other.create("S")
    leaver.send(b"SUB to.me m\r\n" + b"".join(b"SUB many.%d.* %d\r\n" % (at, at) for at in range(3000)))
    config = {"durable_name": "c", "deliver_subject": "to.me", "ack_policy": "none"}
    assert other.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config | {"name": "c"}})["push_bound"]
    rig.engine.disconnect(leaver.cid)
    rig.settle()
    assert not other.api("CONSUMER.INFO.S.c").get("push_bound")
