"""Pull consumers, message by message, the same on our server and on the real one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import pytest

from slipstream import AckPolicy, ConsumerConfig, StreamConfig, connect, connect_blocking
from slipstream.errors import (
    ConsumerDeletedError,
    ConsumerExistsError,
    ConsumerGoneError,
    ConsumerNotFoundError,
    PullRefusedError,
    RequestTimeoutError,
)
from slipstream.facade._async.client import Client, JetStream
from slipstream.jetstream._async.consumer import Consumer
from slipstream.jetstream._async.message import JsMessage
from slipstream.jetstream._async.stream import Stream
from slipstream.jetstream._sync.consumer import Consumer as BlockingConsumer
from tests.proxy import proxy_to

PATIENT = ConsumerConfig(durable_name="dur", ack_wait=timedelta(minutes=5))  # a slow machine is no redelivery


class World(NamedTuple):
    nc: Client
    js: JetStream
    stream: Stream


@asynccontextmanager
async def world(url: str, name: str, count: int = 0) -> AsyncIterator[World]:
    """A fresh stream with `count` messages `0`, `1`, … on subjects `<name>.0`, `<name>.1`, …"""
    async with connect(url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.>",)))
        async with js.publisher(timeout=30) as publisher:
            for n in range(count):
                await publisher.publish(f"{name}.{n}", b"%d" % n)
        yield World(nc, js, stream)


def numbers(messages: list[JsMessage]) -> list[int]:
    return [int(message.data) for message in messages]


async def fetch_answered(consumer: Consumer, batch: int, *, timeout: float = 1.0) -> list[JsMessage]:
    """What the server answers to a fetch: on a busy machine that may take longer than a short `timeout`."""
    async with asyncio.timeout(30):
        while True:
            with suppress(RequestTimeoutError):
                return await consumer.fetch(batch, timeout=timeout)


async def fetch_rest(consumer: Consumer, messages: list[JsMessage], count: int) -> None:
    """Fetch until there are `count` messages. Of a consumer with a long ack_wait (`PATIENT`) a message that reached
    the client and was lost there would not be redelivered in time."""
    async with asyncio.timeout(60):
        while len(messages) < count:
            messages += await consumer.fetch(10, timeout=5)


async def check_each_once(consumer: Consumer, messages: list[JsMessage], is_real: bool) -> None:
    """Every message of the stream was handed over once.

    nats-server delivers from a queue of its own and learns only there that an inbox has been unsubscribed
    (`didNotDeliver` in its consumer.go). It gives such a message to the next pull request at once, perhaps behind newer
    ones, and counts it as redelivered, although it was never on the wire: neither the order nor a delivery count tells
    what the client did. Our server checks for interest when it sends.
    """
    assert sorted(message.seq for message in messages) == list(range(1, len(messages) + 1))
    if not is_real:
        assert {message.num_delivered for message in messages} == {1}
        assert (await consumer.info()).num_redelivered == 0


@pytest.mark.spec("PS-03")
async def test_messages_keep_their_subject_and_their_reply_is_the_ack_subject(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh, 3) as (_, _, stream):
        consumer = await stream.create_consumer("dur")
        first, second, third = await consumer.fetch(3)
        assert [m.subject for m in (first, second, third)] == [f"{fresh}.0", f"{fresh}.1", f"{fresh}.2"]
        assert first.reply.startswith(f"$JS.ACK.{fresh}.dur.1.1.1.")
        data = second.metadata
        assert (data.stream, data.consumer, data.num_delivered) == (fresh, "dur", 1)
        assert (data.stream_seq, data.consumer_seq, data.num_pending, data.domain) == (2, 2, 1, "")
        assert abs(third.time - time.time_ns()) < 60 * 10**9
        assert (third.seq, third.num_pending, third.num_delivered) == (3, 0, 1)
        await third.ack_sync()


async def test_fetch_returns_available_messages_at_once(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh, 3) as (nc, _, stream):
        consumer = await stream.create_consumer("dur")
        begin = nc.now()
        assert numbers(await consumer.fetch(10, timeout=30)) == [0, 1, 2]
        assert nc.now() - begin < 10
        assert await fetch_answered(consumer, 10) == []
        with pytest.raises(RequestTimeoutError, match="no message within"):
            await consumer.next(timeout=0.2)


async def test_fetch_waits_for_the_first_message_and_takes_those_that_follow(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh) as (_, js, stream):
        consumer = await stream.create_consumer("dur")
        task = asyncio.create_task(consumer.fetch(3, timeout=20))
        while (await consumer.info()).num_waiting == 0:
            await asyncio.sleep(0.01)
        for n in range(3):
            await js.publish(f"{fresh}.a", b"%d" % n)
        assert numbers(await task) == [0, 1, 2]


async def test_next_takes_one_after_the_other_over_one_subscription(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh, 20) as (nc, js, stream):
        consumer = await stream.create_consumer("dur")
        await consumer.next()
        before = len(nc._session.subscriptions)
        for n in range(1, 20):
            assert int((await consumer.next()).data) == n
        waiting = [asyncio.create_task(consumer.next(timeout=20)) for _ in range(5)]
        await asyncio.sleep(0.05)
        for n in range(5):
            await js.publish(f"{fresh}.a", b"%d" % n)
        assert sorted(int(m.data) for m in await asyncio.gather(*waiting)) == list(range(5))
        assert len(nc._session.subscriptions) == before


async def test_max_bytes_bounds_a_fetch_and_a_message_beyond_it_is_an_error(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh) as (_, js, stream):
        for _ in range(10):
            await js.publish(f"{fresh}.a", b"x" * 1000)
        consumer = await stream.create_consumer("dur")
        got = await consumer.fetch(10, max_bytes=3500)
        assert 1 <= len(got) <= 3
        with pytest.raises(PullRefusedError, match="MaxBytes"):
            await consumer.fetch(10, max_bytes=100)


async def test_rejected_pull_requests_raise(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh, 1) as (_, _, stream):
        small = await stream.create_consumer(ConsumerConfig(durable_name="small", max_batch=2))
        with pytest.raises(PullRefusedError, match="MaxRequestBatch"):
            await small.fetch(3)
        push = await stream.create_consumer(ConsumerConfig(durable_name="push", deliver_subject=f"{fresh}_x"))
        with pytest.raises(PullRefusedError, match="push"):
            await push.fetch(3)
        gone = await stream.create_consumer("gone")
        await gone.delete()
        with pytest.raises(ConsumerGoneError):
            await gone.fetch(2)
        with pytest.raises(ConsumerGoneError):
            await gone.next()


@pytest.mark.parametrize("max_bytes", [0, 100_000])
async def test_loops_request_no_more_than_the_consumer_allows(any_server: str, fresh: str, max_bytes: int) -> None:
    async with world(any_server, fresh, 25) as (_, _, stream):
        limits = ConsumerConfig(durable_name="dur", max_batch=10, max_expires=timedelta(seconds=0.5))
        consumer = await stream.create_consumer(limits)
        seqs: list[int] = []
        async for message in consumer.messages(max_bytes=max_bytes, idle_timeout=20):
            seqs.append(message.seq)
            if len(seqs) == 25:
                break
        assert seqs == list(range(1, 26))


# F20: a statement of the document that had no row.
@pytest.mark.spec("PS-05", "PS-52")
async def test_waiting_requests_are_counted_and_one_too_many_is_rejected(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh) as (_, _, stream):
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="dur", max_waiting=3))
        assert (await stream.create_consumer("other")).cached_info is not None
        assert (await (await stream.consumer("other")).info()).config.max_waiting == 512
        tasks = [asyncio.create_task(consumer.fetch(2, timeout=20)) for _ in range(3)]
        while (await consumer.info()).num_waiting < 3:
            await asyncio.sleep(0.01)
        with pytest.raises(PullRefusedError, match="Exceeded MaxWaiting") as refusal:
            await consumer.fetch(2, timeout=5)
        assert refusal.value.code == 409
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_deleting_a_consumer_raises_in_its_waiting_readers(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh) as (_, _, stream):
        consumer = await stream.create_consumer("dur")

        async def read() -> None:
            async for _ in consumer.messages():
                pass

        tasks = [asyncio.create_task(read()), asyncio.create_task(consumer.fetch(2, timeout=20))]
        while (await consumer.info()).num_waiting < 2:
            await asyncio.sleep(0.01)
        await consumer.delete()
        for task in tasks:
            with pytest.raises(ConsumerDeletedError):
                await task


async def test_messages_flow_without_end_in_order_and_acked(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh, 2_000) as (_, _, stream):
        consumer = await stream.create_consumer("dur")
        got: list[int] = []
        async for message in consumer.messages(max_messages=100, idle_timeout=20):
            got.append(int(message.data))
            await message.ack()
            if len(got) == 2_000:
                break
        assert got == list(range(2_000))
        info = await consumer.info()
        while info.num_ack_pending:  # the last acks are on their way
            info = await consumer.info()
        assert (info.num_pending, info.ack_floor.stream_seq, info.num_redelivered) == (0, 2_000, 0)


async def test_an_iteration_ends_after_its_idle_timeout(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh, 5) as (_, _, stream):
        consumer = await stream.create_consumer("dur")
        got: list[int] = []
        async with asyncio.timeout(50):
            while len(got) < 5:  # once, unless the server stood still for that long
                got += [int(m.data) async for m in consumer.messages(idle_timeout=1.5)]
        assert got == list(range(5))


async def test_messages_that_a_loop_did_not_take_are_returned_by_the_next_call(
    any_server: str, fresh: str, is_real: bool
) -> None:
    async with world(any_server, fresh, 50) as (_, _, stream):
        consumer = await stream.create_consumer(PATIENT)
        got: list[JsMessage] = []
        async for message in consumer.messages(idle_timeout=5):
            got.append(message)
            if len(got) == 5:
                break
        assert numbers(got) == list(range(5))
        await fetch_rest(consumer, got, 50)
        await check_each_once(consumer, got, is_real)
        assert is_real or numbers(got) == list(range(50))


@pytest.mark.parametrize("way", ["chunks", "closed", "in another thread", "by an error"])
async def test_a_loop_may_be_left_in_any_way(any_server: str, fresh: str, way: str, is_real: bool) -> None:
    async with world(any_server, fresh, 50) as (_, _, stream):
        consumer = await stream.create_consumer(PATIENT)
        got: list[JsMessage] = []
        if way == "chunks":
            async for chunk in consumer.chunks(max_messages=4, idle_timeout=5):
                got += chunk
                break
        elif way == "by an error":
            with suppress(RuntimeError):
                async for message in consumer.messages(idle_timeout=5):
                    got.append(message)
                    raise RuntimeError
        else:
            loop = consumer.messages(idle_timeout=5)
            got.append(await anext(loop))
            if way == "closed":
                await loop.aclose()
                with pytest.raises(StopAsyncIteration):
                    await anext(loop)
            else:
                held = [loop]
                del loop
                await asyncio.to_thread(held.clear)  # its end is scheduled here before the thread is done
        assert numbers(got) == list(range(len(got)))
        await fetch_rest(consumer, got, 50)
        await check_each_once(consumer, got, is_real)
        assert is_real or numbers(got) == list(range(50))


async def test_a_callback_is_called_until_it_is_stopped(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh, 100) as (_, _, stream):
        consumer = await stream.create_consumer("dur")
        got: list[int] = []
        done = asyncio.Event()

        async def handle(message: JsMessage) -> None:
            got.append(int(message.data))
            await message.ack()
            if len(got) == 100:
                done.set()

        async with await consumer.consume(handle, max_messages=10):
            await asyncio.wait_for(done.wait(), 20)
        assert got == list(range(100))


async def test_a_drained_callback_has_handled_all_that_arrived(any_server: str, fresh: str, is_real: bool) -> None:
    async with world(any_server, fresh, 300) as (_, _, stream):
        consumer = await stream.create_consumer(PATIENT)
        got: list[JsMessage] = []
        first = asyncio.Event()

        def handle(message: JsMessage) -> None:
            got.append(message)
            first.set()

        consuming = await consumer.consume(handle)
        await asyncio.wait_for(first.wait(), 20)
        await consuming.drain()
        assert consuming.is_done
        assert numbers(got) == list(range(len(got)))
        if not is_real:
            assert (await consumer.info()).num_ack_pending == len(got)
        other = await stream.consumer("dur")  # it has nothing of what arrived for the first handle
        await fetch_rest(other, got, 300)
        await check_each_once(other, got, is_real)


@pytest.mark.spec("SW-11")
async def test_each_kind_of_ack_does_what_it_says(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh, 5) as (nc, _, stream):
        ack_wait = 3.0  # longer than a busy machine stands still
        config = ConsumerConfig(durable_name="dur", ack_wait=timedelta(seconds=ack_wait))
        consumer = await stream.create_consumer(config)
        acked, refused, delayed, ended, slow = await consumer.fetch(5)
        await acked.ack_sync()
        await refused.nak()
        await delayed.nak(1.5)
        await ended.term("cannot be read")
        for message in (acked, refused, ended):  # what was settled stays settled
            await message.nak()
            await message.ack()
            await message.term()
            await message.in_progress()
            await message.ack_sync()
        again = await consumer.next(timeout=5)
        assert (int(again.data), again.num_delivered) == (1, 2)
        await again.ack_sync()
        begin = nc.now()
        while nc.now() < begin + ack_wait + 0.2:
            await asyncio.sleep(0.2)
            await slow.in_progress()
        late = await consumer.next(timeout=5)
        assert int(late.data) == 2  # the delayed one; the slow one did not come although its time has passed
        await late.ack_sync()
        await slow.ack_sync()
        assert await fetch_answered(consumer, 5, timeout=ack_wait + 0.2) == []
        info = await consumer.info()
        assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 5)


@pytest.mark.spec("SW-11")
async def test_acks_on_the_wire_are_the_documented_ones_and_ignored_ones_are_not_sent(
    any_server: str, fresh: str
) -> None:
    async with world(any_server, fresh, 5) as here, proxy_to(any_server) as proxy, connect(proxy.url) as nc:
        js = nc.jetstream()

        async def sent_by(*calls: Callable[[], Awaitable[None]]) -> list[tuple[bytes, bytes]]:
            """Subject and body of every message that the calls send."""
            proxy.sent.clear()
            for call in calls:
                await call()
            await nc.flush()
            lines = bytes(proxy.sent).split(b"\r\n")
            return [(line.split(b" ")[1], lines[n + 1]) for n, line in enumerate(lines) if line.startswith(b"PUB ")]

        def every(message: JsMessage) -> list[Callable[[], Awaitable[None]]]:
            return [
                message.ack,
                message.nak,
                partial(message.nak, 1.5),
                message.term,
                message.in_progress,
                message.ack_sync,
            ]

        await here.stream.create_consumer(PATIENT)
        await here.stream.create_consumer(ConsumerConfig(durable_name="none", ack_policy=AckPolicy.NONE))
        acked, naked, delayed, ended, synced = await (await js.stream(fresh).consumer("dur")).fetch(5)
        for message, calls, bodies in (
            (acked, [acked.in_progress, acked.ack], [b"+WPI", b"+ACK"]),
            (naked, [naked.nak], [b"-NAK"]),
            (delayed, [partial(delayed.nak, 1.5)], [b'-NAK {"delay":1500000000}']),
            (ended, [ended.term], [b"+TERM"]),
            (synced, [synced.ack_sync], [b"+ACK"]),
        ):
            assert await sent_by(*calls) == [(message.reply.encode(), body) for body in bodies]
            assert await sent_by(*every(message)) == []
        pulled = (await (await js.stream(fresh).consumer("none")).fetch(1))[0]
        pushed = await js.subscribe(f"{fresh}.>", config=ConsumerConfig(ack_policy="none"))
        for quiet in (pulled, await pushed.next()):
            assert await sent_by(*every(quiet)) == []
        assert (await (await here.stream.consumer("none")).fetch(5)) != []


# F20: a statement of the document that had no row.
@pytest.mark.spec("PS-53")
@pytest.mark.steady
async def test_requests_that_expired_are_not_counted_as_waiting(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh) as (_, _, stream):
        for attempt in range(20):
            consumer = await stream.create_consumer(ConsumerConfig(durable_name=f"dur{attempt}", max_waiting=2))
            with suppress(RequestTimeoutError):  # the status of one was late: it may have begun late, and wait still
                for _ in range(3):  # one more than the document's count could hold
                    assert await consumer.fetch(2, timeout=0.5) == []
                assert (await consumer.info()).num_waiting == 0
                return
        pytest.fail("the server never answered in time")


# F20: a statement of the document that had no row.
@pytest.mark.spec("PS-50")
async def test_pull_consumer_need_not_be_durable(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh, 3) as (_, _, stream):
        consumer = await stream.create_consumer(ConsumerConfig())
        assert (await consumer.info()).config.durable_name == ""
        assert numbers(await consumer.fetch(5)) == [0, 1, 2]


@pytest.mark.spec("PS-06")
async def test_consumer_info_has_every_field_of_the_document(any_server: str, fresh: str, *, is_real: bool) -> None:
    async with world(any_server, fresh, 3) as (nc, _, stream):
        await stream.create_consumer(
            ConsumerConfig(durable_name="dur", filter_subject=f"{fresh}.>", max_ack_pending=20_000)
        )
        reply = await nc.request(f"$JS.API.CONSUMER.INFO.{fresh}.dur")
        import json

        info = json.loads(reply.data)
        assert info["type"] == "io.nats.jetstream.api.v1.consumer_info_response"
        assert (info["stream_name"], info["name"]) == (fresh, "dur")
        config = info["config"]
        assert config["durable_name"] == "dur"
        assert (config["deliver_policy"], config["ack_policy"]) == ("all", "explicit")
        assert (config["ack_wait"], config["max_deliver"], config["replay_policy"]) == (30 * 10**9, -1, "instant")
        assert (config["filter_subject"], config["max_waiting"]) == (f"{fresh}.>", 512)
        assert config["max_ack_pending"] == 20_000
        for place in ("delivered", "ack_floor"):
            assert (info[place]["consumer_seq"], info[place]["stream_seq"]) == (0, 0)
        counts = [info[n] for n in ("num_ack_pending", "num_redelivered", "num_waiting", "num_pending")]
        assert counts == [0, 0, 0, 3]
        assert "created" in info
        if not is_real:  # a single nats-server leaves `cluster` out (docs/compatibility.md)
            assert info["cluster"]["leader"] == nc.server_info.server_name
        consumer = await stream.consumer("dur")
        assert consumer.cached_info is not None
        assert consumer.cached_info.num_pending == 3


async def test_consumers_are_created_updated_listed_and_deleted(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh) as (_, _, stream):
        for n in range(3):
            await stream.create_consumer(f"c{n}")
        await stream.create_consumer("c0")  # the same again
        with pytest.raises(ConsumerExistsError):
            await stream.create_consumer(ConsumerConfig(durable_name="c0", description="another"))
        changed = await stream.create_or_update_consumer(ConsumerConfig(durable_name="c0", description="another"))
        assert changed.cached_info is not None
        assert changed.cached_info.config.description == "another"
        assert sorted([name async for name in stream.consumer_names()]) == ["c0", "c1", "c2"]
        assert sorted([info.name async for info in stream.consumers()]) == ["c0", "c1", "c2"]
        await stream.delete_consumer("c1")
        with pytest.raises(ConsumerNotFoundError):
            await stream.consumer("c1")
        ephemeral = await stream.create_consumer(ConsumerConfig())
        assert ephemeral.name
        assert (await ephemeral.info()).config.durable_name == ""


async def test_a_paused_consumer_delivers_when_it_is_resumed(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh, 2) as (_, _, stream):
        consumer = await stream.create_consumer("dur")
        until = time.time_ns() + 60 * 10**9
        paused = await consumer.pause(until)
        assert (paused.paused, paused.until) == (True, until)
        assert (await consumer.info()).paused
        assert await fetch_answered(consumer, 2) == []
        assert not (await consumer.resume()).paused
        assert len(await consumer.fetch(2, timeout=5)) == 2


def test_the_blocking_client_reads_consumers_in_the_same_way(any_server: str, fresh: str, is_real: bool) -> None:
    with connect_blocking(any_server) as nc:
        js = nc.jetstream()
        stream = js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
        with js.publisher() as publisher:
            for n in range(1_000):
                publisher.publish(f"{fresh}.a", b"%d" % n)
        consumer = stream.create_consumer("dur")
        got = [int(m.data) for m in consumer.fetch(100)]
        got.append(int(consumer.next().data))
        for message in consumer.messages(idle_timeout=5):
            got.append(int(message.data))
            message.ack()
            if len(got) == 600:
                break
        for chunk in consumer.chunks(idle_timeout=5):
            got += [int(message.data) for message in chunk]
            if len(got) == 1_000:
                break
        assert sorted(got) == list(range(1_000))
        assert got[:600] == list(range(600))
        assert is_real or got == list(range(1_000))  # nats-server: see check_each_once
        while True:
            with suppress(RequestTimeoutError):  # the server's answer has 100 ms until the deadline
                assert consumer.fetch(5, timeout=1) == []
                break
        seen: list[int] = []
        other = stream.create_consumer("other")
        with other.consume(lambda message: seen.append(int(message.data))):
            deadline = time.monotonic() + 20
            while len(seen) < 1_000 and time.monotonic() < deadline:
                time.sleep(0.01)
        assert seen == list(range(1_000))
        with stream.ordered_consumer() as ordered:
            assert ordered.initial_pending == 1_000
            read: list[int] = []
            for chunk in ordered.chunks():
                read += [message.seq for message in chunk]
                if len(read) == 1_000:
                    break
        assert read == list(range(1, 1_001))


def test_one_consumer_may_be_used_by_many_threads(any_server: str, fresh: str) -> None:
    with connect_blocking(any_server) as client:
        js = client.jetstream()
        stream = js.create_stream(StreamConfig(name=fresh, subjects=(fresh,)))
        for _ in range(100):
            js.publish(fresh, b"x")
        for number in range(5):
            consumer = stream.create_consumer(f"w{number}")
            barrier, seen = threading.Barrier(8), list[int]()

            def work(consumer: BlockingConsumer, barrier: threading.Barrier, seen: list[int]) -> None:
                barrier.wait(10)
                deadline = time.monotonic() + 20
                while len(seen) < 100 and time.monotonic() < deadline:
                    with suppress(RequestTimeoutError):
                        message = consumer.next(timeout=0.3)
                        message.ack()
                        seen.append(message.seq)

            threads = [threading.Thread(target=work, args=(consumer, barrier, seen)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            assert sorted(seen) == list(range(1, 101))
        client.flush()
        assert len(client._session.subscriptions) <= 2  # the inboxes of consumers went with them


def test_a_callback_may_be_stopped_as_soon_as_it_has_begun(any_server: str, fresh: str) -> None:
    with connect_blocking(any_server) as client:
        stream = client.jetstream().create_stream(StreamConfig(name=fresh, subjects=(fresh,)))
        consumer = stream.create_consumer("w")
        for _ in range(30):
            consumer.consume(lambda _: None).stop(timeout=5)
        assert len(client._connection._threads) < 10


async def test_messages_that_a_stopped_callback_did_not_handle_are_returned_by_the_next_call(
    any_server: str, fresh: str
) -> None:
    async with world(any_server, fresh, 1_000) as (_, _, stream):
        consumer = await stream.create_consumer("dur")
        seen: list[int] = []

        async def handle(message: JsMessage) -> None:
            seen.append(int(message.data))
            await message.ack()
            await asyncio.sleep(0.001)

        consuming = await consumer.consume(handle, max_messages=200)
        while len(seen) < 50:
            await asyncio.sleep(0.01)
        await consuming.stop()
        async with asyncio.timeout(60):
            while len(seen) < 1_000:
                seen += numbers(await consumer.fetch(500, timeout=5))
        assert sorted(seen) == list(range(1_000))
