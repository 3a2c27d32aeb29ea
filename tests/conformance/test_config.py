"""The same configuration file for our server and for the real one: the same bytes are answered alike."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import bcrypt
import pytest

from slipstream.server import Server
from slipstream.server.process.config_file import read_config
from tests.server.engine.auth.tokens import LIMITS, Key, account_token, operator_token, user_token
from tests.server.engine.auth.tokens import token as signed_token
from tests.servers import real_server

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4, prefix=b"2a")).decode()


@contextlib.contextmanager
def both(config: str, *, jetstream: bool = False) -> Iterator[tuple[int, int]]:
    """The ports of the real server and of ours."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "server.conf")
        path.write_text(config)
        options = dataclasses.replace(read_config(path).server, port=0, jetstream=jetstream)
        with real_server(config=config, jetstream=jetstream) as url, Server.of(options) as ours:
            yield int(url.rpartition(":")[2]), ours.port


class Raw:
    """A connection that shows its first INFO and what comes back."""

    opened: ClassVar[list[Raw]] = []

    def __init__(self, port: int, login: str = "", flags: str = "") -> None:
        self.opened.append(self)
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._file = self.sock.makefile("rb")
        self.info: dict[str, Any] = json.loads(self._file.readline()[5:])
        connect = ",".join(part for part in ('"verbose":false,"pedantic":false,"headers":true', login, flags) if part)
        self.connect = f"CONNECT {{{connect}}}\r\n".encode()

    def talk(self, data: bytes) -> bytes:
        """What comes back until the answer to a PING, or until the server closes; without INFO."""
        with contextlib.suppress(ConnectionError):
            self.sock.sendall(data + b"PING\r\n")
        seen = b""
        try:
            while (line := self._file.readline()) not in (b"PONG\r\n", b""):
                seen += b"" if line.startswith(b"INFO ") else line
        except ConnectionError:
            line = b""
        return seen if line else seen + b"<closed>"

    def close(self) -> None:
        self._file.close()
        self.sock.close()


@pytest.fixture(autouse=True)
def _close_all() -> Iterator[None]:
    """Whatever a test leaves open."""
    yield
    for raw in Raw.opened:
        raw.close()
    Raw.opened.clear()


def answers(ports: tuple[int, int], login: str, lines: bytes = b"", flags: str = "") -> list[bytes]:
    seen = []
    for port in ports:
        raw = Raw(port, login, flags)
        seen.append(raw.talk(raw.connect + lines))
        raw.close()
    return seen


@pytest.mark.parametrize(
    ("login", "comes_in"),
    [
        ('"user":"joe","pass":"secret"', True),
        ('"user":"joe","pass":"Secret"', False),
        pytest.param(f'"user":"joe","pass":"{HASH}"', False, id="the hash is no password"),
        ('"user":"nobody","pass":"secret"', False),
        ('"user":"plain","pass":"pw"', True),
        ('"user":"plain","pass":"secret"', False),
        ("", False),
    ],
)
def test_hashed_passwords_let_the_same_clients_in(login: str, comes_in: bool) -> None:
    config = f"authorization {{ users: [{{user: joe, password: {HASH}}}, {{user: plain, password: pw}}] }}"
    with both(config) as ports:
        seen = answers(ports, login, b"SUB a 1\r\nPUB a 2\r\nhi\r\n")
    assert seen[0] == seen[1]
    assert seen[1] == (b"MSG a 1 2\r\nhi\r\n" if comes_in else b"-ERR 'Authorization Violation'\r\n<closed>")


def test_a_hashed_token_lets_the_same_clients_in() -> None:
    with both(f'authorization {{ token: "{HASH}" }}') as ports:
        assert answers(ports, '"auth_token":"secret"') == [b"", b""]
        refused = b"-ERR 'Authorization Violation'\r\n<closed>"
        assert answers(ports, '"auth_token":"other"') == answers(ports, "") == [refused, refused]


def test_a_verbose_client_with_a_hashed_password_is_answered_in_order() -> None:
    with both(f"authorization {{ user: joe, password: {HASH} }}") as ports:
        seen = answers(ports, '"user":"joe","pass":"secret"', b"SUB a 1\r\n", '"verbose":true')
    assert seen[0] == seen[1] == b"+OK\r\n+OK\r\n"


NO_AUTH = """
no_auth_user: guest
accounts {
    A { users: [{user: guest, password: x, permissions: {publish: "open.>", subscribe: "open.>"}}] }
    B { users: [{user: b, password: pw}] }
}
"""


