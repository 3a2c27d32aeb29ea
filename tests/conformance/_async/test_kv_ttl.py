"""A TTL per value where it meets other features, on our server and on nats-server: the value goes when it should."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest

from slipstream import BucketConfig, StreamConfig, connect
from slipstream.errors import ApiError, KeyNotFoundError, UsageError
from slipstream.kv._async.key_value import KeyValue
from slipstream.kv.codecs import Base64Keys, Json
from tests._async.concurrency import until

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


async def seen_until_gone(kv: KeyValue[bytes], key: str) -> set[bytes]:
    """Every value that reads of a key returned until it was gone."""
    seen: set[bytes] = set()

    async def is_gone() -> bool:
        try:
            seen.add((await kv.get(key)).value)
        except KeyNotFoundError:
            return True
        return False

    await until(is_gone)
    return seen


@pytest.mark.spec("KV-26")
@pytest.mark.parametrize("history", [1, 5])
@pytest.mark.parametrize("markers", [0, 1])
async def test_a_value_lives_as_long_as_its_ttl_says(any_server: str, fresh: str, history: int, markers: int) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        marker_ttl = timedelta(seconds=markers)
        config = BucketConfig(bucket=fresh, history=history, value_ttl=True, limit_marker_ttl=marker_ttl)
        kv = await js.create_key_value(config)
        for n in range(3):
            await kv.put("k", b"old")
            await kv.put("long", b"%d" % n)
        await kv.put("long", b"stays", ttl=HOUR)
        revision = await kv.put("k", b"new", ttl=SECOND)
        stored = await js.stream(f"KV_{fresh}").get_last(f"$KV.{fresh}.long")
        assert stored.headers is not None
        assert stored.headers.get("Nats-TTL") == "3600000ms"  # as written: the server did not lengthen it
        assert await seen_until_gone(kv, "k") <= {b"new"}
        assert [entry.value for entry in await kv.history("long")] == [b"stays"]
        assert await kv.create("k", b"again") > revision


@pytest.mark.spec("KV-26")
async def test_replicas_and_aggregates_drop_the_history_too(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh, history=3, value_ttl=True))
        await kv.put("k", b"old")
        mirror = await js.create_key_value(BucketConfig(bucket=f"{fresh}m", mirror=fresh, history=3, value_ttl=True))
        merged = await js.create_key_value(
            BucketConfig(bucket=f"{fresh}s", sources=(fresh,), history=3, value_ttl=True)
        )
        for copy in (mirror, merged):
            await until(partial(holds, copy, "k", b"old"))
        await mirror.put("k", b"new", ttl=SECOND)  # goes to the origin, by whose options it is checked
        last = (await kv.status()).last_revision
        for copy in (mirror, merged):
            await until(partial(has_revision, copy, last))
            assert await seen_until_gone(copy, "k") <= {b"new"}
        assert await seen_until_gone(kv, "k") <= {b"new"}


async def holds(kv: KeyValue[bytes], key: str, value: bytes) -> bool:
    found = await kv.get_range(key)
    return key in found and found[key].value == value


async def has_revision(kv: KeyValue[bytes], revision: int) -> bool:
    return (await kv.status()).last_revision >= revision


@pytest.mark.spec("KV-46")
async def test_options_that_changed_after_the_handle_was_opened_are_seen(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh, history=3))
        with pytest.raises(ApiError, match="value_ttl=True"):
            await kv.put("k", b"1", ttl=HOUR)
        await js.update_key_value(BucketConfig(bucket=fresh, history=3, value_ttl=True))
        await kv.put("k", b"1", ttl=SECOND)  # at once: what was rejected is looked up again
        await js.update_key_value(BucketConfig(bucket=fresh, history=3, limit_marker_ttl=timedelta(minutes=5)))

        async def is_rejected() -> bool:
            try:
                await kv.put("k", b"1", ttl=SECOND)
            except UsageError:
                return True
            return False

        await until(is_rejected)  # within the seconds for which a handle takes the options as it read them
        await kv.put("k", b"1", ttl=300 * SECOND)
        replica = await js.create_key_value(BucketConfig(bucket=f"{fresh}m", mirror=fresh, history=3, value_ttl=True))
        with pytest.raises(UsageError, match="limit_marker_ttl"):  # the origin's: a mirror has none
            await replica.put("k", b"1", ttl=SECOND)


@pytest.mark.spec("KV-46")
async def test_a_stream_without_rollup_takes_a_ttl_only_if_no_older_value_can_come_back(
    any_server: str, fresh: str
) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        for history, name in ((1, f"{fresh}a"), (3, f"{fresh}b"), (-1, f"{fresh}c")):
            config = StreamConfig(name=f"KV_{name}", subjects=(f"$KV.{name}.>",), allow_direct=True, allow_msg_ttl=True)
            await js.create_stream(config.replace(max_msgs_per_subject=history))
            kv = await js.key_value(name)
            await kv.put("k", b"old")
            if history == 1:
                await kv.put("k", b"new", ttl=SECOND)
                assert await seen_until_gone(kv, "k") <= {b"new"}
            else:
                with pytest.raises(UsageError, match=r"allow_rollup_hdrs of stream .* must be set"):
                    await kv.put("k", b"new", ttl=HOUR)
                assert (await kv.get("k")).value == b"old"


@pytest.mark.spec("KV-46")
async def test_a_ttl_through_codecs_leases_and_writers(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        config = BucketConfig(bucket=fresh, history=3, limit_marker_ttl=timedelta(minutes=5))
        kv = await js.create_key_value(config)
        typed = kv.with_codec(Base64Keys()).with_codec(Json(int))
        await typed.put("Zürich", 1)
        await typed.put("Zürich", 2, ttl=300 * SECOND)
        assert [entry.value for entry in await typed.history("Zürich")] == [2]
        with pytest.raises(UsageError, match="limit_marker_ttl"):
            await typed.put("Zürich", 3, ttl=SECOND)
        async with kv.lock("job", ttl=timedelta(seconds=2)) as lock:  # its record gets a TTL that the bucket keeps
            await lock.renew()
            entry = await kv.get("job")
            assert entry.expires - entry.created == 300 * 10**9
            assert len(await kv.history("job")) == 1
        await kv.put("w", b"goes", ttl=300 * SECOND)
        async with kv.writer() as writer:
            await writer.put("w", b"stays")
        assert (await kv.get("w")).expires == 0


@pytest.mark.spec("KV-46")
async def test_no_value_outlives_the_ttl_of_its_bucket(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, ttl=SECOND, value_ttl=True))
        await kv.put("k", b"1", ttl=HOUR)
        assert await seen_until_gone(kv, "k") <= {b"1"}
