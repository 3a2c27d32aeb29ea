"""Prefetched messages in the worst cases: none is lost, none is handed over when its `ack_wait` may be over."""

from __future__ import annotations

import time
from collections import Counter
from datetime import timedelta

import pytest

from slipstream import connect
from slipstream.api import ConsumerConfig
from slipstream.errors import UsageError
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.jetstream._async.pull_loop import Messages
from tests._async.concurrency import sleep
from tests.conformance._async.test_workers import ACK_WAIT, worker


@pytest.mark.parametrize(
    ("config", "pause"),
    [
        # The server would not redeliver what the client drops; with "all", the next ack would be that of it, too.
        pytest.param({"max_deliver": 1}, 1.3, id="last delivery"),
        pytest.param({"ack_policy": "all"}, 0.95, id="ack policy all"),
        pytest.param({"backoff": (timedelta(seconds=ACK_WAIT),), "max_deliver": 2}, 1.3, id="back-off"),
    ],
)
@pytest.mark.steady
async def test_nothing_is_lost_behind_a_slow_message(
    any_server: str, fresh: str, config: dict[str, object], pause: float
) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, 400, **config)
        handled: set[int] = set()
        async for message in consumer.messages(idle_timeout=3 * ACK_WAIT):
            handled.add(message.seq)
            if message.seq == 200:
                await message.ack_sync()
                await sleep(pause * ACK_WAIT)
            else:
                await message.ack()
        assert handled == set(range(1, 401))


async def test_few_pull_requests_wait_at_the_server(any_server: str, fresh: str) -> None:
    """One request for each message would exhaust the consumer's max_waiting: servers ignore what is too much."""
    async with connect(any_server) as nc:
        js = nc.jetstream()
        consumer = await worker(js, fresh, 1, ack_wait=timedelta(seconds=4))
        async for message in consumer.messages(idle_timeout=10):
            await sleep(0.02)  # so that the window has about twenty messages
            await message.ack_sync()
            assert (await consumer.info()).num_waiting <= 1  # they only overlap where the server has more
            if message.seq == 40:
                break
            await js.publish(f"{fresh}.job", b"next")


@pytest.mark.steady
async def test_where_two_pull_requests_may_wait_the_loop_goes_on(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, 80, max_waiting=2)
        handled = []
        async for message in consumer.messages(max_messages=10, heartbeat=0, idle_timeout=1):
            handled.append(message.seq)
            await message.ack_sync()
        assert handled == list(range(1, 81))


async def test_a_loop_has_one_reader_at_a_time(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        consumer = await worker(js, fresh, 0, max_deliver=1)
        messages = consumer.messages(idle_timeout=10)
        seen: list[int] = []
        reader = nc.spawn(lambda: _read_two(messages, seen), "reader")
        while not (await consumer.info()).num_waiting:
            await sleep(0.01)
        with pytest.raises(UsageError, match="one reader at a time"):
            await messages.__anext__()
        for _ in range(2):
            await js.publish(f"{fresh}.job", b"next")
        assert await reader.join(10)
        assert seen == [1, 2]  # the first reader goes on


async def _read_two(messages: Messages, seen: list[int]) -> None:
    async for message in messages:
        seen.append(message.seq)
        await message.ack()
        if len(seen) == 2:
            break


@pytest.mark.steady
async def test_handlers_that_never_wait_do_not_keep_acks_and_renewals_from_being_sent(
    any_server: str, fresh: str
) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, 200)
        handled: Counter[int] = Counter()
        slow = 6
        async for message in consumer.messages(idle_timeout=2 * ACK_WAIT):
            handled[message.seq] += 1
            if message.seq > 100 and slow:
                slow -= 1
                time.sleep(ACK_WAIT / 4)
            await message.ack()
        assert handled == Counter(range(1, 201))


@pytest.mark.steady
async def test_leftovers_of_a_loop_keep_their_age(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        ack_wait = 2.0
        consumer = await worker(nc.jetstream(), fresh, 30, ack_wait=timedelta(seconds=ack_wait))
        handled: Counter[int] = Counter()
        async for message in consumer.messages():
            handled[message.seq] += 1
            await message.ack_sync()
            if message.seq == 10:
                break
        await sleep(0.15 * ack_wait)
        messages = consumer.messages(idle_timeout=1.5 * ack_wait)
        async for message in messages:
            handled[message.seq] += 1
            await message.ack_sync()
            if message.seq == 11:
                await sleep(0.88 * ack_wait)
        assert handled == Counter(range(1, 31))
        assert messages.stats.messages == 30


@pytest.mark.steady
async def test_a_fetch_that_waits_for_the_rest_of_its_batch_keeps_what_has_arrived(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        consumer = await worker(js, fresh, 0, ack_wait=timedelta(seconds=0.5))
        publisher = nc.spawn(lambda: _publish_late(js, fresh), "publisher")
        messages = await consumer.fetch(2, timeout=2)
        await publisher.join(5)
        assert [(message.seq, message.num_delivered) for message in messages] == [(1, 1)]
        await messages[0].ack_sync()
        assert await consumer.fetch(1, timeout=1) == []


async def _publish_late(js: JetStream, name: str) -> None:
    await sleep(0.2)
    await js.publish(f"{name}.job", b"alone")


async def test_an_edited_ack_wait_is_noticed(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        consumer = await worker(js, fresh, 1, ack_wait=timedelta(seconds=30))
        edited = ConsumerConfig(durable_name="worker", ack_wait=timedelta(seconds=ACK_WAIT))
        await js.stream(fresh).create_or_update_consumer(edited)
        deadline = time.monotonic() + 20
        async for message in consumer.messages(idle_timeout=10):
            info = consumer.cached_info
            if info is not None and info.config.ack_wait == timedelta(seconds=ACK_WAIT):
                break
            assert time.monotonic() < deadline
            await message.nak(0.2)
        else:
            pytest.fail("the message was not redelivered")


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("jobs", "seconds"),
    [
        pytest.param(500, 0.1, id="500 of 100 ms"),
        pytest.param(2_000, 0.02, id="2000 of 20 ms"),
        pytest.param(40, 3.0, id="40 of 3 s"),
        pytest.param(4, 20.0, id="4 of 20 s"),
        pytest.param(20_000, 0.001, id="20000 of 1 ms"),
    ],
)
async def test_with_all_defaults_each_job_is_handled_once(
    any_server: str, fresh: str, jobs: int, seconds: float
) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await worker(js, fresh, jobs)
        consumer = await js.stream(fresh).create_consumer(ConsumerConfig(durable_name="defaults"))
        handled: Counter[int] = Counter()
        async for message in consumer.messages(idle_timeout=5):
            handled[message.seq] += 1
            await sleep(seconds)
            await message.ack()
        assert handled == Counter(range(1, jobs + 1))
        assert (await consumer.info()).num_redelivered == 0
