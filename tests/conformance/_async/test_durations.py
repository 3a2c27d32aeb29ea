"""Every public call that takes a duration: with a timedelta, with seconds, and with values that are neither.

`tests/test_durations.py` finds a call that is missing here.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slipstream import (
    ApiError,
    BucketConfig,
    Client,
    ObjectStoreConfig,
    RequestTimeoutError,
    StreamConfig,
    UsageError,
    connect,
)
from slipstream.api import GetRequest
from slipstream.facade._async.client import JetStream
from slipstream.jetstream import requests
from slipstream.jetstream._async.consumer import Consumer
from slipstream.jetstream._async.stream import Stream
from slipstream.kv._async.key_value import KeyValue
from slipstream.kv._async.rekey import reencrypt
from slipstream.kv.codecs import Encrypted, Keyring
from slipstream.objects._async.object_store import ObjectStore
from slipstream.services._async.service import Service

LATER = datetime(2200, 1, 1, tzinfo=UTC)
BAD: tuple[Any, ...] = ("5", True, -1, float("nan"), timedelta(seconds=-1))


class Parts:
    """A connection with something of each kind on it."""

    nc: Client
    js: JetStream
    stream: Stream
    consumer: Consumer
    kv: KeyValue[bytes]
    store: ObjectStore
    service: Service
    url: str
    name: str
    subject: str

    async def prepare(self, nc: Client, url: str, name: str) -> None:
        self.url = url
        self.nc, self.js, self.name, self.subject = nc, nc.jetstream(), name, f"{name}.a"
        self.stream = await self.js.create_stream(
            StreamConfig(name, subjects=f"{name}.*", allow_direct=True, allow_atomic=True)
        )
        self.consumer = await self.stream.create_consumer("workers")
        self.kv = await self.js.create_key_value(BucketConfig(name, history=5))
        self.store = await self.js.create_object_store(ObjectStoreConfig(name))
        await self.store.put("there", b"x")
        await self.kv.put("k", b"v")
        await self.js.publish(self.subject, b"1")
        self.service = await nc.add_service(name, "1.0.0")
        await self.service.add_endpoint("echo", echo, subject=f"echo{name}")


def echo(request: bytes) -> bytes:
    return request


async def every(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


async def first(items: AsyncIterator[Any]) -> Any:
    async for item in items:
        return item
    return None


async def made(thing: Any) -> Any:
    """What a call returned that waits for nothing."""
    return thing


async def closed(opening: Any) -> None:
    async with opening:
        pass


# What must be made for one call, and is used up by it.


async def next_message(on: Parts, limit: Any, method: str) -> None:
    async with on.nc.subscribe(on.name) as subscription:
        await on.nc.publish(on.name)
        await getattr(subscription, method)(timeout=limit)


async def drain_client(on: Parts, limit: Any) -> None:
    async with connect(on.url) as other:
        await other.drain(timeout=limit)


async def connected(on: Parts, **options: Any) -> None:
    async with connect(on.url, **options):
        pass


async def restored(on: Parts, limit: Any) -> None:
    snapshot = on.js.snapshot(on.name)
    data = await every(aiter(snapshot))
    copy = {**snapshot.config, "name": f"{on.name}R", "subjects": [f"{on.name}R"]}
    await on.js.restore(copy, snapshot.state, data, timeout=limit)
    await on.js.delete_stream(f"{on.name}R")


async def of_another_stream(on: Parts, call: Callable[[Stream], Any]) -> None:
    other = await on.js.create_stream(f"{on.name}2", subjects=f"{on.name}2")
    await call(other)


async def of_another_consumer(on: Parts, call: Callable[[Consumer], Any]) -> None:
    await call(await on.stream.create_or_update_consumer("other"))


async def unpin(on: Parts, limit: Any) -> None:
    pinned = await on.stream.create_or_update_consumer(
        "pinned", priority_groups=["jobs"], priority_policy="pinned_client"
    )
    await pinned.unpin("jobs", timeout=limit)


async def delete_message(on: Parts, limit: Any) -> None:
    seq = (await on.js.publish(on.subject)).seq
    await on.stream.delete_message(seq, timeout=limit)


async def ack_sync(on: Parts, limit: Any) -> None:
    await on.js.publish(on.subject)
    await (await on.consumer.next()).ack_sync(timeout=limit)


async def with_messages(on: Parts, call: Callable[[], Any]) -> None:
    await on.js.publish(on.subject)
    await call()


async def of_worker(on: Parts, limit: Any, method: str) -> None:
    async with on.consumer.consume(lambda _: None) as consuming:
        if method == "wait":
            await consuming.stop()
        await getattr(consuming, method)(timeout=limit)


async def of_signals(on: Parts, limit: Any) -> None:
    async with on.consumer.consume(lambda _: None) as consuming:
        with consuming.drain_on_signals(timeout=limit):
            pass


async def of_push(on: Parts, limit: Any, method: str) -> None:
    async with on.js.subscribe(on.subject) as subscription:
        await getattr(subscription, method)(timeout=limit)


async def of_pull(on: Parts, limit: Any, method: str) -> None:
    async with on.js.pull_subscribe(on.subject) as subscription:
        await getattr(subscription, method)(timeout=limit)


async def of_ordered(on: Parts, limit: Any, method: str, name: str = "timeout") -> None:
    async with on.stream.ordered_consumer() as reader:
        await getattr(reader, method)(**{name: limit})


async def of_bucket(on: Parts, call: Callable[[KeyValue[bytes]], Any]) -> None:
    await call(await on.js.create_key_value(f"{on.name}2"))


async def create_key(on: Parts, limit: Any) -> None:
    await on.kv.delete("new")
    await on.kv.create("new", b"v", timeout=limit)


async def update_key(on: Parts, limit: Any) -> None:
    await on.kv.update("k", b"v", last=(await on.kv.get("k")).revision, timeout=limit)


async def of_watch(on: Parts, limit: Any, method: str) -> None:
    async with on.kv.watch() as watch:
        await getattr(watch, method)(timeout=limit)


async def of_lock(on: Parts, limit: Any, method: str) -> None:
    lock = on.kv.lock("lock")
    await getattr(lock, method)(timeout=limit)
    await lock.release()


async def campaign(on: Parts, limit: Any) -> None:
    election = on.kv.election("election")
    await election.campaign(timeout=limit)
    await election.resign()


async def of_store(on: Parts, call: Callable[[ObjectStore], Any]) -> None:
    await call(await on.js.create_object_store(f"{on.name}2"))


async def delete_object(on: Parts, limit: Any) -> None:
    await on.store.put("gone", b"")
    await on.store.delete("gone", timeout=limit)


async def linked(on: Parts, limit: Any) -> None:
    await on.store.link("link", await on.store.info("there"), timeout=limit)


async def sealed(on: Parts, limit: Any) -> None:
    store = await on.js.create_object_store(f"{on.name}3")
    try:
        await store.seal(timeout=limit)
    finally:
        await store.destroy()


async def get_into(on: Parts, limit: Any) -> None:
    with open(os.devnull, "wb") as file:
        await on.store.get_into("there", file, timeout=limit)


async def of_object_watch(on: Parts, limit: Any, method: str) -> None:
    async with on.store.watch() as watch:
        await getattr(watch, method)(timeout=limit)


async def of_service(on: Parts, limit: Any, method: str) -> None:
    async with on.nc.add_service(f"{on.name}2", "1.0.0") as service:
        if method == "wait":
            await service.stop()
        await getattr(service, method)(timeout=limit)


async def add_endpoint(on: Parts, limit: Any) -> None:
    async with on.nc.add_service(f"{on.name}2", "1.0.0") as service:
        await service.add_endpoint("echo", echo, subject=f"echo{on.name}2", timeout=limit)


async def rekeyed(on: Parts, limit: Any) -> None:
    bucket = await on.js.create_key_value(f"{on.name}3")
    await reencrypt(bucket, Encrypted(Keyring({"one": bytes(32)}), context=on.name), timeout=limit)


async def refused(call: Callable[[], Any]) -> None:
    """A request that one server without replicas refuses."""
    with suppress(ApiError):
        await call()


Call = Callable[[Parts, Any], Any]
# Class, method and argument, and a call with that argument.
CALLS: dict[str, Call] = {
    "Client.request.timeout": lambda on, limit: on.nc.request(f"echo{on.name}", timeout=limit),
    "Client.flush.timeout": lambda on, limit: on.nc.flush(timeout=limit),
    "Client.drain.timeout": drain_client,
    "Client.jetstream.timeout": lambda on, limit: made(on.nc.jetstream(timeout=limit)),
    "Client.add_service.timeout": lambda on, limit: closed(on.nc.add_service(on.name, "1.0.0", timeout=limit)),
    "Subscription.next.timeout": lambda on, limit: next_message(on, limit, "next"),
    "Subscription.next_chunk.timeout": lambda on, limit: next_message(on, limit, "next_chunk"),
    "Subscription.drain.timeout": lambda on, limit: next_message(on, limit, "drain"),
    "JetStream.publish.timeout": lambda on, limit: on.js.publish(on.subject, timeout=limit),
    "JetStream.publish.retry_wait": lambda on, limit: on.js.publish(on.subject, retry_wait=limit),
    "JetStream.publisher.timeout": lambda on, limit: closed(on.js.publisher(timeout=limit)),
    "JetStream.publisher.retry_wait": lambda on, limit: closed(on.js.publisher(retry_wait=limit)),
    "JetStream.atomic_batch.timeout": lambda on, limit: closed(on.js.atomic_batch(timeout=limit)),
    "JetStream.create_stream.timeout": lambda on, limit: on.js.create_stream(
        f"{on.name}2", subjects=f"{on.name}2", timeout=limit
    ),
    "JetStream.update_stream.timeout": lambda on, limit: of_another_stream(
        on, lambda other: on.js.update_stream(other.name, subjects=other.name, timeout=limit)
    ),
    "JetStream.delete_stream.timeout": lambda on, limit: of_another_stream(
        on, lambda other: on.js.delete_stream(other.name, timeout=limit)
    ),
    "JetStream.stream_names.timeout": lambda on, limit: every(on.js.stream_names(timeout=limit)),
    "JetStream.streams.timeout": lambda on, limit: every(on.js.streams(timeout=limit)),
    "JetStream.account_info.timeout": lambda on, limit: on.js.account_info(timeout=limit),
    "JetStream.stream_of.timeout": lambda on, limit: on.js.stream_of(on.subject, timeout=limit),
    "JetStream.run.timeout": lambda on, limit: on.js.run(requests.Api().account_info(), timeout=limit),
    "JetStream.subscribe.timeout": lambda on, limit: closed(on.js.subscribe(on.subject, timeout=limit)),
    "JetStream.pull_subscribe.timeout": lambda on, limit: closed(on.js.pull_subscribe(on.subject, timeout=limit)),
    "JetStream.ordered.timeout": lambda on, limit: closed(on.js.ordered(on.subject, timeout=limit)),
    "JetStream.ordered.heartbeat": lambda on, limit: closed(on.js.ordered(on.subject, heartbeat=limit)),
    "JetStream.snapshot.timeout": lambda on, limit: every(aiter(on.js.snapshot(on.name, timeout=limit))),
    "JetStream.restore.timeout": restored,
    "JetStream.key_value.timeout": lambda on, limit: on.js.key_value(on.name, timeout=limit),
    "JetStream.key_values.timeout": lambda on, limit: every(on.js.key_values(timeout=limit)),
    "JetStream.create_key_value.timeout": lambda on, limit: on.js.create_key_value(f"{on.name}2", timeout=limit),
    "JetStream.update_key_value.timeout": lambda on, limit: on.js.update_key_value(on.name, timeout=limit),
    "JetStream.delete_key_value.timeout": lambda on, limit: of_bucket(
        on, lambda kv: on.js.delete_key_value(kv.bucket, timeout=limit)
    ),
    "JetStream.object_store.timeout": lambda on, limit: on.js.object_store(on.name, timeout=limit),
    "JetStream.object_stores.timeout": lambda on, limit: every(on.js.object_stores(timeout=limit)),
    "JetStream.create_object_store.timeout": lambda on, limit: on.js.create_object_store(on.name, timeout=limit),
    "JetStream.delete_object_store.timeout": lambda on, limit: of_store(
        on, lambda store: on.js.delete_object_store(store.bucket, timeout=limit)
    ),
    "Stream.info.timeout": lambda on, limit: on.stream.info(timeout=limit),
    "Stream.subjects.timeout": lambda on, limit: every(on.stream.subjects(timeout=limit)),
    "Stream.delete.timeout": lambda on, limit: of_another_stream(on, lambda other: other.delete(timeout=limit)),
    "Stream.purge.timeout": lambda on, limit: on.stream.purge(below=1, timeout=limit),
    "Stream.step_down.timeout": lambda on, limit: refused(lambda: on.stream.step_down(timeout=limit)),
    "Stream.remove_peer.timeout": lambda on, limit: refused(lambda: on.stream.remove_peer("other", timeout=limit)),
    "Stream.delete_message.timeout": delete_message,
    "Stream.get.timeout": lambda on, limit: on.stream.get(1, timeout=limit),
    "Stream.get_next.timeout": lambda on, limit: on.stream.get_next(on.subject, timeout=limit),
    "Stream.get_last.timeout": lambda on, limit: on.stream.get_last(on.subject, timeout=limit),
    "Stream.get_last_many.timeout": lambda on, limit: on.stream.get_last_many(on.subject, timeout=limit),
    "Stream.newest_seq.timeout": lambda on, limit: on.stream.newest_seq(timeout=limit),
    "Stream.learn_generation.timeout": lambda on, limit: on.stream.learn_generation(timeout=limit),
    "Stream.get_from_leader.timeout": lambda on, limit: on.stream.get_from_leader(GetRequest(seq=1), timeout=limit),
    "Stream.get_last_from_leader.timeout": lambda on, limit: on.stream.get_last_from_leader(on.subject, timeout=limit),
    "Stream.read.timeout": lambda on, limit: every(on.stream.read(timeout=limit)),
    "Stream.read_chunks.timeout": lambda on, limit: every(on.stream.read_chunks(timeout=limit)),
    "Stream.read_columns.timeout": lambda on, limit: every(on.stream.read_columns(timeout=limit)),
    "Stream.to_arrow.timeout": lambda on, limit: on.stream.to_arrow(timeout=limit),
    "Stream.create_consumer.timeout": lambda on, limit: on.stream.create_consumer("second", timeout=limit),
    "Stream.update_consumer.timeout": lambda on, limit: of_another_consumer(
        on, lambda other: on.stream.update_consumer(other.name, timeout=limit)
    ),
    "Stream.create_or_update_consumer.timeout": lambda on, limit: on.stream.create_or_update_consumer(
        "second", timeout=limit
    ),
    "Stream.consumer.timeout": lambda on, limit: on.stream.consumer("workers", timeout=limit),
    "Stream.delete_consumer.timeout": lambda on, limit: of_another_consumer(
        on, lambda other: on.stream.delete_consumer(other.name, timeout=limit)
    ),
    "Stream.consumer_names.timeout": lambda on, limit: every(on.stream.consumer_names(timeout=limit)),
    "Stream.consumers.timeout": lambda on, limit: every(on.stream.consumers(timeout=limit)),
    "Stream.ordered_consumer.heartbeat": lambda on, limit: closed(on.stream.ordered_consumer(heartbeat=limit)),
    "Consumer.step_down.timeout": lambda on, limit: refused(lambda: on.consumer.step_down(timeout=limit)),
    "Consumer.info.timeout": lambda on, limit: on.consumer.info(timeout=limit),
    "Consumer.delete.timeout": lambda on, limit: of_another_consumer(on, lambda other: other.delete(timeout=limit)),
    "Consumer.pause.timeout": lambda on, limit: of_another_consumer(
        on, lambda other: other.pause(LATER, timeout=limit)
    ),
    "Consumer.resume.timeout": lambda on, limit: of_another_consumer(on, lambda other: other.resume(timeout=limit)),
    "Consumer.reset.timeout": lambda on, limit: of_another_consumer(on, lambda other: other.reset(timeout=limit)),
    "Consumer.unpin.timeout": lambda on, limit: unpin(on, limit),
    "Consumer.fetch.timeout": lambda on, limit: with_messages(on, lambda: on.consumer.fetch(1, timeout=limit)),
    "Consumer.next.timeout": lambda on, limit: with_messages(on, lambda: on.consumer.next(timeout=limit)),
    "Consumer.messages.heartbeat": lambda on, limit: closed(on.consumer.messages(heartbeat=limit)),
    "Consumer.messages.idle_timeout": lambda on, limit: closed(on.consumer.messages(idle_timeout=limit)),
    "Consumer.messages.expires": lambda on, limit: closed(on.consumer.messages(expires=limit)),
    "Consumer.chunks.heartbeat": lambda on, limit: closed(on.consumer.chunks(heartbeat=limit)),
    "Consumer.chunks.idle_timeout": lambda on, limit: closed(on.consumer.chunks(idle_timeout=limit)),
    "Consumer.chunks.expires": lambda on, limit: closed(on.consumer.chunks(expires=limit)),
    "Consumer.consume.heartbeat": lambda on, limit: closed(on.consumer.consume(lambda _: None, heartbeat=limit)),
    "Consumer.consume.expires": lambda on, limit: closed(on.consumer.consume(lambda _: None, expires=limit)),
    "Consuming.wait.timeout": lambda on, limit: of_worker(on, limit, "wait"),
    "Consuming.stop.timeout": lambda on, limit: of_worker(on, limit, "stop"),
    "Consuming.drain.timeout": lambda on, limit: of_worker(on, limit, "drain"),
    "Consuming.drain_on_signals.timeout": of_signals,
    "JsMessage.ack_sync.timeout": ack_sync,
    "PushSubscription.info.timeout": lambda on, limit: of_push(on, limit, "info"),
    "PushSubscription.next.timeout": lambda on, limit: of_push(on, limit, "next"),
    "PushSubscription.next_chunk.timeout": lambda on, limit: of_push(on, limit, "next_chunk"),
    "PushSubscription.drain.timeout": lambda on, limit: of_push(on, limit, "drain"),
    "PushSubscription.unsubscribe.timeout": lambda on, limit: of_push(on, limit, "unsubscribe"),
    "PullSubscription.drain.timeout": lambda on, limit: of_pull(on, limit, "drain"),
    "PullSubscription.unsubscribe.timeout": lambda on, limit: of_pull(on, limit, "unsubscribe"),
    "OrderedConsumer.start.timeout": lambda on, limit: of_ordered(on, limit, "start"),
    "OrderedConsumer.next.timeout": lambda on, limit: of_ordered(on, limit, "next"),
    "OrderedConsumer.next.idle": lambda on, limit: of_ordered(on, limit, "next", "idle"),
    "OrderedConsumer.next_chunk.timeout": lambda on, limit: of_ordered(on, limit, "next_chunk"),
    "OrderedConsumer.next_chunk.idle": lambda on, limit: of_ordered(on, limit, "next_chunk", "idle"),
    "KeyValue.put.timeout": lambda on, limit: on.kv.put("k", b"v", timeout=limit),
    "KeyValue.get.timeout": lambda on, limit: on.kv.get("k", timeout=limit),
    "KeyValue.create.timeout": create_key,
    "KeyValue.update.timeout": update_key,
    "KeyValue.delete.timeout": lambda on, limit: on.kv.delete("d", timeout=limit),
    "KeyValue.purge.timeout": lambda on, limit: on.kv.purge("d", timeout=limit),
    "KeyValue.history.timeout": lambda on, limit: on.kv.history("k", timeout=limit),
    "KeyValue.watch.timeout": lambda on, limit: closed(on.kv.watch(timeout=limit)),
    "KeyValue.keys.timeout": lambda on, limit: on.kv.keys(timeout=limit),
    "KeyValue.iter_keys.timeout": lambda on, limit: every(on.kv.iter_keys(timeout=limit)),
    "KeyValue.get_range.timeout": lambda on, limit: on.kv.get_range(timeout=limit),
    "KeyValue.delete_range.timeout": lambda on, limit: on.kv.delete_range("d", timeout=limit),
    "KeyValue.purge_range.timeout": lambda on, limit: on.kv.purge_range("d", timeout=limit),
    "KeyValue.snapshot.timeout": lambda on, limit: on.kv.snapshot(timeout=limit),
    "KeyValue.to_arrow.timeout": lambda on, limit: on.kv.to_arrow(timeout=limit),
    "KeyValue.purge_deletes.timeout": lambda on, limit: on.kv.purge_deletes(timeout=limit),
    "KeyValue.status.timeout": lambda on, limit: on.kv.status(timeout=limit),
    "KeyValue.destroy.timeout": lambda on, limit: of_bucket(on, lambda kv: kv.destroy(timeout=limit)),
    "KeyValue.writer.timeout": lambda on, limit: closed(on.kv.writer(timeout=limit)),
    "KeyValue.cached.timeout": lambda on, limit: closed(on.kv.cached(timeout=limit)),
    "Watch.next.timeout": lambda on, limit: of_watch(on, limit, "next"),
    "Watch.next_entries.timeout": lambda on, limit: of_watch(on, limit, "next_entries"),
    "Watch.initial.timeout": lambda on, limit: of_watch(on, limit, "initial"),
    "Lease.acquire.timeout": lambda on, limit: of_lock(on, limit, "acquire"),
    "Lease.acquired.timeout": lambda on, limit: of_lock(on, limit, "acquired"),
    "Lease.wait_lost.timeout": lambda on, limit: of_lock(on, limit, "wait_lost"),
    "Election.campaign.timeout": campaign,
    "Election.leader.timeout": lambda on, limit: on.kv.election("election").leader(timeout=limit),
    "Members.join.timeout": lambda on, limit: closed(on.kv.members("members").join("one", timeout=limit)),
    "Members.members.timeout": lambda on, limit: on.kv.members("members").members(timeout=limit),
    "reencrypt.timeout": rekeyed,
    "ObjectStore.create_bucket.timeout": lambda on, limit: ObjectStore.create_bucket(
        on.js, ObjectStoreConfig(on.name), timeout=limit
    ),
    "ObjectStore.open_bucket.timeout": lambda on, limit: ObjectStore.open_bucket(on.js, on.name, timeout=limit),
    "ObjectStore.put.timeout": lambda on, limit: on.store.put("there", b"x", timeout=limit),
    "ObjectStore.delete.timeout": delete_object,
    "ObjectStore.update_meta.timeout": lambda on, limit: on.store.update_meta("there", timeout=limit),
    "ObjectStore.link.timeout": linked,
    "ObjectStore.link_bucket.timeout": lambda on, limit: on.store.link_bucket("link", on.name, timeout=limit),
    "ObjectStore.seal.timeout": sealed,
    "ObjectStore.destroy.timeout": lambda on, limit: of_store(on, lambda store: store.destroy(timeout=limit)),
    "ObjectStore.info.timeout": lambda on, limit: on.store.info("there", timeout=limit),
    "ObjectStore.get.timeout": lambda on, limit: on.store.get("there", timeout=limit),
    "ObjectStore.get_bytes.timeout": lambda on, limit: on.store.get_bytes("there", timeout=limit),
    "ObjectStore.get_into.timeout": get_into,
    "ObjectStore.list.timeout": lambda on, limit: every(on.store.list(timeout=limit)),
    "ObjectStore.status.timeout": lambda on, limit: on.store.status(timeout=limit),
    "ObjectWatch.start.timeout": lambda on, limit: of_object_watch(on, limit, "start"),
    "ObjectWatch.next.timeout": lambda on, limit: of_object_watch(on, limit, "next"),
    "ServiceGroup.add_endpoint.timeout": add_endpoint,
    "Service.stop.timeout": lambda on, limit: of_service(on, limit, "stop"),
    "Service.wait.timeout": lambda on, limit: of_service(on, limit, "wait"),
    "Services.request.timeout": lambda on, limit: on.nc.services.request(f"echo{on.name}", timeout=limit),
    "connect.reconnect_max_wait": lambda on, limit: connected(on, reconnect_max_wait=limit),
}
# The same for those that do not take 0.
POSITIVE: dict[str, Call] = {
    "Client.request_many.timeout": lambda on, limit: every(
        on.nc.request_many(f"echo{on.name}", max_messages=1, timeout=limit)
    ),
    "Client.request_many.idle_timeout": lambda on, limit: every(
        on.nc.request_many(f"echo{on.name}", max_messages=1, idle_timeout=limit)
    ),
    "Services.list.stall": lambda on, limit: first(on.nc.services.list(on.name, stall=limit)),
    "Services.list.timeout": lambda on, limit: first(on.nc.services.list(on.name, timeout=limit)),
    "Services.info.stall": lambda on, limit: first(on.nc.services.info(on.name, stall=limit)),
    "Services.info.timeout": lambda on, limit: first(on.nc.services.info(on.name, timeout=limit)),
    "Services.stats.stall": lambda on, limit: first(on.nc.services.stats(on.name, stall=limit)),
    "Services.stats.timeout": lambda on, limit: first(on.nc.services.stats(on.name, timeout=limit)),
    "Services.ping.stall": lambda on, limit: first(on.nc.services.ping(on.name, stall=limit)),
    "Services.ping.timeout": lambda on, limit: first(on.nc.services.ping(on.name, timeout=limit)),
    "connect.timeout": lambda on, limit: connected(on, timeout=limit),
    "connect.ping_interval": lambda on, limit: connected(on, ping_interval=limit),
    "connect.reconnect_wait": lambda on, limit: connected(on, reconnect_wait=limit),
}


async def error_of(call: Call, parts: Parts, bad: Any) -> str:
    try:
        await call(parts, bad)
    except UsageError as error:
        return str(error)
    return "no error"


async def test_every_call_takes_a_timedelta_for_a_duration(our_url: str, fresh: str) -> None:
    parts = Parts()
    async with connect(our_url) as nc:
        await parts.prepare(nc, our_url, fresh)
        for call in (CALLS | POSITIVE).values():
            for limit in (timedelta(seconds=5), 5):
                await call(parts, limit)


@pytest.mark.parametrize("bad", BAD, ids=["text", "bool", "negative", "nan", "negative-timedelta"])
async def test_every_call_names_the_argument_that_is_no_duration(our_url: str, fresh: str, bad: Any) -> None:
    parts = Parts()
    async with connect(our_url) as nc:
        await parts.prepare(nc, our_url, fresh)
        for least, calls in (("0 or more", CALLS), ("more than 0", POSITIVE)):
            told = {name: await error_of(call, parts, bad) for name, call in calls.items()}
            assert told == {
                name: f"{name.rpartition('.')[2]} must be a timedelta or a number of seconds, {least}, got {bad!r}"
                for name in calls
            }


@pytest.mark.steady
async def test_a_timedelta_is_as_long_as_its_seconds(our_url: str, fresh: str) -> None:
    """What the calls do with it: errors tell the seconds, and a default is one for all calls."""
    async with connect(our_url) as nc:
        js = nc.jetstream(timeout=timedelta(minutes=1))
        assert js.timeout == 60.0
        await nc.sleep(timedelta(milliseconds=1))
        with pytest.raises(
            UsageError, match=r"^seconds must be a timedelta or a number of seconds, 0 or more, got -1$"
        ):
            await nc.sleep(-1)
        consumer = await (await js.create_stream(fresh)).create_consumer("workers")
        short = timedelta(milliseconds=200)
        assert await consumer.fetch(1, timeout=short) == []
        with pytest.raises(RequestTimeoutError, match=r"no message within 0\.2 s$"):
            await consumer.next(timeout=short)
        assert [message async for message in consumer.messages(idle_timeout=short)] == []
        async with js.create_key_value(fresh) as kv, kv.watch() as watch:
            assert await watch.next() is None
            with pytest.raises(RequestTimeoutError, match=r"no entry within 0\.2 s$"):
                await watch.next(timeout=short)
            async with kv.lock("job"):
                with pytest.raises(RequestTimeoutError, match=r"not acquired within 0\.2 s"):
                    await kv.lock("job").acquire(timeout=short)
