"""What a consumer's configuration does to delivery, read with our client on our server and on the real one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from slipstream import ConsumerConfig, DeliverPolicy, ReplayPolicy
from slipstream.errors import ApiError
from slipstream.jetstream._async.consumer import Consumer
from tests.conformance.test_pull import fetch_answered, numbers, world


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


async def three_deliveries(create: Callable[[str], Awaitable[Consumer]]) -> list[float]:
    """When each of three deliveries of a message came, with a first pause of half a second and a second of three.

    In seconds since before the first one: what this machine delays only makes them longer. Where it stood still for so
    long that one came too late for the client to hand it over, or for another to be told from it, another consumer
    tries again.
    """
    times: list[float] = []
    counts: list[int] = []
    for attempt in range(10):
        consumer = await create(f"back{attempt}")
        begin = time.monotonic()
        counts.clear()
        times.clear()
        while not counts or counts[-1] < 3:
            counts.append((await consumer.next(timeout=20)).num_delivered)
            times.append(time.monotonic() - begin)
        if counts == [1, 2, 3] and times[1] < 2.9:
            break
    assert counts == [1, 2, 3]
    return times


@pytest.mark.spec("SW-02")
async def test_every_field_of_the_document_and_its_refusals(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh, 3) as (_, _, stream):
        begin = (await stream.info()).state.first_ts
        push = ConsumerConfig(
            durable_name="push",
            description="all of it",
            ack_policy="all",
            ack_wait=seconds(7),
            deliver_group="",
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            deliver_subject=f"{fresh}_to",
            filter_subject=f"{fresh}.1",
            flow_control=True,
            idle_heartbeat=seconds(5),
            max_ack_pending=77,
            max_deliver=9,
            opt_start_seq=2,
            rate_limit_bps=100_000,
            replay_policy=ReplayPolicy.ORIGINAL,
            sample_freq="50",
        )
        pull = ConsumerConfig(
            durable_name="pull",
            deliver_policy=DeliverPolicy.BY_START_TIME,
            opt_start_time=begin,
            max_waiting=11,
        )
        group = ConsumerConfig(durable_name="group", deliver_subject=f"{fresh}_g", deliver_group="q")
        for config in (push, pull, group):
            made = await stream.create_consumer(config)
            found = (await made.info()).config.to_dict()
            wanted = config.to_dict()
            assert {name: found.get(name) for name in wanted if name != "num_replicas"} == {
                name: value for name, value in wanted.items() if name != "num_replicas"
            }
        for wrong in (
            ConsumerConfig(durable_name="w1", deliver_subject=f"{fresh}_w", max_waiting=5),
            ConsumerConfig(durable_name="w2", opt_start_seq=2),
            ConsumerConfig(durable_name="w3", opt_start_time=begin),
            ConsumerConfig(durable_name="w4", opt_start_seq=2, deliver_policy=DeliverPolicy.NEW),
            ConsumerConfig(durable_name="w5", deliver_policy=DeliverPolicy.BY_START_SEQUENCE),
            ConsumerConfig(durable_name="w6", flow_control=True, deliver_subject=f"{fresh}_w"),  # without heartbeats
            ConsumerConfig(durable_name="w7", flow_control=True, idle_heartbeat=seconds(5)),  # of a pull consumer
        ):
            with pytest.raises(ApiError) as caught:
                await stream.create_consumer(wrong)
            assert caught.value.code == 400
            assert caught.value.err_code > 10_000


@pytest.mark.spec("SW-18")
async def test_redelivery_limits_and_starts(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh, 3) as (nc, js, stream):
        loop = asyncio.get_running_loop()

        async def made(name: str, **fields: object) -> Consumer:
            return await stream.create_consumer(ConsumerConfig(durable_name=name).replace(**fields))

        # What is not acknowledged in time comes again, max_deliver times in all.
        wait = await made("wait", ack_wait=seconds(3), max_deliver=2)  # longer than a busy machine stands still
        begin = loop.time()
        assert len(await wait.fetch(3)) == 3
        again = await wait.fetch(3, timeout=20)
        assert loop.time() - begin > 2.9
        assert {message.num_delivered for message in again} == {2}
        assert await fetch_answered(wait, 3) == []
        # With backoff each time after another pause.
        backoff = (seconds(0.5), seconds(3))
        _, second, third = await three_deliveries(
            lambda name: made(name, backoff=backoff, max_deliver=3, filter_subject=f"{fresh}.0")
        )
        assert 0.49 < second < 2.9
        assert third > 3.4
        # No more than so many may be unacknowledged.
        full = await made("full", max_ack_pending=2)
        two = await fetch_answered(full, 3)
        assert numbers(two) == [0, 1]
        assert await fetch_answered(full, 3) == []
        await two[0].ack_sync()
        assert numbers(await fetch_answered(full, 3)) == [2]
        # A share of the acks is reported.
        metrics = await nc.subscribe(f"$JS.EVENT.METRIC.CONSUMER.ACK.{fresh}.sampled")
        await nc.flush()
        sampled = await made("sampled", sample_freq="100")
        await (await sampled.next()).ack()
        event = json.loads((await metrics.next()).data)
        assert (event["stream"], event["consumer"], event["stream_seq"]) == (fresh, "sampled", 1)
        # Where to begin.
        fourth = (await js.publish(f"{fresh}.0", b"3")).seq
        at = (await (await made("t0", deliver_policy="last")).next()).time
        starts: dict[str, tuple[dict[str, object], list[int]]] = {
            "all": ({}, [0, 1, 2, 3]),
            "seq": ({"deliver_policy": "by_start_sequence", "opt_start_seq": 3}, [2, 3]),
            "time": ({"deliver_policy": "by_start_time", "opt_start_time": at}, [3]),
            "last": ({"deliver_policy": "last"}, [3]),
            "each": ({"deliver_policy": "last_per_subject", "filter_subject": f"{fresh}.>"}, [1, 2, 3]),
            "new": ({"deliver_policy": "new"}, []),
        }
        assert fourth == 4
        consumers = [await made(f"start-{name}", **fields) for name, (fields, _) in starts.items()]
        found = await asyncio.gather(*(fetch_answered(consumer, 10) for consumer in consumers))
        assert [numbers(messages) for messages in found] == [expected for _, expected in starts.values()]


@pytest.mark.spec("SW-18")
async def test_messages_are_pushed_at_the_speed_that_was_asked_for(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh) as (_, js, stream):
        loop = asyncio.get_running_loop()
        config = (await stream.info()).config
        await js.update_stream(config.replace(max_msg_size=2_000))  # the burst that a rate limit lets through
        for n in range(3):
            await js.publish(f"{fresh}.slow", b"%d" % n)
            await asyncio.sleep(0.25)
        original = ConsumerConfig(replay_policy=ReplayPolicy.ORIGINAL)
        begin = loop.time()
        async with await js.subscribe(f"{fresh}.slow", config=original) as subscription:
            for earliest in (0.0, 0.24, 0.49):
                await subscription.next()
                assert loop.time() - begin > earliest
        for _ in range(10):
            await js.publish(f"{fresh}.big", b"x" * 1_000)
        limited = ConsumerConfig(rate_limit_bps=80_000, ack_policy="none")  # 10,000 bytes a second
        begin = time.monotonic()
        async with await js.subscribe(f"{fresh}.big", config=limited) as subscription:
            for _ in range(10):
                await subscription.next()
            assert time.monotonic() - begin > 0.4
