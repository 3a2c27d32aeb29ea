"""Consumers of all kinds over one stream, under publish load, while the server is killed: promises are counted."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from slipstream import ConsumerConfig, StreamConfig, connect
from slipstream.errors import ConnectionLostError, Error, NoRespondersError, RequestTimeoutError
from slipstream.facade._async.client import Client, JetStream
from slipstream.jetstream._async.message import JsMessage
from tests.servers import OurProcess, RealProcess

Kind = type[OurProcess] | type[RealProcess]
TRANSIENT = (ConnectionLostError, RequestTimeoutError, NoRespondersError)


class Tally:
    """What one consumer was handed: how often each sequence came, and whether it was acknowledged for sure."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: Counter[int] = Counter()
        self.order: list[int] = []
        self.acked: set[int] = set()
        self.unsure: set[int] = set()
        self.deliveries = 0

    async def take(self, message: JsMessage, *, refuse: bool = False) -> None:
        """Handle one message: sometimes refuse it the first time, else acknowledge it."""
        seq = message.seq
        self.seen[seq] += 1
        self.order.append(seq)
        self.deliveries = max(self.deliveries, message.num_delivered)
        if refuse and message.num_delivered == 1:
            await message.nak()
            return
        try:
            await message.ack_sync(timeout=2)
        except Error:  # the ack was lost, and it comes again; or only the answer was
            self.unsure.add(seq)
            return
        self.acked.add(seq)


async def again_and_again(work: Callable[[], Awaitable[None]], is_over: Callable[[], bool]) -> None:
    """What a program does that survives its server: errors that pass are waited out."""
    while not is_over():
        try:
            await work()
        except TRANSIENT:
            await asyncio.sleep(0.05)


class Mix:
    """The consumers of one run."""

    def __init__(self, nc: Client, name: str, total: int) -> None:
        self.nc = nc
        self.js: JetStream = nc.jetstream()
        self.name = name
        self.total = total
        self.tallies: list[Tally] = []
        self.ordered: list[Tally] = []
        self.is_stopped = False

    async def pull_by_fetch(self, tally: Tally) -> None:
        consumer = await self.js.stream(self.name).consumer(tally.name)

        async def work() -> None:
            for message in await consumer.fetch(50, timeout=1):
                await tally.take(message, refuse=message.seq % 17 == 0)

        await again_and_again(work, lambda: self.done(tally))

    async def pull_by_messages(self, tally: Tally) -> None:
        consumer = await self.js.stream(self.name).consumer(tally.name)

        async def work() -> None:
            async for message in consumer.messages(max_messages=50, expires=2, heartbeat=0.5, idle_timeout=1):
                await tally.take(message)
                if self.done(tally):
                    return

        await again_and_again(work, lambda: self.done(tally))

    async def push(self, tally: Tally) -> None:
        subscription = await self.js.subscribe(stream=self.name, consumer=tally.name)

        async def work() -> None:
            await tally.take(await subscription.next(timeout=1))

        await again_and_again(work, lambda: self.done(tally))

    async def ordered_read(self, tally: Tally) -> None:
        ordered = self.js.stream(self.name).ordered_consumer(heartbeat=0.5)

        async def work() -> None:
            for message in await ordered.next_chunk(timeout=1):
                tally.seen[message.seq] += 1
                tally.order.append(message.seq)

        await again_and_again(work, lambda: self.done(tally))
        await ordered.close()

    def done(self, tally: Tally) -> bool:
        handled = tally.seen.keys() if tally in self.ordered else tally.acked | tally.unsure
        return self.is_stopped or len(handled) >= self.total


def durable(name: str, **fields: object) -> ConsumerConfig:
    config = ConsumerConfig(durable_name=name, ack_wait=timedelta(seconds=2), max_deliver=20, max_ack_pending=200)
    return config.replace(**fields)


