"""Fault commands as messages on `$SLIPSTREAM.FAULTS.>`, and their errors."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from slipstream import Client, StreamConfig, connect, connect_blocking
from slipstream.errors import UsageError
from slipstream.facade._sync.client import Client as BlockingClient
from slipstream.server import Server
from slipstream.testing import TestServer

S = StreamConfig(name="S", subjects=("s.>",), allow_direct=True, num_replicas=3)


def ask(client: BlockingClient, command: str, /, **body: Any) -> dict[str, Any]:
    reply = client.request(f"$SLIPSTREAM.FAULTS.{command}", msgspec.json.encode(body) if body else b"", timeout=5)
    answer: dict[str, Any] = msgspec.json.decode(reply.data)
    return answer


def test_fault_commands_are_accepted_as_messages(slipstream_server_virtual: TestServer) -> None:
    with connect_blocking(slipstream_server_virtual.url, name="me") as client:
        js = client.jetstream()
        js.create_stream(S)
        js.publish("s.1", b"1")
        assert ask(client, "hold", stream="S") == {}
        js.publish("s.1", b"2")
        assert [replica["last_seq"] for replica in ask(client, "replicas", stream="S")["replicas"]] == [2, 1, 1]
        assert ask(client, "release", stream="S") == {}
        stream = js.stream("S")
        assert {stream.get_last("s.1").data for _ in range(60)} == {b"2"}
        before = ask(client, "now")["now"]
        assert ask(client, "advance", seconds=1.5)["now"] == before + 1_500_000_000
        assert [entry["name"] for entry in ask(client, "connections")["connections"]] == ["me"]


@pytest.mark.parametrize(
    ("command", "body", "text"),
    [
        ("hold", {"stream": "NONE"}, "there is no stream 'NONE'"),
        ("hold", {"stream": "S", "replica": "nobody"}, "has no replica 'nobody'"),
        ("hold", {"stream": "ONE"}, "one replica only"),
        ("hold", {"replica": "r"}, "replica must be named together with its stream, got replica 'r' alone"),
        ("replicas", {}, "needs the field 'stream'"),
        ("hold", {"stream": 7}, "stream of hold must be of type str, got 7"),
        ("hold", {"stream": "S", "what": 1}, "hold has no field 'what'; its fields are stream, replica"),
        ("nothing", {}, "unknown fault command 'nothing'; commands are advance"),
        ("__init__", {}, "unknown fault command '__init__'"),
        ("hold_mirror", {"stream": "S"}, "has no mirror or source"),
        ("advance", {"seconds": 1}, "virtual_time=True"),
        ("fault", {"action": "explode"}, "action must be drop, duplicate, delay, cut or lose_reply, got 'explode'"),
        ("fault", {"action": "drop", "direction": "up"}, "direction must be to_server or to_client, got 'up'"),
        ("fault", {"action": "drop", "count": 0}, "count must be at least 1, got 0"),
        ("fault", {"action": "drop", "subject": "a..b"}, "subject must be a subject or a filter, got 'a..b'"),
        ("fault", {"action": "drop", "every": 0}, "every must be at least 1, got 0"),
        ("fault", {"action": "lose_reply"}, "direction of lose_reply must be to_server"),
        ("consumer", {"stream": "S", "consumer": "nobody"}, "stream 'S' has no consumer 'nobody'"),
        ("restore", {"snapshot": 7}, "snapshot must be one that no later restore has undone (there is none), got 7"),
        ("cut", {"client": "nobody"}, "no client is named 'nobody'"),
        ("cut", {"after": -1}, "after must be at least 0 bytes, got -1"),
        ("depose", {"stream": "ONE"}, "can lead"),
    ],
)
def test_a_rejected_fault_command_is_answered_with_the_reason(
    slipstream_session_server: TestServer, command: str, body: dict[str, Any], text: str
) -> None:
    with connect_blocking(slipstream_session_server.url) as client:
        client.jetstream().create_stream(S)
        client.jetstream().create_stream(StreamConfig(name="ONE"))
        assert text in ask(client, command, **body)["error"]
        with pytest.raises(UsageError) as caught:
            slipstream_session_server.fault_command(command, body)
        assert text in str(caught.value)


def test_a_body_that_is_not_an_object_is_answered_with_an_error(slipstream_session_server: TestServer) -> None:
    with connect_blocking(slipstream_session_server.url) as client:
        for body in (b"[]", b"{", b"\xff"):
            reply = client.request("$SLIPSTREAM.FAULTS.hold", body, timeout=5)
            assert "error" in msgspec.json.decode(reply.data)


def test_a_server_without_faults_rejects_fault_commands() -> None:
    with Server() as server, connect_blocking(server.url) as client:
        assert "faults=True" in ask(client, "hold", stream="S")["error"]
        with pytest.raises(UsageError, match="fault commands need a running server with faults=True"):
            TestServer(server=server).fault_command("now")
    with pytest.raises(UsageError, match="the server is not running"):
        TestServer(server=server).fault_command("now")
    with pytest.raises(UsageError, match="must not be combined"):
        TestServer(server=server, virtual_time=True)


def test_fault_commands_may_come_from_many_threads(slipstream_server: TestServer) -> None:
    server = slipstream_server
    with connect_blocking(server.url) as client:
        client.jetstream().create_stream(S)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                with server.held("S"):
                    server.replicas("S")
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert errors == []
    assert not any(replica.held for replica in server.replicas("S"))


async def test_fault_commands_do_not_block_clients_of_the_server(slipstream_server: TestServer) -> None:
    async def publishes(client: Client) -> int:
        for _ in range(200):
            await client.jetstream().publish("s.1", b"x")
        return 200

    async with connect(slipstream_server.url) as client:
        await client.jetstream().create_stream(S)
        task = asyncio.create_task(publishes(client))
        for _ in range(20):
            await asyncio.to_thread(slipstream_server.hold, "S")
            await asyncio.to_thread(slipstream_server.release, "S")
        assert await task == 200
