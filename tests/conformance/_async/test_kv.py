"""Key-Value 1.0 through our client, on our server and on nats-server."""

from __future__ import annotations

from datetime import timedelta

import pytest

from slipstream import BucketConfig, connect
from slipstream.errors import (
    BucketNotFoundError,
    KeyExistsError,
    KeyNotFoundError,
    StaleReadError,
    WrongLastSequenceError,
)
from slipstream.kv import Operation


@pytest.mark.spec("KV-01")
async def test_a_bucket_has_the_stream_configuration_of_the_specification(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        await js.create_key_value(
            BucketConfig(bucket=fresh, history=5, ttl=timedelta(seconds=30), max_value_size=100, max_bytes=10_000)
        )
        config = (await js.stream(f"KV_{fresh}").info()).config
        assert config.subjects == (f"$KV.{fresh}.>",)
        assert (config.max_msgs_per_subject, config.max_msg_size, config.max_bytes) == (5, 100, 10_000)
        assert (config.retention, config.storage, config.discard, config.num_replicas) == ("limits", "file", "old", 1)
        assert (config.max_msgs, config.max_consumers) == (-1, -1)
        assert config.max_age == config.duplicate_window == timedelta(seconds=30)
        assert config.allow_rollup_hdrs
        assert config.deny_delete
        assert config.allow_direct
        plain = await js.create_key_value(BucketConfig(bucket=f"{fresh}b"))
        assert (await plain.status()).stream_info.config.duplicate_window == timedelta(minutes=2)


@pytest.mark.spec("KV-03")
async def test_put_and_get_of_bytes(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        revision = await kv.put("a.b", b"\x00\xff")
        entry = await kv.get("a.b", min_last_revision=revision)
        assert entry[:4] == (fresh, "a.b", b"\x00\xff", revision)
        assert entry.created > 1_700_000_000 * 10**9
        assert (entry.delta, entry.operation) == (0, Operation.PUT)
        with pytest.raises(KeyNotFoundError, match="no value for key 'nope'"):
            await kv.get("nope")


@pytest.mark.spec("KV-04")
async def test_create_succeeds_only_where_there_is_no_value(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        first = await kv.create("k", b"1")
        with pytest.raises(KeyExistsError) as caught:
            await kv.create("k", b"2")
        assert caught.value.revision == first
        await kv.delete("k")
        assert await kv.create("k", b"3") > first
        await kv.purge("k")
        await kv.create("k", b"4")
        assert (await kv.get("k")).value == b"4"


@pytest.mark.spec("KV-05")
async def test_update_succeeds_only_at_the_expected_revision(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh))
        first = await kv.put("k", b"1")
        second = await kv.update("k", b"2", last=first)
        with pytest.raises(WrongLastSequenceError):
            await kv.update("k", b"3", last=first)
        assert (await kv.get("k")).revision == second


@pytest.mark.spec("KV-06")
async def test_delete_keeps_history_and_purge_rolls_it_up(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh, history=5))
        stream = js.stream(f"KV_{fresh}")
        first = await kv.put("k", b"1")
        mark = await kv.delete("k")
        with pytest.raises(KeyNotFoundError):
            await kv.get("k", min_last_revision=mark)
        assert (await stream.get(mark)).headers.items() == [("KV-Operation", "DEL")]
        assert (await kv.get("k", revision=first)).value == b"1"
        mark = await kv.purge("k")
        with pytest.raises(KeyNotFoundError):
            await kv.get("k", min_last_revision=mark)
        with pytest.raises(KeyNotFoundError):
            await kv.get("k", revision=first)
        headers = (await stream.get(mark)).headers
        assert (headers["KV-Operation"], headers["Nats-Rollup"]) == ("PURGE", "sub")
        await js.publish(f"$KV.{fresh}.odd", b"x", headers={"KV-Operation": "SOMETHING"})
        with pytest.raises(KeyNotFoundError):
            await kv.get("odd")


@pytest.mark.spec("KV-14")
async def test_a_revision_is_only_found_under_its_own_key(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, history=3))
        one, two = await kv.put("a", b"1"), await kv.put("b", b"2")
        assert (await kv.get("a", revision=one)).value == b"1"
        with pytest.raises(KeyNotFoundError, match="another key"):
            await kv.get("a", revision=two)


async def test_keys_lists_the_keys_that_have_a_value(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        kv = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, history=3))
        assert await kv.keys() == []
        async with kv.writer() as writer:
            for n in range(2_000):
                await writer.put(f"k.{n % 1_000}", b"%d" % n)
            await writer.delete("k.7")
        revision = await kv.purge("k.8")
        keys = await kv.keys(min_last_revision=revision)
        assert sorted(keys) == sorted(f"k.{n}" for n in range(1_000) if n not in (7, 8))
        with pytest.raises(StaleReadError):
            await kv.keys(min_last_revision=revision + 1, timeout=1.2)


@pytest.mark.spec("KV-12")
async def test_status_and_destroy(any_server: str, fresh: str) -> None:
    async with connect(any_server) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(BucketConfig(bucket=fresh, history=4, ttl=timedelta(hours=1)))
        await kv.put("a", b"1")
        await kv.put("a", b"2")
        status = await (await js.key_value(fresh)).status()
        assert (status.bucket, status.values, status.history) == (fresh, 2, 4)
        assert (status.ttl, status.backing_store) == (timedelta(hours=1), "JetStream")
        assert status.bytes > 0
        assert status.stream_info.config.name == f"KV_{fresh}"
        await kv.destroy()
        with pytest.raises(BucketNotFoundError):
            await js.key_value(fresh)
