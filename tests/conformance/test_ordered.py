"""Ordered consumers: each message once and in order, whatever is cut, lost, doubled or killed on the way."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from slipstream import ConsumerConfig, StreamConfig, StreamSource, connect
from slipstream.client.events import ClientEvent
from slipstream.errors import (
    ConnectionLostError,
    HeartbeatLostError,
    RequestTimeoutError,
    StreamLookupError,
    StreamNotFoundError,
)
from slipstream.jetstream._async.jetstream import JetStream
from slipstream.jetstream._async.ordered import OrderedConsumer
from slipstream.jetstream._async.stream import Stream
from tests.proxy import Proxy, proxy_to, whole
from tests.servers import OurProcess, RealProcess


@asynccontextmanager
async def filled(url: str, name: str, count: int = 0, *, subjects: int = 10) -> AsyncIterator[Stream]:
    """A fresh stream with `count` messages on `subjects` subjects, over a connection of its own."""
    async with connect(url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.>",)))
        await publish(stream, 0, count, subjects)
        yield stream


def jetstream_of(stream: Stream) -> JetStream:
    """JetStream over the stream's connection."""
    return JetStream(stream._context.client)


async def publish(stream: Stream, first: int, count: int, subjects: int = 10) -> None:
    async with jetstream_of(stream).publisher(timeout=30) as publisher:
        for n in range(first, first + count):
            await publisher.publish(f"{stream.name}.{n % subjects}", b"%d" % n)


async def read(ordered: OrderedConsumer, count: int) -> list[int]:
    got: list[int] = []
    while len(got) < count:
        got += [message.seq for message in await ordered.next_chunk(timeout=20)]
    return got


async def no_consumers(stream: Stream) -> bool:
    """Whether the server has none left, soon."""
    deadline = time.monotonic() + 15
    while [name async for name in stream.consumer_names()]:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.1)
    return True


async def until_pending(stream: Stream, ordered: OrderedConsumer, count: int) -> None:
    """Until the server has counted what was published: nats-server does so a moment later."""
    deadline = time.monotonic() + 15
    consumer = await stream.consumer(ordered.consumer_name)
    while (await consumer.info()).num_pending < count:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_consumer_that_stands_still_is_replaced_by_a_reader_that_expects_more(
    any_server: str, fresh: str
) -> None:
    # nats-server 2.15 stops when the next message of a last-per-subject consumer expires; so does a pause.
    async with filled(any_server, fresh) as stream, stream.ordered_consumer(deliver_policy="new") as ordered:
        assert await ordered.is_drained()
        consumer = await stream.consumer(ordered.consumer_name)
        await consumer.pause(datetime.now(UTC) + timedelta(hours=1))
        await publish(stream, 0, 3)
        await until_pending(stream, ordered, 3)
        assert not await ordered.is_drained()
        assert ordered.resets == 0  # it may only be slow
        assert not await ordered.is_drained()
        assert await read(ordered, 3) == [1, 2, 3]
        assert ordered.resets == 1
        assert await ordered.is_drained()


async def test_a_consumer_that_stands_still_is_replaced_although_messages_expire_meanwhile(
    any_server: str, fresh: str
) -> None:
    async with filled(any_server, fresh) as stream, stream.ordered_consumer(deliver_policy="new") as ordered:
        for first in (0, 3):
            consumer = await stream.consumer(ordered.consumer_name)
            await consumer.pause(datetime.now(UTC) + timedelta(hours=1))
            await publish(stream, first, 3)
            await until_pending(stream, ordered, 3)
            resets = ordered.resets
            assert not await ordered.is_drained()
            last = (await stream.info()).state.last_seq
            await stream.delete_message(last)  # it has one less left, and has not moved
            assert not await ordered.is_drained()
            assert ordered.resets == resets + 1
            assert await read(ordered, 2) == [last - 2, last - 1]  # progress: the next one may stand still as shortly


async def test_a_consumer_that_is_gone_is_replaced_by_a_reader_that_expects_more(any_server: str, fresh: str) -> None:
    async with filled(any_server, fresh) as stream, stream.ordered_consumer() as ordered:
        await stream.delete_consumer(ordered.consumer_name)
        assert not await ordered.is_drained()
        assert not ordered.consumer_name
        await publish(stream, 0, 3)
        assert await read(ordered, 3) == [1, 2, 3]
        await stream.delete()
        assert not await ordered.is_drained()
        with pytest.raises(StreamNotFoundError):
            await ordered.next(timeout=20)


