"""Core NATS under faults: our server killed and restarted under load, links cut in a frame and left half-open, and its
memory under hostile clients and readers that stop."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import slipstream
from slipstream.client._async.client import Message
from slipstream.errors import Error
from slipstream.server import Server
from tests.server.process.test_command import Process, running
from tests.server.test_limits import read_all, until_pong
from tests.servers import OurProcess

MEGABYTE = 1024 * 1024


def eventually(condition: Callable[[], bool], limit: float = 20.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_a_server_killed_and_restarted_under_load_gets_its_clients_back(tmp_path: Path) -> None:
    """Nothing hangs: every request is answered or fails, subscriptions come back, what is published later arrives."""

    async def work(server: OurProcess) -> tuple[int, int, int]:
        url = server.url
        answered = failed = 0
        stop = asyncio.Event()
        seen: list[bytes] = []
        service = await slipstream.connect(url, reconnect_wait=0.02)
        caller = await slipstream.connect(url, reconnect_wait=0.02)

        async def echo(message: Message) -> None:
            await message.respond(message.data)

        await service.subscribe("echo", callback=echo)
        await service.subscribe("feed", callback=lambda message: seen.append(message.data))
        await service.flush()

        async def call() -> None:
            nonlocal answered, failed
            while not stop.is_set():
                try:
                    await caller.request("echo", b"x", timeout=2)
                    answered += 1
                except Error:
                    failed += 1
                    await asyncio.sleep(0.01)

        async def feed() -> None:
            while not stop.is_set():
                with contextlib.suppress(Error):
                    await caller.publish("feed", b"y" * 1000)
                await asyncio.sleep(0.001)

        tasks = [asyncio.create_task(call()) for _ in range(5)] + [asyncio.create_task(feed())]
        for _ in range(3):
            await asyncio.sleep(0.3)
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(0.1)
            before = answered
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(40):
                while answered <= before + 5:
                    await asyncio.sleep(0.01)
        stop.set()
        async with asyncio.timeout(40):
            await asyncio.gather(*tasks)
        count = len(seen)
        await caller.publish("feed", b"last")
        async with asyncio.timeout(40):
            while not seen or seen[-1] != b"last":
                await asyncio.sleep(0.01)
        assert count
        assert caller.stats.reconnects == service.stats.reconnects == 3
        await caller.close()
        await service.close()
        return answered, failed, count

    with OurProcess(tmp_path) as server:
        answered, _, _ = asyncio.run(asyncio.wait_for(work(server), 110))
    assert answered > 15


class Link:
    """A proxy for one server that can cut its connections after some bytes, or go silent as a dead link does."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cut_after = -1  # bytes to the server; -1 is never
        self.is_silent = False
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection(("127.0.0.1", self._target), timeout=10)
                there.settimeout(None)
                self._sockets += [here, there]
                for source, target, limited in ((here, there, True), (there, here, False)):
                    thread = threading.Thread(target=self._carry, args=(source, target, limited), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _carry(self, source: socket.socket, target: socket.socket, limited: bool) -> None:
        left = self.cut_after if limited else -1
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self.is_silent:
                    continue
                target.sendall(data if left < 0 else data[:left])
                if 0 <= left <= len(data):
                    # Only this half: were the other closed too, the kernel would answer what the server still sends
                    # with a reset, and the server would lose bytes before the cut that it has not read yet. The other
                    # direction ends when the server closes.
                    target.shutdown(socket.SHUT_WR)
                    return
                left -= len(data) if left >= 0 else 0
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for sock in self._sockets:
            sock.close()


@contextlib.contextmanager
def link_to(server: Server) -> Iterator[Link]:
    link = Link(server.port)
    try:
        yield link
    finally:
        link.close()


def test_a_link_cut_anywhere_in_a_frame_leaves_nothing_behind() -> None:
    frames = b'CONNECT {"verbose":false,"headers":true}\r\nSUB a 1\r\n'
    frames += b"HPUB a 12 17\r\nNATS/1.0\r\n\r\nhello\r\nPUB a 3\r\nbye\r\n"
    with Server() as server, slipstream.connect_blocking(server.url) as witness, link_to(server) as link:
        seen = witness.subscribe("a")
        witness.flush()
        whole = 0
        for at in range(1, len(frames) + 1, 3):
            link.cut_after = at
            with socket.create_connection(("127.0.0.1", link.port), timeout=10) as sock:
                with contextlib.suppress(ConnectionError):
                    sock.sendall(frames)
                read_all(sock)
            whole += (at >= frames.index(b"PUB a 3") - 1) + (at >= len(frames))
        witness.publish("a", b"end")
        got: list[bytes] = []
        while not got or got[-1] != b"end":
            got.append(seen.next(timeout=10).data)
        assert set(got) <= {b"hello", b"bye", b"end"}  # never half of one
        assert len(got) == whole + 1
        eventually(lambda: len(server._running.engine.sessions) == 1)


def test_a_dead_link_is_noticed_on_both_sides() -> None:
    with Server(ping_interval=0.5) as server, link_to(server) as link:
        url = f"nats://127.0.0.1:{link.port}"
        with slipstream.connect_blocking(url, ping_interval=0.5, reconnect_wait=0.02) as client:
            sub = client.subscribe("a")
            client.flush()
            link.is_silent = True
            eventually(lambda: not server._running.engine.sessions)
            assert [one.reason for one in server._running.engine.closed] == ["Stale Connection"]
            eventually(lambda: not client.is_connected)
            link.is_silent = False
            eventually(lambda: client.is_connected)
            client.publish("a", b"back")
            assert sub.next(timeout=10).data == b"back"


def test_a_client_that_reads_nothing_is_disconnected_after_the_write_deadline() -> None:
    with Server(write_deadline=0.3, max_pending_bytes=64 * MEGABYTE) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as stuck:
            stuck.sendall(b'CONNECT {"verbose":false}\r\nSUB a 1\r\nPING\r\n')
            until_pong(stuck)
            with slipstream.connect_blocking(server.url) as client:
                for _ in range(12):  # 12 MB: more than the sockets take, less than may be pending
                    client.publish("a", b"x" * (MEGABYTE - 1000))
                client.flush(timeout=20)
                eventually(lambda: len(server._running.engine.sessions) == 1)
        assert server._running.engine.totals.slow == 1


# Memory.


def resident(process: Process) -> int:
    """Bytes of a process in memory."""
    for line in Path(f"/proc/{process.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@needs_proc
def test_readers_that_stop_cost_no_more_than_their_bound() -> None:
    """Ten subscribers that never read, 10 MB each at most, while 150 MB are published, twice."""
    config_bound = 10 * MEGABYTE
    with limited_server(config_bound) as server:
        before = resident(server)
        peaks = []
        for _ in range(2):  # what the first ones cost is used again by the second ones
            stuck = []
            for _ in range(10):
                sock = socket.create_connection(("127.0.0.1", server.port), timeout=10)
                sock.sendall(b'CONNECT {"verbose":false}\r\nSUB a 1\r\nPING\r\n')
                until_pong(sock)
                stuck.append(sock)
            peak = 0
            with slipstream.connect_blocking(f"nats://127.0.0.1:{server.port}") as client:
                for n in range(1500):
                    client.publish("a", b"x" * 100_000)
                    if n % 50 == 0:
                        client.flush(timeout=20)
                        peak = max(peak, resident(server))
                client.flush(timeout=20)
            for sock in stuck:
                sock.close()
            peaks.append(peak)
        assert peaks[0] - before < 10 * config_bound + 60 * MEGABYTE, (before, peaks)
        assert peaks[1] - peaks[0] < 30 * MEGABYTE, (before, peaks)


@contextlib.contextmanager
def limited_server(max_pending: int) -> Iterator[Process]:
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(f"port: -1\nmax_pending: {max_pending}\n")
        file.flush()
        with running("-c", file.name) as server:
            yield server


@needs_proc
def test_hostile_input_does_not_fill_memory() -> None:
    """Connections that say nothing, half a line, half a payload, endless subjects, subscriptions and headers."""
    dice = random.Random(5)
    with limited_server(10 * MEGABYTE) as server:
        before = resident(server)
        held = []
        for n in range(300):
            sock = socket.create_connection(("127.0.0.1", server.port), timeout=10)
            sock.sendall(b'CONNECT {"verbose":false,"headers":true}\r\n')
            held.append(sock)
            kind = n % 6
            with contextlib.suppress(OSError):
                if kind == 0:
                    sock.sendall(b"PUB a 1000000\r\n" + b"x" * 200_000)  # and no more
                elif kind == 1:
                    sock.sendall(b"SUB " + b"y" * 10_000)
                elif kind == 2:
                    sock.sendall(b"".join(b"SUB s.%d.* %d\r\n" % (dice.randrange(10**9), i) for i in range(500)))
                elif kind == 3:
                    sock.sendall(b"".join(b"PUB p.%d 1\r\nx\r\n" % dice.randrange(10**12) for _ in range(2000)))
                elif kind == 4:
                    sock.sendall(b"HPUB a 100000 100000\r\nNATS/1.0\r\n" + b"A: b\r\n" * 10_000)
                else:
                    sock.sendall(dice.randbytes(20_000))
        # The server may still have all of it to parse.
        with slipstream.connect_blocking(f"nats://127.0.0.1:{server.port}", timeout=30) as client:
            client.flush(timeout=30)
            peak = resident(server)
            for sock in held:
                sock.close()
            client.flush(timeout=30)
        # 50 x 200 KB of payload and 50 x 500 subscriptions are kept for good reason.
        assert peak - before < 120 * MEGABYTE, (before, peak)
