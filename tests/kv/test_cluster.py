"""Buckets on a nats-server cluster of three with lagging replicas: reads are as new as they must be, however made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from slipstream import BucketConfig, connect
from slipstream.errors import ApiError, KeyNotFoundError
from slipstream.kv._async.key_value import KeyValue
from tests.cluster import Cluster


async def replicated(cluster: Cluster, name: str) -> str:
    """A bucket on all three servers; returns the name of its stream."""
    async with connect(cluster.urls) as nc:
        await nc.jetstream(timeout=15).create_key_value(BucketConfig(bucket=name, history=3, replicas=3))
    await asyncio.to_thread(cluster.wait_for_direct, f"KV_{name}")
    return f"KV_{name}"


@contextmanager
def lagging(cluster: Cluster, stream: str) -> Iterator[None]:
    """One follower gets nothing from its leader; not the meta leader, which places consumers."""
    leader = cluster.leader(stream)
    follower = cluster.expendable(leader)
    cluster.hold_replica(leader, follower)
    try:
        yield
    finally:
        cluster.release_replica(leader, follower)


@pytest.mark.spec("KV-01", on="C N")
async def test_a_bucket_of_three_replicas_is_on_three_servers(cluster: Cluster, fresh: str) -> None:
    async with connect(cluster.urls) as nc:
        js = nc.jetstream(timeout=15)
        kv = await js.create_key_value(BucketConfig(bucket=fresh, history=5, replicas=3))
        await check_replicas(kv)
        revision = await kv.put("a", b"1")
        await asyncio.to_thread(cluster.wait_until_level, f"KV_{fresh}", revision)  # each has a copy of its own
        await js.update_key_value(BucketConfig(bucket=fresh, replicas=1))
        config = (await kv.status()).stream_info.config
        assert (config.num_replicas, config.max_msgs_per_subject) == (1, 5)


@pytest.mark.spec("KV-01", on="E C")
async def test_a_bucket_of_three_replicas_on_our_server(our_url: str, fresh: str) -> None:
    async with connect(our_url) as nc:
        js = nc.jetstream()
        await check_replicas(await js.create_key_value(BucketConfig(bucket=fresh, history=5, replicas=3)))
        with pytest.raises(ApiError, match="replicas"):
            await js.create_key_value(BucketConfig(bucket=f"{fresh}six", replicas=6))


async def check_replicas(kv: KeyValue[bytes]) -> None:
    """The stream of a bucket with three replicas, as the specification has it."""
    info = (await kv.status()).stream_info
    config, cluster = info.config, info.cluster
    assert (config.num_replicas, config.max_msgs_per_subject) == (3, 5)
    assert (config.name, config.subjects) == (f"KV_{kv.bucket}", (f"$KV.{kv.bucket}.>",))
    assert (config.retention, config.storage, config.discard) == ("limits", "file", "old")
    assert (config.max_msgs, config.max_bytes, config.max_msg_size, config.max_consumers) == (-1, -1, -1, -1)
    assert config.allow_rollup_hdrs
    assert config.deny_delete
    assert config.allow_direct
    servers = {cluster["leader"], *(replica["name"] for replica in cluster["replicas"])}
    assert len(servers) == 3


async def test_a_read_with_min_last_revision_is_never_stale(cluster: Cluster, fresh: str) -> None:
    stream = await replicated(cluster, fresh)
    async with connect(cluster.url(cluster.leader(stream))) as nc:
        kv = await nc.jetstream(timeout=15).key_value(fresh)
        await kv.put("a", b"old")
        first = await kv.put("gone", b"old")
        await asyncio.to_thread(cluster.wait_until_level, stream, first)
        with lagging(cluster, stream):
            await kv.put("a", b"new")
            await kv.delete("gone")
            last = await kv.put("b", b"new")
            anyhow = await nc.jetstream(timeout=15).key_value(fresh, consistency="any")
            plain = {(await anyhow.get("a")).value for _ in range(60)}
            assert plain == {b"old", b"new"}  # without a minimum it depends on the replica that answers
            for _ in range(20):
                assert (await kv.get("a", min_last_revision=last)).value == b"new"
                with pytest.raises(KeyNotFoundError):
                    await kv.get("gone", min_last_revision=last)
            for _ in range(5):
                assert sorted(await kv.keys(min_last_revision=last)) == ["a", "b"]
                history = await kv.history("a", min_last_revision=last)
                assert [entry.value for entry in history] == [b"old", b"new"]
                assert sorted(await kv.snapshot()) == ["a", "b"]
            # Once: a consumer that is placed on the lagging server cannot be made, and is tried elsewhere later.
            async with await kv.watch(min_last_revision=last, ignore_deletes=True, timeout=40) as watch:
                assert sorted(entry.key for entry in await watch.initial()) == ["a", "b"]


@pytest.mark.spec("KV-50", on="C N")
async def test_a_handle_reads_its_writes_and_never_goes_back(cluster: Cluster, fresh: str) -> None:
    stream = await replicated(cluster, fresh)
    async with connect(cluster.url(cluster.leader(stream))) as nc:
        js = nc.jetstream(timeout=15)
        kv, other = await js.key_value(fresh), await js.key_value(fresh)
        await kv.put("a", b"old")
        first = await kv.put("gone", b"old")
        await asyncio.to_thread(cluster.wait_until_level, stream, first)
        with lagging(cluster, stream):
            await kv.put("a", b"new")
            await kv.delete("gone")
            await other.put("theirs", b"new")
            await kv.put("b", b"new")
            for _ in range(20):
                assert (await kv.get("a")).value == (await kv.get("b")).value == b"new"
                with pytest.raises(KeyNotFoundError):
                    await kv.get("gone")
            for _ in range(5):
                assert sorted(await kv.keys()) == ["a", "b", "theirs"]
                assert [entry.value for entry in await kv.history("a")] == [b"old", b"new"]
                assert sorted(await kv.get_range()) == ["a", "b", "theirs"]
            latest = await js.key_value(fresh, consistency="latest")
            for _ in range(10):
                assert (await latest.get("a")).value == b"new"
                assert (await latest.get("theirs")).value == b"new"
            async with await kv.watch(ignore_deletes=True, timeout=40) as watch:
                assert sorted(entry.key for entry in await watch.initial()) == ["a", "b", "theirs"]


async def test_a_session_reads_its_writes(cluster: Cluster, fresh: str) -> None:
    stream = await replicated(cluster, fresh)
    async with connect(cluster.url(cluster.leader(stream))) as nc:
        js = nc.jetstream(timeout=15)
        first = await (await js.key_value(fresh)).put("a", b"old")
        await asyncio.to_thread(cluster.wait_until_level, stream, first)
        with lagging(cluster, stream):
            async with js.session() as session:
                kv = await session.key_value(fresh)
                await kv.put("a", b"new")
                for _ in range(20):
                    assert (await kv.get("a")).value == b"new"
                await kv.delete("a")
                for _ in range(5):
                    assert await kv.keys() == []


async def test_a_watch_continues_when_a_server_dies(cluster: Cluster, fresh: str) -> None:
    stream = await replicated(cluster, fresh)
    async with connect(cluster.urls, reconnect_wait=0.05, reconnect_max_wait=0.3) as nc:
        kv = await nc.jetstream(timeout=15).key_value(fresh)
        seen: list[int] = []
        async with await kv.watch() as watch:
            await watch.initial()

            async def follow() -> None:
                while len(seen) < 40:
                    seen.extend(int(entry.value) for entry in await watch.next_entries(timeout=60))

            following = asyncio.create_task(follow())
            for n in range(20):
                await kv.put(f"k.{n}", b"%d" % n)
            victim = await asyncio.to_thread(cluster.leader, stream)
            await asyncio.to_thread(cluster.kill, victim)
            try:
                for n in range(20, 40):
                    await _surely(kv, f"k.{n}", b"%d" % n)
                await asyncio.wait_for(following, 60)
            finally:
                await asyncio.to_thread(cluster.start, victim)
        assert seen == list(range(40))


async def _surely(kv: KeyValue[bytes], key: str, value: bytes) -> None:
    """Write a key once, also if acks are lost."""
    async with asyncio.timeout(60):
        while True:
            try:
                last = await kv.storage.last(key, timeout=3)
                if last is None:
                    await kv.update(key, value, last=0, timeout=3)
                return
            except Exception:  # elections, cut connections: the same again
                await asyncio.sleep(0.1)
