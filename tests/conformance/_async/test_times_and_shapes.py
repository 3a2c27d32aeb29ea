"""Times as datetimes beside the nanoseconds, durations as timedeltas or seconds, names and fields for objects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slipstream import BucketConfig, ConsumerConfig, ObjectStoreConfig, StreamConfig, UsageError, connect

HOUR = timedelta(hours=1)
NOT_DURATIONS: tuple[Any, ...] = ("5s", [5], True, float("nan"))


def near(when: datetime | None, nanos: int | None) -> bool:
    """Whether a datetime is in UTC, and the same as the nanoseconds to the microsecond."""
    assert when is not None
    assert nanos is not None
    assert when.tzinfo is UTC
    return (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) == nanos // 1000


async def test_every_time_has_a_datetime_beside_its_nanoseconds(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(fresh, subjects=fresh)
        empty = await stream.info()
        assert empty.state.first_timestamp is None
        await js.publish(fresh, b"1")
        consumer = await stream.create_consumer("workers")
        assert (await consumer.info()).delivered.last_active_at is None
        message = await consumer.next()
        stored = await stream.get(1)
        info, about = await stream.info(), await consumer.info()
        assert near(message.timestamp, message.time)
        assert near(message.metadata.timestamp, message.time)
        assert near(stored.timestamp, stored.time)
        assert near(info.created_at, info.created)
        assert near(info.timestamp, info.ts)
        assert near(info.state.first_timestamp, info.state.first_ts)
        assert near(info.state.last_timestamp, info.state.last_ts)
        assert near(about.created_at, about.created)
        assert near(about.timestamp, about.ts)
        assert near(about.delivered.last_active_at, about.delivered.last_active)
        pause = await consumer.pause(datetime(2200, 1, 1, tzinfo=UTC))
        assert pause.until_at == datetime(2200, 1, 1, tzinfo=UTC)
        assert (await consumer.info()).config.pause_until_at == pause.until_at
        assert (await consumer.resume()).until_at is None
        kv = await js.create_key_value(fresh, value_ttl=True)
        await kv.put("k", b"v", ttl=60)
        entry = await kv.get("k")
        assert near(entry.created_at, entry.created)
        assert near(entry.expires_at, entry.expires)
        await kv.put("k", b"v")
        assert (await kv.get("k")).expires_at is None


async def test_the_info_that_put_returns_has_the_time_of_the_object(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        files = await nc.jetstream().create_object_store(fresh)
        put = await files.put("a", b"data")
        assert put == await files.info("a")
        assert near(put.modified_at, put.mtime)


async def test_calls_take_a_name_and_fields(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(fresh, subjects=[f"{fresh}.*"], max_age=HOUR, duplicate_window=60)
        config = (await stream.info()).config
        assert (config.subjects, config.max_age, config.duplicate_window) == (
            (f"{fresh}.*",),
            HOUR,
            timedelta(minutes=1),
        )
        await js.update_stream(fresh, subjects=f"{fresh}.*", max_age=60, description="changed")
        assert (await stream.info()).config.max_age == timedelta(minutes=1)
        consumer = await stream.create_consumer("workers", ack_wait=60, backoff=[1, 2.5], max_deliver=3)
        assert (await consumer.info()).config.backoff == (timedelta(seconds=1), timedelta(seconds=2.5))
        await stream.update_consumer("workers", ack_wait=60, max_deliver=4)
        again = await stream.create_or_update_consumer("workers", filter_subjects=f"{fresh}.a", max_deliver=4)
        assert (await again.info()).config.max_deliver == 4
        kv = await js.create_key_value(fresh, history=5, ttl=3600)
        assert (await kv.status()).ttl == HOUR
        await js.update_key_value(fresh, history=6)
        assert ((await kv.status()).history, (await kv.status()).ttl) == (6, HOUR)
        files = await js.create_object_store(fresh, ttl=3600)
        assert (await files.status()).ttl == HOUR
        wrong: Any
        for wrong in (
            lambda: js.create_stream(StreamConfig(fresh), max_age=5),
            lambda: stream.create_consumer(ConsumerConfig("workers"), ack_wait=5),
            lambda: js.create_key_value(BucketConfig(fresh), history=5),
            lambda: js.create_object_store(ObjectStoreConfig(fresh), ttl=5),
        ):
            with pytest.raises(UsageError, match="not both"):
                await wrong()


async def test_calls_take_durations_as_timedeltas_or_seconds(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(fresh, subjects=f"{fresh}.*", allow_msg_ttl=True, allow_atomic=True)
        kv = await js.create_key_value(fresh, value_ttl=True)
        for ttl in (60, 60.0, timedelta(minutes=1)):
            await js.publish(f"{fresh}.a", b"", ttl=ttl)
            async with js.publisher() as publisher:
                await publisher.publish(f"{fresh}.a", b"", ttl=ttl)
            async with js.atomic_batch() as batch:
                await batch.publish(f"{fresh}.a", b"", ttl=ttl)
            await kv.put("k", b"v", ttl=ttl)
            await kv.purge_deletes(older_than=ttl)
            kv.lock("l", ttl=ttl)
        ttls = {message.headers["Nats-TTL"] async for message in stream.read()}
        assert ttls == {"60000ms"}
        consumer = await stream.create_consumer("workers")
        for delay in (0, 0.0, timedelta(0)):
            await (await consumer.next()).nak(delay)
        for wrong in NOT_DURATIONS:
            with pytest.raises(UsageError, match="ttl must be a timedelta or a number of seconds"):
                await js.publish(f"{fresh}.a", b"", ttl=wrong)
            with pytest.raises(UsageError, match="ttl must be a timedelta or a number of seconds"):
                await kv.put("k", b"v", ttl=wrong)
            with pytest.raises(UsageError, match="older_than must be a timedelta or a number of seconds"):
                await kv.purge_deletes(older_than=wrong)
            with pytest.raises(UsageError, match="ttl of a lease must be a timedelta or a number of seconds"):
                kv.lock("l", ttl=wrong)
            with pytest.raises(UsageError, match="delay must be a timedelta or a number of seconds"):
                await (await consumer.next()).nak(wrong)