async def test_listing_of_a_bucket_that_is_made_again_under_it_is_of_the_new_one(any_server: str, fresh: str) -> None:
    async with proxy_to(any_server) as proxy, connect(proxy.url) as nc, connect(any_server) as other:
        bucket = await nc.jetstream().create_key_value(fresh)
        await bucket.put("old", b"")
        proxy.fault = lambda frame: [] if b" $JS.ACK." in frame else [frame]
        listing = asyncio.create_task(bucket.keys(timeout=10))  # less than three heartbeats
        while b"$JS.API.CONSUMER.INFO." not in proxy.sent:  # it waits for messages
            await asyncio.sleep(0.01)
        await other.jetstream().delete_key_value(fresh)
        await (await other.jetstream().create_key_value(fresh)).put("new", b"")
        proxy.fault = whole
        assert await listing == ["new"]


async def test_a_replaced_consumer_of_last_messages_shows_no_superseded_ones(any_server: str, fresh: str) -> None:
    async with filled(any_server, fresh) as stream:
        js = jetstream_of(stream)
        async with js.publisher(timeout=30) as publisher:
            for n in range(250):  # more than is sent ahead
                await publisher.publish(f"{fresh}.first.{n}", b"x" * 30_000)
            for _ in range(3):
                for n in range(3):
                    await publisher.publish(f"{fresh}.{n}", b"")
        async with stream.ordered_consumer(deliver_policy="last_per_subject") as ordered:
            got = [await ordered.next(timeout=20)]
            ordered._left.clear()
            ordered._state.last_seq = got[0].seq  # as if no more had arrived
            ordered._discard_consumer()
            while got[-1].num_pending:
                got += await ordered.next_chunk(timeout=20)
            assert ordered.resets == 1
    assert [message.seq for message in got] == [*range(1, 251), 257, 258, 259]


async def test_a_new_consumer_waits_for_the_deletion_of_the_old_one_where_consumers_are_limited(
    any_server: str, fresh: str
) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",), max_consumers=1))
        async with stream.ordered_consumer() as ordered:
            ordered._discard_consumer()
            assert await no_consumers(stream)
            await stream.create_consumer(
                ConsumerConfig(name="last")
            )  # in its place: it goes as late as the old one might
            await js.publish(f"{fresh}.a", b"")
            reader = asyncio.create_task(ordered.next(timeout=20))
            while not reader.done() and not ordered._attempts:
                await asyncio.sleep(0.01)
            await stream.delete_consumer("last")
            assert (await reader).seq == 1


async def test_all_starts_and_filters(any_server: str, fresh: str) -> None:
    async with filled(any_server, fresh, 1) as stream:
        await publish(stream, 1, 99)  # later than the first: what comes in one turn is stored at one time
        async with stream.ordered_consumer() as ordered:
            assert ordered.initial_pending == 100
            first = await ordered.next()
            assert (first.seq, first.subject, first.data, first.num_pending) == (1, f"{fresh}.0", b"0", 99)
            assert first.is_settled
            assert await read(ordered, 99) == list(range(2, 101))
            with pytest.raises(RequestTimeoutError, match=r"no message within 0\.1 s"):
                await ordered.next(timeout=0.1)
        async with stream.ordered_consumer(start_seq=95) as ordered:
            assert ordered.initial_pending == 6
            assert await read(ordered, 6) == list(range(95, 101))
        async with stream.ordered_consumer(f"{fresh}.3") as ordered:
            assert ordered.initial_pending == 10
            assert await read(ordered, 10) == list(range(4, 101, 10))
        async with await jetstream_of(stream).ordered(f"{fresh}.3", start_seq=90) as ordered:
            assert await read(ordered, 1) == [94]
        async with stream.ordered_consumer([f"{fresh}.3", f"{fresh}.4"], start_seq=90) as ordered:
            assert await read(ordered, 2) == [94, 95]
        async with stream.ordered_consumer(deliver_policy="last_per_subject") as ordered:
            assert ordered.initial_pending == 10
            assert await read(ordered, 10) == list(range(91, 101))
        async with stream.ordered_consumer(deliver_policy="last") as ordered:
            assert await read(ordered, 1) == [100]
        async with stream.ordered_consumer(deliver_policy="new", headers_only=True) as ordered:
            assert ordered.initial_pending == 0
            await publish(stream, 100, 1)
            message = await ordered.next()
            assert (message.seq, message.data, message.headers["Nats-Msg-Size"]) == (101, b"", "3")
        async with stream.ordered_consumer(start_time=message.time) as ordered:
            assert await read(ordered, 1) == [101]
        assert await no_consumers(stream)


