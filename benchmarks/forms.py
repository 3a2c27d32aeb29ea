"""The two forms of the package beside each other: microseconds of CPU for one operation, pure and compiled.

CPU time and not the clock: it says nearly the same on a busy machine. A server's is that of its process, loaded by
precomputed frames (`benchmarks.server`), beside nats-server's on the same frames; a client's is that of its process, on
a nats-server. Each measurement is the median of `ROUNDS`, the forms in turn. Needs Linux (/proc).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import uvloop

import slipstream
from benchmarks import server, wire
from slipstream.wire import Parser, Router, encode

ROUNDS = 3
MESSAGES = 100_000
IN_FLIGHT = 64
PAYLOAD = b"x" * 128
ROOT = Path(__file__).resolve().parent.parent

Costs = dict[str, float]  # work -> microseconds of CPU


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# The wire, in this process.


def _parse(parser: Parser, reads: list[bytes]) -> None:
    for read in reads:
        parser.feed(read)


def wire_costs() -> Costs:
    costs: Costs = {}

    def timed(name: str, work: Callable[[], object], count: int = MESSAGES) -> None:
        begin = time.process_time()
        work()
        costs[f"wire, {name}"] = (time.process_time() - begin) / count * 1e6

    for name in ("MSG with reply (a consumer's)", "HMSG (of a Direct Get)", "PUB with reply"):
        side, frame = wire.FRAMES[name]
        reads = wire.chunks(frame)
        timed(f"{name} parsed", partial(_parse, Parser(side), reads))
    subjects = wire.SUBJECTS * (MESSAGES // len(wire.SUBJECTS))
    timed("PUB encoded", lambda: [encode.pub(subject, PAYLOAD) for subject in subjects])
    timed("HPUB encoded", lambda: [encode.pub(subject, PAYLOAD, "_INBOX.abc.1", wire.HEADER) for subject in subjects])
    router: Router[int] = Router()
    for n in range(10_000):
        router.add(f"orders.eu.{n}", n)
        router.add(f"orders.*.{n}", n, "workers")
    timed("routed, new subject", lambda: [router.match_once(subject) for subject in subjects])
    return costs


# The client, in this process.


async def client_costs(url: str) -> Costs:
    costs: Costs = {}

    async def timed(name: str, count: int, work: Awaitable[object]) -> None:
        begin = time.process_time()
        await work
        costs[f"client, {name}"] = (time.process_time() - begin) / count * 1e6

    async with slipstream.connect(url) as nc, slipstream.connect(url) as other:
        js = nc.jetstream(timeout=60)
        stream = js.stream("BENCH")

        async def publish_core() -> None:
            for _ in range(MESSAGES):
                await nc.publish("core.a", PAYLOAD)
            await nc.flush(timeout=60)

        async def publish() -> None:
            async with js.publisher(max_in_flight=4_000, timeout=60) as publisher:
                for n in range(MESSAGES):
                    await publisher.publish(f"bench.{n % 1000}", PAYLOAD)

        async def read_columns() -> None:
            count = 0
            async for columns in stream.read_columns():
                count += len(columns.seqs)
            assert count >= MESSAGES

        async def pull() -> None:
            consumer = await stream.create_consumer("forms", max_ack_pending=20_000)
            count = 0
            async for message in consumer.messages(max_messages=2_000):
                await message.ack()
                count += 1
                if count == MESSAGES:
                    return

        async def ordered() -> None:
            count = 0
            async for _ in stream.ordered_consumer():
                count += 1
                if count == MESSAGES:
                    return

        async def gets() -> None:
            async def some(first: int) -> None:
                for n in range(first, first + MESSAGES // 10 // IN_FLIGHT):
                    await stream.get_last(f"bench.{n % 1000}")

            await asyncio.gather(*(some(k * 31) for k in range(IN_FLIGHT)))

        async def requests() -> None:
            async def some() -> None:
                for _ in range(MESSAGES // 10 // IN_FLIGHT):
                    await nc.request("echo", PAYLOAD, timeout=60)

            await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))

        async def subscribe() -> None:
            count = 0
            async with await nc.subscribe("flood.a", max_pending_msgs=MESSAGES * 2, max_pending_bytes=1 << 30) as sub:
                await nc.flush(timeout=60)
                flood = asyncio.create_task(publish_flood())
                async for _ in sub:
                    count += 1
                    if count == MESSAGES:
                        break
                await flood

        async def publish_flood() -> None:
            process = await asyncio.create_subprocess_exec(sys.executable, "-m", "benchmarks.forms", "flood", url)
            await process.wait()

        async def keys() -> None:
            kv = await js.key_value("forms")
            for _ in range(5):
                assert len(await kv.keys()) == 10_000

        await timed("core publish", MESSAGES, publish_core())
        await timed("core subscriber", MESSAGES, subscribe())
        await timed("publish acked, 4,000 in flight", MESSAGES, publish())
        await timed("batched Direct Get (columns)", (await stream.info()).state.messages, read_columns())
        await timed("pull, each acked", MESSAGES, pull())
        await timed("ordered consumer", MESSAGES, ordered())
        await timed("single Direct Get by subject, 64 in flight", MESSAGES // 10, gets())
        await timed("KV keys", 50_000, keys())
        async with await other.subscribe("echo") as echo:
            await other.flush()

            async def answer() -> None:
                async for message in echo:
                    await message.respond(PAYLOAD)

            answering = asyncio.create_task(answer())
            await timed("request and its answer, 64 in flight", MESSAGES // 10, requests())
            answering.cancel()
    return costs


async def fill(url: str) -> None:
    """The stream and the bucket that are read."""
    async with slipstream.connect(url) as nc:
        js = nc.jetstream(timeout=60)
        await js.create_stream("BENCH", subjects=["bench.*"])
        kv = await js.create_key_value("forms")
        async with kv.writer() as writer:
            for n in range(10_000):
                await writer.put(f"key.{n}", PAYLOAD)


def flood(url: str) -> None:
    """Publish to the subscriber of `client_costs`."""
    port = int(url.rpartition(":")[2])
    data = encode.pub("flood.a", PAYLOAD) * 1000
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(server.CONNECT)
        for _ in range(MESSAGES // 1000):
            sock.sendall(data)
        sock.sendall(b"PING\r\n")
        while b"PONG" not in sock.recv(1 << 16):
            pass


# The servers, each in a process of its own.


@contextlib.contextmanager
def running(command: list[str], environment: dict[str, str], port: int) -> Iterator[int]:
    """A server's process id, while it runs."""
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


