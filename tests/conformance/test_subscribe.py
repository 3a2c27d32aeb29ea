"""The subscribe workflow from end to end, the same on our server and on the real one."""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slipstream import (
    ConsumerConfig,
    DeliverPolicy,
    PriorityPolicy,
    StreamConfig,
    connect,
    connect_blocking,
)
from slipstream.client.events import ClientEvent, EventKind
from slipstream.client.session import State
from slipstream.errors import (
    ConfigMismatchError,
    ConsumerGoneError,
    ConsumerNotFoundError,
    DuplicateSubscriptionError,
    FilterMismatchError,
    HeartbeatLostError,
    MessageGapError,
    NoDeliverGroupError,
    PullAckPolicyError,
    PullConsumerError,
    PushConsumerError,
    QueueFlowControlError,
    QueueHeartbeatError,
    QueueMismatchError,
    QueueRequiredError,
    StatusError,
    StrayMessageError,
    StreamLookupError,
    SubscribeError,
    UsageError,
)
from slipstream.jetstream._async.message import JsMessage
from slipstream.jetstream._async.stream import Stream
from tests.conformance.test_pull import World, numbers, world
from tests.consumer_fields import FIELDS, PULL, PUSH, default_of, named
from tests.frozen_loop import FrozenLoop, run_frozen
from tests.proxy import Fault, proxy_to, whole

BEAT = timedelta(seconds=5)


async def names(stream: Stream) -> list[str]:
    return sorted([name async for name in stream.consumer_names()])


async def unbound(stream: Stream, consumer: str) -> None:
    """Wait until a server has noticed that the last subscription of a push consumer is gone."""
    async with asyncio.timeout(20):
        while (await (await stream.consumer(consumer)).info()).push_bound:
            await asyncio.sleep(0.01)


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
        several = {f"{fresh}_{n}" for n in range(2)}
        for n, name in enumerate(sorted(several)):
            await here.js.create_stream(StreamConfig(name=name, subjects=(f"{fresh}_s.{n}.>",)))
        with pytest.raises(StreamLookupError) as caught:
            await here.js.subscribe(f"{fresh}_s.>")
        assert set(caught.value.streams) == several


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
            await pull.fetch(1, timeout=20)
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


def config_for(kind: str, field: str, fresh: str, **fields: Any) -> ConsumerConfig:
    """A durable of that kind, named after the field."""
    own = {"deliver_subject": f"{fresh}_{field}"} if kind == PUSH else {}
    return ConsumerConfig(**{"durable_name": field} | own | fields)


@pytest.mark.spec("SW-07", "SW-19", "SW-20")
@pytest.mark.parametrize("kind", [PUSH, PULL])
async def test_each_field_that_was_set_is_compared_with_the_existing_consumer(
    any_server: str, fresh: str, is_real: bool, kind: str
) -> None:
    """The same value is bound; another one, and the default where the program set it, are errors.

    Fields that a server refuses for a consumer of that kind are asked of one that does not have them.
    """
    async with world(any_server, fresh, 3) as here:

        async def attempt(durable: str, **fields: Any) -> SubscribeError | None:
            config = ConsumerConfig(**fields)
            try:
                if kind == PULL:
                    found = await here.js.pull_subscribe(stream=fresh, durable=durable, config=config)
                    assert not found.is_owner
                else:
                    await unbound(here.stream, durable)
                    group = fields.get("deliver_group", "")
                    async with await here.js.subscribe(
                        stream=fresh, durable=durable, queue=group, config=config
                    ) as sub:
                        assert not sub.is_owner
            except SubscribeError as error:
                return error
            return None

        await here.stream.create_consumer(config_for(kind, "plain", fresh))
        for field, about in FIELDS.items():
            value, other = named(about.value, fresh), named(about.other, fresh)
            also = {name: named(each, fresh) for name, each in about.also.items()}
            if kind not in about.kinds:
                assert await attempt("plain", **{field: value}) is not None, field
                continue
            await here.stream.create_consumer(config_for(kind, field, fresh, **also | {field: value}))
            same, differs = await attempt(field, **also | {field: value}), await attempt(field, **also | {field: other})
            default = await attempt(field, **{field: default_of(field)})
            if (kind, field) == (PULL, "ack_policy"):
                assert isinstance(same, PullAckPolicyError)
                assert isinstance(differs, PullAckPolicyError)
            else:
                assert same is None, field
                # Released servers do not keep min_last_seq: the client does, and there is nothing to compare.
                assert (differs is None) == (field == "min_last_seq" and is_real), field
            assert (default is None) == about.is_open, field
            for error in (differs, default):
                if isinstance(error, ConfigMismatchError):
                    assert error.fields == (field,)
                elif error is not None:
                    assert field in ("ack_policy", "deliver_group")  # they have errors of their own
            await here.stream.delete_consumer(field)
        assert await names(here.stream) == ["plain"]