async def test_an_empty_stream_and_one_that_does_not_exist(any_server: str, fresh: str) -> None:
    async with filled(any_server, fresh) as stream:
        async with stream.ordered_consumer() as ordered:
            assert ordered.initial_pending == 0
            await publish(stream, 0, 3)
            assert await read(ordered, 3) == [1, 2, 3]
        with pytest.raises(StreamLookupError):
            await jetstream_of(stream).ordered(f"{fresh}_none.a")
        with pytest.raises(StreamNotFoundError):
            await jetstream_of(stream).stream(f"{fresh}_none").ordered_consumer().start()


async def test_leaving_a_loop_deletes_the_consumer_it_began(any_server: str, fresh: str) -> None:
    async with filled(any_server, fresh, 10) as stream:
        async for message in stream.ordered_consumer():
            if message.seq == 3:
                break
        del message
        assert await no_consumers(stream)
        async with stream.ordered_consumer() as ordered:
            async for message in ordered:
                if message.seq == 3:
                    break
            assert await read(ordered, 7) == list(range(4, 11))


async def test_a_reader_that_is_cancelled_loses_nothing(any_server: str, fresh: str) -> None:
    async with filled(any_server, fresh, 2_000) as stream, stream.ordered_consumer() as ordered:
        got: list[int] = []
        choice = random.Random(5)
        while len(got) < 2_000:
            task = asyncio.create_task(ordered.next_chunk(timeout=20))
            for _ in range(choice.randrange(4)):
                await asyncio.sleep(0)
            task.cancel()
            try:
                got += [message.seq for message in await task]
            except asyncio.CancelledError:
                got += [message.seq for message in await ordered.next_chunk(timeout=20)]
        assert got == list(range(1, 2_001))


async def test_lost_and_duplicate_frames_are_repaired(any_server: str, fresh: str) -> None:
    async with filled(any_server, fresh, 3_000) as stream, proxy_to(any_server) as proxy:
        choice = random.Random(7)
        faults = [0]

        def fault(frame: bytes) -> list[bytes]:
            is_message = b" $JS.ACK." in frame[:200]
            if not is_message or choice.random() > 0.002 or faults[0] >= 12:
                return [frame]
            faults[0] += 1
            return choice.choice([[], [frame, frame]])

        proxy.fault = fault
        async with connect(proxy.url) as nc:
            async with nc.jetstream().stream(fresh).ordered_consumer(heartbeat=0.2) as ordered:
                assert await read(ordered, 3_000) == list(range(1, 3_001))
                assert ordered.resets > 0
                proxy.fault = whole
            assert await no_consumers(stream)


async def test_a_gap_at_the_end_is_seen_by_the_heartbeat(any_server: str, fresh: str) -> None:
    async with filled(any_server, fresh) as stream, proxy_to(any_server) as proxy, connect(proxy.url) as nc:
        ordered = nc.jetstream().stream(fresh).ordered_consumer(heartbeat=0.2)
        async with ordered:
            proxy.fault = lambda frame: [] if b" $JS.ACK." in frame[:200] else [frame]
            await publish(stream, 0, 5)
            task = asyncio.create_task(read(ordered, 5))
            while not ordered.resets:
                await asyncio.sleep(0.01)
            proxy.fault = whole
            assert await task == [1, 2, 3, 4, 5]


async def test_missed_heartbeats_are_reported_and_repaired(any_server: str, fresh: str) -> None:
    """A consumer that somebody deleted says nothing more: the missing heartbeats show it."""
    events: list[ClientEvent] = []
    async with filled(any_server, fresh) as stream, connect(any_server, on_event=events.append) as nc:
        async with nc.jetstream().stream(fresh).ordered_consumer(heartbeat=0.1) as ordered:
            await stream.delete_consumer(ordered.consumer_name)
            await publish(stream, 0, 5)
            assert await read(ordered, 5) == [1, 2, 3, 4, 5]
        assert any(isinstance(event.error, HeartbeatLostError) for event in events)


async def test_a_stream_that_was_made_again_ends_the_reading(any_server: str, fresh: str) -> None:
    """It counts from one: the reader would wait until it gets as far as the old one was, and skip what came before."""
    async with filled(any_server, fresh) as stream, connect(any_server) as nc:
        await publish(stream, 0, 5)
        async with nc.jetstream().stream(fresh).ordered_consumer(heartbeat=0.1) as ordered:
            assert await read(ordered, 5) == [1, 2, 3, 4, 5]
            config = (await stream.info()).config
            await nc.jetstream().delete_stream(fresh)
            await nc.jetstream().create_stream(config)
            await publish(stream, 0, 2)
            for _ in range(2):  # and it stays so
                with pytest.raises(
                    StreamNotFoundError, match=f"stream '{fresh}' was deleted and recreated while it was read"
                ):
                    await ordered.next(timeout=20)


