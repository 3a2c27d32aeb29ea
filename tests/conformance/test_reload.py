"""Reload of a configuration, on our server and on the real one: the same clients stay, change or are closed."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.test_config import Raw
from tests.server.process.test_command import OURS, Process, running
from tests.servers import real_binary

BEFORE = """
accounts {
    A { users: [
        {user: stays, password: pw}
        {user: removed, password: pw}
        {user: changed, password: pw}
        {user: narrowed, password: pw}
        {user: guest, password: pw}
    ] }
    B { users: [{user: b, password: pw}] }
}
no_auth_user: guest
"""
AFTER = """
accounts {
    A { users: [
        {user: stays, password: pw}
        {user: changed, password: other}
        {user: narrowed, password: pw, permissions: {subscribe: {allow: "a.>", deny: "a.secret"}, publish: "a.>"}}
        {user: guest, password: pw}
        {user: new, password: pw}
    ] }
    B { users: [{user: b, password: pw}] }
    C { users: [{user: c, password: pw}] }
}
no_auth_user: guest
max_payload: 500
"""


class Reloaded:
    """A server with a configuration file that can be changed."""

    def __init__(self, process: Process, path: Path) -> None:
        self.process, self._path = process, path
        self._count = 0

    def reload(self, text: str) -> str:
        """The line of the log that tells how it went."""
        self._path.write_text(text)
        self._count += 1
        self.process.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = [line for line in self.process.lines if "Reloaded" in line or "Failed to reload" in line]
            if len(found) >= self._count:
                return found[self._count - 1]
            time.sleep(0.01)
        raise AssertionError(self.process.log)

    def client(self, user: str = "", password: str = "pw") -> Raw:
        return Raw(self.process.port, f'"user":"{user}","pass":"{password}"' if user else "", '"protocol":1')


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Reloaded]]:
    """The real server, then ours."""
    paths = [tmp_path / "real.conf", tmp_path / "ours.conf"]
    for path in paths:
        path.write_text(BEFORE)
    flags = ("-a", "127.0.0.1", "-p", "-1", "-c")
    with (
        running(*flags, str(paths[0]), command=[real_binary()]) as real,
        running(*flags, str(paths[1]), command=OURS) as ours,
    ):
        yield [Reloaded(real, paths[0]), Reloaded(ours, paths[1])]
        for raw in Raw.opened:
            raw.close()
        Raw.opened.clear()


def connected(raw: Raw) -> Raw:
    assert raw.talk(raw.connect) == b""
    return raw


def _without_reason(seen: bytes) -> bytes:
    return b"<closed>" if seen.endswith(b"<closed>") else seen


def test_users_and_permissions_change_for_clients_that_are_connected(servers: list[Reloaded]) -> None:
    seen = []
    for server in servers:
        names = ("stays", "removed", "changed", "narrowed", "b", "")
        clients = {name: connected(server.client(name)) for name in names}
        narrowed = clients["narrowed"]
        narrowed.talk(b"SUB a.* 1\r\nSUB b 2\r\nSUB a.x q 3\r\n")
        assert "Reloaded" in server.reload(AFTER)
        # nats-server closes some clients before they have read why.
        outcome = {name: _without_reason(client.talk(b"")) for name, client in clients.items()}
        after = narrowed.talk(b"PUB a.secret 1\r\nx\r\nPUB a.open 1\r\nx\r\nPUB c 1\r\nx\r\n")
        stays = clients["stays"].talk(b"SUB z 1\r\nPUB z 1\r\nx\r\n")
        large = clients["stays"].talk(b"PUB z 501\r\n" + b"x" * 501 + b"\r\n")
        logins = [server.client(name).talk(server.client(name).connect) for name in ("new", "c", "removed", "changed")]
        again = server.client("changed", "other")
        seen.append((outcome, after, stays, large, logins, again.talk(again.connect)))
    assert seen[1] == seen[0]
    outcome, after, *_ = seen[0]
    assert [name for name, seen in outcome.items() if seen == b"<closed>"] == ["removed", "changed"]
    assert b"Permissions Violation" in outcome["narrowed"]
    assert b"a.open" in after
    assert b"a.secret" not in after


@pytest.mark.parametrize(
    "change",
    ["http_port: 4334", 'server_name: "other"', "nonsense", "no_auth_user: nobody"],
)
def test_what_cannot_be_reloaded_is_refused_and_nothing_applies(servers: list[Reloaded], change: str) -> None:
    for server in servers:
        removed = connected(server.client("removed"))
        accounts = AFTER if "no_auth_user" not in change else AFTER.replace("no_auth_user: guest", "")
        assert "Failed to reload" in server.reload(f"{accounts}\n{change}\n")
        assert removed.talk(b"SUB x 1\r\nPUB x 1\r\nx\r\n") == b"MSG x 1 1\r\nx\r\n"
        refused = server.client("new")
        assert b"Authorization Violation" in refused.talk(refused.connect)


def test_a_lower_limit_of_connections_closes_some(servers: list[Reloaded]) -> None:
    closed = []
    for server in servers:
        clients = [connected(server.client("stays")) for _ in range(4)]
        server.reload(BEFORE + "\nmax_connections: 2\n")
        closed.append([b"maximum connections" in client.talk(b"").lower() for client in clients])
    assert [sum(one) for one in closed] == [2, 2]
    assert closed[1] == [False, False, True, True]  # ours closes the newest, nats-server any


def test_clients_of_the_old_default_user_are_closed(servers: list[Reloaded]) -> None:
    """nats-server does not reload `no_auth_user`; ours does."""
    server = servers[1]
    anyone, guest = connected(server.client()), connected(server.client("guest"))
    assert "Reloaded" in server.reload(BEFORE.replace("no_auth_user: guest", "no_auth_user: b"))
    assert b"Authorization Violation" in anyone.talk(b"")
    assert guest.talk(b"") == b""  # it has shown its password
    assert "Reloaded" in server.reload(BEFORE.replace("no_auth_user: guest", ""))
    refused = server.client()
    assert b"Authorization Violation" in refused.talk(refused.connect)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals")
def test_the_signal_flag_reloads(servers: list[Reloaded], tmp_path: Path) -> None:
    server = servers[1]
    client = connected(server.client("removed"))
    (tmp_path / "ours.conf").write_text(AFTER)
    from slipstream.server.process.command import main

    assert main(["--signal", f"reload={server.process.process.pid}"]) == 0
    deadline = time.monotonic() + 30
    while "Reloaded" not in server.process.log and time.monotonic() < deadline:
        time.sleep(0.01)
    assert b"Authorization Violation" in client.talk(b"")
