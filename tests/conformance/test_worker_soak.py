"""A worker under faults: handlers of random length that fail now and then, while its connection is cut.

Every message is handled or stored as a dead letter; none is handed over when its delivery is over, nor after the server
has confirmed its ack.
"""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from slipstream import Attempts, ConsumerConfig, DeadLetter, JsMessage, StreamConfig, connect
from slipstream.jetstream._async import failures
from tests.proxy import proxy_to

ACK_WAIT = 2.0
POISON = 17  # each message whose number is a multiple of it fails always


class Handler:
    """Counts deliveries, and what the server has confirmed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.deliveries: dict[int, int] = {}
        self.handled: set[int] = set()
        self.confirmed: set[int] = set()
        self.wrong: list[str] = []

    async def handle(self, message: JsMessage) -> None:
        seq, delivery = message.seq, message.num_delivered
        if seq in self.confirmed:
            self.wrong.append(f"{seq} is delivered after its ack was confirmed")
        if delivery <= self.deliveries.get(seq, 0):
            self.wrong.append(f"delivery {delivery} of {seq} is handled after delivery {self.deliveries[seq]}")
        self.deliveries[seq] = delivery
        chance = self.random.random()
        await asyncio.sleep(self.random.uniform(0, 3 * ACK_WAIT) if chance < 0.005 else 0.03 * chance)
        if seq % POISON == 0 or chance > 0.95:
            raise ValueError(f"message {seq} fails")
        self.handled.add(seq)
        await message.ack_sync()
        self.confirmed.add(seq)


@pytest.mark.parametrize("concurrency", [1, 10])
@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(2.0, id="short"),
        pytest.param(600.0, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(1500)]),
    ],
)
def test_a_worker_loses_nothing_while_its_connection_is_cut(
    any_server: str, fresh: str, seconds: float, concurrency: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "DELAYS", (0.1,))  # after dead letters that could not be stored: minutes otherwise
    asyncio.run(asyncio.wait_for(run(any_server, fresh, seconds, concurrency), seconds * 2 + 120))


async def run(url: str, name: str, seconds: float, concurrency: int) -> None:
    loop = asyncio.get_running_loop()
    handler = Handler(seed=concurrency)
    async with connect(url) as direct, proxy_to(url) as proxy, connect(proxy.url, reconnect_wait=0.05) as nc:
        js = direct.jetstream()
        await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.>",)))
        dead = await js.create_stream(StreamConfig(name=f"{name}dead", subjects=(f"dead.{name}",)))
        config = ConsumerConfig(durable_name="worker", ack_wait=timedelta(seconds=ACK_WAIT))
        consumer = await nc.jetstream().stream(name).create_consumer(config)
        policy = Attempts(4, then=DeadLetter(f"dead.{name}"), delays=(0.05, 0.1))
        consuming = await consumer.consume(handler.handle, concurrency=concurrency, on_error=policy)
        published, end = 0, loop.time() + seconds
        while loop.time() < end:
            backlog = published - consuming.stats.handled - consuming.stats.dead_lettered
            for _ in range(20 * concurrency if backlog < 40 * concurrency else 0):
                published += 1
                await js.publish(f"{name}.{published % 7}", b"%d" % published)
            await asyncio.sleep(handler.random.uniform(0.2, 0.6))
            proxy.cut()
        watched = await js.stream(name).consumer("worker")
        async with asyncio.timeout(seconds + 60):
            while (info := await watched.info()).num_pending or info.num_ack_pending:
                await asyncio.sleep(0.2)
        await consuming.stop()
        reader = await dead.create_consumer(ConsumerConfig(durable_name="reader", ack_policy="none"))
        letters: set[int] = set()
        while (await reader.info()).num_pending:
            letters |= {int(letter.headers["Dead-Letter-Sequence"]) for letter in await reader.fetch(100)}
    assert handler.wrong == []
    assert handler.handled | letters == set(range(1, published + 1))
    assert letters >= set(range(POISON, published + 1, POISON))