@pytest.mark.parametrize("login", ["", '"user":"b","pass":"pw"', '"user":"b","pass":"no"', '"user":"guest","pass":"x"'])
def test_who_shows_nothing_is_the_user_for_that(login: str) -> None:
    with both(NO_AUTH) as ports:
        lines = b"SUB open.a 1\r\nPUB open.a 2\r\nhi\r\nPUB closed 1\r\nx\r\n"
        seen = answers(ports, login, lines)
        infos = [Raw(port).info.get("auth_required") for port in ports]
    assert seen[0] == seen[1]
    assert infos[0] == infos[1]


def test_a_client_without_any_introduction_is_the_user_for_that() -> None:
    with both(NO_AUTH) as ports:
        seen = []
        for port in ports:
            raw = Raw(port)
            seen.append(raw.talk(b"SUB open.a 1\r\nPUB open.a 2\r\nhi\r\nPUB closed 1\r\nx\r\n"))
    assert seen[0] == seen[1]


def test_only_the_system_account_has_users_and_everybody_else_comes_in() -> None:
    with both("accounts { $SYS { users: [{user: admin, password: pw}] } }") as ports:
        assert answers(ports, "") == answers(ports, '"user":"admin","pass":"pw"') == [b"", b""]
        refused = b"-ERR 'Authorization Violation'\r\n<closed>"
        assert answers(ports, '"user":"admin","pass":"no"') == [refused, refused]


LIMITED = """accounts {
    A { limits: {max_connections: 1, max_subscriptions: 1, max_payload: 8}, users: [{user: a, password: pw}] }
    B { users: [{user: b, password: pw}] }
}"""


def test_account_limits_are_reported_alike() -> None:
    seen = []
    with both(LIMITED) as ports:
        for port in ports:
            a, b = Raw(port, '"user":"a","pass":"pw"'), Raw(port, '"user":"b","pass":"pw"')
            parts = [a.talk(a.connect), b.talk(b.connect)]
            other = Raw(port, '"user":"a","pass":"pw"')
            parts.append(other.talk(other.connect))
            parts.append(a.talk(b"SUB x 1\r\nSUB y 2\r\nPUB x 8\r\n12345678\r\n"))
            parts.append(b.talk(b"SUB x 1\r\nSUB y 2\r\nPUB x 9\r\n123456789\r\n"))
            a.sock.sendall(b"PUB x 9\r\n123456789\r\nPUB x 1\r\n1\r\n")
            parts.append(a.talk(b""))
            seen.append(parts)
            for raw in (a, b, other):
                raw.close()
    assert seen[0] == seen[1]
    assert b"maximum account active connections exceeded" in seen[1][2]


def test_the_second_info_is_alike() -> None:
    fields = ("connect_info", "remote_account", "max_payload", "auth_required", "acc_is_sys", "headers", "proto", "ldm")
    seen = []
    with both(LIMITED) as ports:
        for port in ports:
            raw = Raw(port, '"user":"a","pass":"pw"', '"protocol":1')
            raw.sock.sendall(raw.connect + b"PING\r\nPING\r\n")
            lines = [raw._file.readline() for _ in range(3)]
            info = json.loads(lines[1][5:])
            seen.append((lines[0], {name: info.get(name) for name in fields}, lines[2]))
            raw.close()
    assert seen[0] == seen[1]


# JWTs.

OPERATOR, ACCOUNT, OTHER, SIGNER, USER = (Key(kind) for kind in "OAAAU")
PERMISSIONS: dict[str, Any] = {"pub": {"allow": ["a.>"], "deny": ["a.no"]}, "sub": {"allow": ["a.>"]}}
TEMPLATE = {
    "pub": {"allow": ["u.{{name()}}.{{tag(team)}}"]},
    "sub": {"allow": ["u.{{subject()}}"]},
    "subs": -1,
    "payload": -1,
}


def jwt_config(**account: Any) -> str:
    scope = {"kind": "user_scope", "key": SIGNER.public, "template": {**TEMPLATE, "data": -1, "payload": -1}}
    first = account_token(OPERATOR, ACCOUNT, name="A", signing_keys=[scope], **account)
    second = account_token(OPERATOR, OTHER, name="B")
    return (
        f"operator: {operator_token(OPERATOR)}\nresolver: MEMORY\n"
        f"resolver_preload {{ {ACCOUNT.public}: {first}\n {OTHER.public}: {second} }}\n"
    )


def jwt_login(raw: Raw, token: str, key: Key) -> str:
    signature = base64.urlsafe_b64encode(key.sign(raw.info["nonce"].encode())).decode().rstrip("=")
    return f'"jwt":"{token}","sig":"{signature}"'


