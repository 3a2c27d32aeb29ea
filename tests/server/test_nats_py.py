"""nats-py as a client of our server: all of core NATS that it has, with users, keys, TLS, WebSockets and restarts."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from slipstream.server import Permissions, Server, User, WebSocketOptions
from slipstream.server.process.config_file import read_config
from tests.client.certificates import Pki
from tests.ports import free_port
from tests.server.engine.auth.tokens import LIMITS, Key, account_token, old_token, operator_token, user_token


@contextlib.asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[Client]:
    client = await nats.connect(url, connect_timeout=10, **options)
    try:
        yield client
    finally:
        await client.close()


async def test_publish_subscribe_and_wildcards() -> None:
    async with Server() as server, connected(server.url) as nc:
        every, one = await nc.subscribe("a.>"), await nc.subscribe("a.*.c")
        for subject in ("a.b", "a.b.c", "a.b.c.d"):
            await nc.publish(subject, subject.encode(), headers={"H": subject})
        got = [await every.next_msg(timeout=5) for _ in range(3)]
        assert [(m.subject, m.data, m.headers) for m in got] == [
            (s, s.encode(), {"H": s}) for s in ("a.b", "a.b.c", "a.b.c.d")
        ]
        assert (await one.next_msg(timeout=5)).subject == "a.b.c"


async def test_queue_groups_share_and_requests_are_answered() -> None:
    async with Server() as server, connected(server.url) as nc, connected(server.url) as other:
        counts = {"one": 0, "two": 0}

        async def one(message: Msg) -> None:
            counts["one"] += 1
            await message.respond(message.data.upper())

        async def two(message: Msg) -> None:
            counts["two"] += 1
            await message.respond(message.data.upper())

        await nc.subscribe("svc", queue="q", cb=one)
        await other.subscribe("svc", queue="q", cb=two)
        await nc.flush()
        await other.flush()
        answers = await asyncio.gather(*(nc.request("svc", b"x", timeout=10) for _ in range(200)))
        assert {answer.data for answer in answers} == {b"X"}
        assert sum(counts.values()) == 200
        assert min(counts.values()) > 40
        old = await nc.request("svc", b"y", timeout=10, old_style=True)
        assert old.data == b"Y"
        with pytest.raises(nats.errors.NoRespondersError):
            await nc.request("nobody", b"", timeout=5)


async def test_unsubscribe_after_some_and_drain() -> None:
    async with Server() as server, connected(server.url) as nc:
        limited = await nc.subscribe("a")
        await limited.unsubscribe(limit=2)
        seen: list[bytes] = []

        async def slow(message: Msg) -> None:
            await asyncio.sleep(0.001)
            seen.append(message.data)

        await nc.subscribe("b", cb=slow)
        for n in range(50):
            await nc.publish("a", b"%d" % n)
            await nc.publish("b", b"%d" % n)
        await nc.flush()
        await nc.drain()
        assert len(seen) == 50
        assert nc.is_closed


async def test_a_payload_over_the_limit_and_max_payload() -> None:
    async with Server(max_payload=1000) as server, connected(server.url) as nc:
        assert nc.max_payload == 1000
        await nc.publish("a", b"x" * 1000)
        with pytest.raises(nats.errors.MaxPayloadError):
            await nc.publish("a", b"x" * 1001)


async def test_users_tokens_and_permissions() -> None:
    users = [
        User(name="joe", password="pw", permissions=Permissions(publish=("ok",), subscribe=("ok",))),
        User(token="secret"),
    ]
    errors: list[Exception] = []

    async def note(error: Exception) -> None:
        errors.append(error)

    async with Server(users=users) as server:
        async with connected(server.url, user="joe", password="pw", error_cb=note) as nc:
            await nc.publish("no", b"")
            await nc.flush()
            await asyncio.sleep(0)
            assert "permissions violation for publish to" in str(errors[0]).lower()
        url = server.url.replace("nats://", "nats://joe:pw@")
        for options in ({"servers": url}, {"token": "secret"}):
            async with connected(str(options.pop("servers", server.url)), **options) as nc:
                await nc.flush()
        refused = Client()
        with pytest.raises(nats.errors.Error):
            await refused.connect(
                server.url, user="joe", password="no", allow_reconnect=False, connect_timeout=5, error_cb=note
            )
        await refused.close()


@pytest.mark.parametrize("version", [1, 2])
async def test_a_jwt_of_an_operator(tmp_path: Path, version: int) -> None:
    operator, account, user = Key("O"), Key("A"), Key("U")
    tokens = [operator_token(operator), account_token(operator, account), user_token(account, user)]
    if version == 1:
        tokens = [
            old_token(operator, operator.public, "operator"),
            old_token(operator, account.public, "account", {"limits": LIMITS}),
            old_token(account, user.public, "user", {"pub": {}, "sub": {}, "payload": 0}),
        ]
    config = tmp_path / "server.conf"
    config.write_text(
        f"port: -1\noperator: {tokens[0]}\nresolver: MEMORY\nresolver_preload {{ {account.public}: {tokens[1]} }}"
    )

    def sign(nonce: str) -> bytes:
        return base64.b64encode(user.sign(nonce.encode()))

    login = {"user_jwt_cb": lambda: tokens[2].encode(), "signature_cb": sign}
    async with Server.of(read_config(config).server) as server, connected(server.url, **login) as nc:
        sub = await nc.subscribe("a")
        await nc.publish("a", b"in")
        assert (await sub.next_msg(timeout=5)).data == b"in"


@pytest.mark.parametrize("first", [False, True])
async def test_tls(tmp_path: Path, first: bool) -> None:
    pki = Pki(tmp_path)
    context = ssl.create_default_context(cafile=str(pki.ca))
    context.load_cert_chain(*map(str, pki.client))
    async with (
        Server(
            tls_cert=pki.server[0], tls_key=pki.server[1], tls_ca=pki.ca, tls_verify=True, tls_first=first
        ) as server,
        connected(server.url, tls=context, tls_handshake_first=first) as nc,
    ):
        sub = await nc.subscribe("a")
        await nc.publish("a", b"x" * 100_000)
        assert len((await sub.next_msg(timeout=5)).data) == 100_000


@pytest.mark.filterwarnings("ignore:parameter 'timeout' of type 'float':DeprecationWarning")  # nats-py's call
async def test_websockets() -> None:
    async with Server(websocket=WebSocketOptions()) as server, connected(server.websocket_url) as nc:
        sub = await nc.subscribe("a")
        await nc.publish("a", b"through")
        assert (await sub.next_msg(timeout=5)).data == b"through"


async def test_a_restart_is_survived() -> None:
    port = free_port()
    server = Server(port=port)
    await server.start()
    back = asyncio.Event()

    async def again() -> None:
        back.set()

    async with connected(server.url, reconnect_time_wait=0.05, max_reconnect_attempts=-1, reconnected_cb=again) as nc:
        sub = await nc.subscribe("a")
        await nc.flush()
        await server.stop()
        server = Server(port=port)
        await server.start()
        async with asyncio.timeout(20):
            await back.wait()
        await nc.publish("a", b"again")
        assert (await sub.next_msg(timeout=5)).data == b"again"
    await server.stop()


async def test_lame_duck_mode_is_announced() -> None:
    told = asyncio.Event()

    async def note() -> None:
        told.set()

    async with Server() as server, connected(server.url, lame_duck_mode_cb=note, allow_reconnect=False) as nc:
        await nc.flush()
        await server.lame_duck(duration=0.2, grace=0.1)
        async with asyncio.timeout(10):
            await told.wait()