@pytest.fixture
def server_kind(request: pytest.FixtureRequest, any_server: str) -> Kind:
    """A server of the kind at hand, to be killed."""
    assert any_server
    return RealProcess if request.node.callspec.params["any_server"] == "real" else OurProcess


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("each", "total", "kills"),
    [
        pytest.param(2, 300, 2, id="short"),
        pytest.param(12, 3_000, 10, id="long", marks=[pytest.mark.soak]),  # 50 consumers with the queue's members
    ],
)
def test_every_promise_is_kept_while_the_server_is_killed(
    server_kind: Kind, tmp_path: Path, fresh: str, is_real: bool, each: int, total: int, kills: int
) -> None:
    asyncio.run(asyncio.wait_for(mixed(server_kind, tmp_path, fresh, is_real, each, total, kills), 850))


async def mixed(
    server_kind: Kind, tmp_path: Path, fresh: str, is_real: bool, each: int, total: int, kills: int
) -> None:
    with server_kind(tmp_path) as server:
        options = {"reconnect_wait": 0.02, "reconnect_max_wait": 0.2}
        async with connect(server.url, **options) as nc, connect(server.url, **options) as writer:  # type: ignore[arg-type]
            stream = await nc.jetstream().create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
            mix = Mix(nc, fresh, total)
            tasks: list[asyncio.Task[None]] = []
            kinds = (("fetch", mix.pull_by_fetch), ("flow", mix.pull_by_messages), ("push", mix.push))
            for n in range(each):
                for name, read in kinds:
                    tally = Tally(f"{name}{n}")
                    target = {"deliver_subject": f"to.{tally.name}"} if name == "push" else {}
                    await stream.create_consumer(durable(tally.name, **target))
                    mix.tallies.append(tally)
                    tasks.append(asyncio.create_task(read(tally)))
                tally = Tally(f"ordered{n}")
                mix.ordered.append(tally)
                tasks.append(asyncio.create_task(mix.ordered_read(tally)))
            shared = Tally("shared")
            await stream.create_consumer(durable("shared"))
            mix.tallies.append(shared)
            tasks += [asyncio.create_task(mix.pull_by_fetch(shared)) for _ in range(2)]  # two workers of one consumer
            killer = asyncio.create_task(kill_now_and_then(server, kills, random.Random(total)))
            for n in range(total):
                await publish_surely(writer.jetstream(), fresh, n)
                await asyncio.sleep(0.005)
            await killer
            try:
                async with asyncio.timeout(300 if total > 1_000 else 45):
                    await asyncio.wait(tasks)
            except TimeoutError:
                mix.is_stopped = True
            await asyncio.gather(*tasks)
            expected = set(range(1, (await stream.info()).state.last_seq + 1))
            assert len(expected) == total
            for tally in mix.tallies:
                assert set(tally.seen) == expected, tally.name  # nothing was lost
                assert tally.acked | tally.unsure == expected, tally.name
                assert tally.deliveries <= 20, tally.name
                info = await (await stream.consumer(tally.name)).info()
                assert info.num_pending == 0, tally.name
                if not is_real:  # nats-server confirms acks before they are on the disk: a kill takes some back
                    assert info.num_ack_pending <= len(tally.unsure - tally.acked), tally.name
            for tally in mix.ordered:
                assert tally.order == sorted(expected), tally.name  # each once, in order


async def kill_now_and_then(server: OurProcess | RealProcess, kills: int, choice: random.Random) -> None:
    for _ in range(kills):
        await asyncio.sleep(choice.uniform(0.3, 0.9))
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(choice.uniform(0.0, 0.2))
        await asyncio.to_thread(server.start)


async def publish_surely(js: JetStream, name: str, number: int) -> None:
    """Until it is acknowledged; the message id keeps it from being stored twice."""
    while True:
        try:
            await js.publish(f"{name}.{number % 7}", b"%d" % number, msg_id=f"m{number}", timeout=2)
            return
        except Error:
            await asyncio.sleep(0.05)
