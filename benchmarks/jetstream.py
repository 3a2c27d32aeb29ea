"""JetStream through nats-py and through us, on one real nats-server: acked publish, drains, gets.

Each measurement runs in a process of its own (`python -m benchmarks.jetstream NAME URL`), with uvloop on both sides, on
the same stream of 128-byte messages over 1,000 subjects.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine

import nats
import nats.js.api
import uvloop

import slipstream
from benchmarks.report import PLAIN, Row, row, table
from tests.servers import real_server

MESSAGES = 200_000
PEER_MESSAGES = 100_000
WINDOW = 4_000
GETS = 32_000
IN_FLIGHT = 64
PAYLOAD = b"x" * 128
DRAINS = ("read_ours", "pull_peer", "pull_ours", "ordered_peer", "ordered_ours")
SUBJECTS = [f"bench.{n}" for n in range(1000)]

Measure = Callable[[str], Coroutine[None, None, float]]


async def publish_ours(url: str) -> float:
    async with slipstream.connect(url) as nc:
        js = nc.jetstream()
        await js.create_stream(slipstream.StreamConfig(name="P1", subjects=("p1.>",)))
        begin = time.perf_counter()
        async with js.publisher(max_in_flight=WINDOW, timeout=30) as publisher:
            for _ in range(MESSAGES):
                await publisher.publish("p1.a", PAYLOAD)
        assert publisher.acked == MESSAGES
        return MESSAGES / (time.perf_counter() - begin)


async def publish_peer(url: str) -> float:
    """Tasks that each wait for their ack: quicker than nats-py's `publish_async`, which makes a task per message."""
    nc = await nats.connect(url)
    js = nc.jetstream()
    await js.add_stream(name="P2", subjects=["p2.>"])

    async def work() -> None:
        for _ in range(PEER_MESSAGES // WINDOW):
            await js.publish("p2.a", PAYLOAD, timeout=30)

    begin = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(WINDOW)))
    rate = PEER_MESSAGES / (time.perf_counter() - begin)
    assert (await js.stream_info("P2")).state.messages == PEER_MESSAGES
    await nc.close()
    return rate


async def fill(url: str) -> float:
    """The stream that the reads below share."""
    async with slipstream.connect(url) as nc:
        js = nc.jetstream()
        await js.create_stream(slipstream.StreamConfig(name="BENCH", subjects=("bench.>",), allow_direct=True))
        async with js.publisher() as publisher:
            for n in range(MESSAGES):
                await publisher.publish(SUBJECTS[n % 1000], PAYLOAD)
    return 0.0


async def read_ours(url: str) -> float:
    async with slipstream.connect(url) as nc:
        stream = nc.jetstream().stream("BENCH")
        count = 0
        begin = time.perf_counter()
        async for columns in stream.read_columns():
            count += len(columns.seqs)
        assert count == MESSAGES
        return count / (time.perf_counter() - begin)


async def pull_peer(url: str) -> float:
    nc = await nats.connect(url)
    js = nc.jetstream()
    config = nats.js.api.ConsumerConfig(max_ack_pending=20_000)
    sub = await js.pull_subscribe("bench.>", stream="BENCH", config=config)
    begin = time.perf_counter()
    count = 0
    while count < PEER_MESSAGES:
        messages = await sub.fetch(1000, timeout=5)
        for message in messages:
            await message.ack()
        count += len(messages)
    rate = count / (time.perf_counter() - begin)
    await nc.close()
    return rate


async def pull_ours(url: str) -> float:
    """Message by message, each acked, as one writes it without a thought of speed."""
    async with slipstream.connect(url) as nc:
        stream = nc.jetstream().stream("BENCH")
        consumer = await stream.create_consumer(slipstream.ConsumerConfig(durable_name="ours", max_ack_pending=20_000))
        count = 0
        begin = time.perf_counter()
        async for message in consumer.messages(max_messages=2_000):
            await message.ack()
            count += 1
            if count == MESSAGES:
                break
        return count / (time.perf_counter() - begin)


async def ordered_ours(url: str) -> float:
    async with slipstream.connect(url) as nc:
        stream = nc.jetstream().stream("BENCH")
        count = 0
        begin = time.perf_counter()
        async for _ in stream.ordered_consumer():
            count += 1
            if count == MESSAGES:
                break
        return count / (time.perf_counter() - begin)


async def ordered_peer(url: str) -> float:
    nc = await nats.connect(url)
    js = nc.jetstream()
    sub = await js.subscribe("bench.>", stream="BENCH", ordered_consumer=True)
    begin = time.perf_counter()
    for _ in range(PEER_MESSAGES):
        await sub.next_msg(timeout=5)
    rate = PEER_MESSAGES / (time.perf_counter() - begin)
    await nc.close()
    return rate


