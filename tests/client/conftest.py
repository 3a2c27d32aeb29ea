"""Both drivers as one parameter, and a real nats-server to talk to."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from slipstream.client._sync import connection
from tests.client.certificates import Pki
from tests.client.support import LIMIT, Driver, eventually
from tests.ports import free_port

SERVER = Path(sys.executable).with_name("nats-server")


class RealServer:
    """A nats-server process on a port of its own, which it keeps when it is started again."""

    def __init__(self, *args: str) -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._args = args
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()  # a test may start it in a thread, and end before that has noticed that it is up

    def start(self) -> None:
        command = [str(SERVER), "-a", "127.0.0.1", "-p", str(self.port), *self._args]
        with self._turn:
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            eventually(self._is_up)

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"nats-server ended with {self._process.returncode}"
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def send(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def stop(self, number: int = signal.SIGKILL) -> None:
        with self._turn:
            if self._process is not None:
                self.send(number)
                self._process.wait(LIMIT)
                self._process = None


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    """A server for everyone who does it no harm."""
    server = RealServer()
    server.start()
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """Certificates for servers and clients, of two authorities that do not know each other."""
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def make_server() -> Iterator[Callable[..., RealServer]]:
    """A server for one test, which may stop and start it."""
    servers: list[RealServer] = []

    def make(*args: str) -> RealServer:
        server = RealServer(*args)
        servers.append(server)
        server.start()
        return server

    yield make
    for server in servers:
        server.stop()


@pytest.fixture(params=["aio", "uvloop", "blocking"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """Each driver in turn; asyncio on both loops. What a loop complains of fails the test."""
    if request.param == "blocking":
        yield Driver("blocking", None)
        return
    loop = uvloop.new_event_loop() if request.param == "uvloop" else asyncio.new_event_loop()
    unhandled: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield Driver(request.param, loop)

    async def leftovers() -> list[asyncio.Task[Any]]:
        await asyncio.sleep(0)
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    left = asyncio.run_coroutine_threadsafe(leftovers(), loop).result(LIMIT)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(LIMIT)
    loop.close()
    assert unhandled == []
    assert left == []


@pytest.fixture(autouse=True)
def no_client_left_open() -> Iterator[None]:
    """Every blocking client must be closed by its test: threads and sockets would live on."""
    yield
    left = [client for client in list(connection._connections) if not client.is_closed]
    for client in left:
        client.close()
    assert left == []
