"""Reply subjects that only servers may use: refused in the same words by our server and by the real one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from slipstream import ConsumerConfig, connect
from slipstream.client.events import ClientEvent
from slipstream.errors import AuthorizationError
from slipstream.server import Server
from tests.conformance.test_pull import world
from tests.servers import real_server

TIMEOUT = 20.0
REFUSED = ("$JS.ACK.x", "$JS.ACK.S.C.1.1.1.1.1", '$JS.ACK.a"b', "_R_.", "_R_.x", "_GR_.x", "_GR_.a.b.c")
ALLOWED = ("$JS.ACK", "$JS.ACK.", "$JS.ACKS.x", "$JS.FC.x", "_R_", "_R_x", "_GR_", "_GR_.", "_INBOX.x", "a.$JS.ACK.x")


class RawClient:
    """Bytes to a server, and what it says to them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, url: str, **options: object) -> RawClient:
        host, _, port = url.removeprefix("nats://").rpartition(":")
        client = cls(*await asyncio.open_connection(host, int(port)))
        await client._reader.readline()  # INFO
        await client.say("CONNECT " + json.dumps({"headers": True, "no_responders": True} | options))
        return client

    async def say(self, *lines: str) -> list[str]:
        """The lines that the server answers, up to its PONG; INFO is left out."""
        self._writer.write("".join(f"{line}\r\n" for line in (*lines, "PING")).encode())
        got: list[str] = []
        async with asyncio.timeout(TIMEOUT):
            while (line := (await self._reader.readline()).decode().rstrip()) != "PONG":
                assert line, "the server closed the connection"
                got += [] if line.startswith("INFO") else [line]
        return got

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@pytest.mark.spec("SW-25")
async def test_replies_that_are_reserved_for_servers_are_refused(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh, 1) as here:
        consumer = await here.stream.create_consumer("dur")
        (message,) = await consumer.fetch(1)
        quiet = await RawClient.open(any_server, verbose=False)
        for reply in (message.reply, *REFUSED):
            escaped = reply.replace('"', '\\"')
            error = f"-ERR 'Permissions Violation for Publish with Reply of \"{escaped}\"'"
            # To nobody, to a stream (twice: the second time takes a shortcut in ours), as an ack, and with headers.
            for subject in ("nobody", f"{fresh}.a", f"{fresh}.a", message.reply):
                assert await quiet.say(f"PUB {subject} {reply} 0", "") == [error], (subject, reply)
            assert await quiet.say(f"HPUB {fresh}.a {reply} 12 12", "NATS/1.0", "", "") == [error]
        info = await consumer.info()
        assert (info.num_ack_pending, info.num_pending) == (1, 0)  # nothing was stored, nothing acknowledged
        for reply in ALLOWED:
            assert await quiet.say(f"PUB nobody {reply} 0", "") == [], reply
        await quiet.close()
        verbose = await RawClient.open(any_server, verbose=True)
        assert await verbose.say("PUB nobody $JS.ACK.x 0", "") == [
            "-ERR 'Permissions Violation for Publish with Reply of \"$JS.ACK.x\"'"
        ]
        assert await verbose.say("PUB nobody _INBOX.x 0", "") == ["+OK"]
        await verbose.close()


@pytest.mark.spec("SW-25")
async def test_a_refused_reply_is_an_event_and_acks_work_as_before(any_server: str, fresh: str) -> None:
    events: list[ClientEvent] = []
    async with world(any_server, fresh, 4) as here, connect(any_server, on_event=events.append) as nc:
        js = nc.jetstream()
        await nc.publish(f"{fresh}.a", b"", reply="$JS.ACK.x")
        await nc.flush()
        (error,) = [event.error for event in events]
        assert isinstance(error, AuthorizationError)
        assert "Permissions Violation for Publish with Reply" in str(error)
        assert (await here.stream.info()).state.messages == 4
        consumer = await js.stream(fresh).create_consumer("dur")
        for message in await consumer.fetch(2):
            await message.ack_sync()
        async with await js.subscribe(f"{fresh}.>", config=ConsumerConfig(ack_policy="all")) as subscription:
            for _ in range(4):
                message = await subscription.next()
            await message.ack_sync()
            assert (await subscription.info()).ack_floor.stream_seq == 4
        assert (await consumer.info()).num_ack_pending == 0
        assert len(events) == 1


async def test_a_user_who_may_only_pull_can_delete_a_stream_on_nats_server_and_not_here(tmp_path: Path) -> None:
    """The status of an empty pull is an empty message, and so a request to delete, if the reply says so."""
    config = """
        authorization { users: [
            {user: admin, password: p}
            {user: reader, password: p, permissions: {
                publish: "$JS.API.CONSUMER.MSG.NEXT.ORD.lim", subscribe: "_INBOX.>"
            }}
        ] }
    """
    file = tmp_path / "server.conf"
    file.write_text(config + "port: -1, jetstream: true")
    async with Server.from_config(file) as ours:
        with real_server(config=config) as real:
            left = []
            for url in (ours.url, real):
                async with connect(url, user="admin", password="p") as nc:
                    js = nc.jetstream()
                    await (await js.create_stream("ORD", subjects="ord")).create_consumer("lim")
                    await js.create_stream("VICT", subjects="vict")
                    reader = await RawClient.open(url, user="reader", **{"pass": "p"}, verbose=False)
                    request = '{"batch":1,"no_wait":true}'
                    pull = f"PUB $JS.API.CONSUMER.MSG.NEXT.ORD.lim $JS.API.STREAM.DELETE.VICT {len(request)}"
                    said = await reader.say(pull, request)
                    await reader.close()
                    names = {name async for name in js.stream_names()}
                    deadline = asyncio.get_running_loop().time() + TIMEOUT
                    while "VICT" in names and not said and asyncio.get_running_loop().time() < deadline:
                        names = {name async for name in js.stream_names()}
                    left.append((names, said))
    refused = "-ERR 'Permissions Violation for Publish with Reply of \"$JS.API.STREAM.DELETE.VICT\"'"
    assert left == [({"ORD", "VICT"}, [refused]), ({"ORD"}, [])]