@pytest.mark.spec("SW-19")
@pytest.mark.parametrize("kind", [PUSH, PULL])
async def test_a_program_that_crashed_is_bound_to_its_own_durable_again(any_server: str, fresh: str, kind: str) -> None:
    """With each field set to something, as numbers, lists and datetimes too."""
    everything: dict[str, Any] = {
        "metadata": {"team": "a"}, "description": "mine", "ack_wait": 20, "max_deliver": -5, "backoff": [1, 2.5],
        "filter_subjects": [f"{fresh}.a", f"{fresh}.b"], "deliver_policy": DeliverPolicy.BY_START_TIME,
        "opt_start_time": datetime(2020, 1, 1, 12, 30, tzinfo=UTC), "sample_freq": "10", "max_ack_pending": 70,
        "inactive_threshold": 3600, "num_replicas": 1, "mem_storage": True, "priority_policy": PriorityPolicy.NONE,
        "min_last_seq": 2, "headers_only": False, "max_bytes": 0, "pause_until": None, "direct": False,
    }  # fmt: skip
    if kind == PUSH:
        everything |= {"idle_heartbeat": 5, "flow_control": True, "rate_limit_bps": 10**6}
    config = ConsumerConfig(**everything)
    async with world(any_server, fresh, 3) as here:
        for _ in range(2):
            async with connect(any_server) as nc:  # closed without `unsubscribe`, as in a crash
                js = nc.jetstream()
                if kind == PULL:
                    await js.pull_subscribe(stream=fresh, durable="mine", config=config)
                else:
                    await js.subscribe(stream=fresh, durable="mine", config=config)
            await unbound(here.stream, "mine")
        assert await names(here.stream) == ["mine"]


@pytest.mark.spec("SW-24", on="C")
async def test_what_cannot_work_is_refused_before_anything_is_sent(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh) as here, proxy_to(any_server) as proxy, connect(proxy.url) as nc:
        js = nc.jetstream()
        await nc.flush()
        before = len(proxy.sent)
        filters = ConsumerConfig(filter_subjects=(f"{fresh}.b", f"{fresh}.c"))
        for kind in (js.subscribe, js.pull_subscribe):
            for subject in (f"{fresh}.a", f"{fresh}.b", f"{fresh}.>"):
                with pytest.raises(FilterMismatchError, match="for several filters leave out subject and set stream"):
                    await kind(subject, config=filters)
        for error, config in (
            (QueueHeartbeatError, ConsumerConfig(deliver_group="g", idle_heartbeat=BEAT)),
            (QueueFlowControlError, ConsumerConfig(deliver_group="g", flow_control=True)),
        ):
            with pytest.raises(error):
                await js.subscribe(f"{fresh}.>", config=config)
        callback: Any = "x"
        with pytest.raises(UsageError, match="callback must be callable, got 'x'"):
            await js.subscribe(f"{fresh}.>", callback=callback)
        with pytest.raises(UsageError, match="callback must be callable, got 'x'"):
            await nc.subscribe(f"{fresh}.>", callback=callback)
        assert len(proxy.sent) == before
        pull = await js.pull_subscribe(stream=fresh, config=filters)
        with pytest.raises(UsageError, match="callback must be callable, got 'x'"):
            await pull.consume(callback)
        assert (await pull.info()).config.filter_subjects == filters.filter_subjects
        await pull.unsubscribe()
        assert await names(here.stream) == []


async def test_a_message_that_no_consumer_sent_is_named_as_such(any_server: str, fresh: str) -> None:
    async with world(any_server, fresh) as here:
        subscription = await here.js.subscribe(f"{fresh}.>")
        await here.nc.publish(subscription.subject, b"hello")
        with pytest.raises(StrayMessageError, match="was not sent by a consumer but published there"):
            await subscription.next()


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


