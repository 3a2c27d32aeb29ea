"""Consumers that have seen a sequence: by the server that keeps `min_last_seq`, or proven on one that does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from slipstream import (
    ConsumerConfig,
    MinLastSequenceUnsupportedError,
    StaleReadError,
    StreamConfig,
    StreamSource,
    connect,
    connect_blocking,
)
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.jetstream._async.ordered import OrderedConsumer, _Created
from slipstream.jetstream._async.stream import Stream
from tests.proxy import proxy_to


async def make(js: JetStream, name: str, *, direct: bool = True) -> Stream:
    """A stream that keeps the newest message of each subject, with two of them at sequences 2 and 3."""
    stream = await js.create_stream(
        StreamConfig(name=name, subjects=(f"{name}.*",), allow_direct=direct, max_msgs_per_subject=1)
    )
    for token in "aab":
        await js.publish(f"{name}.{token}", token.encode())
    return stream


# F16: ordered consumers
@pytest.mark.spec("RW-50")
@pytest.mark.steady
async def test_ordered_consumer_waits_for_the_sequence_that_was_asked_for(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await make(js, fresh)
        ordered = stream.ordered_consumer(min_last_seq=4)
        with pytest.raises(StaleReadError, match=r"its leader is at 3, sequence 4 is needed \(waited \d"):
            await ordered.start(timeout=0.3)
        starting = asyncio.create_task(ordered.start(timeout=10))
        await js.publish(f"{fresh}.c", b"c")
        await starting
        assert ordered.initial_pending == 3
        assert [(await ordered.next()).seq for _ in range(3)] == [2, 3, 4]
        await ordered.close()


@pytest.mark.spec("RW-50")
@pytest.mark.parametrize("policy", ["all", "last", "last_per_subject", "new"])
async def test_ordered_consumer_reads_on_from_the_sequence(any_server: str, fresh: str, policy: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await make(js, fresh)
        async with stream.ordered_consumer(deliver_policy=policy, min_last_seq=3) as ordered:
            assert ordered.initial_pending == {"all": 2, "last": 1, "last_per_subject": 2, "new": 0}[policy]
            await js.publish(f"{fresh}.c", b"c")
            seqs = [(await ordered.next()).seq for _ in range(ordered.initial_pending + 1)]
            assert seqs == [2, 3, 4][-len(seqs) :]


@pytest.mark.spec("RW-50")
async def test_ordered_consumer_of_a_stream_without_direct_get(any_server: str, fresh: str, *, is_real: bool) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        config = StreamConfig(name=fresh, subjects=(f"{fresh}.*",))
        stream = await js.create_stream(config)
        await js.publish(f"{fresh}.a")
        async with await js.ordered(f"{fresh}.a", min_last_seq=1) as ordered:
            assert (await ordered.next()).seq == 1
            kept = (await (await stream.consumer(ordered.consumer_name)).info()).config.min_last_seq
            assert kept == (0 if is_real else 1)  # passed on where the server keeps it


@pytest.mark.steady
def test_blocking_ordered_consumer_takes_min_last_seq(any_server: str, fresh: str) -> None:
    with connect_blocking(any_server) as nc:
        stream = nc.jetstream().create_stream(StreamConfig(name=fresh, subjects=(fresh,), allow_direct=True))
        nc.jetstream().publish(fresh)
        with stream.ordered_consumer(min_last_seq=1) as ordered:
            assert ordered.next().seq == 1
        with pytest.raises(StaleReadError):
            stream.ordered_consumer(min_last_seq=2).start(timeout=0.3)


@pytest.mark.spec("RW-50", on="C")
@pytest.mark.steady
async def test_ordered_consumer_of_a_session_has_seen_what_the_session_has(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        await make(nc.jetstream(), fresh)
        async with nc.jetstream().session() as session:
            session.note(fresh, 4)
            with pytest.raises(StaleReadError, match="sequence 4 is needed"):
                await session.stream(fresh).ordered_consumer().start(timeout=0.3)
            await session.stream(fresh).delete()
            stream = await make(nc.jetstream(), fresh)  # another one of that name, of which nothing was seen
            async with session.stream(fresh).ordered_consumer() as ordered:
                assert ordered.initial_pending == (await stream.info()).state.messages


class Creations:
    """Lets something happen right behind the first creation of an ordered consumer, and counts all of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, then: Callable[[], Awaitable[object]]) -> None:
        self.count = 0
        create = OrderedConsumer._create_one

        async def create_one(ordered: OrderedConsumer, inbox: str, min_last_seq: int, deadline: float) -> _Created:
            created = await create(ordered, inbox, min_last_seq, deadline)
            self.count += 1
            if self.count == 1:
                await then()
            return created

        monkeypatch.setattr(OrderedConsumer, "_create_one", create_one)


async def test_listing_on_a_server_of_its_own_takes_one_look_at_the_stream(real_url: str, fresh: str) -> None:
    async with proxy_to(real_url) as proxy, connect(proxy.url) as nc:
        kv = await nc.jetstream().create_key_value(fresh)
        last = 0
        for key in "abc":
            last = await kv.put(key, b"")
        assert await kv.keys() == ["a", "b", "c"]  # the connection learns whether the server keeps a sequence
        proxy.sent.clear()
        last = await kv.put("d", b"")
        assert await kv.keys() == ["a", "b", "c", "d"]
        assert proxy.sent.count(b"$JS.API.CONSUMER.CREATE.") == 1
        assert proxy.sent.count(b"$JS.API.STREAM.INFO.") == 1
        async with await kv.watch() as watch:
            assert [entry.revision for entry in await watch.initial()] == [1, 2, 3, last]


