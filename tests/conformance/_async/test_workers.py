"""Workers: each job is handled once, a long handler keeps its message, failures and ends are loud."""

from __future__ import annotations

import logging
import time
from collections import Counter
from datetime import timedelta

import pytest

from slipstream import connect
from slipstream.api import ConsumerConfig, StreamConfig
from slipstream.errors import Error
from slipstream.jetstream._async.consumer import Consumer
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.jetstream._async.message import JsMessage
from tests._async.concurrency import sleep

ACK_WAIT = 1.0


async def worker(js: JetStream, name: str, jobs: int, **config: object) -> Consumer:
    """A consumer of a stream with so many jobs, whose `ack_wait` is short."""
    stream = await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.>",)))
    async with js.publisher() as publisher:
        for job in range(jobs):
            await publisher.publish(f"{name}.job", b"%d" % job)
    settings = {"durable_name": "worker", "ack_wait": timedelta(seconds=ACK_WAIT)} | config
    return await stream.create_consumer(ConsumerConfig(**settings))  # type: ignore[arg-type]  # names of its fields


@pytest.mark.parametrize(
    ("jobs", "seconds"),
    [
        pytest.param(30, 0.1, id="more than ack_wait in all"),
        pytest.param(4, 0.6, id="each most of ack_wait"),
        pytest.param(1_500, 0.001, id="many short ones"),
    ],
)
@pytest.mark.steady
async def test_each_job_is_handled_once(any_server: str, fresh: str, jobs: int, seconds: float) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, jobs)
        handled: Counter[int] = Counter()
        messages = consumer.messages(idle_timeout=1.5 * ACK_WAIT)
        async for message in messages:
            await sleep(seconds)
            await message.ack_sync()
            handled[message.seq] += 1
        assert handled == Counter(range(1, jobs + 1))
        assert messages.stats.messages == jobs
        assert messages.stats.expired == 0


@pytest.mark.steady
async def test_a_message_that_waited_too_long_is_left_to_be_redelivered(
    any_server: str, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Many quick ones make the loop prefetch; then one takes longer than the others may wait."""
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, 400)
        handled: Counter[int] = Counter()
        messages = consumer.messages(idle_timeout=3 * ACK_WAIT)
        async for message in messages:
            if message.seq == 200:
                await message.ack_sync()
                await sleep(1.3 * ACK_WAIT)
            else:
                await message.ack()
            handled[message.seq] += 1
        assert handled == Counter(range(1, 401))
        assert messages.stats.expired > 0
        assert f"consumer 'worker' of stream '{fresh}'" in caplog.text
        assert "will be redelivered" in caplog.text
        assert caplog.text.count("will be redelivered") == 1


@pytest.mark.steady
async def test_a_message_in_the_hands_of_a_callback_is_kept_in_progress(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, 2)
        deliveries: list[tuple[int, int]] = []

        async def handle(message: JsMessage) -> None:
            deliveries.append((message.seq, message.num_delivered))
            await sleep(2.5 * ACK_WAIT)
            await message.ack_sync()

        async with await consumer.consume(handle) as consuming:
            deadline = time.monotonic() + 30
            while (await consumer.info()).ack_floor.stream_seq < 2:
                assert time.monotonic() < deadline
                await sleep(0.1)
        assert deliveries == [(1, 1), (2, 1)]
        assert consuming.is_done


@pytest.mark.parametrize("is_watched", [True, False], ids=["with on_event", "without"])
@pytest.mark.steady
async def test_the_exception_of_a_callback_is_logged_with_all_that_helps(
    any_server: str, fresh: str, caplog: pytest.LogCaptureFixture, is_watched: bool
) -> None:
    events: list[object] = []
    async with connect(any_server, on_event=events.append if is_watched else None) as nc:
        consumer = await worker(nc.jetstream(), fresh, 1)

        def fail(_: JsMessage) -> None:
            raise KeyError("order_id")

        async with await consumer.consume(fail):
            deadline = time.monotonic() + 10
            while "order_id" not in caplog.text:
                assert time.monotonic() < deadline
                await sleep(0.02)
    records = [record for record in caplog.records if record.levelno == logging.ERROR]
    first = records[0]
    expected = f"the callback of consumer 'worker' for '{fresh}.job' (stream '{fresh}', sequence 1, delivery 1) failed"
    assert first.getMessage() == expected
    assert first.exc_info is not None
    assert first.exc_info[0] is KeyError
    assert "in fail" in caplog.text  # the traceback
    assert bool(events) == is_watched


async def test_the_end_of_a_consumer_ends_its_worker_loudly(
    any_server: str, fresh: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, 1)
        consuming = await consumer.consume(lambda _: None)
        await consumer.delete()
        with pytest.raises(Error, match=r"Consumer Deleted|does not exist"):
            await consuming.wait(timeout=30)
        assert consuming.is_done
        expected = f"consume() of consumer 'worker' has ended: consumer 'worker' of stream '{fresh}' was deleted"
        assert expected in caplog.text
        with pytest.raises(Error):
            await consuming.stop()


async def test_a_worker_that_is_stopped_ends_without_an_error(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        consumer = await worker(nc.jetstream(), fresh, 1)
        consuming = await consumer.consume(lambda _: None)
        await consuming.stop()
        await consuming.wait(timeout=5)
