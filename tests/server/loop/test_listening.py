"""Listening sockets: a port that is not the server's own is an error, and none is lost while the stores are loaded."""

from __future__ import annotations

import errno
import socket

import pytest

from slipstream import connect
from slipstream.server import Server, WebSocketOptions
from slipstream.server import server as module
from slipstream.server.engine.engine import Engine
from slipstream.server.loop.listening import ListeningSockets
from tests.ports import free_port


def intruder(port: int) -> socket.socket:
    """A socket of another program on a port, which does what it can to get it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(("127.0.0.1", port))
        sock.listen()
    except OSError:
        sock.close()
        raise
    return sock


async def test_a_port_cannot_be_taken_while_the_stores_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    port, tried = free_port(), []
    make = Engine

    def slow(*args: object, **options: object) -> object:
        with pytest.raises(OSError, match="in use") as taken:
            intruder(port)
        tried.append(taken.value.errno)
        return make(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "Engine", slow)
    async with Server(port=port) as server, connect(server.url) as nc:
        assert nc.is_connected
    assert tried == [errno.EADDRINUSE]


@pytest.mark.parametrize("listener", ["clients", "monitoring", "websocket"])
async def test_a_port_in_use_is_an_error_that_names_it(listener: str) -> None:
    port = free_port()
    server = {
        "clients": Server(port=port),
        "monitoring": Server(http_port=port),
        "websocket": Server(websocket=WebSocketOptions(port=port)),
    }[listener]
    with (
        intruder(port),
        pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use .is a server"),
    ):
        await server.start()
    assert server.health().problems == ("the server is not running",)
    async with server:  # nothing of the first try is left
        assert server.url


async def test_two_listeners_on_one_port_are_an_error() -> None:
    port = free_port()
    websocket = WebSocketOptions(port=port)
    for server in (Server(port=port, http_port=port), Server(port=port, websocket=websocket)):
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use .is a server"):
            await server.start()


async def test_a_host_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match=r"cannot listen on nowhere.invalid:0: "):
        await Server("nowhere.invalid").start()
    with pytest.raises(OSError, match=r"cannot listen on 192\.0\.2\.1:0: "):
        await Server("192.0.2.1").start()


async def test_every_address_of_a_host_has_the_same_port() -> None:
    sockets = await ListeningSockets.open("localhost", 0)
    try:
        assert {sock.getsockname()[1] for sock in sockets._sockets} == {sockets.port}
    finally:
        sockets.close()
