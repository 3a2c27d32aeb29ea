"""Rows of the two documents on consumers that need a whole test of their own, on our server and on the real one."""

# ruff: noqa: E501 -- a table of configurations

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from typing import Any

import pytest

from slipstream import ConsumerConfig, connect
from slipstream.client._async.client import Client
from slipstream.client._async.subscription import Subscription
from slipstream.errors import ApiError
from slipstream.jetstream._async.consumer import Consumer
from tests.conformance.test_delivery import three_deliveries
from tests.conformance.test_pull import World, numbers, world

NEXT = "$JS.API.CONSUMER.MSG.NEXT"


async def waiting(consumer: Consumer, count: int) -> None:
    """Until so many requests wait."""
    deadline = time.monotonic() + 10
    while (await consumer.info()).num_waiting != count:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


@pytest.mark.spec("PS-04")
async def test_a_request_lingers_until_it_is_filled_expires_or_loses_its_listener(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh) as here, connect(any_server) as other:
        consumer = await here.stream.create_consumer("dur")
        subject = f"{NEXT}.{fresh}.dur"

        async def ask(nc: Client, inbox: str, **body: Any) -> Subscription:
            subscription = await nc.subscribe(inbox)
            await nc.publish(subject, json.dumps(body).encode(), reply=inbox)
            await nc.flush()
            return subscription

        filled = await ask(here.nc, f"_INBOX.{fresh}.filled", batch=2)
        await waiting(consumer, 1)
        await here.js.publish(f"{fresh}.0", b"0")
        await waiting(consumer, 1)  # one of two
        await here.js.publish(f"{fresh}.1", b"1")
        await waiting(consumer, 0)
        assert [(await filled.next(timeout=5)).data for _ in range(2)] == [b"0", b"1"]

        expired = await ask(here.nc, f"_INBOX.{fresh}.expired", batch=1, expires=3_000_000_000)
        await waiting(consumer, 1)
        status = (await expired.next(timeout=20)).status
        assert status is not None
        assert (status.code, status.description) == (408, "Request Timeout")
        await waiting(consumer, 0)

        given_up = await ask(here.nc, f"_INBOX.{fresh}.given", batch=1)
        await waiting(consumer, 1)
        await given_up.unsubscribe()
        await here.nc.flush()
        await waiting(consumer, 0)

        await ask(other, f"_INBOX.{fresh}.other", batch=1)
        await waiting(consumer, 1)
        await other.close()
        await waiting(consumer, 0)
        await here.js.publish(f"{fresh}.2", b"2")
        assert numbers(await consumer.fetch(1)) == [2]  # nobody took it with them


@pytest.mark.spec("SW-02")
async def test_every_field_of_the_configuration_is_kept_and_what_makes_no_sense_is_refused(
    any_server: str, fresh: str
) -> None:
    start = 1_600_000_000 * 10**9
    push = ConsumerConfig(
        durable_name="push", description="all of it", deliver_subject=f"out.{fresh}", deliver_group="g",
        ack_policy="explicit", ack_wait=timedelta(seconds=7), max_deliver=5, filter_subject=f"{fresh}.1",
        deliver_policy="by_start_time", opt_start_time=start, max_ack_pending=33, rate_limit_bps=8000,
        replay_policy="original", sample_freq="25%",
    )  # fmt: skip
    flow = ConsumerConfig(
        durable_name="flow", deliver_subject=f"flow.{fresh}", ack_policy="none", flow_control=True,
        idle_heartbeat=timedelta(seconds=3), deliver_policy="by_start_sequence", opt_start_seq=2,
    )  # fmt: skip
    pull = ConsumerConfig(durable_name="pull", max_waiting=9, ack_policy="all")
    async with world(any_server, fresh, 3) as here:
        for config in (push, flow, pull):
            await here.stream.create_consumer(config)
            kept = (await (await here.stream.consumer(config.durable_name)).info()).config.to_dict()
            assert config.to_dict().items() <= (kept | {"num_replicas": 0}).items()
        refusals = [
            (ConsumerConfig(durable_name="x", deliver_subject="d", max_waiting=5), 10080),
            (ConsumerConfig(durable_name="x", opt_start_seq=5), 10094),
            (ConsumerConfig(durable_name="x", deliver_policy="by_start_time", opt_start_time=start, opt_start_seq=5), 10094),
            (ConsumerConfig(durable_name="x", opt_start_time=start), 10094),
            (ConsumerConfig(durable_name="x", deliver_policy="by_start_sequence", opt_start_seq=1, opt_start_time=start), 10094),
        ]  # fmt: skip
        for config, code in refusals:
            with pytest.raises(ApiError) as caught:
                await here.stream.create_consumer(config)
            assert caught.value.err_code == code


