"""Events of the system account in virtual time: coalesced, periodic, and only where there is a listener."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipstream.server.engine.auth.users import User
from slipstream.server.engine.monitoring.system_events import CONNECTIONS_INTERVAL
from slipstream.server.engine.monitoring.system_services import SystemServices
from slipstream.wire import Msg, Pong, pub
from tests.server.support import SECOND, Client, Rig

USERS = (User(name="sys", password="p", account="$SYS"), User(name="a", password="p", account="A"))


class Process:
    """Stands for the report of the process."""

    def varz(self) -> dict[str, Any]:
        return {}

    def usage(self) -> dict[str, Any]:
        return {"mem": 1, "cores": 1, "cpu": 0.0}


def login(user: str) -> bytes:
    about = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "user": user, "pass": "p"}
    return b"CONNECT %b\r\n" % json.dumps(about).encode()


def make(subject: str) -> tuple[Rig, Client]:
    rig = Rig(users=USERS)
    SystemServices(rig.engine, Process()).attach()
    system = rig.client(login("sys"))
    system.send(f"SUB {subject} 2\r\n".encode())
    system.take()
    return rig, system


def bodies(client: Client) -> list[dict[str, Any]]:
    return [json.loads(message.payload) for message in client.messages()]


def test_many_clients_that_come_at_once_are_one_report() -> None:
    rig, system = make("$SYS.ACCOUNT.A.SERVER.CONNS")
    for _ in range(50):
        rig.client(login("a"))
    assert bodies(system) == []
    rig.wait(1)
    (report,) = bodies(system)
    assert report["conns"] == 50


def test_connections_are_reported_again_and_again_while_there_are_any() -> None:
    rig, system = make("$SYS.ACCOUNT.A.SERVER.CONNS")
    client = rig.client(login("a"))
    rig.wait(1)
    bodies(system)
    rig.wait(CONNECTIONS_INTERVAL / SECOND)
    assert [report["conns"] for report in bodies(system)] == [1]
    rig.engine.disconnect(client.cid)
    rig.wait(1)
    assert [report["conns"] for report in bodies(system)] == [0]
    rig.wait(CONNECTIONS_INTERVAL / SECOND)
    assert bodies(system) == []


def test_statistics_of_clients_that_left_are_kept() -> None:
    rig, system = make("nothing")
    client = rig.client(login("a"))
    client.send(pub("x", b"12345"))
    rig.engine.disconnect(client.cid)
    (answer,) = system.ask("$SYS.REQ.ACCOUNT.A.CONNS")
    report = json.loads(answer.payload)
    assert (report["conns"], report["received"]["msgs"], report["received"]["bytes"]) == (0, 1, 5)


def test_without_a_system_user_users_still_see_themselves() -> None:
    rig = Rig()
    SystemServices(rig.engine, Process()).attach()
    client = rig.client()
    (answer,) = client.ask("$SYS.REQ.USER.INFO")
    assert json.loads(answer.payload)["data"]["account"] == "$G"
    (status,) = client.ask("$SYS.REQ.SERVER.PING")
    assert b"503" in status.header
    deadline = rig.engine.next_deadline()
    assert deadline is None or deadline > rig.now + 10 * SECOND  # nothing is sent to a system account without users


@pytest.mark.parametrize(
    ("kind", "body", "wanted"),
    [
        ("SERVER.PING.CONNZ", {"subscriptions": True, "limit": 5000}, 3001),
        ("SERVER.PING.SUBSZ", {"subscriptions": True, "limit": 5000}, 3001),
        ("ACCOUNT.A.CONNZ", {"subscriptions": True}, 3001),
        ("ACCOUNT.A.SUBSZ", {}, 1024),  # a page of them
    ],
)
def test_long_reports_are_made_in_slices(kind: str, body: dict[str, Any], wanted: int) -> None:
    rig, system = make("nothing")
    client = rig.client(login("a"))
    client.send(b"".join(b"SUB s.%d %d\r\n" % (n, n + 10) for n in range(3000)))
    other = rig.client(login("a"))
    request = pub(f"$SYS.REQ.{kind}", json.dumps(body).encode(), f"{system.inbox}r")
    system.send(request + b"PING\r\n", settle=False)
    rig.flush()
    assert system.messages() == []  # not in the turn of the request
    other.send(b"PING\r\n", settle=False)
    rig.flush()
    assert any(isinstance(event, Pong) for event in other.take())
    rig.settle()
    events = system.take()
    assert [type(event) for event in events] == [Msg, Pong]  # what the client sent after it waited
    assert isinstance(events[0], Msg)
    assert events[0].payload.count(b"s.") >= wanted - 10


def test_errors_of_reports_in_slices_are_answered() -> None:
    rig, system = make("nothing")
    (answer,) = system.ask("$SYS.REQ.SERVER.PING.CONNZ", b'{"sort":"bogus"}')
    assert json.loads(answer.payload)["error"]["code"] == 500
    (answer,) = system.ask("$SYS.REQ.ACCOUNT.$SYS.JSZ")
    assert "no JetStream" in json.loads(answer.payload)["error"]["description"]
    rig.engine.health()
