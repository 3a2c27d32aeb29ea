"""The subscribe workflow from end to end, the same on our server and on the real one."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from slipstream import ConsumerConfig, StreamConfig, connect, connect_blocking
from slipstream.client.events import ClientEvent
from slipstream.errors import (
    ConfigMismatchError,
    ConsumerGoneError,
    ConsumerNotFoundError,
    DuplicateSubscriptionError,
    FilterMismatchError,
    HeartbeatLostError,
    MessageGapError,
    NoDeliverGroupError,
    PullConsumerError,
    PushConsumerError,
    QueueFlowControlError,
    QueueHeartbeatError,
    QueueMismatchError,
    QueueRequiredError,
    StatusError,
    StreamLookupError,
)
from slipstream.jetstream._async.message import JsMessage
from slipstream.jetstream._async.stream import Stream
from tests.conformance.test_pull import World, numbers, world
from tests.proxy import proxy_to, whole

BEAT = timedelta(seconds=5)


async def names(stream: Stream) -> list[str]:
    return sorted([name async for name in stream.consumer_names()])


async def fill(here: World, count: int, *, first: int = 0) -> None:
    for n in range(first, first + count):
        await here.js.publish(f"{here.stream.name}.{n}", b"%d" % n)


@pytest.mark.spec("SW-03")
async def test_the_stream_is_looked_up_by_subject(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh, 2) as here:
        for subject in (f"{fresh}.1", f"{fresh}.>", f"{fresh}.*"):
            async with await here.js.subscribe(subject) as subscription:
                assert subscription.stream == fresh
        assert (await here.js.pull_subscribe(f"{fresh}.>")).stream == fresh
        with pytest.raises(StreamLookupError, match="found: none"):
            await here.js.subscribe(f"{fresh}_not.there")
        await here.js.create_stream(StreamConfig(name=f"{fresh}b", subjects=(f"{fresh}b.>",)))
        with pytest.raises(StreamLookupError) as caught:
            await here.js.subscribe(">")
        assert {fresh, f"{fresh}b"} <= set(caught.value.streams)


async def test_messages_are_pushed_read_and_acked(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh, 1_000) as here:
        async with await here.js.subscribe(f"{fresh}.>") as subscription:
            got: list[int] = []
            first = await subscription.next()
            assert first.metadata.consumer == subscription.consumer_name
            await first.ack_sync()
            got.append(int(first.data))
            async for message in subscription:
                got.append(int(message.data))
                await message.ack()
                if len(got) == 500:
                    break
            while len(got) < 1_000:
                chunk = await subscription.next_chunk()
                got += numbers(chunk)
                for message in chunk:
                    await message.ack()
            assert got == list(range(1_000))
            assert (await subscription.info()).push_bound
        assert await names(here.stream) == []


async def test_a_callback_gets_the_messages_one_after_the_other(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh, 200) as here:
        got: list[int] = []

        async def handle(message: JsMessage) -> None:
            got.append(int(message.data))
            await asyncio.sleep(0)
            await message.ack()

        subscription = await here.js.subscribe(f"{fresh}.>", callback=handle)
        while len(got) < 200:
            await asyncio.sleep(0.01)
        await subscription.drain()
        assert got == list(range(200))
        assert await names(here.stream) == []


@pytest.mark.spec("SW-04")
async def test_a_named_consumer_is_bound_never_created(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh, 3) as here:
        for stream in ("", fresh):
            with pytest.raises(ConsumerNotFoundError):
                await here.js.subscribe(f"{fresh}.>", consumer="push", stream=stream)
        await here.stream.create_consumer(ConsumerConfig(durable_name="push", deliver_subject=f"{fresh}_to"))
        subscription = await here.js.subscribe(stream=fresh, consumer="push")
        assert (subscription.subject, subscription.is_owner) == (f"{fresh}_to", False)
        assert int((await subscription.next()).data) == 0
        await subscription.unsubscribe()
        pull = await here.js.pull_subscribe(stream=fresh, consumer="later")  # goes on without it
        with pytest.raises(ConsumerGoneError):
            await pull.fetch(1, timeout=2)
        await here.stream.create_consumer("later")
        assert numbers(await pull.fetch(3)) == [0, 1, 2]
        await pull.unsubscribe()
        assert await names(here.stream) == ["later", "push"]


@pytest.mark.spec("SW-05")
async def test_a_queue_without_another_name_is_its_own_durable(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh) as here:
        one = await here.js.subscribe(f"{fresh}.>", queue="workers")
        two = await here.js.subscribe(f"{fresh}.>", queue="workers")
        assert await names(here.stream) == ["workers"]
        assert (one.is_owner, two.is_owner) == (True, False)
        await fill(here, 100)
        got: list[int] = []
        deadline = here.nc.now() + 20
        while len(got) < 100 and here.nc.now() < deadline:
            for member in (one, two):
                if member.pending:
                    got += numbers(await member.next_chunk())
            await asyncio.sleep(0.01)
        assert sorted(got) == list(range(100))  # each message went to one of them


@pytest.mark.spec("SW-06")
async def test_each_mistake_about_groups_has_its_own_error(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh) as here:
        js = here.js
        plain = await js.subscribe(f"{fresh}.>", durable="plain")
        group = await js.subscribe(f"{fresh}.>", durable="group", queue="q")
        assert (await plain.info()).push_bound
        assert (await group.info()).config.deliver_group == "q"
        with pytest.raises(DuplicateSubscriptionError):
            await js.subscribe(f"{fresh}.>", durable="plain")
        with pytest.raises(QueueRequiredError):
            await js.subscribe(f"{fresh}.>", durable="group")
        with pytest.raises(QueueMismatchError):
            await js.subscribe(f"{fresh}.>", durable="group", queue="other")
        with pytest.raises(NoDeliverGroupError):
            await js.subscribe(f"{fresh}.>", durable="plain", queue="q")
        assert await names(here.stream) == ["group", "plain"]


@pytest.mark.spec("SW-07")
async def test_what_does_not_match_an_existing_consumer_is_an_error(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh) as here:
        js, make = here.js, here.stream.create_consumer
        await make(ConsumerConfig(durable_name="push", deliver_subject=f"{fresh}_1", filter_subject=f"{fresh}.a"))
        await make(ConsumerConfig(durable_name="pull", filter_subject=f"{fresh}.a", max_deliver=5))
        await make(ConsumerConfig(
            durable_name="beat", deliver_subject=f"{fresh}_2", deliver_group="q", idle_heartbeat=BEAT,
        ))  # fmt: skip
        with pytest.raises(FilterMismatchError):
            await js.subscribe(f"{fresh}.b", durable="push")
        with pytest.raises(FilterMismatchError):
            await js.pull_subscribe(f"{fresh}.b", durable="pull")
        with pytest.raises(PushConsumerError):
            await js.pull_subscribe(f"{fresh}.a", durable="push")
        with pytest.raises(PullConsumerError):
            await js.subscribe(f"{fresh}.a", durable="pull")
        with pytest.raises(ConfigMismatchError, match="max_deliver"):
            await js.pull_subscribe(f"{fresh}.a", durable="pull", config=ConsumerConfig(max_deliver=6))
        with pytest.raises(QueueHeartbeatError):
            await js.subscribe(stream=fresh, consumer="beat", queue="q")
        with pytest.raises(QueueFlowControlError):
            await js.subscribe(f"{fresh}.a", queue="q", config=ConsumerConfig(flow_control=True))
        same = await js.pull_subscribe(f"{fresh}.a", durable="pull", config=ConsumerConfig(max_deliver=5))
        assert not same.is_owner


@pytest.mark.spec("SW-08")
async def test_the_race_to_create_is_lost_gracefully(any_server: str, fresh: str) -> None:
    """Both look, both see nothing, one is first: the proxy holds the other back between its two requests."""
    async with (
        world(any_server, fresh) as here,
        proxy_to(any_server) as proxy,
        connect(proxy.url) as late,
    ):
        js = late.jetstream()
        for queue in ("q", ""):
            durable = f"race{queue}"
            proxy.sent.clear()
            released = asyncio.Event()
            proxy.hold = b"CONSUMER.DURABLE.CREATE"
            proxy.release = released
            task = asyncio.create_task(js.subscribe(f"{fresh}.>", durable=durable, queue=queue))
            await proxy.holding.wait()
            first = await here.js.subscribe(f"{fresh}.>", durable=durable, queue=queue)
            released.set()
            if queue:
                second = await task
                assert (first.is_owner, second.is_owner) == (True, False)
                assert second.subject == first.subject  # not the inbox it had before
                await late.flush()
                frames = bytes(proxy.sent)
                assert frames.index(b"SUB _INBOX") < frames.index(b"CONSUMER.DURABLE.CREATE")
                assert b"SUB %b q" % first.subject.encode() in frames
                await first.unsubscribe()
            else:
                with pytest.raises(DuplicateSubscriptionError):
                    await task
                await first.unsubscribe()
        assert len(late._session.subscriptions) == 1  # the queue member's; no inbox is left behind


@pytest.mark.spec("SW-09")
async def test_what_was_created_is_deleted_and_what_was_bound_is_left_alone(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh) as here, proxy_to(any_server) as proxy, connect(proxy.url) as nc:
        js = nc.jetstream()
        for end in ("unsubscribe", "drain"):
            for durable in ("", "dur"):
                push = await js.subscribe(f"{fresh}.>", durable=durable)
                assert await names(here.stream) == [push.consumer_name]
                assert push.is_owner
                await getattr(push, end)()
                assert await names(here.stream) == []
                pull = await js.pull_subscribe(f"{fresh}.>", durable=durable)
                assert await names(here.stream) == [pull.name]
                await getattr(pull, end)()
                assert await names(here.stream) == []
        sent = bytes(proxy.sent)
        assert b"PUB $JS.API.CONSUMER.DURABLE.CREATE.%b.dur " % fresh.encode() in sent
        assert b"PUB $JS.API.CONSUMER.CREATE.%b " % fresh.encode() in sent
        await here.stream.create_consumer("kept")
        await here.stream.create_consumer(ConsumerConfig(durable_name="kept2", deliver_subject=f"{fresh}_x"))
        for end in ("unsubscribe", "drain"):
            await getattr(await js.pull_subscribe(f"{fresh}.>", durable="kept"), end)()
            await getattr(await js.subscribe(f"{fresh}.>", durable="kept2"), end)()
        assert await names(here.stream) == ["kept", "kept2"]


@pytest.mark.spec("SW-12")
async def test_three_missed_heartbeats_are_reported(any_server: str, fresh: str) -> None:
    events: list[ClientEvent] = []
    async with (
        world(any_server, fresh) as here,
        proxy_to(any_server) as proxy,
        connect(proxy.url, on_event=events.append) as nc,
    ):
        config = ConsumerConfig(idle_heartbeat=timedelta(seconds=0.5))
        subscription = await nc.jetstream().subscribe(f"{fresh}.>", config=config)
        task = asyncio.create_task(subscription.next(timeout=60))
        async with asyncio.timeout(20):
            while proxy.received.count(b"Idle Heartbeat") < 4:  # more than three intervals
                await asyncio.sleep(0.01)
        assert not [event for event in events if event.error]
        proxy.fault = lambda frame: [] if b"Idle Heartbeat" in frame else [frame]
        begin = time.monotonic()
        while not [event for event in events if isinstance(event.error, HeartbeatLostError)]:
            await asyncio.sleep(0.01)
        assert time.monotonic() - begin > 0.9
        await fill(here, 1)
        assert int((await task).data) == 0


@pytest.mark.spec("SW-13")
async def test_gaps_are_reported_but_not_to_queue_groups(any_server: str, fresh: str) -> None:
    events: list[ClientEvent] = []
    async with (
        world(any_server, fresh) as here,
        proxy_to(any_server) as proxy,
        connect(proxy.url, on_event=events.append) as nc,
    ):
        js = nc.jetstream()
        config = ConsumerConfig(idle_heartbeat=timedelta(seconds=0.5))
        subscription = await js.subscribe(f"{fresh}.>", config=config)
        member = await js.subscribe(f"{fresh}.>", queue="q")
        proxy.fault = lambda frame: [] if frame.startswith(b"MSG %b.1 " % fresh.encode()) else [frame]
        await fill(here, 3)
        assert [int((await subscription.next()).data) for _ in range(2)] == [0, 2]
        assert [int((await member.next()).data) for _ in range(2)] == [0, 2]
        (gap,) = [event.error for event in events if event.error]
        assert isinstance(gap, MessageGapError)
        assert (gap.consumer, gap.expected, gap.seen) == (subscription.consumer_name, 2, 3)
        proxy.fault = lambda frame: [] if b" $JS.ACK." in frame[:200] else [frame]
        await fill(here, 1, first=3)
        task = asyncio.create_task(subscription.next(timeout=20))
        while len(errors := [event.error for event in events if event.error]) < 2:  # seen by the heartbeat alone
            await asyncio.sleep(0.01)
        assert isinstance(errors[1], MessageGapError)
        assert (errors[1].expected, errors[1].seen) == (4, 5)
        proxy.fault = whole
        await fill(here, 1, first=4)
        assert int((await task).data) == 4
        assert len([event for event in events if event.error]) == 2


@pytest.mark.spec("SW-15")
async def test_flow_control_is_answered_at_hand_over_and_a_stalled_consumer_is_released(
    any_server: str, fresh: str
) -> None:
    async with world(any_server, fresh) as here, proxy_to(any_server) as proxy, connect(proxy.url) as nc:
        async with here.js.publisher() as publisher:
            for n in range(3_000):
                await publisher.publish(f"{fresh}.a", b"%8d" % n + b"x" * 2_000)
        beat = timedelta(seconds=0.3)
        config = ConsumerConfig(flow_control=True, idle_heartbeat=beat, ack_policy="none")
        subscription = await nc.jetstream().subscribe(f"{fresh}.>", config=config)
        while b"FlowControl Request" not in proxy.received:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert b"PUB $JS.FC" not in proxy.sent  # nothing was handed over yet
        got: list[int] = []
        while b"PUB $JS.FC" not in proxy.sent:
            got += [int(message.data[:8]) for message in await subscription.next_chunk()]
            await nc.flush()
        answers = [line for line in bytes(proxy.sent).split(b"\r\n") if line.startswith(b"PUB $JS.FC")]
        assert len(got) < 3_000
        assert len(answers) == len(set(answers))
        # From now on the requests get lost: only heartbeats can tell that the consumer is stalled.
        proxy.fault = lambda frame: [] if b"FlowControl Request" in frame else [frame]
        while len(got) < 3_000:
            got += [int(message.data[:8]) for message in await subscription.next_chunk(timeout=20)]
        assert got == list(range(3_000))
        answers = [line for line in bytes(proxy.sent).split(b"\r\n") if line.startswith(b"PUB $JS.FC")]
        assert len(answers) == len(set(answers))


@pytest.mark.spec("SW-16")
async def test_statuses_are_quiet_or_raised(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh) as here, proxy_to(any_server) as proxy, connect(proxy.url) as nc:
        js = nc.jetstream()
        push = await js.subscribe(f"{fresh}.>")
        pull = await js.pull_subscribe(f"{fresh}.>")
        assert await pull.fetch(2, timeout=2) == []  # 404, then 408
        assert b"404 No Messages" in proxy.received
        assert b"408 Request Timeout" in proxy.received
        for code, text in ((409, "Consumer Deleted"), (503, ""), (777, "Never heard of it")):
            status = b"NATS/1.0 %d %b\r\n\r\n" % (code, text.encode())
            await here.nc.publish(push.subject, b"", headers=None)
            proxy.fault = swap(status)
            with pytest.raises(StatusError) as caught:
                await push.next(timeout=10)
            assert caught.value.code == code
            with pytest.raises(StatusError) as caught:
                await pull.fetch(2, timeout=10)
            assert caught.value.code == code
            proxy.fault = whole
        await fill(here, 1)
        assert int((await push.next()).data) == 0
        assert numbers(await pull.fetch(2)) == [0]


def swap(status: bytes):  # type: ignore[no-untyped-def]
    """Every status that the server sends, and every message without an ack subject, becomes this one."""

    def fault(frame: bytes) -> list[bytes]:
        line = frame.split(b"\r\n")[0].split(b" ")
        if line[0] not in (b"MSG", b"HMSG") or b"$JS.ACK." in frame[:200] or b'"type"' in frame:
            return [frame]
        return [b"HMSG %b %b %d %d\r\n%b\r\n" % (line[1], line[2], len(status), len(status), status)]

    return fault


@pytest.mark.spec("SW-17")
async def test_drain_hands_over_everything_then_deletes_and_reports_a_failure(any_server: str, fresh: str) -> None:
    events: list[ClientEvent] = []
    async with (
        world(any_server, fresh, 300) as here,
        proxy_to(any_server) as proxy,
        connect(proxy.url, on_event=events.append) as nc,
    ):
        js = nc.jetstream()
        got: list[int] = []
        seen: list[list[str]] = []

        async def handle(message: JsMessage) -> None:
            await asyncio.sleep(0.001)
            got.append(int(message.data))
            if len(got) in (1, 300):
                seen.append(await names(here.stream))

        subscription = await js.subscribe(f"{fresh}.>", callback=handle)
        async with asyncio.timeout(20):
            while proxy.received.count(b" $JS.ACK.") < 300:  # nats-server counts as delivered what it has queued
                await asyncio.sleep(0.01)
        await subscription.drain()
        assert got == list(range(300))
        assert seen == [[subscription.consumer_name]] * 2  # it was there until the end
        assert await names(here.stream) == []
        reader = await js.subscribe(f"{fresh}.>")
        while reader.pending < 300:
            await asyncio.sleep(0.01)
        await reader.drain()
        assert await names(here.stream) == [reader.consumer_name]
        assert [int(m.data) async for m in reader] == list(range(300))
        assert await names(here.stream) == []
        assert not [event for event in events if event.error]
        doomed = await js.subscribe(f"{fresh}.>", callback=lambda _: None)
        await here.stream.delete_consumer(doomed.consumer_name)
        await doomed.drain()
        errors = [event.error for event in events if event.error]
        assert [type(error) for error in errors] == [ConsumerNotFoundError]


async def test_unsubscribe_raises_if_the_consumer_cannot_be_deleted(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh) as here:
        doomed = await here.js.subscribe(f"{fresh}.>")
        await here.stream.delete_consumer(doomed.consumer_name)
        with pytest.raises(ConsumerNotFoundError):
            await doomed.unsubscribe()


def test_the_blocking_client_subscribes_in_the_same_way(any_server: str, fresh: str) -> None:
    with connect_blocking(any_server) as nc:
        js = nc.jetstream()
        stream = js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.>",)))
        for n in range(100):
            js.publish(f"{fresh}.a", b"%d" % n)
        with js.subscribe(f"{fresh}.>") as subscription:
            got = [int(subscription.next().data) for _ in range(100)]
        assert got == list(range(100))
        seen: list[int] = []
        called = js.subscribe(f"{fresh}.>", callback=lambda message: seen.append(int(message.data)))
        deadline = time.monotonic() + 20
        while len(seen) < 100 and time.monotonic() < deadline:
            time.sleep(0.01)
        called.drain()
        assert seen == list(range(100))
        pull = js.pull_subscribe(f"{fresh}.>", durable="dur")
        assert [int(message.data) for message in pull.fetch(100)] == got
        pull.unsubscribe()
        with pytest.raises(StreamLookupError):
            js.subscribe(f"{fresh}_not.there")
        assert list(stream.consumer_names()) == []
