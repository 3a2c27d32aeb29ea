"""Many clients, hostile clients, clients that are gone, and a server that goes: on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.errors import UsageError
from slipstream.server import Server
from slipstream.wire import Err, Info
from tests.server.support import HELLO, Rig
from tests.servers import real_server
from tests.wire.strategies import cut, streams


def dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def read_all(sock: socket.socket) -> bytes:
    """Everything until the server closes."""
    seen = b""
    try:
        while data := sock.recv(1 << 16):
            seen += data
    except ConnectionError:
        pass
    return seen


def until_pong(sock: socket.socket) -> bytes:
    seen = b""
    while b"PONG\r\n" not in seen:
        data = sock.recv(1 << 16)
        assert data, f"closed after {seen[-200:]!r}"
        seen += data
    return seen


def test_limits_are_reported_as_nats_server_reports_them() -> None:
    config = "max_connections: 1, max_subscriptions: 2, max_payload: 100, max_control_line: 200"
    lines = (
        b"SUB a 1\r\nSUB b 2\r\nSUB a 3\r\nPUB a 1\r\nx\r\n",
        b"PUB a 101\r\n" + b"x" * 101 + b"\r\n",
        b"SUB " + b"x" * 300 + b" 1\r\n",
    )
    seen = []
    with (
        real_server(config=config, jetstream=False) as url,
        Server(max_connections=1, max_subscriptions=2, max_payload=100, max_control_line=200) as ours,
    ):
        for port in (int(url.rpartition(":")[2]), ours.port):
            answers = []
            for line in lines:
                while True:  # until the server has noticed that the one before is gone
                    sock = dial(port)
                    sock.sendall(b'CONNECT {"verbose":true,"pedantic":false}\r\nPING\r\n')
                    try:
                        until_pong(sock)
                        break
                    except (AssertionError, ConnectionError):
                        sock.close()
                with dial(port) as second:
                    greeting, _, rest = read_all(second).partition(b"\r\n")
                    answers.append((greeting[:5], rest))
                sock.sendall(line)
                sock.shutdown(socket.SHUT_WR)
                answers.append((b"", read_all(sock)))
                sock.close()
            seen.append(answers)
    assert seen[0] == seen[1]
    assert (b"INFO ", b"-ERR 'maximum connections exceeded'\r\n") in seen[1]


def test_lame_duck_info_is_sent_to_clients_that_support_it() -> None:
    rig = Rig()
    new, old = rig.client(HELLO.replace(b"{", b'{"protocol":1,')), rig.client()
    rig.engine.announce_end()
    rig.flush()
    (told,) = new.take()
    assert isinstance(told, Info)
    assert b'"ldm":true' in new.raw
    assert old.take() == []


async def test_lame_duck_mode_accepts_no_clients_and_disconnects_the_others() -> None:
    async with Server() as server:
        readers = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')
            await reader.readuntil(b"PONG\r\n")
            assert b'"connect_info":true' in await reader.readuntil(b"\r\n")
            readers.append((reader, writer))
        retiring = asyncio.create_task(server.lame_duck(duration=0.2, grace=0.1))
        for reader, _ in readers:
            assert b'"ldm":true' in await reader.readuntil(b"\r\n")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)
        readers[0][1].close()
        for reader, _ in readers[1:]:
            assert await reader.read() == b""
        await retiring
        for _, writer in readers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
    with pytest.raises(UsageError, match="the server is not running"):
        await server.lame_duck()


async def test_lame_duck_mode_without_clients_ends_at_once() -> None:
    async with Server() as server:
        with pytest.raises(UsageError, match="grace"):
            await server.lame_duck(duration=1, grace=2)
        async with asyncio.timeout(5):
            await server.lame_duck()


def test_sigusr2_starts_lame_duck_mode() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "slipstream.server", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        with dial(port) as sock:
            sock.sendall(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')
            until_pong(sock)
            process.send_signal(signal.SIGUSR2)
            seen = b""
            while b'"ldm":true' not in seen:
                data = sock.recv(1 << 16)
                assert data, seen
                seen += data
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.steady
def test_a_client_that_answers_no_pings_is_disconnected() -> None:
    with Server(ping_interval=0.1) as server, dial(server.port) as gone:
        gone.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
        before = until_pong(gone)  # the server may have sent a PING before it read this
        seen = (before + read_all(gone)).partition(b"PONG\r\n")[2]
        assert seen == b"PING\r\nPING\r\n-ERR 'Stale Connection'\r\n"


def test_a_thousand_clients_get_every_message() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with Server() as server:
        clients = [dial(server.port) for _ in range(1000)]
        try:
            for client in clients:
                client.sendall(b'CONNECT {"verbose":false}\r\nSUB a 1\r\nPING\r\n')
            for client in clients:
                until_pong(client)
            clients[0].sendall(b"PUB a 5\r\nhello\r\n" * 10)
            wanted = b"MSG a 1 5\r\nhello\r\n" * 10
            for client in clients:
                seen = b""
                while len(seen) < len(wanted):
                    seen += client.recv(4096)
                assert seen == wanted
            assert len(server._running.engine._sessions) == 1000
        finally:
            for client in clients:
                client.close()
        deadline = time.monotonic() + 10
        while server._running.engine._sessions and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not server._running.engine._sessions


def test_hostile_clients_leave_the_server_up_and_nothing_behind() -> None:
    with Server(max_payload=300, max_control_line=80) as server, dial(server.port) as witness:
        witness.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
        until_pong(witness)
        engine = server._running.engine
        before = len(engine._default.router.matcher)

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(
            st.sampled_from((b"", b'CONNECT {"verbose":false}\r\n', b'CONNECT {"headers":true,"verbose":false}\r\n')),
            streams,
            st.lists(st.integers(0, 400), max_size=3),
            st.booleans(),
        )
        def attack(hello: bytes, data: bytes, at: list[int], abrupt: bool) -> None:
            with dial(server.port) as sock:
                try:
                    for piece in cut(hello + data, at):
                        sock.sendall(piece)
                    if not abrupt:
                        sock.shutdown(socket.SHUT_WR)
                        read_all(sock)
                except OSError:  # it was cut off in the middle
                    pass
            witness.sendall(b"PING\r\n")
            assert until_pong(witness) == b"PONG\r\n"

        attack()
        deadline = time.monotonic() + 10
        while len(engine._sessions) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(engine._sessions) == 1
        assert len(engine._default.router.matcher) == before


def test_subscriptions_beyond_the_limit_are_refused_and_the_others_stay() -> None:
    client = Rig(max_subscriptions=2).client()  # one is its inbox
    client.send(b"SUB a 1\r\nSUB b 2\r\nUNSUB 1\r\nSUB c 3\r\n")
    assert client.take() == [Err("maximum subscriptions exceeded")]
    assert set(client.rig.engine._sessions[client.cid].subs) == {b"inbox", b"3"}