def server_costs(command: Callable[[int, str], list[str]], environment: dict[str, str]) -> Costs:
    costs: Costs = {}
    port = server.free_port()
    with tempfile.TemporaryDirectory() as path, running(command(port, path), environment, port) as pid:
        wires = server.Wire(port)
        wires.api("STREAM.CREATE.BENCH", server.CREATE)
        time.sleep(0.3)

        def timed(name: str, count: int, work: Callable[[], object]) -> None:
            begin = cpu_of(pid)
            work()
            costs[f"server, {name}"] = (cpu_of(pid) - begin) / count * 1e6

        frames = server.frames(MESSAGES)
        timed("publish acked, 4,000 in flight", MESSAGES, lambda: server.publish(wires, frames, MESSAGES))
        timed("message of a batched Direct Get", MESSAGES, lambda: server.read(wires, MESSAGES))
        timed("single Direct Get, 64 in flight", MESSAGES // 4, lambda: server.gets(wires, MESSAGES // 4))
        timed("core publish, no subscriber", MESSAGES, lambda: _core(port, 0))
        timed("core publish to one subscriber", MESSAGES, lambda: _core(port, 1))
        timed("core publish to ten subscribers", MESSAGES // 5, lambda: _core(port, 10, MESSAGES // 5))
        wires.close()
    return costs


def _core(port: int, subscribers: int, count: int = MESSAGES) -> None:
    """Publish, and read what the subscribers get."""
    wires = server.Wire(port, "core")
    for n in range(subscribers):
        wires.sock.sendall(b"SUB core.a %d\r\n" % (n + 2))
    frame = encode.pub("core.a", PAYLOAD) * 100
    for _ in range(count // 100):
        wires.sock.sendall(frame + b"PING\r\n")
        wires.until(b"PONG\r\n")
    wires.close()


def ours(port: int, path: str) -> list[str]:
    return [sys.executable, "-m", "slipstream.server", "--port", str(port), "--data-dir", path]


def theirs(port: int, path: str) -> list[str]:
    binary = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or "nats-server"
    return [binary, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", path]


# The table.


def compiled() -> str:
    """Where the compiled form is; built if necessary."""
    command = [sys.executable, str(ROOT / "tools" / "native.py"), "build"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def in_process(environment: dict[str, str], *arguments: str) -> Costs:
    command = [sys.executable, "-m", "benchmarks.forms", *arguments]
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True, timeout=600
    )
    rows = (line.rpartition("\t") for line in done.stdout.splitlines())
    return {name: float(value) for name, _, value in rows}


def median(rounds: list[Costs]) -> Costs:
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def run(sections: list[str], rounds: int) -> str:
    """Measure, and make the table."""
    forms = {"pure": {"SLIPSTREAM_PURE": "1"}, "compiled": {"PYTHONPATH": compiled()}}
    found: dict[str, list[Costs]] = {"nats-server": [], **{form: [] for form in forms}}
    for _ in range(rounds):
        for form, environment in forms.items():
            costs: Costs = {}
            if "wire" in sections:
                costs |= in_process(environment, "wire")
            if "server" in sections:
                costs |= server_costs(ours, environment)
            if "client" in sections:
                port = server.free_port()
                with tempfile.TemporaryDirectory() as path, running(theirs(port, path), {}, port):
                    costs |= in_process(environment, "client", f"nats://127.0.0.1:{port}")
            found[form].append(costs)
        if "server" in sections:
            found["nats-server"].append(server_costs(theirs, {}))
    table = {name: median(rows) for name, rows in found.items() if rows}
    lines = [f"{'µs of CPU':<62} {'nats-server':>12} {'pure':>8} {'compiled':>9} {'ratio':>7}"]
    for name, pure in table["pure"].items():
        peer = table.get("nats-server", {}).get(name)
        native = table["compiled"][name]
        shown = f"{peer:.2f}" if peer is not None else "-"
        lines.append(f"{name:<62} {shown:>12} {pure:>8.2f} {native:>9.2f} {pure / native:>6.2f}x")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="CPU per operation, pure and compiled.")
    parser.add_argument("work", nargs="*", default=["wire", "server", "client"])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    match arguments.work:
        case ["flood", url]:
            flood(url)
        case ["client", url]:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(fill(url))
                show(runner.run(client_costs(url)))
        case ["wire"] if not sys.stdout.isatty():
            show(wire_costs())
        case sections:
            print(run(sections, arguments.rounds))


def show(costs: Costs) -> None:
    """For the process that asked."""
    for name, cost in costs.items():
        print(f"{name}\t{cost}")


if __name__ == "__main__":
    main()
