"""Trusted reads against plain ones: on one nats-server, on a cluster of three (replicated), and on our server.

The stream is a bucket: one message per key, 10,000 keys of 128 bytes. Each measurement runs in a process of its own
(`python -m benchmarks.reads NAME URL`), with uvloop, plain and trusted in turn, 64 in flight; the best of ten is taken
on both sides. On the cluster the leader is left alone until it counts as settled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path

import uvloop

import slipstream
from benchmarks.report import PLAIN, Row, row, table
from slipstream.jetstream._async.stream import Stream
from slipstream.kv import BucketConfig
from slipstream.kv._async.key_value import KeyValue
from tests.cluster import Cluster
from tests.servers import OurProcess, real_server

KEYS = 10_000
GETS = 2_560
RANGES = 1
ROUNDS = 10
IN_FLIGHT = 64
WRITES = 300  # per second, where there are some
SETTLED = 32.0  # seconds after which a leader of nats-server is believed
PAYLOAD = b"x" * 128
SUBJECTS = [f"$KV.bench.key.{n}" for n in range(KEYS)]

Rates = tuple[float, float]  # plain, trusted
Measure = Callable[[str], Coroutine[None, None, Rates]]


async def fill(url: str) -> None:
    """The bucket; replicated where there is a cluster."""
    async with slipstream.connect(url) as nc:
        replicas = 3 if nc.server_info.cluster else 1
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket="bench", replicas=replicas))
        async with kv.writer() as writer:
            for n in range(KEYS):
                await writer.put(f"key.{n}", PAYLOAD)


async def in_flight(get: Callable[[str], Awaitable[object]]) -> float:
    """Gets per second, `IN_FLIGHT` at a time."""

    async def work(first: int) -> None:
        for n in range(first, first + GETS // IN_FLIGHT):
            await get(SUBJECTS[n % (KEYS - 1)])

    begin = time.perf_counter()
    await asyncio.gather(*(work(k * (GETS // IN_FLIGHT)) for k in range(IN_FLIGHT)))
    return GETS / (time.perf_counter() - begin)


async def in_turn(
    plain: Callable[[], Awaitable[float]], trusted: Callable[[], Awaitable[float]]
) -> tuple[float, float]:
    """The best rate of each."""
    rates = [(await plain(), await trusted()) for _ in range(ROUNDS)]
    return max(rate for rate, _ in rates), max(rate for _, rate in rates)


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[Stream, int]]:
    """The bucket's stream and its last sequence."""
    async with slipstream.connect(url) as nc:
        stream = nc.jetstream(timeout=20).stream("KV_bench")
        yield stream, (await stream.info()).state.last_seq


async def newer(url: str) -> tuple[float, float]:
    """Every key is newer than what is wanted: the answer proves itself."""
    async with opened(url) as (stream, _):
        return await in_turn(
            lambda: in_flight(lambda subject: stream.get_last(subject)),
            lambda: in_flight(lambda subject: stream.get_last(subject, min_last_seq=1)),
        )


async def older(url: str) -> tuple[float, float]:
    """Every key is older than what is wanted."""
    async with opened(url) as (stream, last):
        return await in_turn(
            lambda: in_flight(lambda subject: stream.get_last(subject)),
            lambda: in_flight(lambda subject: stream.get_last(subject, min_last_seq=last)),
        )


async def older_busy(url: str) -> tuple[float, float]:
    """The same beside writes to another key, from a process of their own."""
    writer = subprocess.Popen([sys.executable, "-m", "benchmarks.reads", "write", url])
    try:
        await asyncio.sleep(1)
        return await older(url)
    finally:
        writer.kill()
        writer.wait(10)


async def write(url: str) -> tuple[float, float]:
    """Until it is killed."""
    async with slipstream.connect(url) as nc:
        js = nc.jetstream(timeout=20)
        begin = time.monotonic()
        for n in range(1_000_000):
            await js.publish(SUBJECTS[-1], PAYLOAD)
            await asyncio.sleep(max(begin + n / WRITES - time.monotonic(), 0))
    return 0.0, 0.0


async def ranges(url: str) -> tuple[float, float]:
    """The whole bucket, page by page."""
    async with opened(url) as (stream, last):

        async def read(wanted: int) -> float:
            count = 0
            begin = time.perf_counter()
            for _ in range(RANGES):
                async for columns in stream.read_columns(min_last_seq=wanted):
                    count += len(columns.seqs)
            assert count == KEYS * RANGES
            return count / (time.perf_counter() - begin)

        return await in_turn(lambda: read(0), lambda: read(last))


