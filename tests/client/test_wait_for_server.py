"""The first connection with `wait_for_server`: servers that come late, never answer, or do not want us."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream import ClientEvent, connect
from slipstream.client._sync.connection import CloseFlag, Wakeup
from slipstream.errors import AuthorizationError, ConnectionLostError, CredentialsError, TlsError
from tests.client.certificates import Pki
from tests.client.conftest import RealServer
from tests.client.support import LIMIT, Driver, FakeServer, Peer
from tests.ports import free_port

MakeServer = Callable[..., RealServer]
QUICK: dict[str, Any] = {"wait_for_server": LIMIT, "reconnect_wait": 0.01, "reconnect_max_wait": 0.05}


class Starter:
    """An `on_event` that starts a server once enough attempts have failed."""

    def __init__(self, server: RealServer, failures: int = 3) -> None:
        self._server = server
        self._failures = failures
        self.events: list[ClientEvent] = []

    def __call__(self, event: ClientEvent) -> None:
        self.events.append(event)
        if len(self.events) == self._failures:  # not here: the asyncio driver calls it on its loop
            threading.Thread(target=self._server.start).start()


class StartingHandler(logging.Handler):
    """A handler of the log that starts a server with the first line."""

    def __init__(self, server: RealServer) -> None:
        super().__init__()
        self._start = threading.Thread(target=server.start)

    def emit(self, _: logging.LogRecord) -> None:
        if self._start.ident is None:
            self._start.start()


def test_server_that_starts_later_is_waited_for(driver: Driver, make_server: MakeServer) -> None:
    server = make_server()
    server.stop()
    starter = Starter(server)
    servers = [f"nats://127.0.0.1:{free_port()}", "nats://no-such-host.invalid:4222", server.url]
    with driver.connect(servers, on_event=starter, **QUICK) as nc:
        nc.flush()
        assert str(server.port) in repr(nc._session.server)
        assert {event.kind for event in starter.events} == {"connect_failed"}
        failed = {event.server: str(event.error) for event in starter.events}
        assert set(failed) == set(servers)
        assert all(server in text for server, text in failed.items())


def test_later_losses_follow_reconnect_and_not_the_wait(driver: Driver, make_server: MakeServer) -> None:
    server = make_server()
    server.stop()
    starter = Starter(server)
    with driver.connect(server.url, on_event=starter, reconnect=False, **QUICK) as nc:
        server.stop()
        with pytest.raises(ConnectionLostError):
            nc.flush(timeout=LIMIT)
        assert nc.is_closed


def test_websocket_server_that_starts_later_is_waited_for(
    driver: Driver, make_server: MakeServer, tmp_path: Path
) -> None:
    port, config = free_port(), tmp_path / "server.conf"
    config.write_text(f"websocket {{ listen: '127.0.0.1:{port}', no_tls: true }}")
    server = make_server("-c", str(config))
    server.stop()
    with driver.connect(f"ws://127.0.0.1:{port}", on_event=Starter(server), **QUICK) as nc:
        nc.flush()


def test_tls_server_that_starts_later_is_waited_for(driver: Driver, make_server: MakeServer, pki: Pki) -> None:
    server = make_server("--tls", "--tlscert", str(pki.server[0]), "--tlskey", str(pki.server[1]))
    server.stop()
    starter = Starter(server)
    with driver.connect(server.url, on_event=starter, tls_ca=pki.ca, **QUICK) as nc:
        nc.flush()


def test_certificate_that_is_not_trusted_is_an_error_at_once(driver: Driver, make_server: MakeServer, pki: Pki) -> None:
    server = make_server("--tls", "--tlscert", str(pki.server[0]), "--tlskey", str(pki.server[1]))
    with pytest.raises(TlsError, match="certificate was rejected"):
        driver.connect(server.url, tls=True, **{**QUICK, "wait_for_server": True})


def test_rejected_credentials_are_an_error_at_once(driver: Driver, make_server: MakeServer) -> None:
    server = make_server("--user", "u", "--pass", "p")
    with pytest.raises(AuthorizationError, match="Authorization Violation"):
        driver.connect(server.url, **{**QUICK, "wait_for_server": True})


def test_function_for_the_token_that_raises_is_an_error_at_once(driver: Driver, make_server: MakeServer) -> None:
    def token() -> str:
        raise LookupError("no vault")

    with pytest.raises(CredentialsError, match="the function for token failed: LookupError"):
        driver.connect(make_server().url, token=token, **{**QUICK, "wait_for_server": True})


@pytest.mark.steady
def test_server_that_never_answers_has_its_timeout_in_each_attempt(driver: Driver) -> None:
    def silent(peer: Peer) -> None:
        peer.until_closed()

    def good(peer: Peer) -> None:
        peer.greet()
        peer.until_closed()

    events: list[str] = []
    server = FakeServer(silent, silent, good)
    with server, driver.connect(server.url, timeout=0.1, on_event=lambda e: events.append(str(e.error)), **QUICK):
        assert events == [f"{server.url}: no INFO within 0.1 s"] * 2


def test_end_of_the_wait_names_servers_time_and_reason(driver: Driver) -> None:
    one, two = (f"nats://127.0.0.1:{free_port()}" for _ in range(2))
    text = rf"reached within \d+\.\d s, in \d+ attempts, at {one}, {two}; the last error was: {two}: "
    with pytest.raises(ConnectionLostError, match=text):
        driver.connect([one, two.replace("//", "//me:hunter2@")], **{**QUICK, "wait_for_server": 0.2})


def test_attempts_and_the_first_connection_are_logged(
    driver: Driver, make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "slipstream.client")
    server = make_server("--name", "n1")
    server.stop()
    handler = StartingHandler(server)
    logging.getLogger("slipstream.client").addHandler(handler)
    try:
        with driver.connect(server.url, **QUICK):
            pass
    finally:
        logging.getLogger("slipstream.client").removeHandler(handler)
    *failed, connected, closed = [record for record in caplog.records if record.name == "slipstream.client"]
    assert failed
    assert {(record.levelname, record.getMessage().split(": ")[1]) for record in failed} == {
        ("WARNING", "connect_failed")
    }
    text = connected.getMessage()
    assert (connected.levelname, text.startswith(f"{server.url}: connected: server 'n1', version 2.")) == ("INFO", True)
    assert text.endswith(", without JetStream")
    assert closed.getMessage() == f"{server.url}: closed"


def test_first_connection_is_logged_with_a_handler_of_events_too(
    driver: Driver, make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "slipstream.client")
    events: list[str] = []
    with driver.connect(make_server().url, on_event=lambda event: events.append(event.kind)):
        assert (["connected: server" in record.getMessage() for record in caplog.records], events) == ([True], [])


async def test_cancelled_wait_ends_at_once() -> None:
    failed = asyncio.Event()
    options: dict[str, Any] = {"wait_for_server": True, "reconnect_wait": 1000, "reconnect_max_wait": 1000}
    connecting = connect(f"nats://127.0.0.1:{free_port()}", on_event=lambda _: failed.set(), **options)

    async def enter() -> None:
        async with connecting:
            raise AssertionError("there is no server")

    task = asyncio.create_task(enter())
    async with asyncio.timeout(LIMIT):
        await failed.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("make", [Wakeup, CloseFlag])
def test_interrupt_within_a_wait_leaves_nothing_locked(make: type[Wakeup | CloseFlag]) -> None:
    """Ctrl-C may come after every line, also within the standard library: `close` must be able to go on after it."""
    for number in range(60):
        flag, left = make(), number

        def interrupt(*_: object) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
            return interrupt

        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            flag.wait(0.001)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        closing = threading.Thread(target=flag.set, daemon=True)
        closing.start()
        closing.join(LIMIT)
        assert not closing.is_alive(), number


@pytest.mark.parametrize(
    "call",
    ["slipstream.connect_blocking({})", "asyncio.run(wait())"],
    ids=["blocking", "asyncio"],
)
def test_interrupt_ends_the_wait_at_once(call: str) -> None:
    arguments = f"'nats://127.0.0.1:{free_port()}', wait_for_server=True, reconnect_wait=1e3, reconnect_max_wait=1e3"
    arguments += ", on_event=lambda event: print(event.kind, flush=True)"
    program = f"import asyncio, slipstream\nasync def wait():\n    async with slipstream.connect({arguments}): pass\n"
    process = subprocess.Popen(
        [sys.executable, "-c", program + call.format(arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"connect_failed\n"
        os.kill(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=LIMIT)
        assert error.rstrip().endswith(b"KeyboardInterrupt")
    finally:
        process.kill()
        process.communicate(timeout=LIMIT)  # closes its pipes as well