async def gets_ours(url: str) -> float:
    async with slipstream.connect(url) as nc:
        stream = nc.jetstream().stream("BENCH")

        async def work(first: int) -> None:
            for seq in range(first, first + GETS // IN_FLIGHT):
                await stream.get(seq)

        begin = time.perf_counter()
        await asyncio.gather(*(work(1 + k * (GETS // IN_FLIGHT)) for k in range(IN_FLIGHT)))
        return GETS / (time.perf_counter() - begin)


async def gets_peer(url: str) -> float:
    nc = await nats.connect(url)
    js = nc.jetstream()

    async def work(first: int) -> None:
        for seq in range(first, first + GETS // IN_FLIGHT):
            await js.get_msg("BENCH", seq, direct=True)

    begin = time.perf_counter()
    await asyncio.gather(*(work(1 + k * (GETS // IN_FLIGHT)) for k in range(IN_FLIGHT)))
    rate = GETS / (time.perf_counter() - begin)
    await nc.close()
    return rate


async def in_flight(get: Callable[[int], Awaitable[object]]) -> float:
    """Gets per second, `IN_FLIGHT` at a time."""

    async def work(first: int) -> None:
        for n in range(first, first + GETS // IN_FLIGHT):
            await get(n)

    begin = time.perf_counter()
    await asyncio.gather(*(work(k * (GETS // IN_FLIGHT)) for k in range(IN_FLIGHT)))
    return GETS / (time.perf_counter() - begin)


async def last_plain(url: str) -> float:
    async with slipstream.connect(url) as nc:
        stream = nc.jetstream().stream("BENCH")
        return await in_flight(lambda n: stream.get_last(SUBJECTS[n % 1000]))


async def last_trusted(url: str) -> float:
    """Every answer proven to be as new as the stream's last message; the first few learn what there is to learn."""
    async with slipstream.connect(url) as nc:
        stream = nc.jetstream().stream("BENCH")
        return await in_flight(lambda n: stream.get_last(SUBJECTS[n % 1000], min_last_seq=MESSAGES))


async def seq_trusted(url: str) -> float:
    async with slipstream.connect(url) as nc:
        stream = nc.jetstream().stream("BENCH")
        return await in_flight(lambda n: stream.get(n + 1, min_last_seq=MESSAGES))


async def range_trusted(url: str) -> float:
    async with slipstream.connect(url) as nc:
        stream = nc.jetstream().stream("BENCH")
        begin = time.perf_counter()
        count = 0
        async for columns in stream.read_columns(end=MESSAGES):
            count += len(columns.seqs)
        assert count == MESSAGES
        return count / (time.perf_counter() - begin)


MEASURES: dict[str, Measure] = {
    measure.__name__: measure
    for measure in (
        publish_ours, publish_peer, fill, read_ours, pull_peer, pull_ours, ordered_peer, ordered_ours,
        gets_ours, gets_peer, last_plain, last_trusted, seq_trusted, range_trusted,
    )
}  # fmt: skip


def measure(name: str, url: str) -> float:
    """One measurement in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.jetstream", name, url]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    rate: float = json.loads(done.stdout.splitlines()[-1])
    return rate


def run() -> list[Row]:
    """All rows, on a server of their own."""
    with real_server() as url:
        publish_peer_rate = measure("publish_peer", url)
        rows = [
            row("JetStream publish, acked, 4,000 in flight", measure("publish_ours", url), publish_peer_rate, target=3)
        ]
        measure("fill", url)
        drained, pulled, ours_pulled, ordered, ours_ordered = (measure(name, url) for name in DRAINS)
        rows += [
            row("pull consumer drained, every message acked", ours_pulled, pulled, target=4),
            row("ordered consumer drained", ours_ordered, ordered, target=7),
            row("batched Direct Get against nats-py's pull, every message acked", drained, pulled, target=10),
            row("batched Direct Get against nats-py's ordered consumer", drained, ordered, target=7),
            row("single Direct Get, 64 in flight", measure("gets_ours", url), measure("gets_peer", url), target=2),
            row(
                "a trusted last by subject against a plain one",
                measure("last_trusted", url),
                measure("last_plain", url),
                against=PLAIN,
            ),
            row(
                "a trusted get by sequence against a plain one",
                measure("seq_trusted", url),
                measure("gets_ours", url),
                against=PLAIN,
            ),
            row("a trusted range against a plain one", measure("range_trusted", url), drained, against=PLAIN),
        ]
    return rows


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(uvloop.run(MEASURES[sys.argv[1]](sys.argv[2]))))
    else:
        print(table(run()))


if __name__ == "__main__":
    main()