async def by_handle(url: str, consistency: str, begin: Callable[[KeyValue[bytes]], Awaitable[object]]) -> Rates:
    """Gets through a handle of any consistency, and through one of `consistency` that has begun somehow."""
    async with slipstream.connect(url) as nc:
        js = nc.jetstream(timeout=20)
        plain = await js.key_value("bench", consistency="any")

        async def run(kv: KeyValue[bytes]) -> float:
            return await in_flight(lambda subject: kv.get(subject.removeprefix("$KV.bench.")))

        async def trusted() -> float:
            kv = await js.key_value("bench", consistency=consistency)
            await begin(kv)
            return await run(kv)

        return await in_turn(lambda: run(plain), trusted)


async def own_key(url: str) -> Rates:
    """The keys were written or read through the handle before."""

    async def begin(kv: KeyValue[bytes]) -> None:
        await kv.get_range()

    return await by_handle(url, "own-writes", begin)


async def other_key(url: str) -> Rates:
    """Another key was written through the handle."""
    return await by_handle(url, "own-writes", lambda kv: kv.put(f"key.{KEYS - 1}", PAYLOAD))


async def after_writer(url: str) -> Rates:
    """Another key was written through the handle's pipelined writer, which does not tell which."""

    async def begin(kv: KeyValue[bytes]) -> None:
        async with kv.writer() as writer:
            await writer.put(f"key.{KEYS - 1}", PAYLOAD)

    return await by_handle(url, "own-writes", begin)


async def latest(url: str) -> Rates:
    """As new as the leader."""
    return await by_handle(url, "latest", lambda kv: kv.get("key.0"))


MEASURES: dict[str, Measure] = {
    each.__name__: each for each in (newer, older, ranges, older_busy, write, own_key, other_key, after_writer, latest)
}
ROWS: dict[str, tuple[str, float | None]] = {
    "newer": ("get_last of a key newer than wanted", 0.9),
    "older": ("get_last of a key older than wanted", 0.6),
    "ranges": ("a range of 10,000", 0.9),
    "older_busy": (f"get_last of a key older than wanted, {WRITES} writes a second", 0.4),
    "own_key": ("kv.get, own-writes: of a key seen before, against any", 0.9),
    "other_key": ("kv.get, own-writes: after a write of another key", 0.5),
    "after_writer": ("kv.get, own-writes: after a pipelined write", None),
    "latest": ("kv.get, latest", None),
}
OURS = 0.97  # the target of every row on our server, which proves nothing by further requests,
# but these of a handle
OURS_HANDLE: dict[str, float | None] = {"own_key": 0.95, "other_key": 0.95, "after_writer": None, "latest": None}


def measure(name: str, url: str) -> tuple[float, float]:
    """Plain and trusted, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.reads", name, url]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    plain, trusted = json.loads(done.stdout.splitlines()[-1])
    return plain, trusted


@contextlib.contextmanager
def our_server() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-", ignore_cleanup_errors=True) as folder:
        server = OurProcess(Path(folder))
        try:
            yield server.start()
        finally:
            server.kill()


@contextlib.contextmanager
def cluster_of_three() -> Iterator[str]:
    with Cluster() as cluster:
        yield cluster.urls[0]


def rows_of(where: str, url: str, target: float | None = None) -> list[Row]:
    """All rows on one server."""
    asyncio.run(fill(url))
    if "three" in where:
        time.sleep(SETTLED)
    found = []
    for name, (work, least) in ROWS.items():
        plain, trusted = measure(name, url)
        least = OURS_HANDLE.get(name, target) if target else least
        found.append(row(f"{where}: {work}", trusted, plain, target=least, against=PLAIN))
    return found


def run() -> list[Row]:
    """All rows. `peer` is the plain read, `ours` the trusted one."""
    rows: list[Row] = []
    with real_server() as url:
        rows += rows_of("one nats-server", url)
    with cluster_of_three() as url:
        rows += rows_of("three nats-servers", url)
    with our_server() as url:
        rows += rows_of("Slipstream server", url, OURS)
    return rows


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(uvloop.run(MEASURES[sys.argv[1]](sys.argv[2]))))
    else:
        print(table(run()))


if __name__ == "__main__":
    main()
