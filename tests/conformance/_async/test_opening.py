"""One rule for all that opens something: await it and close it, or enter it directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slipstream import BucketConfig, Client, ObjectStoreConfig, StreamConfig, connect
from slipstream.facade._async.client import JetStream
from slipstream.kv._async.key_value import KeyValue, open_local_key_value
from slipstream.objects._async.object_store import ObjectStore


class Parts:
    """A connection with something of each kind on it."""

    nc: Client
    js: JetStream
    kv: KeyValue[bytes]
    store: ObjectStore
    name: str

    async def prepare(self, nc: Client, name: str) -> None:
        self.nc, self.js, self.name = nc, nc.jetstream(), name
        self.kv = await self.js.create_key_value(BucketConfig(bucket=name))
        self.store = await self.js.create_object_store(ObjectStoreConfig(bucket=name))
        stream = await self.js.create_stream(
            StreamConfig(name=name, subjects=(f"{name}.>",), allow_direct=True, allow_atomic=True)
        )
        await stream.create_consumer("workers")
        await self.js.publish(f"{name}.a", b"1")

    def consumer(self) -> Any:
        return self.js.stream(self.name).consumer("workers")


OPENERS: dict[str, Callable[[Parts], Any]] = {
    "Client.subscribe": lambda parts: parts.nc.subscribe("x"),
    "Client.add_service": lambda parts: parts.nc.add_service(parts.name, version="1.0.0"),
    "JetStream.subscribe": lambda parts: parts.js.subscribe(f"{parts.name}.>"),
    "JetStream.pull_subscribe": lambda parts: parts.js.pull_subscribe(f"{parts.name}.>"),
    "JetStream.ordered": lambda parts: parts.js.ordered(f"{parts.name}.>"),
    "JetStream.session": lambda parts: parts.js.session(),
    "JetStream.publisher": lambda parts: parts.js.publisher(),
    "JetStream.atomic_batch": lambda parts: parts.js.atomic_batch(),
    "JetStream.key_value": lambda parts: parts.js.key_value(parts.name),
    "JetStream.create_key_value": lambda parts: parts.js.create_key_value(BucketConfig(bucket=parts.name)),
    "JetStream.update_key_value": lambda parts: parts.js.update_key_value(BucketConfig(bucket=parts.name)),
    "Stream.ordered_consumer": lambda parts: parts.js.stream(parts.name).ordered_consumer(),
    "KeyValue.watch": lambda parts: parts.kv.watch(),
    "KeyValue.cached": lambda parts: parts.kv.cached(),
    "KeyValue.writer": lambda parts: parts.kv.writer(),
    "Members.join": lambda parts: parts.kv.members("workers").join("one"),
    "ObjectStore.watch": lambda parts: parts.store.watch(),
    "open_local_key_value": lambda _: open_local_key_value(":memory:", BucketConfig(bucket="local")),
}
OF_CONSUMERS: dict[str, Callable[[Any], Any]] = {
    "Consumer.messages": lambda consumer: consumer.messages(),
    "Consumer.chunks": lambda consumer: consumer.chunks(),
    "Consumer.consume": lambda consumer: consumer.consume(lambda _: None),
}


@pytest.mark.parametrize("name", [*OPENERS, *OF_CONSUMERS])
async def test_all_that_opens_can_be_awaited_and_entered(any_server: str, fresh: str, name: str) -> None:
    parts = Parts()
    async with connect(any_server) as nc:
        await parts.prepare(nc, fresh)
        if name in OPENERS:
            call: Callable[[], Any] = lambda: OPENERS[name](parts)  # noqa: E731
        else:
            consumer = await parts.consumer()
            call = lambda: OF_CONSUMERS[name](consumer)  # noqa: E731
        async with call() as entered:
            kind = type(entered)
        async with await call() as awaited:
            assert type(awaited) is kind
        opened = await call()
        async with opened as same:
            assert same is opened


async def test_watch_that_is_entered_directly_is_closed_at_the_end(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc, nc.jetstream().create_key_value(BucketConfig(bucket=fresh)) as kv:
        await kv.put("a", b"1")
        async with kv.watch() as watch:
            assert [entry.value for entry in await watch.initial()] == [b"1"]
            stream = nc.jetstream().stream(f"KV_{fresh}")
            assert len([name async for name in stream.consumer_names()]) == 1
        assert [entry async for entry in watch] == []
        assert [name async for name in stream.consumer_names()] == []


async def test_messages_of_a_consumer_are_given_back_at_the_end_of_the_block(any_server: str, fresh: str) -> None:
    parts = Parts()
    async with connect(any_server) as nc:
        await parts.prepare(nc, fresh)
        consumer = await parts.consumer()
        for number in range(3):
            await parts.js.publish(f"{fresh}.a", b"%d" % number)
        async with consumer.messages() as messages:
            assert (await anext(messages)).seq == 1
        assert [message async for message in messages] == []
        assert (await consumer.next()).seq == 2


async def test_membership_that_is_entered_ends_with_the_block(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        members = kv.members("workers")
        async with members.join("one") as lease:
            assert lease.is_held
            assert list(await members.members()) == ["one"]
        assert not lease.is_held
        assert list(await members.members()) == []
