"""The two forms of the package beside each other and their peers: microseconds of CPU for one operation.

CPU time and not the clock: it depends less on what else the machine does. A server's is that of its process, loaded by
precomputed frames (`benchmarks.server`), beside nats-server's on the same frames; a client's is that of its process, on
a nats-server, beside nats-py's (with uvloop) and the C client's (`peer.c`, where Debian's libnats-dev is there). Each
measurement is the median of `ROUNDS`, the forms in turn. Needs Linux (/proc).

`--write` keeps the results in `forms.json`; the tables of docs/benchmarks.md are made from that file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import platform
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
from typing import Any

import uvloop

import slipstream
from benchmarks import server, wire
from slipstream.wire import Parser, Router, encode

ROUNDS = 3
MESSAGES = 100_000
IN_FLIGHT = 64
PAYLOAD = b"x" * 128
ROOT = Path(__file__).resolve().parent.parent

RESULTS = Path(__file__).with_name("forms.json")
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- forms -->", "<!-- /forms -->"

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
            kv = await js.key_value("bench")
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


async def fill(url: str, messages: int) -> None:
    """The stream and the bucket that are read."""
    async with slipstream.connect(url) as nc:
        js = nc.jetstream(timeout=60)
        await js.create_stream("BENCH", subjects=["bench.*"])
        async with js.publisher(timeout=60) as publisher:
            for n in range(messages):
                await publisher.publish(f"bench.{n % 1000}", PAYLOAD)
        kv = await js.create_key_value("bench")
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


# The other clients, each in a process of its own.

C_WORKS = {
    "publish": ("core publish", MESSAGES),
    "subscribe": ("core subscriber", MESSAGES),
    "publish_acked": ("publish acked, 4,000 in flight", MESSAGES),
    "batched": ("batched Direct Get (columns)", MESSAGES),
    "pull": ("pull, each acked", MESSAGES),
    "ordered": ("ordered consumer", MESSAGES),
    "keys": ("KV keys", 50_000),
}


@functools.cache
def c_client() -> Path | None:
    """The program in peer.c; None where it cannot be built."""
    source, program = Path(__file__).with_name("peer.c"), ROOT / "build" / "peer"
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(exist_ok=True)
        flags = os.environ.get("LIBNATS", "").split()  # for a libnats elsewhere: -I… -L… -Wl,-rpath,…
        done = subprocess.run(
            [compiler, "-O2", str(source), "-o", str(program), *flags, "-lnats"], capture_output=True, check=False
        )
        if done.returncode:
            return None
    return program


def c_costs(program: Path, url: str) -> Costs:
    """What the C client uses, with its reading thread."""
    costs: Costs = {}
    for work, (name, count) in C_WORKS.items():
        command = [str(program), work, url, str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            if work == "subscribe":
                process.stdout.readline()  # ready
                flood(url)
            costs[f"client, {name}"] = float(process.stdout.readline().split()[1])
    return costs


async def peer_costs(url: str) -> Costs:
    """What nats-py uses."""
    import nats
    from nats.aio.msg import Msg

    from benchmarks import jetstream, kv

    costs: Costs = {}
    nc = await nats.connect(url)
    seen = asyncio.Event()
    count = 0

    async def callback(_: Msg) -> None:
        nonlocal count
        count += 1
        if count == MESSAGES:
            seen.set()

    async def publish() -> None:
        for _ in range(MESSAGES):
            await nc.publish("core.a", PAYLOAD)
        await nc.flush(60)

    async def subscribe() -> None:
        await nc.subscribe("flood.a", cb=callback, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await nc.flush(60)
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "benchmarks.forms", "flood", url)
        await seen.wait()
        await process.wait()

    works: tuple[tuple[str, int, Awaitable[object]], ...] = (
        ("core publish", MESSAGES, publish()),
        ("core subscriber", MESSAGES, subscribe()),
        ("publish acked, 4,000 in flight", jetstream.PEER_MESSAGES, jetstream.publish_peer(url)),
        ("pull, each acked", jetstream.PEER_MESSAGES, jetstream.pull_peer(url)),
        ("ordered consumer", jetstream.PEER_MESSAGES, jetstream.ordered_peer(url)),
        ("single Direct Get by subject, 64 in flight", jetstream.GETS, jetstream.gets_peer(url)),
        ("KV keys", kv.KEYS * kv.REPEATS, kv.keys_peer(url)),
    )
    for name, number, work in works:
        begin = time.process_time()
        await work
        costs[f"client, {name}"] = (time.process_time() - begin) / number * 1e6
    await nc.close()
    return costs


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


def run(sections: list[str], rounds: int) -> dict[str, Costs]:
    """Measure; the result has a column for each form and peer."""
    forms = {"pure": {"SLIPSTREAM_PURE": "1"}, "compiled": {"PYTHONPATH": compiled()}}
    found: dict[str, list[Costs]] = {}
    for _ in range(rounds):
        for form, environment in forms.items():
            costs: Costs = {}
            if "wire" in sections:
                costs |= in_process(environment, "wire")
            if "server" in sections:
                costs |= server_costs(ours, environment)
            if "client" in sections:
                with filled() as url:
                    costs |= in_process(environment, "client", url)
            found.setdefault(form, []).append(costs)
        if "server" in sections:
            found.setdefault("nats-server", []).append(server_costs(theirs, {}))
        if "client" in sections:
            with filled() as url:
                if (program := c_client()) is not None:
                    found.setdefault("C client", []).append(c_costs(program, url))
            with filled(MESSAGES) as url:
                found.setdefault("nats-py", []).append(in_process(forms["pure"], "peer", url))
    return {name: median(rows) for name, rows in found.items()}


@contextlib.contextmanager
def filled(messages: int = 0) -> Iterator[str]:
    """A nats-server with the stream and the bucket that clients read; its URL."""
    port = server.free_port()
    with tempfile.TemporaryDirectory() as path, running(theirs(port, path), {}, port):
        url = f"nats://127.0.0.1:{port}"
        asyncio.run(fill(url, messages))
        yield url


PEERS = {"wire": (), "server": ("nats-server",), "client": ("C client", "nats-py")}


def table(results: dict[str, Costs], section: str) -> str:
    """A section of the results in Markdown: µs of CPU, and how much the compiled form saves."""
    columns = [*(peer for peer in PEERS[section] if peer in results), "pure", "compiled"]
    lines = [
        f"| {section}, µs of CPU | {' | '.join(columns)} | compiled, against pure |",
        f"|{'---|' * (len(columns) + 2)}",
    ]
    for work in results["pure"]:
        if work.startswith(f"{section}, "):
            shown = [f"{results[name][work]:.2f}" if work in results[name] else "-" for name in columns]
            ratio = results["pure"][work] / results["compiled"][work]
            lines.append(f"| {work.partition(', ')[2]} | {' | '.join(shown)} | {ratio:.1f}x |")
    return "\n".join(lines)


def page(kept: dict[str, Any]) -> str:
    """The part of docs/benchmarks.md that is made from `forms.json`."""
    results = kept["results"]
    tables = [
        table(results, section) for section in PEERS if any(work.startswith(f"{section}, ") for work in results["pure"])
    ]
    return "\n\n".join((BEGIN, kept["conditions"], *tables, END))


def rewritten(text: str, part: str) -> str:
    """The page with another part."""
    before, _, rest = text.partition(BEGIN)
    return before + part + rest.partition(END)[2]


def write(results: dict[str, Costs], rounds: int) -> None:
    """Keep the results, and put them into the documentation."""
    known = json.loads(RESULTS.read_text("utf-8"))["results"] if RESULTS.exists() else {}
    for name, costs in results.items():
        known[name] = known.get(name, {}) | {work: round(cost, 3) for work, cost in costs.items()}
    machine = f"{os.cpu_count()} cores ({platform.machine()}, Python {platform.python_version()})"
    conditions = (
        f"`python -m benchmarks.forms --write` on {machine}, {time.strftime('%Y-%m-%d')}, load average "
        f"{os.getloadavg()[1]:.0f};\nmedians of {rounds} rounds, the forms in turn, 128-byte messages. Our server "
        "syncs before it acknowledges, nats-server does not."
    )
    kept = {"conditions": conditions, "results": known}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    PAGE.write_text(rewritten(PAGE.read_text("utf-8"), page(kept)), "utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="CPU per operation, pure and compiled.")
    parser.add_argument("work", nargs="*", default=["wire", "server", "client"])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--write", action="store_true", help="keep the results in forms.json and docs/benchmarks.md")
    arguments = parser.parse_args()
    match arguments.work:
        case ["flood", url]:
            flood(url)
        case ["client", url]:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                show(runner.run(client_costs(url)))
        case ["peer", url]:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                show(runner.run(peer_costs(url)))
        case ["wire"] if not sys.stdout.isatty():
            show(wire_costs())
        case sections:
            results = run(sections, arguments.rounds)
            for section in sections:
                print(table(results, section), end="\n\n")
            if arguments.write:
                write(results, arguments.rounds)


def show(costs: Costs) -> None:
    """For the process that asked."""
    for name, cost in costs.items():
        print(f"{name}\t{cost}")


if __name__ == "__main__":
    main()
