"""Mistakes in a call: one error for each, which names the argument, the same on both servers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slipstream import (
    BucketConfig,
    ConsumerConfig,
    MessageNotFoundError,
    ObjectStoreConfig,
    StaleReadError,
    StreamConfig,
    StreamNotFoundError,
    UsageError,
    connect,
    connect_blocking,
)

ANYTHING: Any = {"name": "S"}  # what mypy would reject
NAIVE: Any = datetime(2026, 1, 2)
SECONDS: Any = 30


@pytest.mark.parametrize("least", [0, 1])
async def test_reading_a_stream_that_does_not_exist_is_one_error(any_server: str, fresh: str, least: int) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = js.stream(fresh)
        with pytest.raises(StreamNotFoundError):
            await stream.get(1, min_last_seq=least)
        with pytest.raises(StreamNotFoundError):
            await stream.get_last(f"{fresh}.a", min_last_seq=least)
        with pytest.raises(StreamNotFoundError):
            await stream.get_last_many([f"{fresh}.a"], min_last_seq=least)
        with pytest.raises(StreamNotFoundError):
            assert [message async for message in stream.read(min_last_seq=least)]


def test_fetch_returns_with_what_max_ack_pending_allows(any_server: str, fresh: str) -> None:
    """Otherwise it would wait for the whole time: the others are delivered when these were acknowledged."""
    with connect_blocking(any_server) as nc:
        js = nc.jetstream()
        stream = js.create_stream(StreamConfig(name=fresh, subjects=(fresh,)))
        for _ in range(4):
            js.publish(fresh)
        consumer = stream.create_consumer(ConsumerConfig(durable_name="dur", max_ack_pending=2))
        for seqs in ([1, 2], [3, 4]):
            messages = consumer.fetch(5, timeout=90)
            assert [message.seq for message in messages] == seqs
            for message in messages:
                message.ack_sync()
        for _ in range(2):
            js.publish(fresh)
        assert [message.seq for message in consumer.fetch(1)] == [5]
        assert [message.seq for message in consumer.fetch(5, timeout=90)] == [6]  # one of the two is outstanding


async def test_times_are_datetimes_or_nanoseconds(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=fresh, subjects=(fresh,), allow_direct=True))
        await js.publish(fresh)
        then = datetime.now(UTC) - timedelta(minutes=1)
        assert [message.seq async for message in stream.read(start_time=then)] == [1]
        assert list(await stream.get_last_many([fresh], up_to_time=datetime.now(UTC))) == [fresh]
        async with stream.ordered_consumer(start_time=then) as ordered:
            assert (await ordered.next()).seq == 1
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="dur", ack_wait=SECONDS))
        assert (await consumer.info()).config.ack_wait == timedelta(seconds=30)
        assert (await consumer.pause(datetime.now(UTC) + timedelta(hours=1))).paused
        for wrong in (NAIVE, "now", 1.5):
            mistake: Any = wrong
            with pytest.raises(UsageError, match="start_time must be a datetime with a time zone, or nanoseconds"):
                assert [message async for message in stream.read(start_time=mistake)]
            with pytest.raises(UsageError, match="up_to_time must be"):
                await stream.get_last_many([fresh], up_to_time=mistake)
            with pytest.raises(UsageError, match="start_time must be"):
                stream.ordered_consumer(start_time=mistake)
            with pytest.raises(UsageError, match="until must be"):
                await consumer.pause(mistake)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"subjects": 5}, "subjects must be a string or a sequence of strings, got 5"),
        ({"subjects": (1,)}, "subjects must be a string or a sequence of strings"),
        ({"max_msgs": "5"}, "max_msgs must be an integer, got '5'"),
        ({"max_age": "1h"}, "max_age must be a timedelta or a number of seconds, got '1h'"),
        ({"mirror": "S"}, "mirror must be a StreamSource, got 'S'"),
        ({"sources": [ANYTHING]}, "sources must be a sequence of StreamSource"),
        ({"metadata": {"a": 1}}, "metadata must be a mapping of strings to strings"),
    ],
)
async def test_a_configuration_of_the_wrong_type_is_named(our_url: str, wrong: dict[str, Any], text: str) -> None:
    async with connect(our_url) as nc:
        with pytest.raises(UsageError, match=text):
            await nc.jetstream().create_stream(StreamConfig(**{"name": "WRONG"} | wrong))


async def test_a_dict_is_no_configuration(our_url: str) -> None:
    async with connect(our_url) as nc:
        js = nc.jetstream()
        with pytest.raises(UsageError, match="config must be a StreamConfig, got dict"):
            await js.create_stream(ANYTHING)
        with pytest.raises(UsageError, match="config must be a StreamConfig, got dict"):
            await js.update_stream(ANYTHING)
        with pytest.raises(UsageError, match="config must be a ConsumerConfig, got dict"):
            await js.stream("S").create_consumer(ANYTHING)
        with pytest.raises(UsageError, match="config must be a BucketConfig, got dict"):
            await js.create_key_value(ANYTHING)
        with pytest.raises(UsageError, match="config must be a ObjectStoreConfig, got dict"):
            await js.create_object_store(ANYTHING)


def test_seconds_are_a_ttl() -> None:
    assert BucketConfig(bucket="b", ttl=SECONDS).stream_config().max_age == timedelta(seconds=30)
    assert ObjectStoreConfig(bucket="b", ttl=SECONDS).stream_config().max_age == timedelta(seconds=30)
    with pytest.raises(UsageError, match="ttl must be a timedelta or a number of seconds, got"):
        BucketConfig(bucket="b", ttl=ANYTHING)


async def test_a_timeout_is_not_negative(our_url: str, fresh: str) -> None:
    async with connect(our_url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=fresh, subjects=(fresh,), allow_direct=True))
        consumer = await stream.create_consumer("dur")
        for wrong in (-1, float("nan"), "5"):
            timeout: Any = wrong
            calls = (
                lambda limit: stream.get(1, timeout=limit),
                lambda limit: stream.get_last_many([fresh], timeout=limit),
                lambda limit: consumer.fetch(5, timeout=limit),
                lambda limit: consumer.next(timeout=limit),
                lambda limit: stream.ordered_consumer().start(timeout=limit),
                lambda limit: stream.ordered_consumer().next(timeout=limit),
            )
            for call in calls:
                with pytest.raises(UsageError, match="timeout must be a timedelta or a number of seconds, 0 or more"):
                    await call(timeout)


@pytest.mark.parametrize("least", [0, 1])
async def test_a_message_that_is_not_found_is_named(any_server: str, fresh: str, least: int) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=fresh, subjects=(f"{fresh}.*",), allow_direct=True))
        await js.publish(f"{fresh}.a")
        with pytest.raises(MessageNotFoundError, match=f"^stream '{fresh}' has no message on '{fresh}.b'$"):
            await stream.get_last(f"{fresh}.b", min_last_seq=least)
        later = f"^stream '{fresh}' has no message on '{fresh}.a' at or after sequence 2$"
        with pytest.raises(MessageNotFoundError, match=later):
            await stream.get_next(f"{fresh}.a", seq=2, min_last_seq=least)
        with pytest.raises(MessageNotFoundError, match=f"^stream '{fresh}' has no message with sequence 7$"):
            await stream.get(7, min_last_seq=least)


@pytest.mark.steady
async def test_an_end_that_the_stream_does_not_reach_is_named(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=fresh, subjects=(fresh,), allow_direct=True))
        await js.publish(fresh)
        with pytest.raises(StaleReadError, match="end=100 must be a sequence that the stream reaches") as refusal:
            assert [message async for message in stream.read(end=100, timeout=2)]
        assert refusal.value.min_last_seq == 100
        with pytest.raises(StaleReadError) as refusal:
            assert [message async for message in stream.read(end=1, min_last_seq=100, timeout=2)]
        assert "end=" not in str(refusal.value)