@pytest.mark.spec("SW-08", "SW-23")
async def test_of_racing_pull_subscribers_one_is_the_owner(any_server: str, fresh: str) -> None:
    """The late one's request arrives when the consumer is there, with and without the mark of its creation."""
    async with world(any_server, fresh, 2) as here, proxy_to(any_server) as proxy, connect(proxy.url) as late:
        js = late.jetstream()
        proxy.hold = b"CONSUMER.DURABLE.CREATE"
        task = asyncio.create_task(js.pull_subscribe(f"{fresh}.>", durable="race"))
        await proxy.holding.wait()
        first = await here.js.pull_subscribe(f"{fresh}.>", durable="race")
        proxy.release.set()
        second = await task
        assert (first.is_owner, second.is_owner) == (True, False)
        config = (await first.info()).config
        assert [key for key in config.metadata if not key.startswith("_nats.")] == []
        await here.stream.create_consumer(ConsumerConfig(durable_name="race", filter_subject=f"{fresh}.>"))  # the same
        for end in (second.unsubscribe, second.drain):
            await end()
            assert await names(here.stream) == ["race"]
        assert numbers(await first.fetch(2)) == [0, 1]
        await first.unsubscribe()
        assert await names(here.stream) == []


@pytest.mark.spec("SW-08", "SW-23")
async def test_of_subscribers_that_begin_at_once_one_is_the_owner(any_server: str, fresh: str) -> None:
    group = ConsumerConfig(deliver_subject=f"{fresh}_to", deliver_group="g")  # the same for all of them
    async with world(any_server, fresh) as here, connect(any_server) as other:
        for n in range(5):
            pulls = await asyncio.gather(
                *(nc.jetstream().pull_subscribe(f"{fresh}.>", durable=f"pull{n}") for nc in (here.nc, other))
            )
            pushes = await asyncio.gather(
                *(nc.jetstream().subscribe(f"{fresh}.>", durable=f"push{n}", config=group) for nc in (here.nc, other))
            )
            for pair in (pulls, pushes):
                assert sorted(one.is_owner for one in pair) == [False, True]
                for is_owner in (False, True):
                    (one,) = [one for one in pair if one.is_owner == is_owner]
                    await one.unsubscribe()
            assert await names(here.stream) == []


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


class Beats:
    """A fault of the proxy: idle heartbeats are lost unless `is_passing`."""

    def __init__(self) -> None:
        self.is_passing = True
        self.passed: list[float] = []  # the times
        self._came = asyncio.Event()

    def __call__(self, frame: bytes) -> list[bytes]:
        if b"Idle Heartbeat" not in frame:
            return [frame]
        self._came.set()
        if not self.is_passing:
            return []
        self.passed.append(time.monotonic())
        return [frame]

    async def next(self) -> None:
        self._came.clear()
        await self._came.wait()


