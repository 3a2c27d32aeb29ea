"""Users and what they may do, on the engine alone: who comes in, permissions, responses, what is delivered."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from slipstream.errors import UsageError
from slipstream.server import Permissions, Responses, User
from slipstream.server.engine.auth import permissions
from slipstream.server.engine.auth.authenticator import Authenticator, Credentials, Identity, reject_signatures
from slipstream.wire import ConnectOptions, Err, Ok, Pong
from tests.server.support import Client, Rig, status


def login(rig: Rig, name: str, *, verbose: bool = False) -> Client:
    flag = b"true" if verbose else b"false"
    text = b'CONNECT {"verbose":%b,"pedantic":false,"headers":true,"no_responders":true,"user":"%b","pass":"pw"}\r\n'
    client = rig.client(b"")
    client.send(text % (flag, name.encode()))
    client.take()
    return client


def rig_with(users: Iterable[User] = (), /, **settings: Any) -> Rig:
    """A server with `root`, who may do everything, and `joe`, who may do what `settings` say."""
    joe = User(name="joe", password="pw", permissions=Permissions(**settings))
    return Rig(users=(User(name="root", password="pw"), joe, *users))


def test_each_user_is_authenticated_by_its_own_secret_only() -> None:
    authenticator = Authenticator(
        [User(name="a", password="pa"), User(name="b", password="pb"), User(token="t"), User(token="u")],
        reject_signatures,
    )

    def admitted(**options: str) -> bool:
        return isinstance(authenticator.admit(Credentials(ConnectOptions(**options))), Identity)  # type: ignore[arg-type]

    assert admitted(user="a", password="pa")
    assert admitted(user="b", password="pb")
    assert admitted(auth_token="t")
    assert admitted(auth_token="u")
    assert not admitted()
    assert not admitted(user="a", password="pb")
    assert not admitted(user="a", password="")
    assert not admitted(user="c", password="")
    assert not admitted(user="", password="")
    assert not admitted(auth_token="")
    assert not admitted(auth_token="pa")
    assert not admitted(user="t", password="t")
    assert not admitted(user="a", password="wrong", auth_token="t")
    assert isinstance(Authenticator([], reject_signatures).admit(Credentials(ConnectOptions())), Identity)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"name": "a"},
        {"password": "a"},
        {"name": "a", "password": "b", "token": "c"},
        {"name": "a", "password": "$2a$11$abc"},
        {"token": "$2b$11$abc"},
    ],
)
def test_a_user_with_unsafe_credentials_is_rejected(fields: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        User(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"publish": ("a..b",)},
        {"publish": ("a q",)},
        {"publish": "a"},
        {"publish_deny": None},
        {"subscribe": ("a b c",)},
        {"subscribe_deny": ("",)},
        {"subscribe": (7,)},
    ],
)
def test_a_bad_permission_is_refused_when_it_is_made(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Permissions(**fields)


def test_bad_responses_and_users_twice_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        Responses(max_msgs=0)
    with pytest.raises(UsageError, match="must be positive"):
        Responses(expires=timedelta(0))
    with pytest.raises(UsageError, match="same name 'a'"):
        Authenticator([User(name="a", password="1"), User(name="a", password="2")], reject_signatures)
    with pytest.raises(UsageError, match=r"same token$"):
        Authenticator([User(token="secret"), User(token="secret")], reject_signatures)


def test_secrets_are_not_shown() -> None:
    assert "hush" not in repr((User(name="a", password="hush"), User(token="hush")))


def test_publishing_follows_allow_and_deny_and_a_violation_leaves_the_connection_open() -> None:
    rig = rig_with(publish=("a.>", "b"), publish_deny=("a.secret.*",))
    root, joe = login(rig, "root"), login(rig, "joe")
    root.send(b"SUB > 1\r\n")
    for subject in ("a.x", "b", "a.secret", "a.secret.x.y"):
        joe.send(f"PUB {subject} 1\r\nx\r\n".encode())
    assert [m.subject for m in root.messages()] == ["a.x", "b", "a.secret", "a.secret.x.y"]
    assert joe.take() == []
    for subject in ("c", "a", "b.x", "a.secret.x"):
        for _ in range(2):  # the second time from memory
            joe.send(f"PUB {subject} 1\r\nx\r\n".encode())
            assert joe.take() == [Err(f'Permissions Violation for Publish to "{subject}"')]
    assert root.messages() == []
    joe.send(b"PING\r\n")
    assert joe.take() == [Pong()]


def test_permissions_apply_to_publishes_that_could_take_the_shortcut() -> None:
    rig = rig_with(publish=("s.mine", "$JS.API.>"), subscribe=("_INBOX.>",))
    root, joe = login(rig, "root"), login(rig, "joe")
    root.send(b"SUB _INBOX.> 1\r\n")
    joe.send(b"SUB _INBOX.c2.* 1\r\n")
    root.create("S")
    for _ in range(3):
        root.publish("s.other")
        joe.publish("s.mine")
    joe.take()
    joe.send(b"PUB s.other 1\r\nx\r\n")
    assert joe.take() == [Err('Permissions Violation for Publish to "s.other"')]
    # The first line of a connection and what follows it in the same bytes.
    late = rig.client(b"")
    late.take()
    late.send(b'CONNECT {"verbose":false,"user":"joe","pass":"pw"}\r\nPUB s.other 1\r\nx\r\n')
    assert late.take() == [Err('Permissions Violation for Publish to "s.other"')]
    assert root.api("STREAM.INFO.S")["state"]["messages"] == 6


def test_subscribing_follows_allow_and_deny_with_wildcards() -> None:
    rig = rig_with(subscribe=("a.*", "b.>"), subscribe_deny=("b.secret.>",))
    joe = login(rig, "joe")
    for subject in ("a.x", "a.*", "b.x.y", "b.>", "b.*.x"):
        joe.send(f"SUB {subject} {subject}\r\n".encode())
        assert joe.take() == [], subject
    for subject in ("a", "a.>", "a.x.y", ">", "*.x", "b", "b.secret.x", "b.secret.>", "b.secret.*"):
        joe.send(f"SUB {subject} {subject}\r\n".encode())
        assert joe.take() == [Err(f'Permissions Violation for Subscription to "{subject}"')], subject
    joe.send(b'SUB z"y 1\r\nSUB b..y 1\r\n')
    assert joe.take() == [
        Err('Permissions Violation for Subscription to "z\\"y"'),
        Err('Permissions Violation for Subscription to "b..y"'),
    ]
    assert not joe.closed


def test_denied_subjects_are_not_delivered_to_a_wider_subscription() -> None:
    rig = rig_with(subscribe_deny=("a.secret.>", "a.*.key"))
    root, joe = login(rig, "root"), login(rig, "joe")
    joe.send(b"SUB > 1\r\nSUB a.* 2\r\nSUB a.secret 3\r\nSUB > group 4\r\n")
    for subject in ("a.x", "a.secret", "a.secret.x", "a.x.key", "a.x.y"):
        root.send(f"PUB {subject} 1\r\nx\r\n".encode())
    seen = [(m.sid, m.subject) for m in joe.messages()]
    assert {subject for _, subject in seen} == {"a.x", "a.secret", "a.x.y"}
    assert sorted(subject for sid, subject in seen if sid == b"4") == ["a.secret", "a.x", "a.x.y"]
    # A message that only such a subscription would want has no responder.
    root.send(b"SUB mine 9\r\nPUB a.secret.x mine 1\r\nx\r\n")
    assert [status(m)[0] for m in root.messages()] == [503]


def test_a_queue_member_that_may_not_have_a_message_leaves_it_to_another() -> None:
    rig = rig_with(subscribe_deny=("a.secret",))
    root, joe = login(rig, "root"), login(rig, "joe")
    root.send(b"SUB a.* q 1\r\n")
    joe.send(b"SUB a.* q 1\r\n")
    for _ in range(20):
        root.send(b"PUB a.secret 1\r\nx\r\n")
    assert len(root.messages()) == 20
    assert joe.messages() == []


def test_permissions_may_name_queue_groups() -> None:
    rig = rig_with(subscribe=("a v1", "a v2.*", "b"), subscribe_deny=("b dev", "b test.>"))
    joe = login(rig, "joe")
    for line in (b"SUB a v1 1", b"SUB a v2.x 2", b"SUB b 3", b"SUB b prod 4"):
        joe.send(line + b"\r\n")
        assert joe.take() == [], line
    for subject, queue in (("a", "v3"), ("a", "v2.x.y"), ("b", "dev"), ("b", "test.1")):
        joe.send(f"SUB {subject} {queue} 9\r\n".encode())
        text = f'Permissions Violation for Subscription to "{subject}" using queue "{queue}"'
        assert joe.take() == [Err(text)]
    joe.send(b"SUB a 9\r\n")
    assert joe.take() == [Err('Permissions Violation for Subscription to "a"')]


def test_a_denied_queue_group_receives_nothing_through_a_wider_subscription() -> None:
    rig = rig_with(subscribe_deny=("a.x dev",))
    root, joe = login(rig, "root"), login(rig, "joe")
    joe.send(b"SUB a.* dev 1\r\nSUB a.* prod 2\r\n")
    root.send(b"PUB a.x 1\r\nx\r\nPUB a.y 1\r\nx\r\n")
    assert sorted((m.sid, m.subject) for m in joe.messages()) == [(b"1", "a.y"), (b"2", "a.x"), (b"2", "a.y")]


def test_allow_responses_is_limited_in_number_and_time() -> None:
    rig = rig_with(responses=Responses(max_msgs=2, expires=timedelta(seconds=10)))
    root, joe = login(rig, "root"), login(rig, "joe")
    root.send(b"SUB r.* 1\r\n")
    joe.send(b"SUB service 1\r\n")
    joe.send(b"PUB r.1 1\r\nx\r\n")
    assert joe.take() == [Err('Permissions Violation for Publish to "r.1"')]
    root.send(b"PUB service r.1 1\r\nx\r\nPUB service r.2 1\r\nx\r\n")
    joe.take()
    joe.send(b"PUB r.1 1\r\nx\r\n" * 3)
    assert joe.take() == [Err('Permissions Violation for Publish to "r.1"')]
    rig.wait(10)
    joe.send(b"PUB r.2 1\r\nx\r\n")
    assert joe.take() == []
    rig.wait(0.001)
    joe.send(b"PUB r.2 1\r\nx\r\n")
    assert joe.take() == [Err('Permissions Violation for Publish to "r.2"')]
    assert [m.subject for m in root.messages()] == ["r.1", "r.1", "r.2"]


def test_responses_without_bounds_last_and_those_never_given_are_forgotten_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(permissions, "MAX_REPLIES", 5)
    rig = rig_with(publish=("ok",), responses=Responses(max_msgs=None, expires=None))
    root, joe = login(rig, "root"), login(rig, "joe")
    joe.send(b"SUB service q 1\r\n")
    for i in range(12):
        root.send(f"PUB service r.{i} 1\r\nx\r\nPUB service ok 1\r\nx\r\n".encode())
    joe.take()
    rig.wait(100)
    joe.send(b"PUB r.11 1\r\nx\r\n" * 3)
    assert joe.take() == []
    joe.send(b"PUB r.0 1\r\nx\r\n")
    assert joe.take() == [Err('Permissions Violation for Publish to "r.0"')]


def test_answers_that_are_over_are_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permissions, "MAX_REPLIES", 5)
    grant = permissions.Grant(permissions.Rules(Permissions(responses=Responses(expires=timedelta(seconds=1)))))
    for i in range(5):
        grant.expect(f"r.{i}", 0)
    assert grant.may_publish("r.4", 1)
    grant.expect("r.new", 2_000_000_000)
    assert not grant.may_publish("r.0", 2_000_000_000)
    assert grant.may_publish("r.new", 2_000_000_000)


def test_a_verbose_client_gets_an_ok_or_the_violation() -> None:
    rig = rig_with(publish=("a",), subscribe=("a",))
    joe = login(rig, "joe", verbose=True)
    joe.send(b"PUB a 1\r\nx\r\nPUB b 1\r\nx\r\nSUB a 1\r\nSUB b 2\r\n")
    assert joe.take() == [
        Ok(),
        Err('Permissions Violation for Publish to "b"'),
        Ok(),
        Err('Permissions Violation for Subscription to "b"'),
    ]


def test_a_second_connect_does_not_make_another_user_of_a_client() -> None:
    rig = rig_with(publish=("a",))
    joe = login(rig, "joe")
    joe.send(b'CONNECT {"verbose":false,"user":"joe","pass":"pw"}\r\nPING\r\n')
    assert joe.take() == [Pong()]
    joe.send(b'CONNECT {"verbose":false,"user":"root","pass":"pw"}\r\nPING\r\n')
    assert joe.take() == [Err("Authorization Violation")]
    assert joe.closed


@pytest.mark.spec("DG-18", on="E")
def test_a_user_who_may_get_one_subject_reads_that_one_and_no_other() -> None:
    rig = rig_with(publish=("$JS.API.DIRECT.GET.S.s.mine",), subscribe=("_INBOX.>",))
    root, joe = login(rig, "root"), login(rig, "joe")
    root.send(b"SUB _INBOX.c1.* 1\r\n")
    joe.send(b"SUB _INBOX.c2.* 1\r\n")
    root.create("S")
    root.publish("s.mine", b"yes")
    root.publish("s.other", b"no")
    (answer,) = joe.ask("$JS.API.DIRECT.GET.S.s.mine")
    assert answer.payload == b"yes"
    requests: list[tuple[str, bytes]] = [
        ("$JS.API.DIRECT.GET.S.s.other", b""),
        ("$JS.API.DIRECT.GET.S.>", b""),
        ("$JS.API.DIRECT.GET.S", b'{"last_by_subj":"s.other"}'),
        ("$JS.API.STREAM.MSG.GET.S", b'{"seq":2}'),
    ]
    for subject, body in requests:
        joe.send(f"PUB {subject} _INBOX.c2.x {len(body)}\r\n".encode() + body + b"\r\n")
        assert joe.take() == [Err(f'Permissions Violation for Publish to "{subject}"')]
    for body in (b'{"last_by_subj":"s.other"}', b'{"seq":2}', b'{"multi_last":["s.>"]}'):
        (refused,) = joe.ask("$JS.API.DIRECT.GET.S.s.mine", body)
        assert status(refused)[0] == 408
    joe.send(b"SUB s.> 7\r\n")
    assert joe.take() == [Err('Permissions Violation for Subscription to "s.>"')]