def jwt_answers(ports: tuple[int, int], token: str, lines: bytes = b"", key: Key = USER) -> list[bytes]:
    seen = []
    for port in ports:
        raw = Raw(port)
        login = f'"verbose":false,"pedantic":false,"headers":true,{jwt_login(raw, token, key)}'
        seen.append(raw.talk(f"CONNECT {{{login}}}\r\n".encode() + lines))
        raw.close()
    return seen


REFUSED = b"-ERR 'Authorization Violation'\r\n<closed>"
LINES = b"SUB a.x 1\r\nSUB b 2\r\nPUB a.x 1\r\nx\r\nPUB a.no 1\r\nx\r\nPUB b 1\r\nx\r\n"


@pytest.fixture(scope="module")
def jwt_ports() -> Iterator[tuple[int, int]]:
    with both(jwt_config(revocations={Key("U").public: 1})) as ports:
        yield ports


def test_a_user_of_a_jwt_comes_in_with_its_permissions(jwt_ports: tuple[int, int]) -> None:
    seen = jwt_answers(jwt_ports, user_token(ACCOUNT, USER, **PERMISSIONS), LINES)
    assert seen[0] == seen[1]
    assert b"MSG a.x 1 1" in seen[1]
    assert seen[1].count(b"Permissions Violation") == 3
    assert jwt_answers(jwt_ports, user_token(ACCOUNT, USER), LINES)[1].count(b"MSG") == 2


def test_an_account_without_jetstream_gets_an_error() -> None:
    accounts = "A { jetstream: enabled, users = [{user: a, password: p}] }, B { users = [{user: b, password: p}] }"
    requests = ("INFO", "STREAM.NAMES", "STREAM.CREATE.X", "CONSUMER.INFO.X.C", "STREAM.MSG.GET.X", "NOTHING")
    lines = b"SUB i 1\r\n" + b"".join(b"PUB $JS.API.%b i 0\r\n\r\n" % name.encode() for name in requests)
    seen = []
    with both(f"accounts {{ {accounts} }}", jetstream=True) as ports:
        for port in ports:
            raw = Raw(port, '"user":"b","pass":"p"')
            raw.sock.sendall(raw.connect + lines)
            seen.append(sorted(raw._file.readline() for _ in range(10)))  # nats-server answers in any order
            raw.close()
    assert seen[0] == seen[1]
    assert b"".join(seen[1]).count(b"10039") == 5


@pytest.mark.parametrize("name", ["conn", "subs", "payload"])
def test_a_limit_that_an_accounts_jwt_leaves_out_is_0(name: str) -> None:
    limits = {key: value for key, value in LIMITS.items() if key != name}
    body = {"type": "account", "default_permissions": {"pub": {}, "sub": {}}, "limits": limits}
    text = (
        f"operator: {operator_token(OPERATOR)}\nresolver: MEMORY\n"
        f"resolver_preload {{ {ACCOUNT.public}: {signed_token(OPERATOR, ACCOUNT.public, body)} }}\n"
    )
    with both(text) as ports:
        seen = jwt_answers(ports, user_token(ACCOUNT, USER), b"SUB a 1\r\nPUB a 1\r\nx\r\n")
    assert {*seen[0].splitlines()} == {*seen[1].splitlines()}  # nats-server may say it twice
    assert b"-ERR" in seen[1]


