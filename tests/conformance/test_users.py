"""Users and permissions: the same bytes to our server and to the real one give the same bytes back."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from slipstream.server import Permissions, Responses, Server, User
from tests.servers import real_server

CONFIG = """authorization { users = [
    {user: root, password: pw}
    {user: joe, password: pw, permissions: {
        publish: {allow: ["a.>", "s"], deny: ["a.secret", "a.*.key"]}
        subscribe: {allow: ["a.*", "b.>", "q v1", "q v2.*", "w", "w dev"], deny: ["b.secret.>", "b.x", "w test"]}
    }}
    {user: service, password: pw, permissions: {subscribe: "ask", allow_responses: {max: 2, expires: "1m"}}}
    {user: filtered, password: pw, permissions: {subscribe: {deny: ["a.secret", "a.*.key", "a.x dev"]}}}
]}"""
USERS = (
    User(name="root", password="pw"),
    User(
        name="joe",
        password="pw",
        permissions=Permissions(
            publish=("a.>", "s"),
            publish_deny=("a.secret", "a.*.key"),
            subscribe=("a.*", "b.>", "q v1", "q v2.*", "w", "w dev"),
            subscribe_deny=("b.secret.>", "b.x", "w test"),
        ),
    ),
    User(name="service", password="pw", permissions=Permissions(subscribe=("ask",), responses=Responses(max_msgs=2))),
    User(
        name="filtered",
        password="pw",
        permissions=Permissions(subscribe_deny=("a.secret", "a.*.key", "a.x dev")),
    ),
)


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    with real_server(config=CONFIG, jetstream=False) as url, Server(users=USERS, jetstream=False) as ours:
        yield int(url.rpartition(":")[2]), ours.port


ACCOUNTS = """accounts {
    A { users: [{user: a, password: pw}, {user: a2, password: pw}] }
    B { users: [{user: b, password: pw}] }
}"""
MEMBERS = (
    User(name="a", password="pw", account="A"),
    User(name="a2", password="pw", account="A"),
    User(name="b", password="pw", account="B"),
)


class Raw:
    """A connection that sends bytes and then asks whether all was handled."""

    def __init__(self, port: int, user: str, flags: str = "") -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._file = self.sock.makefile("rb")
        assert self._file.readline().startswith(b"INFO ")
        self.flags = f'"headers":true,"no_responders":true,"user":"{user}"{flags}'
        self.greeting = self.talk(b'CONNECT {"pass":"pw",%b}\r\n' % self.flags.encode())

    def talk(self, data: bytes) -> bytes:
        """What comes back until the answer to a PING, or until the server closes."""
        self.sock.sendall(data + b"PING\r\n")
        seen = b""
        while (line := self._file.readline()) not in (b"PONG\r\n", b""):
            seen += line
        return seen if line else seen + b"<closed>"

    def close(self) -> None:
        self._file.close()
        self.sock.close()


QUIET = ',"verbose":false,"pedantic":false'
LINES = [
    b"PUB a.x 1\r\nx\r\n",
    b"PUB a.secret 1\r\nx\r\n",
    b"PUB a.x.key 1\r\nx\r\n",
    b"PUB a 1\r\nx\r\n",
    b"PUB z reply 1\r\nx\r\n",
    b'PUB z"y 1\r\nx\r\n',
    b"PUB a..b 1\r\nx\r\n",
    b"PUB s.> 1\r\nx\r\n",
    b"SUB a.x 1\r\n",
    b"SUB a.* 1\r\n",
    b"SUB * 1\r\n",
    b"SUB > 1\r\n",
    b"SUB b.> 1\r\n",
    b"SUB b.x 1\r\n",
    b"SUB b.secret.x 1\r\n",
    b"SUB b.secret.> 1\r\n",
    b"SUB b.secret 1\r\n",
    b"SUB q 1\r\n",
    b"SUB q v1 1\r\n",
    b"SUB q v2.x 1\r\n",
    b"SUB q v3 1\r\n",
    b"SUB w any 1\r\n",
    b"SUB w dev 1\r\n",
    b"SUB w test 1\r\n",
    b"SUB z..y 1\r\n",
    b"UNSUB 77\r\n",
    b"SUB a.x 1\r\nSUB a.x 1\r\nPUB a.x 1\r\nx\r\n",
]


@pytest.mark.parametrize("flags", ["", QUIET, ',"verbose":true,"pedantic":false', ',"verbose":false,"pedantic":true'])
@pytest.mark.parametrize("line", LINES)
def test_a_line_is_answered_alike(ports: tuple[int, int], line: bytes, flags: str) -> None:
    answers = []
    for port in ports:
        raw = Raw(port, "joe", flags)
        answers.append((raw.greeting, raw.talk(line)))
        raw.close()
    assert answers[0] == answers[1]


@pytest.mark.parametrize("login", ['"user":"joe","pass":"no"', '"user":"nobody","pass":"pw"', '"auth_token":"pw"', ""])
def test_a_stranger_is_turned_away_alike(ports: tuple[int, int], login: str) -> None:
    answers = []
    for port in ports:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as sock, sock.makefile("rb") as file:
            assert b'"auth_required":true' in file.readline()
            sock.sendall(f"CONNECT {{{login}}}\r\n".encode())
            answers.append(file.read())
    assert answers[0] == answers[1] == b"-ERR 'Authorization Violation'\r\n"


def test_answers_are_allowed_alike(ports: tuple[int, int]) -> None:
    seen = []
    for port in ports:
        root, service = Raw(port, "root", QUIET), Raw(port, "service", QUIET)
        root.talk(b"SUB r.* 1\r\n")
        parts = [service.talk(b"SUB ask 1\r\nPUB r.1 1\r\nx\r\n")]
        root.talk(b"PUB ask r.1 1\r\nx\r\n")
        parts += [service.talk(b""), service.talk(b"PUB r.1 1\r\na\r\nPUB r.1 1\r\nb\r\nPUB r.1 1\r\nc\r\n")]
        parts += [service.talk(b"PUB r.2 1\r\nx\r\n"), root.talk(b"")]
        seen.append(parts)
        root.close()
        service.close()
    assert seen[0] == seen[1]


def test_what_is_denied_is_filtered_from_wildcards_alike(ports: tuple[int, int]) -> None:
    seen = []
    for port in ports:
        root, filtered = Raw(port, "root", QUIET), Raw(port, "filtered", QUIET)
        filtered.talk(b"SUB a.> 1\r\nSUB a.x dev 2\r\nSUB a.* dev 3\r\nSUB a.* prod 4\r\n")
        for subject in (b"a.x", b"a.secret", b"a.x.key", b"a.y.z", b"a.secret"):
            root.talk(b"PUB %b 1\r\nx\r\n" % subject)
        frames = filtered.talk(b"").split(b"\r\n")
        seen.append(sorted(line for line in frames if line.startswith(b"MSG")))
        root.close()
        filtered.close()
    assert seen[0] == seen[1]
    assert seen[0]


def test_accounts_are_kept_apart_alike() -> None:
    seen = []
    with real_server(config=ACCOUNTS, jetstream=False) as url, Server(users=MEMBERS, jetstream=False) as ours:
        for port in (int(url.rpartition(":")[2]), ours.port):
            a, a2, b = (Raw(port, name, QUIET) for name in ("a", "a2", "b"))
            for raw in (a, a2, b):
                raw.talk(b"SUB x.> 1\r\nSUB reply 2\r\n")
            b.talk(b"SUB service 3\r\n")
            parts = [a.talk(b"PUB x.1 1\r\na\r\nPUB service reply 1\r\nx\r\n"), b.talk(b"PUB x.2 1\r\nb\r\n")]
            parts += [a2.talk(b""), a.talk(b""), b.talk(b"")]
            seen.append(parts)
            for raw in (a, a2, b):
                raw.close()
    assert seen[0] == seen[1]
