"""Key-Value through nats-py and through us, on one real nats-server: keys, watch, get, put; and our read cache.

Each measurement runs in a process of its own (`python -m benchmarks.kv NAME URL`), with uvloop on both sides, on one
bucket of 10,000 keys with 128-byte values. Short ones are repeated and the best is taken: both sides alike.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine

import nats
import uvloop

import slipstream
from benchmarks.report import Row, row, table
from slipstream.kv import BucketConfig
from tests.servers import real_server

KEYS = 10_000
REPEATS = 5
ROUNDS = 2
GETS = 16_000
IN_FLIGHT = 64
PUTS = 2_000
CACHED = 200_000
PAYLOAD = b"x" * 128

Measure = Callable[[str], Coroutine[None, None, float]]


async def fill(url: str) -> float:
    """The buckets that both sides share."""
    async with slipstream.connect(url) as nc:
        await nc.jetstream().create_key_value(BucketConfig(bucket="puts"))
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket="bench"))
        async with kv.writer() as writer:
            for n in range(KEYS):
                await writer.put(f"key.{n}", PAYLOAD)
    return 0.0


async def best(work: Callable[[], Coroutine[None, None, int]]) -> float:
    """The best rate of several runs."""
    rates = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        count = await work()
        assert count == KEYS
        rates.append(count / (time.perf_counter() - begin))
    return max(rates)


async def keys_ours(url: str) -> float:
    async with slipstream.connect(url) as nc:
        kv = await nc.jetstream().key_value("bench")

        async def work() -> int:
            return len(await kv.keys())

        return await best(work)


async def keys_peer(url: str) -> float:
    nc = await nats.connect(url)
    kv = await nc.jetstream().key_value("bench")

    async def work() -> int:
        return len(await kv.keys())

    rate = await best(work)
    await nc.close()
    return rate


async def watch_ours(url: str) -> float:
    async with slipstream.connect(url) as nc:
        kv = await nc.jetstream().key_value("bench")

        async def work() -> int:
            count = 0
            async with await kv.watch() as watch:
                async for entry in watch:
                    if entry is None:
                        break
                    count += 1
            return count

        return await best(work)


async def watch_peer(url: str) -> float:
    nc = await nats.connect(url)
    kv = await nc.jetstream().key_value("bench")

    async def work() -> int:
        count = 0
        watcher = await kv.watchall()
        async for entry in watcher:
            if entry is None:
                break
            count += 1
        await watcher.stop()  # type: ignore[no-untyped-call]
        return count

    rate = await best(work)
    await nc.close()
    return rate


async def gets_ours(url: str) -> float:
    async with slipstream.connect(url) as nc:
        kv = await nc.jetstream().key_value("bench")

        async def work(first: int) -> None:
            for n in range(first, first + GETS // IN_FLIGHT):
                await kv.get(f"key.{n % KEYS}")

        begin = time.perf_counter()
        await asyncio.gather(*(work(k * (GETS // IN_FLIGHT)) for k in range(IN_FLIGHT)))
        return GETS / (time.perf_counter() - begin)


async def gets_peer(url: str) -> float:
    nc = await nats.connect(url)
    kv = await nc.jetstream().key_value("bench")

    async def work(first: int) -> None:
        for n in range(first, first + GETS // IN_FLIGHT):
            await kv.get(f"key.{n % KEYS}")

    begin = time.perf_counter()
    await asyncio.gather(*(work(k * (GETS // IN_FLIGHT)) for k in range(IN_FLIGHT)))
    rate = GETS / (time.perf_counter() - begin)
    await nc.close()
    return rate


async def puts_ours(url: str) -> float:
    async with slipstream.connect(url) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket="puts"))
        begin = time.perf_counter()
        for n in range(PUTS):
            await kv.put(f"key.{n}", PAYLOAD)
        return PUTS / (time.perf_counter() - begin)


async def puts_peer(url: str) -> float:
    nc = await nats.connect(url)
    kv = await nc.jetstream().key_value("puts")
    begin = time.perf_counter()
    for n in range(PUTS):
        await kv.put(f"key.{n}", PAYLOAD)
    rate = PUTS / (time.perf_counter() - begin)
    await nc.close()
    return rate


async def cached_ours(url: str) -> float:
    async with slipstream.connect(url) as nc:
        kv = await (await nc.jetstream().key_value("bench")).cached()
        begin = time.perf_counter()
        for n in range(CACHED):
            await kv.get(f"key.{n % KEYS}")
        rate = CACHED / (time.perf_counter() - begin)
        assert kv.stats.hits == CACHED
        await kv.close()
        return rate


MEASURES: dict[str, Measure] = {
    measure.__name__: measure
    for measure in (
        fill, keys_ours, keys_peer, watch_ours, watch_peer, gets_ours, gets_peer, puts_ours, puts_peer, cached_ours,
    )
}  # fmt: skip


def measure(name: str, url: str) -> float:
    """One measurement in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.kv", name, url]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    rate: float = json.loads(done.stdout.splitlines()[-1])
    return rate


def pair(work: str, name: str, url: str, target: float) -> Row:
    """Both sides in turns, the best of each: what else the machine does meets them alike."""
    rates = [(measure(f"{name}_ours", url), measure(f"{name}_peer", url)) for _ in range(ROUNDS)]
    ours, peer = (max(side) for side in zip(*rates, strict=True))
    return row(work, ours, peer, target=target)


def run() -> list[Row]:
    """All rows, on a server of their own."""
    with real_server() as url:
        measure("fill", url)
        rows = [
            pair("KV keys() of 10,000 keys", "keys", url, 4),
            pair("KV watch of 10,000 keys", "watch", url, 4),
            pair("KV get, 64 in flight", "gets", url, 2),
            pair("KV put, one at a time", "puts", url, 1),
        ]
        gets = rows[2]["peer"]
        return [*rows, row("KV get from the read cache, one at a time", measure("cached_ours", url), gets)]


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(uvloop.run(MEASURES[sys.argv[1]](sys.argv[2]))))
    else:
        print(table(run()))


if __name__ == "__main__":
    main()
