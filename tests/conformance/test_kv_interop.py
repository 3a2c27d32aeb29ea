"""The same bucket by our client and by nats-py, on our server and on the real one: what one writes the other reads,
watches, lists and deletes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import nats
import nats.js.errors
import pytest
from nats.js.api import KeyValueConfig

from slipstream import BucketConfig, connect
from slipstream.errors import BucketOptionsError, KeyExistsError, KeyNotFoundError, WrongLastSequenceError
from slipstream.kv import Operation
from slipstream.kv._async.key_value import KeyValue
from tests.conformance.nats_py_buckets import listed, watched

Theirs = Any  # nats-py's KeyValue


@asynccontextmanager
async def both(url: str, bucket: str, maker: str, **options: Any) -> AsyncIterator[tuple[KeyValue[bytes], Theirs]]:
    """One bucket, made by one of the two clients, in the hands of both."""
    async with connect(url) as ours:
        theirs = await nats.connect(url)
        try:
            js, their_js = ours.jetstream(), theirs.jetstream()
            if maker == "ours":
                await js.create_key_value(BucketConfig(bucket=bucket, **options))
            else:
                options["ttl"] = options["ttl"].total_seconds() if "ttl" in options else None
                await their_js.create_key_value(KeyValueConfig(bucket=bucket, **options))
            yield await js.key_value(bucket), await their_js.key_value(bucket)
        finally:
            await theirs.close()


@pytest.fixture(params=["ours", "theirs"])
def maker(request: pytest.FixtureRequest) -> str:
    """Which client made the bucket. One of nats-py has no Direct Get: it is read from its leader."""
    return str(request.param)


@pytest.mark.spec("KV-35")
async def test_a_bucket_of_the_other_client_with_the_same_options_opens(any_server: str, fresh: str) -> None:
    options: dict[str, Any] = {"description": "d", "history": 3, "ttl": timedelta(hours=1), "max_value_size": 1000}
    async with both(any_server, fresh, "theirs", **options) as (found, theirs), connect(any_server) as nc:
        assert (await found.status()).value_ttl  # it always allows them
        ours = await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, **options))
        await ours.put("k", b"1")
        assert (await theirs.get("k")).value == (await ours.get("k")).value == b"1"
        with pytest.raises(BucketOptionsError, match=r"options: history: wanted 4, it has 3 \(code"):
            await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, **options | {"history": 4}))
        with pytest.raises(BucketOptionsError, match="value_ttl: wanted False, it has True"):
            await nc.jetstream().create_key_value(BucketConfig(bucket=fresh, **options, value_ttl=False))


async def test_each_client_reads_the_values_of_the_other(any_server: str, fresh: str, maker: str) -> None:
    async with both(any_server, fresh, maker, history=5) as (ours, theirs):
        one = await ours.put("a.b", b"1")
        entry = await theirs.get("a.b")
        assert (entry.value, entry.revision, entry.key) == (b"1", one, "a.b")
        two = await theirs.put("a.b", b"2")
        found = await ours.get("a.b", min_last_revision=two)
        assert (found.value, found.revision) == (b"2", two)
        assert (await ours.get("a.b", revision=one)).value == b"1"
        assert (await theirs.get("a.b", revision=two)).value == b"2"
        with pytest.raises(KeyNotFoundError):
            await ours.get("nope")


async def test_each_client_sees_creates_updates_and_deletes_of_the_other(
    any_server: str, fresh: str, maker: str
) -> None:
    async with both(any_server, fresh, maker, history=5) as (ours, theirs):
        revision = await theirs.create("k", b"1")
        with pytest.raises(KeyExistsError):
            await ours.create("k", b"2")
        revision = await ours.update("k", b"2", last=revision)
        with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
            await theirs.update("k", b"3", last=1)
        await theirs.delete("k")
        with pytest.raises(KeyNotFoundError, match="DEL"):
            await ours.get("k")
        with pytest.raises(WrongLastSequenceError):
            await ours.update("k", b"3", last=revision)
        await ours.create("k", b"4")
        assert (await theirs.get("k")).value == b"4"
        await ours.purge("k")
        with pytest.raises(nats.js.errors.KeyNotFoundError):
            await theirs.get("k")
        await theirs.create("k", b"5")
        await theirs.purge("k")
        with pytest.raises(KeyNotFoundError, match="PURGE"):
            await ours.get("k")
        await ours.create("k", b"6")


async def test_both_clients_list_the_same_keys_and_history(any_server: str, fresh: str, maker: str) -> None:
    async with both(any_server, fresh, maker, history=3) as (ours, theirs):
        for n in range(5):
            await ours.put("a", b"%d" % n)
            await theirs.put("b", b"%d" % n)
        await theirs.put("c", b"")
        await theirs.delete("c")
        assert sorted(await ours.keys()) == sorted(await listed(theirs.keys)) == ["a", "b"]
        for key in ("a", "b"):
            mine = await ours.history(key)
            his = await listed(partial(theirs.history, key))
            assert [(e.value, e.revision, e.delta) for e in mine] == [(e.value, e.revision, e.delta) for e in his]
        assert {key: e.value for key, e in (await ours.get_range("*")).items()} == {"a": b"4", "b": b"4"}
        assert {key: e.value for key, e in (await ours.snapshot()).items()} == {"a": b"4", "b": b"4"}
        assert await ours.purge_deletes(older_than=timedelta(0)) == 1
        assert (await ours.status()).values == (await theirs.status()).values


async def test_each_client_watches_changes_of_the_other(any_server: str, fresh: str, maker: str) -> None:
    async with both(any_server, fresh, maker, history=2) as (ours, theirs):
        await ours.put("a", b"1")
        watcher = await theirs.watch("*")
        async with await ours.watch("*") as watch:
            assert [e.key for e in await watch.initial()] == ["a"]
            assert [e.key for e in await watched(watcher, 1)] == ["a"]
            await ours.put("b", b"2")
            await theirs.put("c", b"3")
            await ours.delete("a")
            await theirs.purge("b")
            mine = [await watch.next(timeout=5) for _ in range(4)]
            his = [await watcher.updates(timeout=5) for _ in range(4)]
            assert [(e.key, e.revision) for e in mine if e] == [(e.key, e.revision) for e in his]
            assert [e.operation for e in mine if e] == [
                Operation.PUT, Operation.PUT, Operation.DELETE, Operation.PURGE
            ]  # fmt: skip
        await watcher.stop()


async def test_both_clients_see_the_status_and_the_deletion_of_a_bucket(
    any_server: str, fresh: str, maker: str
) -> None:
    async with both(any_server, fresh, maker, history=7, ttl=timedelta(minutes=1)) as (ours, theirs):
        await ours.put("a", b"1")
        mine, his = await ours.status(), await theirs.status()
        assert (mine.bucket, mine.values, mine.history) == (his.bucket, his.values, his.history) == (fresh, 1, 7)
        assert mine.ttl == timedelta(seconds=his.ttl) == timedelta(minutes=1)
        await ours.destroy()
        with pytest.raises(nats.js.errors.NotFoundError):
            await theirs.status()


async def test_concurrent_updates_of_both_clients_are_all_kept(any_server: str, fresh: str, maker: str) -> None:
    async with both(any_server, fresh, maker) as (ours, theirs):
        await ours.put("n", b"0")

        async def mine() -> None:
            done = 0
            while done < 20:
                entry = await ours.get("n")
                try:
                    await ours.update("n", b"%d" % (int(entry.value) + 1), last=entry.revision)
                except WrongLastSequenceError:
                    continue
                done += 1

        async def his() -> None:
            done = 0
            while done < 20:
                entry = await theirs.get("n")
                try:
                    await theirs.update("n", b"%d" % (int(entry.value) + 1), last=entry.revision)
                except nats.js.errors.KeyWrongLastSequenceError:
                    continue
                done += 1

        await asyncio.gather(mine(), his())
        assert (await ours.get("n")).value == b"40"
