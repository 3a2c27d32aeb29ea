"""nats-py's pull, push, ordered and queue subscribers, and its buckets, on our server and on the real one."""

from __future__ import annotations

import asyncio

import nats
import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from tests.conformance.nats_py_buckets import listed, watched


async def filled(url: str, name: str, count: int) -> tuple[Client, JetStreamContext]:
    nc = await nats.connect(url)
    js = nc.jetstream()
    await js.add_stream(name=name, subjects=[f"{name}.>"])
    for n in range(count):
        await nc.publish(f"{name}.{n % 5}", b"%d" % n)
    if count:
        await js.publish(f"{name}.last", b"last")
    return nc, js


async def test_pull_subscribers(any_server: str, fresh: str) -> None:
    nc, js = await filled(any_server, fresh, 499)
    sub = await js.pull_subscribe(f"{fresh}.>", "dur", stream=fresh)
    got: list[int] = []
    while len(got) < 500:
        messages = await sub.fetch(100, timeout=5)
        got += [message.metadata.sequence.stream for message in messages]
        for message in messages:
            await message.ack()
    assert got == list(range(1, 501))
    await nc.flush()
    async with asyncio.timeout(10):  # acks are taken in behind the answer to a flush
        while (info := await sub.consumer_info()).num_ack_pending:
            await asyncio.sleep(0.01)
    assert info.num_pending == 0
    with pytest.raises(nats.errors.TimeoutError):
        await sub.fetch(1, timeout=0.3)
    late = asyncio.create_task(sub.fetch(1, timeout=5))
    await asyncio.sleep(0.2)
    await js.publish(f"{fresh}.late", b"late")
    (message,) = await late
    await message.nak(delay=0.2)
    (again,) = await sub.fetch(1, timeout=5)
    assert (again.data, again.metadata.num_delivered) == (b"late", 2)
    await again.ack_sync()
    await nc.close()


async def test_push_subscribers(any_server: str, fresh: str) -> None:
    nc, js = await filled(any_server, fresh, 20)
    sub = await js.subscribe(f"{fresh}.>", durable="pusher", manual_ack=True)
    for n in range(1, 22):
        message = await sub.next_msg(timeout=5)
        assert message.metadata.sequence.stream == n
        await message.ack_sync()
    info = await js.consumer_info(fresh, "pusher")
    assert info.push_bound
    with pytest.raises(nats.js.errors.Error):
        await js.subscribe(f"{fresh}.>", durable="pusher")
    await sub.unsubscribe()
    chosen = await js.subscribe(f"{fresh}.3", config=ConsumerConfig(deliver_policy=DeliverPolicy.LAST))
    assert (await chosen.next_msg(timeout=5)).data == b"18"
    await nc.close()


async def test_queue_subscribers(any_server: str, fresh: str) -> None:
    nc, js = await filled(any_server, fresh, 0)
    subs = [await js.subscribe(f"{fresh}.>", queue="workers", durable="workers", manual_ack=True) for _ in range(2)]
    for n in range(100):
        await js.publish(f"{fresh}.{n % 5}", b"%d" % n)
    got: list[list[int]] = [[], []]
    async with asyncio.timeout(20):
        while len(got[0]) + len(got[1]) < 100:
            for sub, mine in zip(subs, got, strict=True):
                while sub.pending_msgs:
                    message = await sub.next_msg(timeout=5)
                    mine.append(message.metadata.sequence.stream)
                    await message.ack()
            await asyncio.sleep(0.01)
    assert sorted(got[0] + got[1]) == list(range(1, 101))
    assert min(map(len, got)) > 10
    await nc.close()


async def test_ordered_subscribers(any_server: str, fresh: str) -> None:
    nc, js = await filled(any_server, fresh, 2999)
    sub = await js.subscribe(f"{fresh}.>", ordered_consumer=True)
    got = [(await sub.next_msg(timeout=5)).metadata.sequence.stream for _ in range(3000)]
    assert got == list(range(1, 3001))
    await js.publish(f"{fresh}.more", b"x")
    assert (await sub.next_msg(timeout=5)).metadata.sequence.stream == 3001
    await sub.unsubscribe()
    await nc.close()


async def test_work_queues(any_server: str, fresh: str) -> None:
    nc = await nats.connect(any_server)
    js = nc.jetstream()
    await js.add_stream(name=fresh, subjects=[f"{fresh}.>"], retention="workqueue")
    for n in range(10):
        await js.publish(f"{fresh}.{n}", b"work")
    sub = await js.pull_subscribe_bind(
        consumer=(
            await js.add_consumer(fresh, ConsumerConfig(durable_name="w", ack_policy=AckPolicy.EXPLICIT, max_deliver=3))
        ).name,
        stream=fresh,
    )
    for message in await sub.fetch(10, timeout=5):
        await message.ack_sync()
    assert (await js.stream_info(fresh)).state.messages == 0
    await nc.close()


async def test_buckets_list_and_watch_their_keys(any_server: str, fresh: str) -> None:
    nc = await nats.connect(any_server)
    js = nc.jetstream()
    kv = await js.create_key_value(bucket=fresh, history=3)
    for n in range(50):
        await kv.put(f"k{n}", b"v")
    await kv.delete("k7")
    assert sorted(await listed(kv.keys)) == sorted(f"k{n}" for n in range(50) if n != 7)
    assert [entry.value for entry in await listed(lambda: kv.history("k1"))] == [b"v"]
    watcher = await kv.watchall()
    assert len({entry.key for entry in await watched(watcher, 50)}) == 50
    await kv.put("k12", b"new")
    entry = await watcher.updates(timeout=5)  # type: ignore[no-untyped-call]
    assert entry is not None
    assert (entry.key, entry.value) == ("k12", b"new")
    await watcher.stop()  # type: ignore[no-untyped-call]
    await nc.close()
