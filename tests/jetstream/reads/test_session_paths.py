"""Everything that goes through a session counts for its next read: on our server, whose replicas can be held.

A held replica answers from what it has, and who answers is chance; so each scene is played often enough to meet it. A
session that forgets what one of its paths has shown goes back in a third of them or more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from slipstream import BucketConfig, ConsumerConfig, ObjectStoreConfig, StreamConfig, connect, connect_blocking
from slipstream.api import DeliverPolicy
from slipstream.errors import KeyNotFoundError, MessageNotFoundError
from slipstream.facade._async.client import JetStream, Session
from slipstream.jetstream.reads.direct_get import StoredMessage
from slipstream.testing import TestServer

SESSIONS = 25  # by chance alone a session that forgets passes them once in 10,000 times
OLD, NEW = 2, 4  # the last sequences of the held replicas, and of the leader


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with TestServer() as server:
        yield server


async def held(js: JetStream, server: TestServer, name: str, **changes: object) -> None:
    """A stream whose leader alone has the last two messages of `a`."""
    config = StreamConfig(name=name, subjects=(f"{name}.>",), num_replicas=3, allow_direct=True)
    await js.create_stream(config.replace(**changes))
    for _ in range(OLD):
        await js.publish(f"{name}.a", b"old")
    server.hold(name)
    for _ in range(NEW - OLD):
        await js.publish(f"{name}.a", b"new")


async def by_consumer(session: Session, name: str) -> int:
    config = ConsumerConfig(deliver_policy=DeliverPolicy.LAST)
    consumer = await session.stream(name).create_consumer(config)
    return (await consumer.fetch(1))[0].seq


async def by_messages(session: Session, name: str) -> int:
    consumer = await session.stream(name).create_consumer(ConsumerConfig(deliver_policy=DeliverPolicy.LAST))
    async for message in consumer.messages():
        return message.seq
    raise AssertionError("no message")


async def by_push(session: Session, name: str) -> int:
    config = ConsumerConfig(deliver_policy=DeliverPolicy.LAST)
    async with await session.subscribe(f"{name}.a", stream=name, config=config) as subscription:
        return (await subscription.next()).seq


async def by_callback(session: Session, name: str) -> int:
    got: asyncio.Queue[int] = asyncio.Queue()
    config = ConsumerConfig(deliver_policy=DeliverPolicy.LAST)
    async with await session.subscribe(
        f"{name}.a", stream=name, config=config, callback=lambda message: got.put_nowait(message.seq)
    ):
        return await asyncio.wait_for(got.get(), 5)


async def by_ordered_consumer(session: Session, name: str) -> int:
    async with session.stream(name).ordered_consumer(start_seq=NEW) as ordered:
        return (await ordered.next()).seq


async def by_leader(session: Session, name: str) -> int:
    return (await session.stream(name).get_last_from_leader(f"{name}.a")).seq


async def by_leader_range(session: Session, name: str) -> int:
    async for message in session.stream(name).read(start=NEW, from_leader=True):
        return message.seq
    raise AssertionError("no message")


async def by_many(session: Session, name: str) -> int:
    return (await session.stream(name).get_last_many([f"{name}.a"], from_leader=True))[f"{name}.a"].seq


# F11: consumers and reads by the leader
@pytest.mark.spec("RW-13")
@pytest.mark.parametrize(
    "show",
    [
        by_consumer, by_messages, by_push, by_callback, by_ordered_consumer, by_leader, by_leader_range, by_many,
    ],
    ids=lambda show: show.__name__,
)  # fmt: skip
async def test_a_session_does_not_go_back_behind_what_it_was_shown(
    server: TestServer, fresh: str, show: Callable[[Session, str], Awaitable[int]]
) -> None:
    async with connect(server.url) as nc:
        js = nc.jetstream()
        await held(js, server, fresh)
        for _ in range(SESSIONS):
            session = js.session()
            assert await show(session, fresh) == session.seen(fresh) == NEW
            assert (await session.stream(fresh).get_last(f"{fresh}.a")).seq == NEW


# F7: what a range in progress has shown counts.
@pytest.mark.spec("RW-13")
@pytest.mark.parametrize("is_left", [False, True])
async def test_a_range_in_progress_counts_in_its_loop_and_when_it_is_left(
    server: TestServer, fresh: str, is_left: bool
) -> None:
    async with connect(server.url) as nc:
        js = nc.jetstream()
        await held(js, server, fresh)
        shown = 0
        for _ in range(2 * SESSIONS):
            session = js.session()
            stream, is_over = session.stream(fresh), False
            async for message in stream.read():
                if message.seq == NEW:
                    shown += 1
                    is_over = is_left
                    if is_over:
                        break
                    assert (await stream.get_last(f"{fresh}.a")).seq == NEW
            if is_over:
                assert (await stream.get_last(f"{fresh}.a")).seq == NEW
        assert shown > 3


@pytest.mark.spec("RW-13")
async def test_each_object_of_a_listing_counts(server: TestServer, fresh: str) -> None:
    async with connect(server.url) as nc:
        js = nc.jetstream()
        store = await js.create_object_store(ObjectStoreConfig(bucket=fresh))
        await store.put("x", b"1")
        session = js.session()
        async for info in (await session.object_store(fresh)).list():
            assert session.seen(f"OBJ_{fresh}") >= info.sequence > 0
        session = js.session()
        async with (await session.object_store(fresh)).watch() as watch:
            found = await watch.next()
            assert found is not None
            assert session.seen(f"OBJ_{fresh}") >= found.sequence > 0


@pytest.mark.spec("RW-13")
async def test_an_object_is_read_as_new_as_the_listing_that_showed_it(server: TestServer, fresh: str) -> None:
    async with connect(server.url) as nc:
        js = nc.jetstream()
        store = await js.create_object_store(ObjectStoreConfig(bucket=fresh, replicas=3))
        await store.put("x", b"old")
        server.hold(f"OBJ_{fresh}")
        await store.put("x", b"new")
        for _ in range(SESSIONS):
            mine = await js.session().object_store(fresh)
            (shown,) = [info.sequence async for info in mine.list()]
            assert (await mine.info("x")).sequence >= shown


@pytest.mark.spec("RW-13")
@pytest.mark.parametrize("path", ["keys", "watch", "history", "get"])
async def test_a_bucket_of_a_session_does_not_go_back(server: TestServer, fresh: str, path: str) -> None:
    async with connect(server.url) as nc:
        js = nc.jetstream()
        bucket = await js.create_key_value(BucketConfig(bucket=fresh, replicas=3, history=5))
        await bucket.put("k", b"old")
        server.hold(f"KV_{fresh}")
        newest = await bucket.put("k", b"new")
        for _ in range(SESSIONS):
            session = js.session()
            mine = await session.key_value(fresh)
            if path == "keys":
                assert await mine.keys() == ["k"]
            elif path == "history":
                assert await mine.history("k")
            elif path == "get":
                await mine.get("k")
            else:
                async with await mine.watch("k") as watch:
                    assert await watch.next(timeout=5) is not None
            seen = session.seen(f"KV_{fresh}")
            assert 0 < seen <= newest
            assert (await mine.get("k")).revision >= seen


# F8: a cache has seen what its session has.
@pytest.mark.spec("RW-13")
async def test_a_cache_of_a_session_has_seen_all_that_the_session_has(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc, connect(any_server) as other:
        session = nc.jetstream().session()
        bucket = await session.create_key_value(BucketConfig(bucket=fresh))
        elsewhere = await other.jetstream().key_value(fresh)
        await bucket.put("k", b"0")
        cached = await bucket.cached()
        for _ in range(100):
            written = await bucket.put("k", b"mine")
            assert (await cached.get("k")).revision >= written
            await elsewhere.put("k", b"theirs")
            shown = (await bucket.get("k")).revision
            assert (await cached.get("k")).revision >= shown
            theirs = await elsewhere.put("k", b"theirs")
            session.note(f"KV_{fresh}", theirs)  # as if it had seen another key behind it
            assert (await cached.get("k")).revision >= theirs
            await bucket.delete("k")
            with pytest.raises(KeyNotFoundError):
                await cached.get("k")
        assert cached.stats.misses
        await cached.close()


def test_a_cache_of_a_blocking_session_has_seen_all_that_the_session_has(our_url: str, fresh: str) -> None:
    with connect_blocking(our_url) as nc:
        session = nc.jetstream().session()
        bucket = session.create_key_value(BucketConfig(bucket=fresh))
        bucket.put("k", b"0")
        cached = bucket.cached()
        for _ in range(100):
            written = bucket.put("k", b"mine")
            assert cached.get("k").revision >= written
        cached.close()


async def test_a_cache_outside_of_a_session_answers_from_memory(our_url: str, fresh: str) -> None:
    async with connect(our_url) as nc:
        bucket = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        await bucket.put("k", b"0")
        cached = await bucket.cached()
        for _ in range(10):
            await cached.get("k")
        assert (cached.stats.hits, cached.stats.misses) == (10, 0)
        await cached.close()


# F10: what was found absent stays absent.
@pytest.mark.spec("RW-13")
@pytest.mark.parametrize("has_written", [False, True])
async def test_what_was_found_absent_does_not_come_back(server: TestServer, fresh: str, has_written: bool) -> None:
    """A rollup of the whole stream removes a message from all replicas but those that are held."""
    async with connect(server.url) as nc:
        js = nc.jetstream()
        config = StreamConfig(name=fresh, subjects=(f"{fresh}.>",), num_replicas=3, allow_direct=True)
        await js.create_stream(config.replace(allow_rollup_hdrs=True))
        session = js.session()
        await (session if has_written else js).publish(f"{fresh}.a", b"1")
        server.hold(fresh)
        await js.publish(f"{fresh}.z", b"rolled up", rollup="all")
        stream, shown = session.stream(fresh), []
        reads: list[Callable[[], Awaitable[StoredMessage]]] = [
            lambda: stream.get_last(f"{fresh}.a"),
            lambda: stream.get(1),
            lambda: stream.get_next(f"{fresh}.a"),
        ]
        for read in reads:
            for _ in range(SESSIONS):
                try:
                    shown.append((await read()).seq)
                except MessageNotFoundError:
                    shown.append(0)
        assert 0 in shown
        assert shown[shown.index(0) :] == [0] * (len(shown) - shown.index(0))
