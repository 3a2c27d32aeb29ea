"""A program that stood still: what the server has sent meanwhile is over, and is not handed over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from slipstream import connect, connect_blocking
from slipstream.jetstream._async.consumer import Consumer
from slipstream.jetstream._async.message import JsMessage
from tests.conformance._async.test_workers import worker

ACK_WAIT = 0.5


async def by_next(consumer: Consumer) -> JsMessage:
    return await consumer.next(timeout=20)


async def by_fetch(consumer: Consumer) -> JsMessage:
    return (await consumer.fetch(2, timeout=3))[0]


async def by_messages(consumer: Consumer) -> JsMessage:
    return await anext(consumer.messages())


async def by_chunks(consumer: Consumer) -> JsMessage:
    return (await anext(consumer.chunks()))[0]


READERS = [by_next, by_fetch, by_messages, by_chunks]


@pytest.mark.parametrize("size", [10, 900_000], ids=["small", "larger than a read"])
@pytest.mark.parametrize("read", READERS, ids=[read.__name__ for read in READERS])
@pytest.mark.steady
async def test_a_message_that_was_sent_while_the_event_loop_stood_still_is_left_to_be_redelivered(
    any_server: str, fresh: str, read: Callable[[Consumer], Awaitable[JsMessage]], size: int
) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, 0, ack_wait=timedelta(seconds=ACK_WAIT))
        reader = asyncio.ensure_future(read(consumer))
        async with asyncio.timeout(10):
            while not (await consumer.info()).num_waiting:
                await asyncio.sleep(0.01)
        with connect_blocking(any_server) as other:
            other.jetstream().publish(f"{fresh}.job", b"x" * size)
            time.sleep(2 * ACK_WAIT)
        async with asyncio.timeout(20):
            message = await reader
        assert message.num_delivered > 1
        await message.ack_sync()


async def test_what_a_closed_loop_leaves_is_for_a_loop_that_waits_already(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        consumer = await worker(js, fresh, 40, ack_wait=timedelta(seconds=20))
        first, deliveries = consumer.messages(), dict[int, int]()
        async for message in first:
            deliveries[message.seq] = message.num_delivered
            await message.ack_sync()
            if not (await consumer.info()).num_pending:
                break
        assert len(deliveries) < 40  # the others wait in the first loop

        async def second() -> None:
            async for message in consumer.messages():
                deliveries[message.seq] = message.num_delivered
                await message.ack_sync()
                if len(deliveries) == 40:
                    return

        reader = asyncio.ensure_future(second())
        async with asyncio.timeout(10):
            while (await consumer.info()).num_waiting < 2:
                await asyncio.sleep(0.01)
        await first.aclose()
        async with asyncio.timeout(15):
            await reader
        assert deliveries == dict.fromkeys(range(1, 41), 1)