@pytest.mark.spec("SW-12", "SW-22")
@pytest.mark.parametrize("reader", ["nobody", "next", "callback"])
def test_an_alarm_comes_exactly_three_heartbeats_after_the_last_one(any_server: str, fresh: str, reader: str) -> None:
    """On a clock that stands still until it is moved: not a moment before, and once per silence."""

    beat, step, moment = 0.25, 0.125, 2**-10
    limit = 3 * beat

    async def main(loop: FrozenLoop) -> None:
        events: list[ClientEvent] = []

        def alarms() -> int:
            assert not [event.error for event in events if event.kind is EventKind.ERROR and not is_alarm(event)]
            return len([event for event in events if is_alarm(event)])

        async def settle() -> None:
            for _ in range(10):
                await asyncio.sleep(0)
            if nc.is_connected:
                await nc.flush()

        async def pass_time(seconds: float) -> None:
            for _ in range(int(seconds / step)):
                loop.advance(step)
                await settle()

        async def hear() -> None:
            """A heartbeat arrives, and then none."""
            beats.is_passing = True
            await beats.next()
            beats.is_passing = False
            await nc.flush()

        async with (
            world(any_server, fresh),
            proxy_to(any_server) as proxy,
            connect(proxy.url, on_event=events.append, reconnect_wait=step, reconnect_max_wait=step) as nc,
        ):
            beats = proxy.fault = Beats()
            config = ConsumerConfig(idle_heartbeat=timedelta(seconds=beat))
            callback = (lambda _: None) if reader == "callback" else None
            subscription = await nc.jetstream().subscribe(f"{fresh}.>", config=config, callback=callback)
            task = asyncio.create_task(subscription.next(timeout=10_000)) if reader == "next" else None
            await hear()
            for count in (1, 2):
                await pass_time(limit - step)
                loop.advance(step - moment)
                await settle()
                assert alarms() == count - 1
                loop.advance(moment)
                await settle()
                assert alarms() == count
                await pass_time(10 * beat)
                assert alarms() == count  # the same silence
                await hear()
            # Without a connection there is no alarm: that has its own event. Then the time begins anew.
            proxy.is_refusing = True
            proxy.cut()
            while nc.is_connected:
                await asyncio.sleep(0)
            await pass_time(10 * beat)
            assert alarms() == 2
            proxy.is_refusing = False
            while not nc.is_connected:
                if nc._session.state is State.WAITING:
                    loop.advance(step)
                await asyncio.sleep(0)
            await settle()
            await pass_time(limit - step)
            assert alarms() == 2
            await pass_time(2 * step)
            assert alarms() == 3
            await hear()
            if reader == "nobody":
                await subscription.drain()
            else:
                await subscription.unsubscribe()
            await pass_time(10 * beat)
            assert alarms() == 3
            if task is not None:
                task.cancel()

    run_frozen(main)


def is_alarm(event: ClientEvent) -> bool:
    return isinstance(event.error, HeartbeatLostError)


@pytest.mark.spec("SW-12", "SW-22")
async def test_the_blocking_client_raises_the_alarm_while_no_thread_reads(any_server: str, fresh: str) -> None:
    interval = 0.5
    alarms: list[float] = []

    def on_event(event: ClientEvent) -> None:
        if is_alarm(event):
            alarms.append(time.monotonic())

    async with world(any_server, fresh), proxy_to(any_server) as proxy, asyncio.timeout(40):
        beats = proxy.fault = Beats()
        nc = await asyncio.to_thread(connect_blocking, proxy.url, on_event=on_event)
        config = ConsumerConfig(idle_heartbeat=timedelta(seconds=interval))
        subscription = await asyncio.to_thread(nc.jetstream().subscribe, f"{fresh}.>", config=config)
        while len(beats.passed) < 4:
            await beats.next()
        longest = max(after - before for before, after in itertools.pairwise(beats.passed))
        assert not alarms or longest > 3 * interval  # the server itself was late
        alarms.clear()
        beats.is_passing = False
        last = beats.passed[-1]
        while not alarms:
            await asyncio.sleep(0.01)
        assert alarms[0] >= last + 3 * interval
        await asyncio.to_thread(subscription.unsubscribe)
        await asyncio.to_thread(nc.close)


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
        assert gaps(events) == [(2, 3)]
        assert {event.error.consumer for event in events if isinstance(event.error, MessageGapError)} == {
            subscription.consumer_name
        }
        proxy.fault = lambda frame: [] if b" $JS.ACK." in frame[:200] else [frame]
        await fill(here, 1, first=3)
        task = asyncio.create_task(subscription.next(timeout=20))
        while len(gaps(events)) < 2:  # seen by the heartbeat alone
            await asyncio.sleep(0.01)
        assert gaps(events)[1] == (4, 5)
        proxy.fault = whole
        await fill(here, 1, first=4)
        assert int((await task).data) == 4
        assert len(gaps(events)) == 2


def is_message(frame: bytes) -> bool:
    return b" $JS.ACK." in frame[:200]


def gaps(events: list[ClientEvent]) -> list[tuple[int, int]]:
    """What is reported as missing. On a machine that stands still heartbeats are late, which is no part of this."""
    errors = [event.error for event in events if event.kind is EventKind.ERROR and not is_alarm(event)]
    assert {type(error) for error in errors} <= {MessageGapError}
    return [(error.expected, error.seen) for error in errors if isinstance(error, MessageGapError)]


