"""Buckets on a nats-server cluster of three with lagging replicas: reads are as new as they must be, however made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from slipstream import BucketConfig, connect
from slipstream.errors import KeyNotFoundError
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
            plain = {(await kv.get("a")).value for _ in range(60)}
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
