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
from slipstream.wire import Msg, Parser, Ping, Pong, Router, Side, encode
from tools import native

ROUNDS = 3
MESSAGES = 100_000
IN_FLIGHT = 64
REQUESTS = 2_000  # one at a time
GETS = 16_000
KEYS = 10_000
REPEATS = 5  # of what is done with all keys
PAYLOAD = b"x" * 128
SUBJECTS = [f"bench.{n}" for n in range(1000)]
ROOT = Path(__file__).resolve().parent.parent

RESULTS = Path(__file__).with_name("forms.json")
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- forms -->", "<!-- /forms -->"

Costs = dict[str, float]  # work -> microseconds of CPU


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used, by its own clock: /proc counts hundredths of a second."""
    return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid makes it of a process id


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


class Meter:
    """CPU time and the clock, for one operation of this process."""

    def __init__(self) -> None:
        self.costs: Costs = {}
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._clock, self._cpu = time.perf_counter(), time.process_time()

    def end(self, name: str, count: int) -> None:
        """So many operations were done."""
        self.costs[f"client, {name}"] = (time.process_time() - self._cpu) / count * 1e6
        self.costs[f"client rates, {name}"] = count / (time.perf_counter() - self._clock) / 1e3

    async def timed(self, name: str, count: int, work: Awaitable[object]) -> None:
        """Work that is all of it."""
        self.begin()
        await work
        self.end(name, count)


async def in_flight(work: Callable[[int], Awaitable[object]], count: int) -> None:
    """`IN_FLIGHT` at a time."""

    async def some(first: int) -> None:
        for n in range(first, count, IN_FLIGHT):
            await work(n)

    await asyncio.gather(*(some(first) for first in range(IN_FLIGHT)))


async def client_costs(url: str) -> Costs:
    meter = Meter()
    async with slipstream.connect(url) as nc:
        js = nc.jetstream(timeout=60)
        stream = js.stream("BENCH")
        kv = await js.key_value("bench")

        async def publish_core() -> None:
            for _ in range(MESSAGES):
                await nc.publish("core.a", PAYLOAD)
            await nc.flush(timeout=60)

        async def publish() -> None:
            async with js.publisher(max_in_flight=4_000, timeout=60) as publisher:
                for n in range(MESSAGES):
                    await publisher.publish(SUBJECTS[n % 1000], PAYLOAD)

        async def read() -> None:
            count = 0
            async for _ in stream.read():
                count += 1
            assert count == MESSAGES

        async def read_columns() -> None:
            count = 0
            async for columns in stream.read_columns():
                count += len(columns.seqs)
            assert count == MESSAGES

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

        async def requests(count: int) -> None:
            for _ in range(count):
                await nc.request("echo", PAYLOAD, timeout=60)

        async def subscribe() -> None:
            count = 0
            async with await nc.subscribe("flood.a", max_pending_msgs=MESSAGES * 2, max_pending_bytes=1 << 30) as sub:
                await nc.flush(timeout=60)
                with beside("flood", url):
                    await sub.next(timeout=60)
                    meter.begin()
                    async for _ in sub:
                        count += 1
                        if count == MESSAGES - 1:
                            break
                    meter.end("one subscriber", count)

        async def keys() -> None:
            for _ in range(REPEATS):
                assert len(await kv.keys()) == KEYS

        async def watch() -> None:
            for _ in range(REPEATS):
                count = 0
                async with await kv.watch() as entries:
                    async for entry in entries:
                        if entry is None:
                            break
                        count += 1
                assert count == KEYS

        await meter.timed("core publish", MESSAGES, publish_core())
        await subscribe()
        with beside("echo", url):
            await requests(100)
            await meter.timed("request and reply, one at a time", REQUESTS, requests(REQUESTS))
            work = in_flight(lambda _: nc.request("echo", PAYLOAD, timeout=60), GETS)
            await meter.timed("request and reply, 64 in flight", GETS, work)
        await meter.timed("publish acked, 4,000 in flight", MESSAGES, publish())
        await meter.timed("batched Direct Get, message by message", MESSAGES, read())
        await meter.timed("batched Direct Get, columns", MESSAGES, read_columns())
        await meter.timed("pull, each acked", MESSAGES, pull())
        await meter.timed("ordered consumer", MESSAGES, ordered())
        gets = in_flight(lambda n: stream.get_last(SUBJECTS[n % 1000]), GETS)
        await meter.timed("single Direct Get by subject, 64 in flight", GETS, gets)
        await meter.timed("KV keys", KEYS * REPEATS, keys())
        await meter.timed("KV watch", KEYS * REPEATS, watch())
    return meter.costs


async def fill(url: str, messages: int) -> None:
    """The stream and the bucket that are read."""
    async with slipstream.connect(url) as nc:
        js = nc.jetstream(timeout=60)
        await js.create_stream("BENCH", subjects=["bench.*"])
        async with js.publisher(timeout=60) as publisher:
            for n in range(messages):
                await publisher.publish(SUBJECTS[n % 1000], PAYLOAD)
        kv = await js.create_key_value("bench")
        async with kv.writer() as writer:
            for n in range(KEYS):
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


def echo(url: str) -> None:
    """Answer the requests of `client_costs`, without a client: its cost is not measured."""
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(server.CONNECT + b"SUB echo 1\r\nPING\r\n")
        parser = Parser(Side.SERVER)
        while data := sock.recv(1 << 16):
            out = []
            for event in parser.feed(data):
                if isinstance(event, Msg):
                    out.append(encode.pub(event.reply, event.payload))
                elif isinstance(event, Pong):
                    print("ready", flush=True)
                elif isinstance(event, Ping):
                    out.append(encode.PONG)
            if out:
                sock.sendall(b"".join(out))


@contextlib.contextmanager
def beside(*arguments: str) -> Iterator[None]:
    """What a client talks to, in a process of its own and always pure: alike for all clients."""
    command = [sys.executable, "-m", "benchmarks.forms", *arguments]
    environment = {**os.environ, "SLIPSTREAM_PURE": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if arguments[0] == "echo":
            process.stdout.readline()  # ready
        try:
            yield
        finally:
            process.kill()


# The other clients, each in a process of its own.

C_WORKS = {
    "publish": ("core publish", MESSAGES),
    "subscribe": ("one subscriber", MESSAGES),
    "request": ("request and reply, one at a time", REQUESTS),
    "publish_acked": ("publish acked, 4,000 in flight", MESSAGES),
    "batched": ("batched Direct Get, message by message", MESSAGES),
    "pull": ("pull, each acked", MESSAGES),
    "ordered": ("ordered consumer", MESSAGES),
    "keys": ("KV keys", KEYS * REPEATS),
    "watch": ("KV watch", KEYS * REPEATS),
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
        with contextlib.ExitStack() as stack:
            if work == "request":
                stack.enter_context(beside("echo", url))
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            assert process.stdout is not None
            if work == "subscribe":
                process.stdout.readline()  # ready
                stack.enter_context(beside("flood", url))
            rate, cpu = process.stdout.readline().split()
        costs[f"client, {name}"] = float(cpu)
        costs[f"client rates, {name}"] = float(rate) / 1e3
    return costs


async def peer_costs(url: str) -> Costs:
    """What nats-py uses."""
    import nats
    from nats.aio.msg import Msg as PeerMsg

    from benchmarks import jetstream, kv

    meter = Meter()
    nc = await nats.connect(url)
    js = nc.jetstream()
    seen = asyncio.Event()
    count = 0

    async def callback(_: PeerMsg) -> None:
        nonlocal count
        if count == 0:
            meter.begin()
        count += 1
        if count == MESSAGES:
            seen.set()

    async def publish() -> None:
        for _ in range(MESSAGES):
            await nc.publish("core.a", PAYLOAD)
        await nc.flush(60)

    async def requests() -> None:
        for _ in range(REQUESTS):
            await nc.request("echo", PAYLOAD, timeout=60)

    await meter.timed("core publish", MESSAGES, publish())
    await nc.subscribe("flood.a", cb=callback, pending_msgs_limit=-1, pending_bytes_limit=-1)
    await nc.flush(60)
    with beside("flood", url):
        await seen.wait()
        meter.end("one subscriber", MESSAGES)
    with beside("echo", url):
        await meter.timed("request and reply, one at a time", REQUESTS, requests())
        work = in_flight(lambda _: nc.request("echo", PAYLOAD, timeout=60), GETS)
        await meter.timed("request and reply, 64 in flight", GETS, work)
    count = jetstream.PEER_MESSAGES
    await meter.timed("publish acked, 4,000 in flight", count, jetstream.publish_peer(url))
    await meter.timed("pull, each acked", count, jetstream.pull_peer(url))
    await meter.timed("ordered consumer", count, jetstream.ordered_peer(url))
    gets = in_flight(lambda n: js.get_last_msg("BENCH", SUBJECTS[n % 1000], direct=True), GETS)
    await meter.timed("single Direct Get by subject, 64 in flight", GETS, gets)
    await meter.timed("KV keys", kv.KEYS * kv.REPEATS, kv.keys_peer(url))
    await meter.timed("KV watch", kv.KEYS * kv.REPEATS, kv.watch_peer(url))
    await nc.close()
    return meter.costs


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
        wires.api("CONSUMER.CREATE.BENCH.C", server.CONSUMER)
        timed("pull consumer drained, each message acked", MESSAGES, lambda: server.pull(wires, MESSAGES))
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


def machine() -> str:
    """What it is measured on."""
    return f"{os.cpu_count()} cores ({platform.machine()}, Python {platform.python_version()})"


@functools.cache
def environments() -> dict[str, dict[str, str]]:
    """The variables with which a process runs a form. The compiled one is built if necessary, and left out where there
    is no C compiler."""
    found = {"pure": {"SLIPSTREAM_PURE": "1"}}
    with contextlib.suppress(native.NoCompilerError):
        native.compiler()
        command = [sys.executable, str(ROOT / "tools" / "native.py"), "build"]
        built = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        found["compiled"] = {"PYTHONPATH": built}
    return found


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
    forms = environments()
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
TABLES = {  # what is measured by a section: title, its columns of peers, whether less is better
    "wire": ("wire, µs of CPU", PEERS["wire"], True),
    "server": ("server, µs of CPU", PEERS["server"], True),
    "client": ("client, µs of CPU", PEERS["client"], True),
    "client rates": ("client, thousand a second", PEERS["client"], False),
}


def table(results: dict[str, Costs], section: str) -> str:
    """A table of the results in Markdown, with the gain of the compiled form."""
    title, peers, is_cost = TABLES[section]
    columns = [*(peer for peer in peers if peer in results), "pure", "compiled"]
    against = [*(["C client"] if "C client" in columns else []), "pure"]
    lines = [
        f"| {title} | {' | '.join(columns)} | {' | '.join(f'compiled, against {one}' for one in against)} |",
        f"|{'---|' * (1 + len(columns) + len(against))}",
    ]
    for work in results["pure"]:
        if work.startswith(f"{section}, "):
            shown = [
                f"{results[name][work]:{'.2f' if is_cost else ',.0f'}}" if work in results[name] else "-"
                for name in columns
            ]
            for other in against:
                if work in results[other]:
                    ratio = results["compiled"][work] / results[other][work]
                    shown.append(f"{1 / ratio if is_cost else ratio:.{1 if other == 'pure' else 2}f}x")
                else:
                    shown.append("-")
            lines.append(f"| {work.partition(', ')[2]} | {' | '.join(shown)} |")
    return "\n".join(lines)


def tables(results: dict[str, Costs]) -> list[str]:
    """All tables there are results for."""
    return [
        table(results, section)
        for section in TABLES
        if any(work.startswith(f"{section}, ") for work in results["pure"])
    ]


def page(kept: dict[str, Any]) -> str:
    """The part of docs/benchmarks.md that is made from `forms.json`."""
    return "\n\n".join((BEGIN, kept["conditions"], *tables(kept["results"]), END))


def rewritten(text: str, part: str, begin: str = BEGIN, end: str = END) -> str:
    """The page with another part between two marks."""
    before, _, rest = text.partition(begin)
    return before + part + rest.partition(end)[2]


def write(results: dict[str, Costs], rounds: int) -> None:
    """Keep the results, and put them into the documentation."""
    known = json.loads(RESULTS.read_text("utf-8"))["results"] if RESULTS.exists() else {}
    for name, costs in results.items():
        known[name] = known.get(name, {}) | {work: round(cost, 3) for work, cost in costs.items()}
    conditions = (
        f"`python -m benchmarks.forms --write` on {machine()}, {time.strftime('%Y-%m-%d')}, load average "
        f"{os.getloadavg()[1]:.0f};\nmedians of {rounds} rounds, the forms in turn, 128-byte messages. The Slipstream "
        "server syncs before it acknowledges, nats-server does not."
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
        case ["echo", url]:
            echo(url)
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
            print(*tables(results), sep="\n\n")
            if arguments.write:
                write(results, arguments.rounds)


def show(costs: Costs) -> None:
    """For the process that asked."""
    for name, cost in costs.items():
        print(f"{name}\t{cost}")


if __name__ == "__main__":
    main()