@pytest.mark.parametrize("name", ["subs", "payload"])
def test_a_limit_that_a_users_jwt_leaves_out_is_0(jwt_ports: tuple[int, int], name: str) -> None:
    body = {"type": "user", "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
    del body[name]
    token = signed_token(ACCOUNT, USER.public, body)
    seen = jwt_answers(jwt_ports, token, b"SUB a 1\r\nPUB a 1\r\nx\r\n")
    assert {*seen[0].splitlines()} == {*seen[1].splitlines()}
    assert b"-ERR" in seen[1]


def test_a_role_of_a_signing_key_is_filled_in_alike(jwt_ports: tuple[int, int]) -> None:
    open_limits: dict[str, Any] = {"subs": 0, "data": 0, "payload": 0}
    token = user_token(SIGNER, USER, name="joe", issuer_account=ACCOUNT.public, tags=["team:red"], **open_limits)
    lines = b"PUB u.joe.red 1\r\nx\r\nPUB u.joe.blue 1\r\nx\r\nSUB u.%b 1\r\nSUB u.x 1\r\n" % USER.public.encode()
    seen = jwt_answers(jwt_ports, token, lines)
    assert seen[0] == seen[1]
    assert seen[1].count(b"Permissions Violation") == 2
    own = user_token(SIGNER, USER, issuer_account=ACCOUNT.public, **open_limits | {"subs": 5})
    assert jwt_answers(jwt_ports, own) == [REFUSED, REFUSED]


@pytest.mark.parametrize(
    ("changes", "comes_in"),
    [
        ({}, True),
        ({"exp": -10}, False),  # in seconds from now, when the test runs: collecting may be half an hour ago
        ({"exp": 1000}, True),
        ({"nbf": 1000}, False),
        ({"src": ["127.0.0.0/8"]}, True),
        ({"src": ["10.0.0.0/8"]}, False),
        ({"allowed_connection_types": ["WEBSOCKET"]}, False),
        ({"allowed_connection_types": ["STANDARD", "MQTT"]}, True),
        ({"bearer_token": True}, True),
        ({"issuer_account": OTHER.public}, False),
    ],
)
def test_a_jwt_is_judged_alike(jwt_ports: tuple[int, int], changes: dict[str, Any], comes_in: bool) -> None:
    now = int(time.time())
    changes = {name: now + value if name in ("exp", "nbf") else value for name, value in changes.items()}
    seen = jwt_answers(jwt_ports, user_token(ACCOUNT, USER, **changes))
    assert seen[0] == seen[1] == (b"" if comes_in else REFUSED)


def test_a_jwt_that_is_forged_or_not_signed_for_is_refused(jwt_ports: tuple[int, int]) -> None:
    stranger = Key("A")
    forged = user_token(ACCOUNT, USER)
    forged = forged[:-4] + ("AAAA" if forged[-4:] != "AAAA" else "BBBB")
    for token, key in (
        (user_token(stranger, USER), USER),
        (user_token(stranger, USER, issuer_account=ACCOUNT.public), USER),
        (forged, USER),
        (user_token(ACCOUNT, USER), Key("U")),
        ("nonsense", USER),
    ):
        assert jwt_answers(jwt_ports, token, key=key) == [REFUSED, REFUSED]


def test_a_bearer_needs_no_signature_and_others_do(jwt_ports: tuple[int, int]) -> None:
    for token, wanted in ((user_token(ACCOUNT, USER, bearer_token=True), b""), (user_token(ACCOUNT, USER), REFUSED)):
        assert answers(jwt_ports, f'"jwt":"{token}"') == [wanted, wanted]


def test_revoked_users_and_jwt_limits_are_reported_alike() -> None:
    revoked = Key("U")
    limits = {"conn": 2, "subs": 1, "payload": 8}
    with both(jwt_config(revocations={revoked.public: int(time.time()) + 10}, limits=limits)) as ports:
        assert jwt_answers(ports, user_token(ACCOUNT, revoked), key=revoked) == [REFUSED, REFUSED]
        lines = b"SUB a 1\r\nSUB b 2\r\nPUB a 8\r\n12345678\r\nPUB a 9\r\n123456789\r\nPUB a 1\r\nx\r\n"
        seen = jwt_answers(ports, user_token(ACCOUNT, USER), lines)
        assert seen[0] == seen[1]
        seen = jwt_answers(ports, user_token(ACCOUNT, USER, payload=2), b"SUB a 1\r\nPUB a 3\r\n123\r\n")
        assert seen[0] == seen[1]
        for ours in ports:
            held = []
            for _ in range(3):
                raw = Raw(ours)
                text = f'CONNECT {{"verbose":false,{jwt_login(raw, user_token(ACCOUNT, USER), USER)}}}\r\n'
                held.append((raw, raw.talk(text.encode())))
            assert [said for _, said in held] == [
                b"",
                b"",
                b"-ERR 'maximum account active connections exceeded'\r\n<closed>",
            ]
            for raw, _ in held:
                raw.close()


@pytest.mark.steady
def test_a_users_time_runs_out_alike(jwt_ports: tuple[int, int]) -> None:
    seen = []
    for port in jwt_ports:
        token = user_token(ACCOUNT, USER, exp=int(time.time()) + 2)
        raw = Raw(port)
        raw.sock.sendall(f'CONNECT {{"verbose":false,{jwt_login(raw, token, USER)}}}\r\n'.encode())
        seen.append(raw._file.read().replace(b"PING\r\n", b""))  # which nats-server sends after two seconds
        raw.close()
    assert seen[0] == seen[1] == b"-ERR 'User Authentication Expired'\r\n"
