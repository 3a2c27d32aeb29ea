"""Memory of connections: clients that stand still are disconnected before all of them fill memory, others are not."""

from __future__ import annotations

import contextlib
import gc
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from slipstream import connect_blocking
from slipstream.errors import UsageError
from slipstream.server import Server
from slipstream.server.loop import driver, memory
from slipstream.server.loop.memory import FrameSlots, PendingBytes
from slipstream.server.options import ServerOptions
from slipstream.server.process import flags
from slipstream.server.process.options import ProcessOptions
from slipstream.wire import Headers
from tests.server.process.test_command import Process, running
from tests.server.support import Rig

KIB, MIB = 1024, 1024 * 1024
needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")


class Holding:
    """A connection that holds some bytes."""

    def __init__(self, size: int, held: int = 0) -> None:
        self.size = size
        self.unsent, self.held = 0, held
        self.waits = False

    def measure(self) -> None:
        self.unsent = self.size

    def wait_for_slot(self, yes: bool) -> None:
        self.waits = yes


def eventually(true: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def dial(port: int, first: bytes = b"") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    sock.sendall(b'CONNECT {"verbose":false}\r\n' + first + b"PING\r\n")
    seen = b""
    while b"PONG\r\n" not in seen:
        data = sock.recv(4096)
        assert data, seen
        seen += data
    return sock


# The rules.


def test_those_that_hold_most_are_disconnected_until_an_eighth_of_the_budget_is_free() -> None:
    pending = PendingBytes(1000, lambda: 100)
    holders = [Holding(size) for size in (10, 500, 90, 400, 200)]
    for holder in holders:
        pending.wrote(holder, holder.size)
    assert pending.is_over
    assert [holder.size for holder in pending.excess(holders)] == [500]
    assert (pending.total, pending.peak, pending.cut_off) == (1300, 1300, 1)


def test_the_budget_is_measured_before_a_client_is_disconnected() -> None:
    pending = PendingBytes(1000, lambda: 0)
    reader = Holding(0)
    pending.wrote(reader, 5000)  # and then the kernel took it
    assert pending.is_over
    assert pending.excess([reader]) == []
    assert not pending.is_over


def test_bytes_of_a_connection_that_is_gone_count_no_more() -> None:
    pending = PendingBytes(1000, lambda: 0)
    one, other = Holding(600), Holding(100)
    pending.wrote(one, 600)
    pending.read(one, 50)
    pending.read(other, 70)
    assert pending.total == 720
    assert pending.forget(one) == 650
    assert pending.forget(one) == 0
    assert pending.total == 70


def test_a_budget_of_minus_one_is_none() -> None:
    pending = PendingBytes(-1, lambda: 0)
    one = Holding(1 << 40)
    pending.wrote(one, one.size)
    assert not pending.is_over
    assert pending.excess([one]) == []


def test_large_frames_take_turns() -> None:
    slots: FrameSlots[Holding] = FrameSlots(8 * MIB, MIB)  # a quarter of the budget: two
    one, two, three, four = (Holding(0) for _ in range(4))
    for holder in (one, two, three, four):
        slots.update(holder, 10 * KIB, 0.0)
        assert not holder.waits
        slots.update(holder, 70 * KIB, 0.0)
    assert [holder.waits for holder in (one, two, three, four)] == [False, False, True, True]
    assert slots.overdue(memory.FRAME_TIME - 1) == []
    assert slots.overdue(memory.FRAME_TIME) == [one, two]
    slots.update(two, 0, 5.0)  # its frame is complete
    assert [holder.waits for holder in (one, two, three, four)] == [False, False, False, True]
    slots.release(four, 6.0)  # gone while it waited
    slots.release(one, 6.0)
    assert not slots.is_wanted
    assert slots.overdue(1000.0) == []  # nobody waits: a slow link may take its time


# Options.


def test_the_budget_is_an_option_of_program_file_and_flags(tmp_path: Path) -> None:
    assert ServerOptions().pending_budget == 128 * MIB
    assert ServerOptions(max_pending_bytes=100 * MIB).pending_budget == 200 * MIB
    assert ServerOptions(max_pending_total=-1).pending_budget == -1
    with pytest.raises(UsageError, match=r"max_pending_total must be at least max_payload \(1048576\), got 1000"):
        ServerOptions(max_pending_total=1000)
    file = tmp_path / "server.conf"
    file.write_text("port: -1, max_pending_total: 32MB")
    assert Server.from_config(file).settings.max_pending_total == 32 * MIB
    found = flags.apply(flags.parse(["--max_pending_total", "64MiB"]), ProcessOptions())
    assert found.server.max_pending_total == 64 * MIB
    with pytest.raises(UsageError, match="--max_pending_total must be a number of bytes such as 256MB, got 'lots'"):
        flags.apply(flags.parse(["--max_pending_total=lots"]), ProcessOptions())


# On sockets.


def resident(server: Process) -> int:
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096


def varz(server: Process) -> dict[str, int]:
    line = next(line for line in server.lines if "Starting http monitor on" in line)
    with urllib.request.urlopen(f"http://{line.split()[-1]}/varz", timeout=30) as answer:
        found: dict[str, int] = json.load(answer)
        return found


@contextlib.contextmanager
def reading(sock: socket.socket) -> Iterator[list[int]]:
    """Read everything that a socket receives; gives how many bytes they were, in a list of one."""
    seen = [0]

    def read() -> None:
        with contextlib.suppress(OSError):
            while data := sock.recv(1 << 20):
                seen[0] += len(data)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield seen
    finally:
        sock.shutdown(socket.SHUT_RDWR)
        thread.join(30)
        sock.close()


def flood(server: Process, *, readers: int, size: int, total: int, low: int, leave: bool) -> tuple[int, int]:
    """Readers that stand still, one that reads, a publisher; the resident bytes at the peak, and once they are below
    `low` (or after ten seconds). Do the readers leave before that?"""
    stuck = [dial(server.port, b"SUB flood 1\r\n") for _ in range(readers)]
    frame = b"PUB flood %d\r\n%b\r\n" % (size, b"x" * size)
    frames = frame * (MIB // size)
    peak = 0
    with reading(dial(server.port, b"SUB flood 1\r\n")) as seen, dial(server.port) as publisher:
        for _ in range(total // len(frames)):
            publisher.sendall(frames)
            peak = max(peak, resident(server))
        wanted = total // len(frames) * (len(frames) + 2 * (MIB // size))  # MSG has a sid: two bytes more
        eventually(lambda: seen[0] == wanted)
        peak = max(peak, resident(server))
    with contextlib.ExitStack() as stack:
        for sock in stuck:
            stack.enter_context(sock)
        if leave:
            stack.close()
        deadline = time.monotonic() + 10
        while (after := resident(server)) >= low and time.monotonic() < deadline:
            time.sleep(0.1)
        return peak, after


@needs_proc
def test_readers_that_stand_still_are_disconnected_within_the_budget_and_memory_is_given_back() -> None:
    """Thirty readers that hold up to 64 MiB each by the limit for one; the budget of all is 24 MiB."""
    with running("-p", "-1", "-m", "-1", "--max_pending_total", "24MiB", "-js=false") as server:
        assert "Memory for pending data of clients: 24 MiB (max_pending_total)" in server.log
        dial(server.port).close()
        before = resident(server)
        low = before + 12 * MIB
        peak, after = flood(server, readers=30, size=8192, total=48 * MIB, low=low, leave=True)
        seen = varz(server)
        assert seen["max_pending_total"] == 24 * MIB
        assert seen["pending_cut_off"] >= 20
        assert seen["slow_consumers"] >= seen["pending_cut_off"]
        assert seen["pending_bytes_peak"] < 30 * MIB
        assert seen["pending_bytes"] <= 24 * MIB
        assert peak - before < 60 * MIB, (before, peak, after)
        assert after < low, (before, peak, after)


def test_memory_is_given_back_when_many_clients_that_held_little_each_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back = threading.Event()
    monkeypatch.setattr(driver, "GIVE_BACK_DELAY", 0.01)
    monkeypatch.setattr(driver, "give_back", given_back.set)
    with Server(jetstream=False) as server, contextlib.ExitStack() as stack:
        readers = [stack.enter_context(dial(server.port, b"SUB flood 1\r\n")) for _ in range(30)]
        pending = server._running.pending
        with dial(server.port) as publisher:
            while pending.total < 30 * MIB:
                publisher.sendall((b"PUB flood 8192\r\n%b\r\n" % bytes(8192)) * 16)
        assert max(connection.unsent for connection in server._running.connections) < memory.RELEASED
        assert not given_back.is_set()
        for reader in readers:
            reader.close()
        assert given_back.wait(30)


@needs_proc
@pytest.mark.soak
@pytest.mark.parametrize("size", [100, 8192, 1000 * KIB])
def test_two_hundred_readers_that_stand_still_take_less_than_300_megabytes(size: int) -> None:
    with running("-p", "-1", "-m", "-1", "-js=false") as server:
        total, low = (32 if size < 1000 else 512) * MIB, 120_000_000
        peak, after = flood(server, readers=200, size=size, total=total, low=low, leave=False)
        assert peak < 300_000_000, (peak, after, varz(server))
        assert after < low, (peak, after, varz(server))


def test_half_frames_wait_for_each_other_and_a_publisher_of_large_messages_gets_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twenty clients with 900 kB of a message that they never complete; the budget has space for two of them."""
    for module in (driver, memory):
        monkeypatch.setattr(module, "FRAME_TIME", 0.2)
    with Server(max_pending_total=8 * MIB, jetstream=False) as server, contextlib.ExitStack() as stack:
        for _ in range(20):
            sock = stack.enter_context(dial(server.port))
            sock.settimeout(0.01)
            with contextlib.suppress(TimeoutError):
                sock.sendall(b"PUB a 1000000\r\n" + b"x" * 900_000)
        pending = server._running.pending
        with connect_blocking(server.url) as nc:
            sub = nc.subscribe("large")
            nc.flush(timeout=20)
            nc.publish("large", b"y" * 1_000_000)
            assert len(sub.next(timeout=30).data) == 1_000_000
        assert pending.peak <= 8 * MIB
        assert pending.cut_off == 0  # they took too long; nobody held too much
        ends = {one.reason for one in server._running.engine.closed if one.reason}
        assert ends <= {"Large Message Not Received In Time"}


def test_many_subscribers_that_read_all_get_a_message_larger_than_the_budget() -> None:
    """Forty healthy subscribers, 900 kB each: more than the budget in one message, and nobody is disconnected."""
    with Server(max_pending_total=16 * MIB, jetstream=False) as server, contextlib.ExitStack() as stack:
        seen = [stack.enter_context(reading(dial(server.port, b"SUB big 1\r\n"))) for _ in range(40)]
        with dial(server.port) as publisher:
            for count in range(1, 4):
                publisher.sendall(b"PUB big 900000\r\n%b\r\n" % (b"x" * 900_000))
                eventually(partial(_have, seen, count * 900_000))
        assert server._running.pending.cut_off == 0
        assert len(server._running.connections) >= 40


def _have(seen: list[list[int]], size: int) -> bool:
    return all(one[0] >= size for one in seen)


@pytest.mark.parametrize("readers", [1, 6])
def test_readers_of_large_batches_are_held_back_and_not_disconnected(readers: int) -> None:
    """Each batch is larger than the whole budget."""
    with Server(max_pending_total=2 * MIB, max_payload=256 * KIB, max_pending_bytes=2 * MIB) as server:
        with connect_blocking(server.url) as nc:
            js = nc.jetstream()
            js.create_stream("S", subjects=["s"], storage="memory")
            for _ in range(60):
                js.publish("s", b"x" * 200_000)
            request = b'{"seq":1,"batch":60,"max_bytes":100000000}'
            socks = [dial(server.port, b"SUB in%d 1\r\n" % n) for n in range(readers)]
            for n, sock in enumerate(socks):
                sock.sendall(b"PUB $JS.API.DIRECT.GET.S in%d %d\r\n%b\r\n" % (n, len(request), request))
            time.sleep(0.1)  # let the server fill what it may
            with contextlib.ExitStack() as stack:
                every = [stack.enter_context(reading(sock)) for sock in socks]
                eventually(partial(_have, every, 60 * 200_000))
        assert server._running.pending.cut_off == 0


def test_a_disconnected_client_leaves_no_output_behind() -> None:
    with Server(max_pending_total=4 * MIB, jetstream=False) as server:
        stuck = [dial(server.port, b"SUB a 1\r\n") for _ in range(8)]
        with dial(server.port) as publisher:
            for _ in range(300):
                publisher.sendall(b"PUB a 100000\r\n%b\r\n" % (b"x" * 100_000))
            publisher.sendall(b"PING\r\n")
            assert publisher.recv(100)
        eventually(lambda: server._running.engine.totals.slow >= 7)
        gc.collect()
        assert all(not session.out for session in server._running.engine.closed)
        assert server._running.pending.total <= 4 * MIB
        for sock in stuck:
            sock.close()
        eventually(lambda: not server._running.connections)
        assert server._running.pending.total == 0


def test_open_atomic_batches_take_half_of_the_budget_at_most() -> None:
    client = Rig(max_pending_total=4 * MIB).client()
    client.create("B", subjects=["b.>"], allow_atomic=True)
    answers = []
    for n in range(1, 40):
        found = client.ask(
            "b.1",
            b"x" * 100_000,
            Headers({"Nats-Batch-Id": "one", "Nats-Batch-Sequence": str(n)}),
        )
        answers += [json.loads(one.payload) for one in found if one.payload]
    engine = client.rig.engine
    assert any(answer.get("error", {}).get("err_code") == 10210 for answer in answers), answers
    assert engine.waiting_bytes == engine.batch_usage.bytes <= 2 * MIB
