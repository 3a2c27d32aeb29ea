"""Core NATS beside nats-py (with uvloop) on the same server: publish, subscribe, request, serve; as ratios.

Every figure is taken in processes of its own, peer and ours in turns; the best of the rounds counts, since whatever
else the machine does only ever makes a round slower. `python -m benchmarks.core` prints the table, `run()` its rows.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.report import Row, row, table

PAYLOAD = b"x" * 128
SUBJECT = "bench.core"
ROUNDS = 3
TIMEOUT = 120.0
COUNTS = {"publish": 500_000, "subscribe": 300_000, "request": 6_000, "serve": 60_000}
WORKS = [
    # work, the role of the process that is measured, of the one beside it, target
    ("core publish, no ack", "publish", "", 1.5),
    ("one subscriber, fast publisher", "subscribe", "flood", 2.0),
    ("request / reply, one at a time", "request", "respond", 1.0),
    ("endpoint of a service, echo", "serve", "flood_requests", 1.5),
]


# What a process does; each prints "ready", then its rate


async def peer_publish(url: str, count: int) -> float:
    import nats

    nc = await nats.connect(url)
    publish = nc.publish
    began = time.perf_counter()
    for _ in range(count):
        await publish(SUBJECT, PAYLOAD)
    await nc.flush(60)
    took = time.perf_counter() - began
    await nc.close()
    return count / took


async def peer_subscribe(url: str, count: int) -> float:
    import nats
    from nats.aio.msg import Msg

    nc = await nats.connect(url)
    done = asyncio.get_running_loop().create_future()
    seen, began = 0, 0.0

    async def callback(_: Msg) -> None:
        nonlocal seen, began
        if seen == 0:
            began = time.perf_counter()
        seen += 1
        if seen == count:
            done.set_result(count / (time.perf_counter() - began))

    await nc.subscribe(SUBJECT, cb=callback)
    await nc.flush()
    print("ready", flush=True)
    rate: float = await done
    await nc.close()
    return rate


async def peer_request(url: str, count: int) -> float:
    import nats

    nc = await nats.connect(url)
    await nc.request(SUBJECT, PAYLOAD)
    began = time.perf_counter()
    for _ in range(count):
        await nc.request(SUBJECT, PAYLOAD)
    took = time.perf_counter() - began
    await nc.close()
    return count / took


async def peer_respond(url: str, _: int) -> float:
    import nats
    from nats.aio.msg import Msg

    nc = await nats.connect(url)

    async def callback(msg: Msg) -> None:
        await msg.respond(msg.data)

    await nc.subscribe(SUBJECT, cb=callback)
    await nc.flush()
    print("ready", flush=True)
    await asyncio.Event().wait()
    return 0.0


async def peer_serve(url: str, count: int) -> float:
    import nats
    import nats.micro
    from nats.micro.request import Request

    nc = await nats.connect(url)
    done = asyncio.get_running_loop().create_future()
    seen, began = 0, 0.0

    async def echo(request: Request) -> None:
        nonlocal seen, began
        if seen == 0:
            began = time.perf_counter()
        await request.respond(request.data)
        seen += 1
        if seen == count:
            done.set_result(count / (time.perf_counter() - began))

    service = await nats.micro.add_service(nc, name="bench", version="1.0.0")
    await service.add_endpoint(name="echo", subject=SUBJECT, handler=echo)
    await nc.flush()
    print("ready", flush=True)
    rate: float = await done
    await nc.close()
    return rate


async def our_publish(url: str, count: int) -> float:
    from slipstream.client._async.client import connect

    async with connect(url) as nc:
        publish = nc.publish
        began = time.perf_counter()
        for _ in range(count):
            await publish(SUBJECT, PAYLOAD)
        await nc.flush(timeout=60)
        return count / (time.perf_counter() - began)


async def our_subscribe(url: str, count: int) -> float:
    from slipstream.client._async.client import connect

    async with connect(url) as nc:
        sub = await nc.subscribe(SUBJECT)
        await nc.flush()
        print("ready", flush=True)
        await sub.next(timeout=TIMEOUT)
        began, seen = time.perf_counter(), 1
        async for message in sub:
            assert len(message.data) == len(PAYLOAD)
            seen += 1
            if seen == count:
                break
        return count / (time.perf_counter() - began)


async def our_request(url: str, count: int) -> float:
    from slipstream.client._async.client import connect

    async with connect(url) as nc:
        await nc.request(SUBJECT, PAYLOAD)
        began = time.perf_counter()
        for _ in range(count):
            await nc.request(SUBJECT, PAYLOAD)
        return count / (time.perf_counter() - began)


async def our_respond(url: str, _: int) -> float:
    from slipstream.client._async.client import Message, connect

    async def callback(message: Message) -> None:
        await message.respond(message.data)

    async with connect(url) as nc:
        await nc.subscribe(SUBJECT, callback=callback)
        await nc.flush()
        print("ready", flush=True)
        await asyncio.Event().wait()
    return 0.0


async def our_serve(url: str, count: int) -> float:
    from slipstream import ServiceRequest, connect

    done = asyncio.get_running_loop().create_future()
    seen, began = 0, 0.0

    async def echo(request: ServiceRequest) -> None:
        nonlocal seen, began
        if seen == 0:
            began = time.perf_counter()
        await request.respond(request.data)
        seen += 1
        if seen == count:
            done.set_result(count / (time.perf_counter() - began))

    async with connect(url) as nc:
        service = await nc.add_service("bench", "1.0.0")
        await service.add_endpoint("echo", echo, subject=SUBJECT)
        print("ready", flush=True)
        rate: float = await done
        return rate


def flood(url: str, count: int, *, reply: str = "") -> float:
    """A publisher that is faster than any client: frames made beforehand, straight into a socket."""
    host, port = url.removeprefix("nats://").split(":")
    subjects = f"{SUBJECT} {reply}".strip().encode()
    frame = b"PUB %b %d\r\n%b\r\n" % (subjects, len(PAYLOAD), PAYLOAD)
    with socket.create_connection((host, int(port)), timeout=TIMEOUT) as sock:
        sock.sendall(b'CONNECT {"verbose":false}\r\n')
        block = frame * 500
        for _ in range(count // 500):
            sock.sendall(block)
        sock.sendall(b"PING\r\n")
        seen = b""
        while b"PONG" not in seen:
            seen = seen[-8:] + sock.recv(65536)
    return 0.0


Work = Callable[[str, int], Coroutine[Any, Any, float]]
PEER: dict[str, Work] = {
    "publish": peer_publish, "subscribe": peer_subscribe, "request": peer_request, "respond": peer_respond,
    "serve": peer_serve,
}  # fmt: skip
OURS: dict[str, Work] = {
    "publish": our_publish, "subscribe": our_subscribe, "request": our_request, "respond": our_respond,
    "serve": our_serve,
}  # fmt: skip


def work(who: str, role: str, url: str, count: int) -> None:
    """The whole life of a process."""
    if role == "flood":
        rate = flood(url, count)
    elif role == "flood_requests":
        rate = flood(url, count, reply="bench.reply")
    else:
        import uvloop

        rate = uvloop.run((PEER if who == "peer" else OURS)[role](url, count))
    print(json.dumps({"rate": rate}), flush=True)


# The processes


@contextmanager
def server() -> Iterator[str]:
    """A real nats-server; gives its URL."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    binary = Path(sys.executable).with_name("nats-server")
    with tempfile.TemporaryDirectory() as folder:
        command = [str(binary), "-a", "127.0.0.1", "-p", str(port), "-sd", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _await_port(port)
            yield f"nats://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(TIMEOUT)


def _await_port(port: int) -> None:
    for _ in range(500):
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    raise RuntimeError(f"nats-server does not listen on port {port}")


def _start(who: str, role: str, url: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.core", "worker", who, role, url, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise RuntimeError(f"{process.args!r} ended with {process.wait(TIMEOUT)} and without a result")
    return line


def measure(who: str, role: str, beside: str, url: str) -> float:
    """One figure: the rate of `role`, with `beside` running where one is needed."""
    count = COUNTS[role]
    processes: list[subprocess.Popen[str]] = []
    try:
        if beside == "respond":
            processes.append(_start(who, beside, url, count))
            assert _line(processes[-1]) == "ready"
        measured = _start(who, role, url, count)
        processes.append(measured)
        if role in ("subscribe", "serve"):
            assert _line(measured) == "ready"
            processes.append(_start(who, beside, url, count))
        rate: float = json.loads(_line(measured))["rate"]
        return rate
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def run(rounds: int = ROUNDS) -> list[Row]:
    """Every row of the table; peer and ours are messages (or requests) a second."""
    rows: list[Row] = []
    with server() as url:
        for name, role, beside, target in WORKS:
            best = {"peer": 0.0, "ours": 0.0}
            for _ in range(rounds):
                for who in best:
                    best[who] = max(best[who], measure(who, role, beside, url))
            rows.append(row(name, best["ours"], best["peer"], target=target))
    return rows


def main() -> None:
    """Print the table."""
    print(table(run()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        work(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
    else:
        main()