@pytest.mark.spec("SW-13", "SW-21")
async def test_messages_lost_before_the_first_one_are_a_gap(any_server: str, fresh: str) -> None:
    events: list[ClientEvent] = []
    async with (
        world(any_server, fresh) as here,
        proxy_to(any_server) as proxy,
        connect(proxy.url, on_event=events.append) as nc,
    ):
        js = nc.jetstream()
        lose: Fault = lambda frame: [] if is_message(frame) else [frame]  # noqa: E731
        # The next message tells.
        quiet = await js.subscribe(f"{fresh}.>", config=ConsumerConfig(ack_policy="none"))
        proxy.fault = lose
        await fill(here, 3)
        while (await quiet.info()).delivered.consumer_seq < 3:
            await asyncio.sleep(0.01)
        await nc.flush()
        proxy.fault = whole
        await fill(here, 1, first=3)
        assert int((await quiet.next()).data) == 3
        assert gaps(events) == [(1, 4)]
        await quiet.unsubscribe()
        # Or a heartbeat does, if no message follows.
        proxy.fault = lose
        config = ConsumerConfig(idle_heartbeat=timedelta(seconds=0.5))
        beating = await js.subscribe(f"{fresh}.>", durable="beating", config=config)
        task = asyncio.create_task(beating.next(timeout=30))
        async with asyncio.timeout(30):
            while len(gaps(events)) < 2:
                await asyncio.sleep(0.01)
        assert gaps(events)[1] == (1, 5)
        task.cancel()
        # A bound consumer is followed from where it was.
        delivered = (await beating.info()).delivered.consumer_seq
        beating._subscription.end()  # a crash: not unsubscribed
        await unbound(here.stream, "beating")
        bound = await js.subscribe(f"{fresh}.>", durable="beating")
        assert not bound.is_owner
        await fill(here, 2, first=4)
        while (await bound.info()).delivered.consumer_seq < delivered + 2:
            await asyncio.sleep(0.01)
        await nc.flush()
        proxy.fault = whole
        await fill(here, 1, first=6)
        assert int((await bound.next()).data) == 6
        assert gaps(events)[2:] == [(delivered + 1, delivered + 3)]


@pytest.mark.spec("SW-21")
async def test_no_gap_is_reported_where_nothing_was_lost(any_server: str, fresh: str) -> None:
    """Bound while another program still reads, then with redeliveries, after a reconnect, and created again."""
    events: list[ClientEvent] = []
    async with (
        world(any_server, fresh) as here,
        proxy_to(any_server) as proxy,
        connect(proxy.url, on_event=events.append, reconnect_wait=0.01) as nc,
        asyncio.timeout(40),
    ):
        to = f"{fresh}_to"
        config = ConsumerConfig(durable_name="dur", deliver_subject=to, ack_wait=timedelta(seconds=1))
        await here.stream.create_consumer(config)
        proxy.hold = b"SUB " + to.encode()
        task = asyncio.create_task(nc.jetstream().subscribe(f"{fresh}.>", durable="dur"))
        await proxy.holding.wait()
        other = await here.nc.subscribe(to)  # between our look-up and our subscription
        await fill(here, 3)
        replies = [(await other.next()).reply for _ in range(3)]
        await other.unsubscribe()
        await here.nc.flush()
        proxy.release.set()
        subscription = await task
        redelivered = [await subscription.next(timeout=10) for _ in range(3)]
        assert sorted(numbers(redelivered)) == [0, 1, 2]
        assert all(message.num_delivered > 1 for message in redelivered)
        for reply in (*replies, *(message.reply for message in redelivered)):
            await nc.publish(reply, b"+ACK")
        await nc.flush()
        proxy.cut()
        while not [event for event in events if event.kind is EventKind.RECONNECTED]:
            await asyncio.sleep(0.01)
        await nc.flush()
        await fill(here, 3, first=3)
        last = [await subscription.next(timeout=10) for _ in range(3)]
        assert {int(message.data) for message in last} <= {0, 1, 2, 3, 4, 5}
        await here.stream.delete_consumer("dur")
        await here.stream.create_consumer(config.replace(deliver_policy="new"))
        await nc.flush()
        await fill(here, 2, first=6)
        got = [await subscription.next(timeout=10)]
        while int(got[-1].data) < 7:
            got.append(await subscription.next(timeout=10))
        assert gaps(events) == []


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
@pytest.mark.steady
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