async def test_a_mirror_that_is_younger_than_its_messages_is_read_on(any_server: str, fresh: str) -> None:
    async with filled(any_server, fresh) as stream, connect(any_server) as nc:
        await publish(stream, 0, 5)
        await asyncio.sleep(1.1)  # more than clocks of servers may differ
        copy = await nc.jetstream().create_stream(f"{fresh}C", mirror=StreamSource(name=fresh))
        async with copy.ordered_consumer(heartbeat=0.1) as ordered:
            assert await read(ordered, 5) == [1, 2, 3, 4, 5]
            await copy.delete_consumer(ordered.consumer_name)
            task = asyncio.create_task(read(ordered, 1))
            while not ordered.resets:
                await asyncio.sleep(0.01)
            await publish(stream, 5, 1)
            assert await task == [6]


@pytest.mark.parametrize("policy", ["all", "new", "last_per_subject"])
async def test_a_cut_connection_goes_unnoticed(any_server: str, fresh: str, policy: str) -> None:
    async with filled(any_server, fresh) as stream, proxy_to(any_server) as proxy:
        async with connect(proxy.url, reconnect_wait=0.01) as nc:
            ordered = nc.jetstream().stream(fresh).ordered_consumer(deliver_policy=policy)
            async with ordered:
                proxy.cut()  # before the first message, and with nobody reading
                await publish(stream, 0, 10, 100)
                assert await read(ordered, 10) == list(range(1, 11))
                for n in range(1, 6):
                    task = asyncio.create_task(read(ordered, 10))
                    await asyncio.sleep(0.01)
                    proxy.cut()
                    await publish(stream, 10 * n, 10, 100)
                    assert await task == list(range(10 * n + 1, 10 * n + 11))
        assert await no_consumers(stream)


Maker = Callable[[Path], OurProcess | RealProcess]


@pytest.fixture
def server_kind(request: pytest.FixtureRequest, any_server: str) -> type[OurProcess] | type[RealProcess]:
    """A server of the kind at hand, to be killed."""
    assert any_server
    return RealProcess if request.node.callspec.params["any_server"] == "real" else OurProcess


async def test_a_killed_server_goes_unnoticed(
    server_kind: type[OurProcess] | type[RealProcess], tmp_path: Path, fresh: str
) -> None:
    with server_kind(tmp_path) as server:
        async with connect(server.url, reconnect_wait=0.05, reconnect_max_wait=0.2) as nc:
            js = nc.jetstream()
            stream = await js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
            await publish(stream, 0, 100)
            async with stream.ordered_consumer() as ordered:
                assert await read(ordered, 100) == list(range(1, 101))
                await asyncio.to_thread(server.kill)
                task = asyncio.create_task(read(ordered, 100))
                await asyncio.sleep(0.2)
                await asyncio.to_thread(server.start)
                last = (await info_of(stream)).state.last_seq
                assert last == 100  # everything was synced by then, or this test would need another server
                await publish(stream, 100, 100)
                assert await task == list(range(101, 201))
            assert await no_consumers(stream)