async def begins(here: World, name: str, **config: Any) -> list[int]:
    """What a consumer that begins there gets at first."""
    consumer = await here.stream.create_consumer(ConsumerConfig(durable_name=name, **config))
    count = (await consumer.info()).num_pending
    return numbers(await consumer.fetch(count)) if count else []


@pytest.mark.spec("SW-18")
async def test_redelivery_pace_and_beginnings(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh, 3) as here:
        await asyncio.sleep(0.3)
        later = time.time_ns()
        await asyncio.sleep(0.1)
        for n in (0, 3):
            await here.js.publish(f"{fresh}.{n}", b"%d" % n)  # sequences 4 and 5

        # Where a consumer begins.
        every = f"{fresh}.*"
        assert await begins(here, "all") == [0, 1, 2, 0, 3]
        assert await begins(here, "seq", deliver_policy="by_start_sequence", opt_start_seq=3) == [2, 0, 3]
        assert await begins(here, "time", deliver_policy="by_start_time", opt_start_time=later) == [0, 3]
        assert await begins(here, "last", deliver_policy="last") == [3]
        assert await begins(here, "new", deliver_policy="new") == []
        assert await begins(here, "each", deliver_policy="last_per_subject", filter_subject=every) == [1, 2, 0, 3]

        await waits_and_gives_up(here)
        await keeps_to_its_pace(here, fresh)


async def waits_and_gives_up(here: World) -> None:
    """Ack wait, max deliver, backoff, max ack pending, samples."""
    metrics = await here.nc.subscribe(f"$JS.EVENT.METRIC.CONSUMER.ACK.{here.stream.name}.>")
    advisories = await here.nc.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{here.stream.name}.>")
    config = ConsumerConfig(
        durable_name="wait", ack_wait=timedelta(seconds=3), max_deliver=2, max_ack_pending=1, sample_freq="100"
    )
    consumer = await here.stream.create_consumer(config)
    begun = time.monotonic()
    (first,) = await consumer.fetch(1)
    (again,) = await consumer.fetch(1, timeout=20)
    assert (first.seq, again.seq, again.num_delivered) == (1, 1, 2)
    assert time.monotonic() - begun > 2.9
    (second,) = await consumer.fetch(1, timeout=20)  # the first is given up, and makes room
    assert second.seq == 2
    body = json.loads((await advisories.next(timeout=5)).data)
    assert (body["stream_seq"], body["deliveries"]) == (1, 2)
    await second.ack_sync()
    body = json.loads((await metrics.next(timeout=5)).data)
    assert (body["stream_seq"], body["deliveries"]) == (2, 1)

    async def with_backoff(name: str) -> Consumer:
        backoff = (timedelta(seconds=0.5), timedelta(seconds=3))
        config = ConsumerConfig(durable_name=name, backoff=backoff, max_deliver=4, max_ack_pending=1)
        return await here.stream.create_consumer(config)

    times = await three_deliveries(with_backoff)
    assert times[1] < 2.9 < 3.0 < times[2]


async def keeps_to_its_pace(here: World, fresh: str) -> None:
    """A rate limit, and the original speed."""
    config = ConsumerConfig(replay_policy="original", ack_policy="none")
    begun = time.monotonic()
    async with await here.js.subscribe(f"{fresh}.>", config=config) as replay:
        assert numbers([await replay.next(timeout=5) for _ in range(5)]) == [0, 1, 2, 0, 3]
        assert time.monotonic() - begun > 0.3
    info = await here.stream.info()
    await here.js.update_stream(info.config.replace(max_msg_size=1000))
    for _ in range(4):
        await here.js.publish(f"{fresh}.slow", b"x" * 900)
    config = ConsumerConfig(rate_limit_bps=8 * 4000, ack_policy="none", filter_subject=f"{fresh}.slow")
    begun = time.monotonic()
    async with await here.js.subscribe(f"{fresh}.slow", config=config) as limited:
        for _ in range(4):
            await limited.next(timeout=5)
        assert time.monotonic() - begun > 0.4
