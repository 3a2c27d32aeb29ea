"""Publishing: acks one by one, retries where nobody is there, atomic batches; on our server and on the real one."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from slipstream import StreamConfig, connect, connect_blocking
from slipstream.errors import (
    AtomicPublishDisabledError,
    AtomicPublishError,
    AtomicPublishIncompleteError,
    NoStreamError,
    RequestTimeoutError,
    UsageError,
    WrongLastSequenceError,
)
from slipstream.facade._async.client import JetStream
from tests.proxy import proxy_to


def config(name: str, **fields: object) -> StreamConfig:
    return StreamConfig(name=name, subjects=(f"{name}.>",)).replace(**fields)


async def test_a_publish_waits_for_a_stream_that_is_about_to_come(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        late = asyncio.create_task(js.publish(f"{fresh}.a", b"1", retries=9, retry_wait=0.05))
        many = js.publisher(retries=9, retry_wait=0.05)
        for n in range(10):
            await many.publish(f"{fresh}.b", b"%d" % n)
        await asyncio.sleep(0.1)
        await js.create_stream(config(fresh))
        assert (await late).stream == fresh
        await many.flush()
        assert (many.acked, many.failures) == (10, [])


async def test_retries_come_to_an_end(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        begin = time.monotonic()
        with pytest.raises(NoStreamError):
            await js.publish(f"{fresh}.a", retries=3, retry_wait=0.02)
        assert time.monotonic() - begin > 0.1
        publisher = js.publisher(retries=2, retry_wait=0.01)
        await publisher.publish(f"{fresh}.a", b"1")
        with pytest.raises(NoStreamError):
            await publisher.flush()
        for wrong in ({"retries": -1}, {"retry_wait": -1}):
            with pytest.raises(UsageError):
                js.publisher(**wrong)


async def test_each_message_may_be_asked_for_its_ack(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_stream(config(fresh))
        async with js.publisher() as publisher:
            pending = [await publisher.send(f"{fresh}.a", b"%d" % n, msg_id=f"id{n}") for n in range(100)]
            wrong = await publisher.send(f"{fresh}.a", b"x", expected_last_seq=7)
            again = await publisher.send(f"{fresh}.a", b"0", msg_id="id0")
            acks = [await publisher.result(one) for one in pending]
            assert [ack.seq for ack in acks] == list(range(1, 101))
            with pytest.raises(WrongLastSequenceError):
                await publisher.result(wrong)
            assert (await publisher.result(again)).duplicate
            await publisher.publish(f"{fresh}.b", b"y", expected_last_subject_seq=0, ttl=None)
        assert publisher.failures == []  # the refused one was told to whoever asked for it


@pytest.mark.parametrize("size", [1, 2, 50])
async def test_an_atomic_batch_is_stored_as_a_whole(any_server: str, fresh: str, size: int) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh, allow_atomic=True))
        async with js.atomic_batch() as batch:
            for n in range(size):
                await batch.publish(f"{fresh}.{n}", b"%d" % n, headers={"Number": str(n)})
                assert (await stream.info()).state.messages == 0
            assert len(batch) == size
        assert batch.ack is not None
        assert (batch.ack.seq, batch.ack.batch, batch.ack.count) == (size, batch.id, size)
        state = (await stream.info()).state
        assert (state.messages, state.last_seq) == (size, size)
        with pytest.raises(UsageError, match="already"):
            await batch.publish(f"{fresh}.x")


async def in_a_batch(
    js: JetStream, subject: str, *, expected_last_seq: int | None = None, error: Exception | None = None
) -> None:
    async with js.atomic_batch() as batch:
        await batch.publish(subject, b"1", expected_last_seq=expected_last_seq)
        await batch.publish(subject, b"2")
        if error is not None:
            raise error


async def test_a_batch_that_fails_leaves_nothing(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(config(fresh, allow_atomic=True))
        with pytest.raises(RuntimeError, match="changed my mind"):
            await in_a_batch(js, f"{fresh}.a", error=RuntimeError("changed my mind"))
        with pytest.raises(WrongLastSequenceError):
            await in_a_batch(js, f"{fresh}.a", expected_last_seq=99)
        async with js.atomic_batch():
            pass  # nothing to do
        with pytest.raises(UsageError, match="at least one message"):
            await js.atomic_batch().commit()
        await js.create_stream(config(f"{fresh}n"))
        with pytest.raises(AtomicPublishDisabledError):
            await in_a_batch(js, f"{fresh}n.a")
        with pytest.raises(NoStreamError):
            await in_a_batch(js, f"{fresh}_none.a")
        assert (await stream.info()).state.messages == 0
        assert issubclass(AtomicPublishDisabledError, AtomicPublishError)


async def test_a_batch_with_a_hole_is_refused(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc, proxy_to(any_server) as proxy, connect(proxy.url) as other:
        stream = await nc.jetstream().create_stream(config(fresh, allow_atomic=True))
        batch = other.jetstream().atomic_batch()
        for n in range(3):
            await batch.publish(f"{fresh}.a", b"%d" % n)
        batch._sent += 1  # as if one had been lost on the way
        with pytest.raises(AtomicPublishIncompleteError):
            await batch.commit()
        assert (await stream.info()).state.messages == 0


async def test_what_is_published_into_silence_is_a_timeout(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        listener = await nc.subscribe(f"{fresh}.>")
        with pytest.raises(RequestTimeoutError):
            await nc.jetstream().publish(f"{fresh}.a", b"1", timeout=0.2)
        assert (await listener.next()).data == b"1"
        assert listener.pending == 0  # it was not tried again: it may have been stored


def test_the_blocking_client_publishes_in_the_same_way(any_server: str, fresh: str) -> None:
    with connect_blocking(any_server) as nc:
        js = nc.jetstream()
        stream = js.create_stream(config(fresh, allow_atomic=True, allow_msg_ttl=True))
        with js.publisher(retries=1) as publisher:
            pending = publisher.send(f"{fresh}.a", b"1")
            publisher.publish(f"{fresh}.a", b"2", ttl=timedelta(hours=1))
            assert publisher.result(pending).seq == 1
        with js.atomic_batch() as batch:
            batch.publish(f"{fresh}.a", b"3")
            batch.publish(f"{fresh}.a", b"4")
        assert batch.ack is not None
        assert batch.ack.seq == stream.info().state.messages == 4
