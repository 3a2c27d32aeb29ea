"""Prefetching over links that are slow, full or lossy: no message is lost, late or handled twice because of them."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from datetime import timedelta

import pytest

from slipstream import connect
from slipstream.jetstream._async.consumer import Consumer
from tests.conformance._async.test_workers import worker
from tests.proxy import Proxy, proxy_to


async def read(consumer: Consumer, count: int, **options: object) -> Counter[int]:
    handled: Counter[int] = Counter()
    async with asyncio.timeout(15):
        async for message in consumer.messages(**options):  # type: ignore[arg-type]  # names of its arguments
            handled[message.seq] += 1
            await message.ack()
            if len(handled) == count:
                break
    return handled


@pytest.mark.parametrize("ack_wait", [1.0, 2.0])
@pytest.mark.steady
async def test_a_distant_server_is_read_in_few_round_trips(any_server: str, fresh: str, ack_wait: float) -> None:
    """The round trip is longer than a fifth of the shorter `ack_wait`: nothing arrives any younger."""
    async with connect(any_server) as direct, proxy_to(any_server) as proxy, connect(proxy.url) as nc:
        await worker(direct.jetstream(), fresh, 200, ack_wait=timedelta(seconds=ack_wait))
        proxy.latency = 0.25
        consumer = await nc.jetstream().stream(fresh).consumer("worker")
        assert await read(consumer, 200) == Counter(range(1, 201))


@pytest.mark.steady
async def test_a_renewal_that_is_confirmed_late_is_not_repeated_for_each_message(any_server: str, fresh: str) -> None:
    async with connect(any_server) as direct, proxy_to(any_server) as proxy, connect(proxy.url) as nc:
        await worker(direct.jetstream(), fresh, 31, ack_wait=timedelta(seconds=2))
        consumer = await nc.jetstream().stream(fresh).consumer("worker")
        messages = consumer.messages(max_messages=31)
        async with asyncio.timeout(15):
            async for message in messages:
                await message.ack()
                if message.seq == 10:
                    proxy.latency = 0.5  # of a link that is full for a while
                    await asyncio.sleep(0.6)
                if message.seq == 31:
                    break
        assert messages.stats.messages == 31
        assert messages.stats.expired == 0
        assert messages.stats.renewed <= 2 * 21


async def test_large_messages_are_requested_by_their_size(any_server: str, fresh: str) -> None:
    """A server cuts a client off that has too much to read; what is lost then may be the last delivery."""
    async with connect(any_server) as direct, proxy_to(any_server) as proxy, connect(proxy.url) as nc:
        consumer = await worker(direct.jetstream(), fresh, 0, max_deliver=1)
        async with direct.jetstream().publisher() as publisher:
            for _ in range(60):
                await publisher.publish(f"{fresh}.job", bytes(400_000))
        consumer = await nc.jetstream().stream(fresh).consumer("worker")
        assert await read(consumer, 60) == Counter(range(1, 61))
        batches = [int(batch) for batch in re.findall(rb'"batch":(\d+)', proxy.sent)]
        assert max(batches) * 400_000 <= 8 * 1024 * 1024


async def test_without_heartbeats_a_lost_request_is_noticed_when_it_has_expired(any_server: str, fresh: str) -> None:
    async with connect(any_server) as direct, proxy_to(any_server) as proxy, connect(proxy.url) as nc:
        js = direct.jetstream()
        await worker(js, fresh, 0)
        consumer = await nc.jetstream().stream(fresh).consumer("worker")
        lost = asyncio.create_task(lose_the_end_of_a_request(proxy))
        reader = asyncio.create_task(read(consumer, 1, expires=1, heartbeat=0))
        await asyncio.wait_for(lost, 10)
        await js.publish(f"{fresh}.job", b"behind it")
        assert await reader == Counter([1])


async def lose_the_end_of_a_request(proxy: Proxy) -> None:
    """The client does not learn that a request has expired, as if the server had never seen it."""
    lost = asyncio.Event()

    def lose(frame: bytes) -> list[bytes]:
        if b"408 Request Timeout" not in frame:
            return [frame]
        lost.set()
        return []

    proxy.fault = lose
    await lost.wait()
    proxy.fault = lambda frame: [frame]
