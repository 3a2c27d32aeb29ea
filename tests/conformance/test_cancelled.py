"""Cancelled at every point where a call can wait: no message that the server delivered is lost, and none is acked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

import pytest

from slipstream import ConsumerConfig, connect
from slipstream.errors import RequestTimeoutError
from slipstream.jetstream._async.consumer import Consumer
from slipstream.jetstream._async.message import JsMessage
from tests.conformance.test_pull import PATIENT, check_each_once, fetch_rest, world
from tests.proxy import proxy_to

Read = Callable[[Consumer], Awaitable[list[JsMessage]]]


async def by_fetch(consumer: Consumer) -> list[JsMessage]:
    return await consumer.fetch(7, timeout=5)


async def by_single_fetch(consumer: Consumer) -> list[JsMessage]:
    return await consumer.fetch(1, timeout=5)


async def by_next(consumer: Consumer) -> list[JsMessage]:
    return [await consumer.next(timeout=5)]


async def by_messages(consumer: Consumer) -> list[JsMessage]:
    async for message in consumer.messages(max_messages=5, idle_timeout=5):
        return [message]
    return []


async def by_chunks(consumer: Consumer) -> list[JsMessage]:
    async for chunk in consumer.chunks(max_messages=5, idle_timeout=5):
        return chunk
    return []


class Stepper:
    """Lets a coroutine run until it waits for the n-th time, and cancels it there."""

    def __init__(self, work: Awaitable[list[JsMessage]], stop_at: int) -> None:
        self._work = work.__await__()
        self._left = stop_at

    def __await__(self):  # type: ignore[no-untyped-def]
        step: object = None
        while True:
            try:
                awaited = self._work.send(step)
            except StopIteration as done:
                return done.value
            self._left -= 1
            if self._left < 0:
                if awaited is not None:
                    awaited._asyncio_future_blocking = False
                    awaited.cancel()
                self._work.throw(asyncio.CancelledError())
                return []
            step = yield awaited


@pytest.mark.spec("PS-12")
@pytest.mark.parametrize("read", [by_fetch, by_single_fetch, by_next, by_messages, by_chunks])
async def test_cancelled_at_every_await_nothing_is_lost_or_acked(
    any_server: str, fresh: str, read: Read, is_real: bool
) -> None:
    async with (
        world(any_server, fresh, 300) as (_, _, stream),
        proxy_to(any_server) as proxy,
        connect(proxy.url) as nc,
    ):
        await stream.create_consumer(PATIENT)
        consumer = await nc.jetstream().stream(fresh).consumer("dur")
        proxy.delay = 0.0003  # so that calls are given up while their messages are on the way
        got: list[JsMessage] = []
        points = 0
        for stop_at in range(12):
            for _ in range(3):
                task = asyncio.ensure_future(run(Stepper(read(consumer), stop_at)))
                try:
                    got += await task
                except asyncio.CancelledError:
                    points += 1
        # Delays in real time as well: the answer arrives before, while, and after the call is given up.
        for step in range(40):
            task = asyncio.ensure_future(run(read(consumer)))
            await asyncio.sleep(step * 0.0002)
            task.cancel()
            try:
                got += await task
            except asyncio.CancelledError:
                points += 1
        assert points >= 3  # how many waits a call has depends on what has arrived by then
        proxy.delay = 0.0
        await fetch_rest(consumer, got, 300)
        await check_each_once(consumer, got, is_real)
        info = await consumer.info()
        assert (info.num_ack_pending, info.ack_floor.stream_seq) == (300, 0)


async def run(work: Awaitable[list[JsMessage]]) -> list[JsMessage]:
    return await work


async def test_a_timeout_that_strikes_while_messages_arrive_loses_none(
    any_server: str, fresh: str, is_real: bool
) -> None:
    async with world(any_server, fresh) as (_, _, stream), connect(any_server) as other:
        consumer = await stream.create_consumer(PATIENT)
        writer = other.jetstream()

        async def publish() -> None:
            for n in range(200):
                await writer.publish(f"{fresh}.a", b"%d" % n)
                await asyncio.sleep(0.003)

        task = asyncio.create_task(publish())
        got: list[JsMessage] = []
        timeout = 0.001
        while len(got) < 200:
            timeout = timeout % 0.02 + 0.001
            with suppress(RequestTimeoutError):
                got += await consumer.fetch(3, timeout=timeout)
                got.append(await consumer.next(timeout=timeout))
            if task.done() and not task.cancelled():
                timeout = 1.0
        await task
        await check_each_once(consumer, got, is_real)


async def test_messages_kept_beyond_ack_wait_are_left_to_redelivery(any_server: str, fresh: str) -> None:
    """The server redelivers it: handed over from here as well, it would be handled twice."""
    async with world(any_server, fresh, 32) as (_, _, stream):
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="dur", ack_wait=timedelta(seconds=2.5)))
        last = 0
        async for message in consumer.messages(max_messages=32):  # as many at once
            await message.ack_sync()  # answered behind all that was sent before
            last = message.seq
            if not (await consumer.info()).num_pending:
                break
        assert last < 32  # the others are here, and wait for the next call
        await asyncio.sleep(2.7)
        seqs: set[int] = set()
        while len(seqs) < 32 - last:
            for message in await consumer.fetch(32, timeout=20):
                assert message.num_delivered >= 2  # more only where this machine was too slow to ack it in time
                await message.ack_sync()
                seqs.add(message.seq)
        assert seqs == set(range(last + 1, 33))