async def info_of(stream: Stream):  # type: ignore[no-untyped-def]
    """The info, once the server answers again."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return await stream.info(timeout=2)
        except Exception:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)


class Chaos:
    """Cuts, losses and doubled frames, as a schedule of faults per frame."""

    def __init__(self, proxy: Proxy, seed: int) -> None:
        self._proxy = proxy
        self._choice = random.Random(seed)
        self.counts = {"drop": 0, "double": 0, "cut": 0}
        proxy.fault = self.fault

    def fault(self, frame: bytes) -> list[bytes]:
        if not frame.startswith((b"MSG ", b"HMSG ")) or self._choice.random() > 0.001:
            return [frame]
        kind = min(self.counts, key=self.counts.__getitem__)  # each as often as the others
        if kind == "cut":
            self._proxy.cut()
        elif b" $JS.ACK." not in frame[:200]:
            return [frame]  # an answer of the API: losing it is a timeout, which costs a test seconds
        self.counts[kind] += 1
        return [frame, frame] if kind == "double" else []


@pytest.mark.spec("SW-14")
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(20_000, id="short"),
        pytest.param(300_000, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_under_many_faults_every_message_is_returned_once_and_in_order(
    server_kind: type[OurProcess] | type[RealProcess], tmp_path: Path, fresh: str, count: int
) -> None:
    asyncio.run(asyncio.wait_for(under_many_faults(server_kind, tmp_path, fresh, count), 60 + count / 200))


async def under_many_faults(
    server_kind: type[OurProcess] | type[RealProcess], tmp_path: Path, fresh: str, count: int
) -> None:
    with server_kind(tmp_path) as server:
        async with connect(server.url) as direct, proxy_to(server.url) as proxy:
            stream = await direct.jetstream().create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
            writer = asyncio.create_task(publish(stream, 0, count))
            chaos = Chaos(proxy, seed=count)
            async with connect(proxy.url, reconnect_wait=0.01, reconnect_max_wait=0.1) as nc:
                async with nc.jetstream().stream(fresh).ordered_consumer(heartbeat=0.5) as ordered:
                    got = await read(ordered, count)
                    proxy.fault = whole
                await writer
                assert got == list(range(1, count + 1))
                assert ordered.resets >= 3, chaos.counts
            assert min(chaos.counts.values()) > 0, chaos.counts
            assert await no_consumers(stream)


async def test_a_reader_with_short_timeouts_resumes_after_an_outage(any_server: str, fresh: str) -> None:
    """Calls that give up before a consumer can be made must not keep it from being made."""
    async with filled(any_server, fresh, 1) as stream, proxy_to(any_server) as proxy:
        options = {"reconnect_wait": 0.01, "reconnect_max_wait": 0.05, "on_event": lambda _: None}
        async with connect(proxy.url, **options) as nc:  # type: ignore[arg-type]
            ordered = nc.jetstream().stream(fresh).ordered_consumer()
            assert (await ordered.next(timeout=5)).seq == 1
            proxy.delay, proxy.is_refusing = 0.02, True
            proxy.cut()
            back = time.monotonic() + 3
            found = None
            while found is None:
                assert time.monotonic() < back + 15, "nothing came after the outage"
                if time.monotonic() > back and proxy.is_refusing:
                    proxy.is_refusing = False
                    await jetstream_of(stream).publish(f"{fresh}.again", b"x")
                try:
                    found = await ordered.next(timeout=0.1)
                except RequestTimeoutError:
                    continue
            assert found.seq == 2
            await ordered.close()


async def test_a_full_buffer_for_the_next_connection_does_not_end_readers(any_server: str, fresh: str) -> None:
    async with filled(any_server, fresh, 1) as stream, proxy_to(any_server) as proxy:
        options = {"reconnect_wait": 0.01, "on_event": lambda _: None, "reconnect_buffer_bytes": 2_000}
        async with connect(proxy.url, **options) as nc:  # type: ignore[arg-type]
            here = nc.jetstream().stream(fresh)
            ordered, consumer = here.ordered_consumer(), await here.create_consumer("pull")
            loop = consumer.messages()
            assert (await ordered.next(timeout=5)).seq == (await anext(loop)).seq == 1
            proxy.is_refusing = True
            proxy.cut()
            while nc.is_connected:
                await asyncio.sleep(0.01)
            with suppress(ConnectionLostError):  # there is no more room
                while True:
                    await nc.publish("metrics", b"x" * 50)
            readers = [asyncio.ensure_future(ordered.next(timeout=20)), asyncio.ensure_future(anext(loop))]
            await asyncio.sleep(0.3)
            assert not any(reader.done() for reader in readers)
            proxy.is_refusing = False
            await jetstream_of(stream).publish(f"{fresh}.again", b"x")
            assert [message.seq for message in await asyncio.gather(*readers)] == [2, 2]
            await ordered.close()


async def test_the_second_window_arrives_while_the_program_does_something_else(any_server: str, fresh: str) -> None:
    size, count = 256 * 1024, 16  # 4 MiB; the server stops behind 2 MiB that nothing was said about
    async with filled(any_server, fresh) as stream, connect(any_server) as nc:
        async with jetstream_of(stream).publisher(timeout=30) as publisher:
            for _ in range(count):
                await publisher.publish(f"{fresh}.0", b"x" * size)
        async with nc.jetstream().stream(fresh).ordered_consumer() as ordered:
            deadline = time.monotonic() + 15
            while nc.stats.in_bytes < count * size:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            found = 0
            while found < count:
                found += len(await ordered.next_chunk())
            assert (ordered.last_seq, ordered.resets) == (count, 0)