async def test_consumer_of_a_stream_that_was_deleted_behind_its_creation_is_made_again(
    real_url: str, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(real_url) as nc, connect(real_url) as other:
        stream = await make(nc.jetstream(), fresh)

        async def make_again() -> None:
            await other.jetstream().stream(fresh).delete()
            await make(other.jetstream(), fresh)

        async with nc.jetstream().session() as session:
            session.note(fresh, 3)
            creations = Creations(monkeypatch, make_again)
            async with session.stream(fresh).ordered_consumer() as ordered:
                assert creations.count == 2
                assert [(await ordered.next()).seq for _ in range(2)] == [2, 3]
                assert [name async for name in stream.consumer_names()] == [ordered.consumer_name]


async def test_sequence_that_is_stored_behind_the_creation_is_not_shown_by_the_look_behind_it(
    real_url: str, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(real_url) as nc:
        js = nc.jetstream()
        await make(js, fresh)
        async with js.session() as session:
            session.note(fresh, 3)
            creations = Creations(monkeypatch, lambda: js.publish(f"{fresh}.c", b"c"))
            ordered = session.stream(fresh).ordered_consumer(deliver_policy="last_per_subject", min_last_seq=4)
            with pytest.raises(StaleReadError, match="sequence 4 is needed"):
                await ordered.start(timeout=0.3)
            assert creations.count == 0
            await js.publish(f"{fresh}.c", b"c")
            async with ordered:
                assert ordered.initial_pending == 3


# F17: consumers on released servers
@pytest.mark.spec("RW-12", on="C")
@pytest.mark.spec("RW-51", on="C N")
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.steady
async def test_consumer_of_a_single_copy_has_seen_the_sequence(
    any_server: str, fresh: str, *, direct: bool, is_real: bool
) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.*",), allow_direct=direct))
        await js.publish(f"{fresh}.a", b"1")
        config = ConsumerConfig(durable_name="dur", min_last_seq=2)
        if is_real:  # where creation succeeds nothing holds the deliveries back: it waits instead
            with pytest.raises(StaleReadError, match=r"its leader is at 1, sequence 2 is needed \(waited \d"):
                await stream.create_consumer(config, timeout=0.3)
            assert [name async for name in stream.consumer_names()] == []
        await js.publish(f"{fresh}.a", b"2")
        consumer = await stream.create_consumer(config)
        assert (await consumer.info()).num_pending == 2
        assert [message.seq for message in await consumer.fetch(5)] == [1, 2]
        pull = await js.pull_subscribe(f"{fresh}.a", config=ConsumerConfig(min_last_seq=2))
        assert [message.seq for message in await pull.fetch(5)] == [1, 2]
        push = await js.subscribe(f"{fresh}.a", config=ConsumerConfig(min_last_seq=2))
        assert (await push.next(timeout=5)).seq == 1
        await push.unsubscribe()


async def test_consumer_of_a_mirror_is_rejected_where_the_server_keeps_no_sequence(real_url: str, fresh: str) -> None:
    async with connect(real_url) as nc:
        js = nc.jetstream()
        await make(js, fresh)
        mirror = await js.create_stream(StreamConfig(name=f"{fresh}_M", mirror=StreamSource(name=fresh)))
        with pytest.raises(MinLastSequenceUnsupportedError, match=r"is a mirror.*use ordered_consumer"):
            await mirror.create_consumer(ConsumerConfig(durable_name="dur", min_last_seq=99))
        with pytest.raises(StaleReadError, match=f"read its origin {fresh}"):
            await mirror.ordered_consumer(min_last_seq=99).start()
        behind = mirror.ordered_consumer(start_seq=100, min_last_seq=99)  # all of its messages are newer
        await behind.start()
        await behind.close()


@pytest.mark.steady
async def test_bucket_without_direct_get_is_listed_by_a_consumer_that_has_the_revision(
    real_url: str, fresh: str
) -> None:
    async with connect(real_url) as nc:
        js = nc.jetstream()
        name = f"KV_{fresh}"
        config = StreamConfig(
            name=name,
            subjects=(f"$KV.{fresh}.>",),
            max_msgs_per_subject=2,
            allow_rollup_hdrs=True,
            allow_direct=False,
        )
        assert not (await (await js.create_stream(config)).info()).config.allow_direct
        bucket = await js.key_value(fresh)
        revision = [await bucket.put(key, key.encode()) for key in "aab"][-1]
        assert sorted(await bucket.keys(min_last_revision=revision)) == ["a", "b"]
        assert len(await bucket.history("a", min_last_revision=revision)) == 2
        async with await bucket.watch(updates_only=True, min_last_revision=revision) as watch:
            assert await watch.next(timeout=5) is None
        with pytest.raises(StaleReadError, match=r"its leader is at 3, sequence 4 is needed \(waited \d"):
            await bucket.keys(min_last_revision=revision + 1, timeout=0.3)
