"""Workers with an empty handler that acknowledge every message, on one real nats-server.

nats-py has no worker: its side is a pull subscription in a loop that calls a function and acknowledges, as its users
write it. FastStream's NATS broker is measured as well where it is installed (it is no dependency of this project). Each
measurement runs in a process of its own (`python -m benchmarks.workers NAME URL`), with uvloop for asyncio.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import nats
import nats.js.api
import uvloop

import slipstream
from benchmarks.report import Row, row, table
from tests.servers import real_server

MESSAGES = 50_000
FETCH = 1_000
ACK_PENDING = 20_000
PAYLOAD = b"x" * 128


async def fill(url: str) -> float:
    """The stream that all of them read."""
    async with slipstream.connect(url) as nc:
        js = nc.jetstream()
        await js.create_stream(slipstream.StreamConfig(name="JOBS", subjects=("jobs.>",)))
        async with js.publisher() as publisher:
            for n in range(MESSAGES):
                await publisher.publish(f"jobs.{n % 100}", PAYLOAD)
    return 0.0


async def _asyncio(url: str, concurrency: int) -> float:
    async with slipstream.connect(url) as nc:
        config = slipstream.ConsumerConfig(durable_name=f"asyncio{concurrency}", max_ack_pending=ACK_PENDING)
        consumer = await nc.jetstream().stream("JOBS").create_consumer(config)
        count, done = 0, asyncio.Event()

        async def handle(_: slipstream.JsMessage) -> None:
            nonlocal count
            count += 1
            if count == MESSAGES:
                done.set()

        begin = time.perf_counter()
        consuming = await consumer.consume(handle, concurrency=concurrency, auto_ack=True)
        await done.wait()
        rate = MESSAGES / (time.perf_counter() - begin)
        await consuming.stop()
        return rate


def _blocking(url: str, concurrency: int) -> float:
    with slipstream.connect_blocking(url) as nc:
        config = slipstream.ConsumerConfig(durable_name=f"blocking{concurrency}", max_ack_pending=ACK_PENDING)
        consumer = nc.jetstream().stream("JOBS").create_consumer(config)
        count, done, lock = 0, threading.Event(), threading.Lock()

        def handle(_: slipstream.BlockingJsMessage) -> None:
            nonlocal count
            with lock:
                count += 1
                if count == MESSAGES:
                    done.set()

        begin = time.perf_counter()
        consuming = consumer.consume(handle, concurrency=concurrency, auto_ack=True)
        assert done.wait(120)
        rate = MESSAGES / (time.perf_counter() - begin)
        consuming.stop()
        return rate


async def asyncio_1(url: str) -> float:
    return await _asyncio(url, 1)


async def asyncio_10(url: str) -> float:
    return await _asyncio(url, 10)


def blocking_1(url: str) -> float:
    return _blocking(url, 1)


def blocking_10(url: str) -> float:
    return _blocking(url, 10)


async def nats_py(url: str) -> float:
    nc = await nats.connect(url)
    config = nats.js.api.ConsumerConfig(max_ack_pending=ACK_PENDING)
    sub = await nc.jetstream().pull_subscribe("jobs.>", stream="JOBS", config=config)
    count = 0

    async def handle(_: object) -> None:
        nonlocal count
        count += 1

    begin = time.perf_counter()
    while count < MESSAGES:
        for message in await sub.fetch(FETCH, timeout=5):
            await handle(message)
            await message.ack()
    rate = count / (time.perf_counter() - begin)
    await nc.close()
    return rate


async def faststream(url: str) -> float:
    """A pull subscriber with batches of the same size, message by message; acknowledged when the handler returns."""
    module: Any = importlib.import_module("faststream.nats")
    broker = module.NatsBroker(url, logger=None)
    count, done = 0, asyncio.Event()

    @broker.subscriber(  # type: ignore[untyped-decorator]  # of a package that need not be installed
        "jobs.>",
        stream=module.JStream("JOBS", declare=False),
        durable="faststream",
        pull_sub=module.PullSub(batch_size=FETCH),
        config=nats.js.api.ConsumerConfig(max_ack_pending=ACK_PENDING),
    )
    async def handle(_: bytes) -> None:
        nonlocal count
        count += 1
        if count == MESSAGES:
            done.set()

    begin = time.perf_counter()
    await broker.start()
    await asyncio.wait_for(done.wait(), 240)
    rate = count / (time.perf_counter() - begin)
    await broker.stop()
    return rate


MEASURES: dict[str, Callable[[str], Any]] = {
    measure.__name__: measure for measure in (fill, asyncio_1, asyncio_10, blocking_1, blocking_10, nats_py, faststream)
}


def measure(name: str, url: str) -> float:
    """One measurement in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.workers", name, url]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    rate: float = json.loads(done.stdout.splitlines()[-1])
    return rate


def run() -> list[Row]:
    """All rows, on a server of their own."""
    with real_server() as url:
        measure("fill", url)
        peer = measure("nats_py", url)
        rates = {name: measure(name, url) for name in ("asyncio_1", "asyncio_10", "blocking_1", "blocking_10")}
        rows = [
            row("consume(), asyncio, against a loop over nats-py's fetch", rates["asyncio_1"], peer),
            row("consume(concurrency=10), asyncio, against the same", rates["asyncio_10"], peer),
            row("consume(), blocking, against the same", rates["blocking_1"], peer),
            row("consume(concurrency=10), blocking, against the same", rates["blocking_10"], peer),
        ]
        if importlib.util.find_spec("faststream") is not None:
            rows.append(
                row(
                    "consume(), asyncio, against FastStream's NATS broker",
                    rates["asyncio_1"],
                    measure("faststream", url),
                )
            )
    return rows


def main() -> None:
    if len(sys.argv) == 3:
        measured = MEASURES[sys.argv[1]]
        result = measured(sys.argv[2])
        print(json.dumps(uvloop.run(result) if inspect.iscoroutine(result) else result))
    else:
        print(table(run()))


if __name__ == "__main__":
    main()
